"""Metrics as Prometheus reads them: well-formed, named by its conventions, and saying what the totals say."""

import random
import re
import tempfile

import pytest

from quail_spark.cli import main
from quail_spark.engine import runtime_dir
from quail_spark.engine.evaluator import Counts
from quail_spark.engine.runtime_dir import RuntimeDirectory
from quail_spark.engine.stats import Stats
from quail_spark.prometheus import METRICS, exposition

LABEL = re.compile(r'([a-z_][a-z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
LINE = re.compile(rf"([a-z_:][a-z0-9_:]*)\{{((?:{LABEL.pattern},?)*)\}} (\S+)")


def parse(text: str) -> dict[tuple[str, frozenset], float]:
    """(name, labels) → value, checked as the exposition format (0.0.4) has it."""
    samples: dict[tuple[str, frozenset], float] = {}
    assert text == "" or text.endswith("\n")
    described = []
    for line in text.splitlines():
        if line.startswith("# "):
            _, word, name, _ = line.split(" ", 3)
            described.append((word, name))
            continue
        match = LINE.fullmatch(line)
        assert match, line
        assert described[-2:] == [("HELP", match[1]), ("TYPE", match[1])]  # each metric in one group
        labels = frozenset((key, unescape(value)) for key, value in LABEL.findall(match[2]))
        assert (match[1], labels) not in samples, line
        samples[match[1], labels] = float(match[5])
    assert len(described) == len(set(described))
    return samples


def unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), text)


def engine(rng: random.Random, run: int, operators: list[str], **changes) -> dict:
    totals = {}
    for name in operators:
        asked = [rng.randrange(50, 90) for _ in range(rng.randrange(1, 4))]
        counts = {field: rng.randrange(1000) for field in vars(Counts())}
        counts |= {"asked": asked, "passed": [rng.randrange(n) for n in asked], "seconds": rng.random()}
        totals[name] = {"kind": "filter", "batches": rng.randrange(9), "errors": rng.randrange(9), **counts}
    facts = {"run": run, "pid": 7, "application": "local-1", "model": 'a "b"\\c', "device": "cuda:0", "host": "h"}
    times = {"started": 1.7e9, "load_seconds": 2.5, "busy_seconds": rng.random(), "streams": 3}
    described = {"dtype": "bfloat16", "fp8": None}
    return {**facts, **times, "alive": True, "store": None, "describe": described, "operators": totals, **changes}


def labels_of(engine: dict, **more) -> frozenset:
    own = {"application": engine["application"], "device": engine["device"], "run": str(engine["run"])}
    return frozenset({**own, **more}.items())


@pytest.mark.parametrize("seed", range(3))
def test_every_number_of_the_totals_is_there(seed):
    rng = random.Random(seed)
    names = ["ai_filter-1", 'ai_if: say "x"\nand \\n {0}']
    store = {"answers": 5, "waiting": 1, "written": 4, "dropped": 2, "failures": 3}
    engines = [engine(rng, 1, names, alive=False), engine(rng, 2, names[1:], store=store)]
    samples = parse(exposition(engines))
    fields = {
        "batches": "batches", "items": "rows", "evaluations": "evaluations", "remembered_answers": "remembered",
        "failed_answers": "errors", "fresh_tokens": "fresh_tokens", "reused_tokens": "reused_tokens",
        "recomputed_tokens": "recomputed_tokens", "model_seconds": "seconds",
    }  # fmt: skip
    expected = {}
    for one in engines:
        for name, totals in one["operators"].items():
            own = {"operator": name, "kind": "filter"}
            for metric, field in fields.items():
                expected[f"quail_spark_{metric}_total", labels_of(one, **own)] = totals[field]
            for p, (asked, passed) in enumerate(zip(totals["asked"], totals["passed"], strict=True)):
                for answer, number in (("true", passed), ("false", asked - passed)):
                    labels = labels_of(one, **own, predicate=str(p), answer=answer)
                    expected["quail_spark_answers_total", labels] = number
        facts = {"model": 'a "b"\\c', "dtype": "bfloat16", "fp8": "", "host": "h", "pid": "7"}
        expected["quail_spark_engine_info", labels_of(one, **facts)] = 1
        expected["quail_spark_engine_up", labels_of(one)] = int(one["alive"])
        expected["quail_spark_engine_open_streams", labels_of(one)] = 3 if one["alive"] else 0
        expected["quail_spark_engine_start_time_seconds", labels_of(one)] = 1.7e9
        expected["quail_spark_engine_load_seconds", labels_of(one)] = 2.5
        expected["quail_spark_engine_busy_seconds_total", labels_of(one)] = one["busy_seconds"]
    for metric, field in (("answers", "answers"), ("waiting_answers", "waiting"), ("written_answers_total", "written"),
                          ("dropped_answers_total", "dropped"), ("failures_total", "failures")):  # fmt: skip
        expected[f"quail_spark_store_{metric}", labels_of(engines[1])] = store[field]
    assert samples == expected


def test_names_and_units_are_those_of_prometheus():
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"quail_spark_[a-z_]+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert metric.kind in ("counter", "gauge") and metric.help.endswith(".")
        assert not re.search(r"milli|_ms|minutes|percent|kilo", metric.name)


def test_nothing_ran():
    assert exposition([]) == ""


@pytest.fixture
def no_engines(monkeypatch):
    """A temporary directory of its own, short enough for sockets: a longer one would not be used."""
    with tempfile.TemporaryDirectory(prefix="q", dir="/tmp") as short:
        monkeypatch.setattr(runtime_dir.tempfile, "tempdir", short)
        yield


def test_command(no_engines, capsys):
    """All applications of this machine, or one, from the files that engines write."""
    assert main(["metrics"]) == 0
    assert capsys.readouterr().out == ""
    for application in ("app-1", "app-2"):
        directory = RuntimeDirectory.of(application, "cpu")
        directory.prepare()
        facts = engine(random.Random(1), 4, [], application=application, state="ready")
        del facts["operators"], facts["alive"]
        Stats(directory.stats(4), facts).write()
    assert main(["metrics"]) == 0
    up = {k: v for k, v in parse(capsys.readouterr().out).items() if k[0] == "quail_spark_engine_up"}
    assert [v for v in up.values()] == [0, 0] and {dict(k[1])["application"] for k in up} == {"app-1", "app-2"}
    assert main(["metrics", "--application", "app-2"]) == 0
    assert {dict(labels)["application"] for _, labels in parse(capsys.readouterr().out)} == {"app-2"}
