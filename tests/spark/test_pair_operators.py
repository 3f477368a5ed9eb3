"""AI joins as the worker runs them, against plain Python, on random batches and with the scripted evaluator in process."""

import random
from collections import Counter, deque

import pyarrow as pa
import pytest

from quail_spark import matching, pairing
from quail_spark.blocks import PairColumns
from quail_spark.conf import QuailConf
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.scripted import ScriptedEvaluator, scripted_answer
from quail_spark.engine.wire import Codec
from quail_spark.operators import RowColumns
from quail_spark.optimizer.errors import RowError
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate

MODEL = "scripted://hash?rate={rate}&seed={seed}"


class Engine:
    """The client's stream without its process: messages go through the wire format, at most `window` unanswered."""

    def __init__(self, model: str, window: int, memory: int = 0):
        self.evaluator = ScriptedEvaluator(EngineConfig(model, "cpu", answer_memory=memory))
        self.window, self.messages = window, 0

    def pairs(self, spec, batches):
        session, codec, waiting, source = self.evaluator.open(spec), Codec(spec), deque(), iter(batches)
        exhausted = False
        while True:
            while not exhausted and len(waiting) < self.window:
                try:
                    waiting.append(codec.encode(next(source)))
                    self.messages += 1
                except StopIteration:
                    exhausted = True
            if not waiting:
                return
            message = waiting.popleft()
            yield codec.decode_answers(*codec.encode_answers(codec.answer(session, message.data, message.metadata)))


@pytest.fixture
def run(monkeypatch):
    """Run a join over batches with a model; the engine is returned too."""

    def run(spec, columns, batches, model, window=4, **settings):
        engine = Engine(model, window)
        conf = QuailConf({f"spark.quail.{name}": value for name, value in settings.items()})
        operator = pairing.run_pairs if columns.kind in ("inner", "left") else matching.run_matching
        for module in (pairing, matching):
            monkeypatch.setattr(module, "task_engine", lambda: engine)
            monkeypatch.setattr(module, "task_settings", lambda: (conf, "test"))
        rows = [
            tuple(row.values()) for out in operator(spec.to_json(), columns, iter(batches)) for row in out.to_pylist()
        ]
        return rows, engine

    return run


class Case:
    """A random join: anchors, blocks, the rows as Spark sends them cut into batches."""

    def __init__(self, seed: int):
        draw = self.draw = random.Random(seed)
        self.seed, self.rate = seed, draw.choice([0.02, 0.3, 0.9])
        word = lambda: draw.choice([None, "", *(f"w{n} " * n for n in range(1, 9))])  # noqa: E731
        self.anchors = [(i, word()) for i in range(draw.choice([0, 1, 7, 40]))]
        self.blocks = [
            [(100 * b + j, word()) for j in range(draw.randint(1, 30))] for b in range(draw.choice([0, 1, 3]))
        ]
        self.numbered = draw.random() < 0.5
        self.predicates = draw.choice(
            [("{0} {1} a",), ("{1} {0} a", "{0} b {1}"), ("{0} only",), ("{1} only", "{0} {1} c")]
        )

    def own(self, anchor):
        """The blocks that an anchor meets; without numbers each has chosen its own partners."""
        if self.numbered:
            return self.blocks
        return [[p for p in block if (p[0] + anchor[0]) % 3] for block in self.blocks]

    def batches(self):
        rows = []
        for run, anchor in enumerate(self.anchors):
            blocks = [(n, b) for n, b in enumerate(self.own(anchor))] or [(None, None)]
            rows += [
                (*anchor, run * 5, [dict(zip(("p", "pt"), p, strict=True)) for p in b] if b is not None else None, n)
                for n, b in blocks
            ]
        struct = pa.list_(pa.struct([("p", pa.int32()), ("pt", pa.string())]))
        schema = pa.schema(
            [("a", pa.int32()), ("at", pa.string()), ("run", pa.int64()), ("block", struct), ("number", pa.int64())]
        )
        while rows:
            size = self.draw.randint(1, 9)
            part, rows = rows[:size], rows[size:]
            yield pa.RecordBatch.from_arrays(
                [pa.array(c, f.type) for c, f in zip(zip(*part, strict=True), schema, strict=True)], schema=schema
            )

    def spec(self):
        arguments = (Argument(0), Argument(0, partner=True))
        return OperatorSpec("test", "pairs", tuple(Predicate(t, arguments) for t in self.predicates))

    def columns(self, kind):
        partner = ("p",) if kind in ("inner", "left") else ()
        number = "number" if self.numbered else None
        return PairColumns(RowColumns(("at",), ("a",)), RowColumns(("pt",), partner), kind, number=number)

    def ask(self, anchor, partner):
        texts = (anchor[1], partner[1])
        asked = [[texts[i] for i in (0, 1) if f"{{{i}}}" in t] for t in self.predicates]
        if any(None in t for t in asked):
            return False
        if self.predicates[0].startswith("{1} {0}"):
            asked[0].reverse()
        return all(scripted_answer(t, a, self.rate, self.seed) for t, a in zip(self.predicates, asked, strict=True))

    def expected(self, kind):
        found = []
        for anchor in self.anchors:
            hits = [p for block in self.own(anchor) for p in block if self.ask(anchor, p)]
            if kind in ("inner", "left"):
                found += [(anchor[0], p[0]) for p in hits]
            if kind == "existence":
                found.append((anchor[0], bool(hits)))
            if (kind == "semi" and hits) or (kind == "anti" and not hits):
                found.append((anchor[0],))
            if kind == "left" and not hits:
                found.append((anchor[0], None))
        return found


