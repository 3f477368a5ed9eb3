"""Answers that outlive the engine: what is stored is found, whoever writes, merges or is killed meanwhile."""

import os
import random
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quail_spark.engine import answer_store
from quail_spark.engine.answer_files import AnswerFiles, Run, check_location
from quail_spark.engine.answer_store import AnswerStore
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.factory import make_evaluator
from quail_spark.engine.memory import AnswerMemory
from quail_spark.optimizer.errors import ConfigError
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """No waiting between looks at the directory; writes only when asked."""
    monkeypatch.setattr(answer_store, "LEAST_REFRESH", 0.0)
    monkeypatch.setattr(answer_store, "FLUSH_SECONDS", 60.0)


@pytest.fixture
def store_of(tmp_path):
    """Makes stores below one directory, each like an engine's of its own."""
    made = []

    def make(identity="model", location=None):
        made.append(AnswerStore(str(location or tmp_path / "store"), identity))
        return made[-1]

    yield make
    for store in made:
        store.close()


def answers(rng: random.Random, count: int) -> dict[bytes, float]:
    """Keys that end in zeros or share their first half, among others; equal keys have equal margins."""
    starts = [rng.randbytes(8) for _ in range(3)]
    kinds = (
        lambda: rng.randbytes(16),
        lambda: rng.randbytes(rng.randrange(1, 16)).ljust(16, b"\0"),
        lambda: rng.choice(starts) + rng.randbytes(8),
    )
    keys = [rng.choice(kinds)() for _ in range(count)]
    return {key: (sum(key) - 1000) / 8 for key in keys}


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "store").glob("*/answers-*.parquet"))


def stored(tmp_path: Path) -> dict[bytes, float]:
    """What the files hold, read without our code; each key once."""
    tables = [pq.read_table(path) for path in files(tmp_path)]
    pairs = [pair for t in tables for pair in zip(t["key"].to_pylist(), t["margin"].to_pylist(), strict=True)]
    return dict(pairs)


