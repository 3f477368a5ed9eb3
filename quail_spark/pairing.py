"""Inner and left outer AI joins: every anchor meets all its partners, block by block. Executor-side."""

from collections import deque
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from quail_spark.optimizer.plan import TRUE, OperatorSpec

from .blocks import AnchorNumbers, Blocks, PairColumns, Pairs, bounded_pairs
from .engines import task_engine, task_settings
from .failed_rows import FailedRows
from .operators import Batches, texts
from .runs import OUTER, Runs, outcome
from .task_counts import Meter

PAIRS_PER_ROW = 16  # a message holds this many times more pairs of a join than rows of a filter


def run_pairs(spec_json: str, columns: PairColumns, batches: Batches) -> Batches:
    """For each (anchor, block of partners) the pairs whose every predicate is TRUE; in a left outer join also the
    anchors without such a pair, at the end of their run."""
    spec, conf = OperatorSpec.from_json(spec_json), task_settings()[0]
    failed, meter = FailedRows(conf["onError"], spec), Meter(spec.name)
    waiting: deque[Pairs] = deque()
    numbers, blocks = AnchorNumbers(), Blocks(columns)

    def requests() -> Iterator[tuple]:
        for batch in batches:
            for part in bounded_pairs(batch, columns, PAIRS_PER_ROW * conf["batch.rows"], conf["batch.bytes"]):
                pairs = Pairs(part, columns)
                waiting.append(pairs)
                anchors = texts(part, columns.anchor.texts)
                ids = numbers.of(anchors) if columns.anchor.texts else [0] * part.num_rows
                yield anchors, ids, blocks.of(pairs)

    alone = Alone(columns) if columns.kind in OUTER else None

    def joined() -> Batches:
        for answers in task_engine().pairs(spec, requests()):
            meter.took(answers)
            pairs = waiting.popleft()
            failed.check(answers, lambda item, p, pairs=pairs: pairs.text(spec, item, p))
            true = (answers.codes == TRUE).all(axis=1)
            yield pairs.select(np.flatnonzero(true))
            if alone:
                yield from alone.after(pairs, true)
        if alone:
            yield from alone.rest()
        failed.finish()

    yield from meter.given(joined())


class Alone:
    """The rows of a left outer join for anchors that no partner answered TRUE."""

    def __init__(self, columns: PairColumns):
        self._columns, self._runs = columns, Runs(columns.run, columns.kind == "single")
        self._partner: list[pa.Field] = []

    def after(self, pairs: Pairs, true: np.ndarray) -> Batches:
        """Of the runs that end within these pairs, answered `true` (bool [pairs])."""
        self._partner = [pairs.partners.schema.field(name) for name in self._columns.partner.kept]
        heads = pairs.batch.select([self._columns.run, *self._columns.anchor.kept])
        yield from map(self._rows, self._runs.ended(heads, pairs.by_row(true)))

    def rest(self) -> Batches:
        """Of the last run."""
        yield from map(self._rows, self._runs.rest())

    def _rows(self, ended: tuple[pa.RecordBatch, np.ndarray]) -> pa.RecordBatch:
        return outcome(self._columns.kind, *ended, self._columns.anchor.kept, self._partner)