@pytest.mark.parametrize("kind", ["inner", "left", "semi", "anti", "existence"])
@pytest.mark.parametrize("seed", range(40))
def test_every_kind(run, kind, seed):
    case = Case(seed)
    settings = {"batch.rows": str(case.draw.choice([1, 3, 256])), "batch.bytes": str(case.draw.choice([40, 1 << 20]))}
    model = MODEL.format(rate=case.rate, seed=seed)
    rows, _ = run(case.spec(), case.columns(kind), case.batches(), model, case.draw.randint(1, 5), **settings)
    assert Counter(rows) == Counter(case.expected(kind))
    if kind in ("semi", "anti", "existence"):
        assert [row[0] for row in rows] == sorted(row[0] for row in rows), "anchors keep their order"


@pytest.mark.parametrize("held", [1, 1 << 20])
def test_little_room_for_undecided_anchors(run, monkeypatch, held):
    monkeypatch.setattr(matching, "WAITING_BYTES", held)
    for seed in range(20):
        case = Case(seed)
        model = MODEL.format(rate=case.rate, seed=seed)
        rows, _ = run(case.spec(), case.columns("semi"), case.batches(), model, **{"batch.rows": "1"})
        assert rows == case.expected("semi")


@pytest.mark.parametrize("first", [0, 1, 3, 5, 20, 99, None])
def test_work_after_the_first_true_is_bounded(run, first):
    """A partner at `first` is the one with a TRUE: at most as many again are asked, or the smallest round."""
    struct = pa.list_(pa.struct([("pt", pa.string())]))
    partners = [{"pt": f"{'yes' if n == first else 'no'} {n}"} for n in range(100)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1]), pa.array(["x"]), pa.array([0]), pa.array([partners], struct), pa.array([0])],
        names=["a", "at", "run", "block", "number"],
    )
    spec = OperatorSpec("test", "pairs", (Predicate("{1} {0}", (Argument(0), Argument(0, partner=True))),))
    columns = PairColumns(RowColumns(("at",), ("a",)), RowColumns(("pt",), ()), "semi", number="number")
    rows, engine = run(spec, columns, [batch], "scripted://contains?word=yes")
    asked = len(engine.evaluator.calls)
    if first is None:
        assert (rows, asked) == ([], 100)
    else:
        assert rows == [(1,)]
        assert first < asked <= min(100, matching.FIRST_ROUND + 2 * first)


def test_a_long_anchor_asks_about_its_own_length():
    assert matching.first_round(4000, 40.0) == 100
    assert matching.first_round(10, 40.0) == matching.first_round(0, 0.0) == matching.FIRST_ROUND


def test_equal_rounds_of_anchors_cross_once(run):
    case = Case(1)
    case.anchors = [(i, f"anchor {i}") for i in range(30)]
    case.blocks, case.numbered = [[(j, f"partner {j}") for j in range(20)]], True
    seen = []
    encode = Codec.encode

    def spy(self, batch):
        seen.append((len(batch[1]), len({id(block) for block in batch[2]})))
        return encode(self, batch)

    Codec.encode = spy
    try:
        run(case.spec(), case.columns("semi"), case.batches(), MODEL.format(rate=0.01, seed=3))
    finally:
        Codec.encode = encode
    assert max(anchors for anchors, _ in seen) > 10
    assert all(blocks <= 4 for _, blocks in seen)


FAILS = "scripted://contains?word=yes&fail_containing=bad"


@pytest.mark.parametrize("kind", ["left", "semi", "anti", "existence"])
def test_failing_pairs(run, kind):
    struct = pa.list_(pa.struct([("p", pa.int32()), ("pt", pa.string())]))
    block = [{"p": 0, "pt": "bad"}, {"p": 1, "pt": "yes"}]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 2]), pa.array(["x", "bad too"]), pa.array([0, 1]), pa.array([block, block], struct)],
        names=["a", "at", "run", "block"],
    )
    spec = OperatorSpec("test", "pairs", (Predicate("{1} {0}", (Argument(0), Argument(0, partner=True))),))
    partner = ("p",) if kind == "left" else ()
    columns = PairColumns(RowColumns(("at",), ("a",)), RowColumns(("pt",), partner), kind)
    with pytest.raises(RowError, match="starts with 'bad'"):
        run(spec, columns, [batch], FAILS)
    rows, _ = run(spec, columns, [batch], FAILS, onError="null")
    assert (
        rows
        == {"left": [(1, 1), (2, None)], "semi": [(1,)], "anti": [(2,)], "existence": [(1, True), (2, False)]}[kind]
    )


@pytest.mark.parametrize("kind", ["semi", "anti", "existence"])
@pytest.mark.parametrize("partners", [["bad", "yes"], ["yes", "bad"], ["no", "bad", "bad", "no", "no", "yes"]])
def test_a_failing_partner_does_not_matter_beside_a_true_one(run, kind, partners):
    struct = pa.list_(pa.struct([("pt", pa.string())]))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1]), pa.array(["x"]), pa.array([0]), pa.array([[{"pt": text} for text in partners]], struct)],
        names=["a", "at", "run", "block"],
    )
    spec = OperatorSpec("test", "pairs", (Predicate("{1} {0}", (Argument(0), Argument(0, partner=True))),))
    columns = PairColumns(RowColumns(("at",), ("a",)), RowColumns(("pt",), ()), kind)
    rows, _ = run(spec, columns, [batch], FAILS)
    assert rows == {"semi": [(1,)], "anti": [], "existence": [(1, True)]}[kind]