@pytest.mark.parametrize("seed", range(3))
def test_runs_find_what_a_dictionary_finds(seed):
    rng = random.Random(seed)
    parts = [answers(rng, rng.choice([0, 1, 2, 300])) for _ in range(5)]
    repeated = [dict(rng.sample(sorted(part.items()), len(part) // 2)) for part in parts]
    naive = {key: margin for part in parts for key, margin in part.items()}
    run = Run.merged([Run.of_dict(part) for part in parts + repeated])
    asked = [*naive, *answers(rng, 200), b"\0" * 16, b"\xff" * 16]
    rng.shuffle(asked)
    assert run.find(asked) == {key: naive[key] for key in asked if key in naive}
    assert len(run) == len(naive)


@pytest.mark.parametrize("seed", range(3))
def test_what_was_added_is_found_by_this_engine_and_by_the_next(seed, store_of, tmp_path, monkeypatch):
    monkeypatch.setattr(answer_store, "FLUSH_ANSWERS", 40)
    rng = random.Random(seed)
    first, naive = store_of(), {}
    for _ in range(30):
        part = answers(rng, rng.randrange(20))
        first.add(part)
        naive |= part
        asked = rng.sample(list(naive), min(20, len(naive))) + list(answers(rng, 5))
        assert first.find(asked) == {key: naive[key] for key in asked if key in naive}
    first.close()
    assert stored(tmp_path) == naive
    second = store_of()
    assert second.find(naive) == {}  # nothing is read before it is wanted
    second.refresh()
    assert second.find([*naive, b"?" * 16]) == naive
    assert second.facts() | {"location": ""} == {
        "location": "", "answers": len(naive), "written": 0, "waiting": 0, "dropped": 0, "failures": 0, "failure": None,
    }  # fmt: skip


def test_engines_that_run_at_the_same_time_see_each_other(store_of):
    one, other = store_of(), store_of()
    one.add({b"a" * 16: 1.5})
    one._flush()
    other.refresh()
    assert other.find([b"a" * 16]) == {b"a" * 16: 1.5}


def test_models_do_not_see_each_other(store_of):
    one = store_of("model one")
    one.add({b"a" * 16: 1.5})
    one.close()
    other = store_of("model two")
    other.refresh()
    assert len(other) == 0


def test_writers_and_mergers_at_the_same_time_lose_nothing(store_of, tmp_path, monkeypatch):
    monkeypatch.setattr(answer_store, "MERGE_FILES", 3)
    parts = [answers(random.Random(seed), 400) for seed in range(4)]
    stores = [store_of() for _ in parts]

    def work(store, part):
        items = list(part.items())
        for start in range(0, len(items), 20):
            store.add(dict(items[start : start + 20]))
            store._flush()
            store.refresh()
            store._merge()

    threads = [threading.Thread(target=work, args=pair) for pair in zip(stores, parts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    naive = {key: margin for part in parts for key, margin in part.items()}
    assert stored(tmp_path) == naive
    late = store_of()
    late.refresh()
    assert late.find(naive) == naive
    assert all(store.facts()["failures"] == 0 for store in stores)


def test_many_small_files_become_few(store_of, tmp_path, monkeypatch):
    naive = {}
    for seed in range(answer_store.MERGE_FILES + 3):
        part = answers(random.Random(seed), 5)
        AnswerFiles(str(tmp_path / "store"), "model").write(Run.of_dict(part))
        naive |= part
    store = store_of()
    store.refresh()
    before = {path.name: path.read_bytes() for path in files(tmp_path)}
    store.save_soon()  # its thread merges after writing
    for _ in range(6000):
        if len(files(tmp_path)) == 1:
            break
        threading.Event().wait(0.01)
    (merged,) = files(tmp_path)
    assert merged.name not in before and stored(tmp_path) == naive
    monkeypatch.setattr(answer_store, "MERGE_ANSWERS", 12)  # bounded: the rest at another time
    for seed in range(100, 104):
        AnswerFiles(str(tmp_path / "store"), "model").write(Run.of_dict(answers(random.Random(seed), 5)))
    store.refresh()
    store._merge()
    assert len(files(tmp_path)) == 4


def test_a_file_that_is_not_whole_is_left_out(store_of, tmp_path, caplog):
    first = store_of()
    for part in ({b"a" * 16: 1.0}, {b"b" * 16: 2.0}, {b"c" * 16: 3.0}):
        first.add(part)
        first._flush()
    cut, foreign, _ = files(tmp_path)
    cut.write_bytes(cut.read_bytes()[:-7])
    pq.write_table(pa.table({"key": ["text"], "margin": [1.0]}), foreign)
    (cut.parent / ".answers-1-draft.parquet").write_bytes(b"half a file")
    (cut.parent / "notes.txt").write_text("not ours")
    second = store_of()
    second.refresh()
    assert second.find([letter * 16 for letter in (b"a", b"b", b"c")]) == {b"c" * 16: 3.0}
    assert caplog.text.count("can't be read and are left out") == 2
    assert second.facts()["failures"] == 0
    assert cut.exists() and foreign.exists()  # it is not for us to delete them


def test_a_file_with_a_wrong_bit_is_left_out(store_of, tmp_path):
    """Wherever it is, in pages or in what describes them."""
    rng = random.Random()
    written = {rng.randbytes(16): rng.gauss(0, 3) for _ in range(400)}
    first = store_of()
    first.add(written)
    first._flush()
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    found = store_of()
    found.refresh()
    assert found.find(list(written)) == pytest.approx(written, rel=1e-6)
    for _ in range(40):
        place = rng.choice([rng.randrange(len(whole)), rng.randrange(len(whole) - 700, len(whole))])
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :])
        read = store_of()
        read.refresh()
        assert {key: written[key] for key in read.find(list(written))} == pytest.approx(
            read.find(list(written)), rel=1e-6
        )


def test_margins_that_are_no_numbers_are_computed_again(store_of, tmp_path):
    files_ = AnswerFiles(str(tmp_path / "store"), "model")
    files_.write(Run.of_dict({b"a" * 16: float("nan"), b"b" * 16: float("inf"), b"c" * 16: -2.5}))
    store = store_of()
    store.refresh()
    assert store.find([letter * 16 for letter in (b"a", b"b", b"c")]) == {b"c" * 16: -2.5}


def test_drafts_of_killed_writers_go_at_the_next_merge(store_of, tmp_path):
    store = store_of()
    for letter in (b"a", b"b"):
        store.add({letter * 16: 1.0})
        store._flush()
    old, young = (files(tmp_path)[0].parent / f".answers-{age}.parquet" for age in ("old", "young"))
    for draft in (old, young):
        draft.write_bytes(b"half a file")
    os.utime(old, (1e9, 1e9))
    store._merge()
    assert not old.exists() and young.exists()


def test_a_file_that_is_merged_while_it_is_to_be_read_is_found_in_the_new_one(store_of, tmp_path, monkeypatch):
    writer = store_of()
    for letter in (b"a", b"b"):
        writer.add({letter * 16: 1.0})
        writer._flush()
    reader, names = store_of(), AnswerFiles.names

    def late(self):
        found = names(self)
        writer._merge()
        return found

    monkeypatch.setattr(AnswerFiles, "names", late)
    reader.refresh()
    assert len(reader.find([b"a" * 16, b"b" * 16])) == 2


def test_the_job_goes_on_when_nothing_can_be_written(store_of, tmp_path, caplog, monkeypatch):
    store, failing = store_of(), True
    write = AnswerFiles.write

    def sometimes(self, run):
        if failing:
            raise OSError("no space left")
        return write(self, run)

    monkeypatch.setattr(AnswerFiles, "write", sometimes)
    monkeypatch.setattr(answer_store, "MOST_PENDING", 3)
    for i in range(5):
        store.add({bytes([i]) * 16: 1.0})
        assert not store._flush()
    assert store.find([b"\0" * 16, b"\4" * 16]) == {b"\0" * 16: 1.0}
    assert caplog.text.count("no space left") == 1
    facts = store.facts()
    assert (facts["failures"], facts["waiting"], facts["dropped"], facts["written"]) == (5, 3, 2, 0)
    assert "could not be written: no space left" in facts["failure"]
    failing = False
    store.close()
    assert len(stored(tmp_path)) == 3 and store.facts()["waiting"] == 0


def test_the_job_goes_on_when_nothing_can_be_read(store_of, monkeypatch, caplog):
    store = store_of()
    monkeypatch.setattr(AnswerFiles, "names", lambda self: exec("raise RuntimeError('gone')"))
    store.refresh()
    store.refresh()
    assert store.find([b"a" * 16]) == {} and store.facts()["failures"] == 2 and caplog.text.count("gone") == 1


def test_memory_is_bounded(store_of, monkeypatch, caplog):
    writer = store_of()
    for seed in range(20):
        writer.add(answers(random.Random(seed), 10))
        writer._flush()
    monkeypatch.setattr(answer_store, "MOST_ANSWERS", 50)
    reader = store_of()
    reader.refresh()
    reader.refresh()
    assert 50 <= len(reader) <= 50 + 10 * answer_store._READ_AT_ONCE
    newest = answers(random.Random(19), 10)
    assert reader.find(newest) == newest
    assert caplog.text.count("further ones of") == 1


def test_time_and_number_make_it_write(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_store, "FLUSH_SECONDS", 0.05)
    store = AnswerStore(str(tmp_path / "store"), "model")
    store.add({b"a" * 16: 1.0})
    wait_for(lambda: len(stored(tmp_path)) == 1)
    store.close()
    monkeypatch.setattr(answer_store, "FLUSH_SECONDS", 60.0)
    monkeypatch.setattr(answer_store, "FLUSH_ANSWERS", 10)
    store = AnswerStore(str(tmp_path / "store"), "model")
    store.add({bytes([i]) * 16: 1.0 for i in range(9)})
    assert not threading.Event().wait(0.2) and len(stored(tmp_path)) == 1
    store.add({b"z" * 16: 1.0})
    wait_for(lambda: len(stored(tmp_path)) == 11)
    store.close()


def wait_for(condition):
    for _ in range(6000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen in time")


def test_memory_without_capacity_still_uses_the_store(store_of):
    memory = AnswerMemory(0, store_of())
    memory.add({b"a" * 16: 1.0})
    assert memory.find([b"a" * 16, b"b" * 16]) == {b"a" * 16: 1.0} and len(memory) == 0


@pytest.mark.parametrize("uri", [False, True])
def test_a_location_is_made(tmp_path, uri):
    path = tmp_path / "new" / "store"
    check_location(path.as_uri() if uri else str(path))
    assert path.is_dir() and not list(path.iterdir())


@pytest.mark.parametrize("location", ["{tmp}/file", "{tmp}/file/below", "nosuchscheme://bucket/x"])
def test_a_location_that_cannot_be_used_fails_the_start(tmp_path, location):
    (tmp_path / "file").write_text("")
    location = location.format(tmp=tmp_path)
    with pytest.raises(ConfigError) as caught:
        make_evaluator(EngineConfig("scripted://hash", answer_store=location))
    assert f"spark.quail.answerStore is {location!r}" in str(caught.value) and "accepted:" in str(caught.value)


@pytest.mark.parametrize("location", ["answers", "./answers", "~/answers"])
def test_a_relative_path_is_refused(location):
    with pytest.raises(ConfigError, match="accepted: an absolute path, or a URI"):
        EngineConfig("scripted://hash", answer_store=location)


@pytest.mark.parametrize("location", ["s3://me:XYZZY@bucket/a", "s3://bucket/a?secret_key=XYZZY", "gs://XYZZY@bucket"])
def test_credentials_are_refused_and_not_repeated(location):
    with pytest.raises(ConfigError, match="credentials") as caught:
        EngineConfig("scripted://hash", answer_store=location)
    assert "XYZZY" not in str(caught.value)


# A whole operator over the scripted model: every row is asked both questions.

SPEC = OperatorSpec("op", "answers", tuple(Predicate(t, (Argument(0),)) for t in ("{0} is new", "{0} is odd")))
MODEL = "scripted://hash?seed=5"


def run(location: Path, model=MODEL, rows=range(200)):
    evaluator = make_evaluator(EngineConfig(model, answer_store=str(location)))
    session = evaluator.open(SPEC)
    answers = session.rows([[f"text {i}"] for i in rows])
    session.close()
    evaluator.close()
    return answers


def test_a_second_engine_computes_nothing(tmp_path):
    first = run(tmp_path / "store")
    again = run(tmp_path / "store", MODEL + "&delay_ms=1&calls=false")  # which answers do not depend on
    assert first.counts.evaluations == len(stored(tmp_path)) == 400
    assert (again.counts.evaluations, again.counts.fresh_tokens, again.counts.remembered) == (0, 0, 400)
    assert again.counts.reused_tokens == first.counts.fresh_tokens
    assert (again.codes == first.codes).all() and (again.margins == first.margins).all()


def test_only_what_is_new_is_computed(tmp_path):
    run(tmp_path / "store", rows=range(120))
    more = run(tmp_path / "store", rows=range(50, 200))
    assert (more.counts.evaluations, more.counts.remembered) == (2 * 80, 2 * 70)
    assert len(stored(tmp_path)) == 400


def test_failures_are_not_stored(tmp_path):
    failing = [i for i in range(200) if "7" in str(i)]
    first = run(tmp_path / "store", MODEL + "&fail_containing=7")
    assert len(first.errors) == 2 * len(failing) and len(stored(tmp_path)) == 400 - 2 * len(failing)
    again = run(tmp_path / "store")
    assert not again.errors and again.counts.evaluations == 2 * len(failing)


@pytest.mark.parametrize("model", ["scripted://hash?seed=6", "scripted://hash?seed=5&rate=0.6", "scripted://overlap"])
def test_another_model_computes_its_own(tmp_path, model):
    run(tmp_path / "store")
    assert run(tmp_path / "store", model).counts.evaluations == 400
    assert run(tmp_path / "store").counts.evaluations == 0
