"""What a join that is not inner does with an anchor once all of its partners are known. Executor-side.

All rows of one anchor are adjacent and bear one number: a run, which may span batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quail_spark.optimizer.errors import RowError

from .operators import Batches, select

OUTER = ("left", "single")  # kinds that give pairs, and anchors without one


class Runs:
    """Notices where runs end, and whether one of their rows was TRUE."""

    def __init__(self, run: str, single: bool = False):
        """`run` names the column with the run's number. `single`: two TRUE rows in a run are an error."""
        self._name, self._single = run, single
        self._open: pa.RecordBatch | None = None  # a row of the last run
        self._hits = 0

    def ended(self, batch: pa.RecordBatch, hits: np.ndarray) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        """Take the next rows and how many TRUEs each stands for (`hits`, int [rows]). Yields the first rows of runs that
        have ended, and which of these were hit (bool [runs]). Raises RowError as `single` says."""
        if not batch.num_rows:
            return
        numbers = batch.column(self._name).to_numpy(zero_copy_only=False)
        starts = np.flatnonzero(np.concatenate([[True], numbers[1:] != numbers[:-1]]))
        total = np.add.reduceat(hits, starts)
        if self._open is not None and self._open.column(self._name)[0].as_py() == numbers[0]:
            total[0] += self._hits
        else:
            yield from self.rest()
        if self._single and total.max() > 1:
            raise RowError("a scalar subquery gave more than one row for a row of the query; accepted: none or one")
        firsts = batch.take(pa.array(starts))
        yield firsts.slice(0, len(starts) - 1), total[:-1] > 0
        self._open, self._hits = firsts.slice(len(starts) - 1), int(total[-1])

    def rest(self) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
        """The last run, when no more rows come."""
        if self._open is not None:
            yield self._open, np.array([self._hits > 0])


def outcome(
    kind: str, anchors: pa.RecordBatch, hit: np.ndarray, kept: tuple[str, ...], partner: list[pa.Field]
) -> pa.RecordBatch:
    """The rows that a join of `kind` gives for anchors all of whose partners were asked; hit: one answered TRUE.

    left and single: anchors without a hit, NULL in place of the columns `partner`; semi and anti: anchors with and without a hit;
    existence: all anchors and whether they were hit.
    """
    if kind == "existence":
        arrays = [*(anchors.column(name) for name in kept), pa.array(hit)]
        return pa.RecordBatch.from_arrays(arrays, names=[*kept, "exists"])
    rows = select(anchors, kept).filter(pa.array(hit if kind == "semi" else ~hit))
    if kind not in OUTER or not partner:
        return rows
    arrays = [*(rows.column(name) for name in kept), *(pa.nulls(rows.num_rows, field.type) for field in partner)]
    return pa.RecordBatch.from_arrays(arrays, names=[*kept, *(field.name for field in partner)])


@dataclass(frozen=True)
class FlatColumns:
    """Input of `run_deciding`: one row per pair, with the answer of the whole condition in `flag`."""

    kind: str
    anchor: tuple[str, ...]
    partner: tuple[str, ...]
    run: str = "run"
    flag: str = "flag"


def run_deciding(columns: FlatColumns, batches: Batches) -> Batches:
    """A join of any kind over pairs whose condition has been answered; an anchor without a partner comes with FALSE."""
    runs = Runs(columns.run, columns.kind == "single")
    partner: list[pa.Field] = []
    for batch in batches:
        partner = [batch.schema.field(name) for name in columns.partner]
        hits = pc.fill_null(batch.column(columns.flag), False).to_numpy(zero_copy_only=False)
        if columns.kind in OUTER:
            yield select(batch, columns.anchor + columns.partner).filter(pa.array(hits))
        for anchors, hit in runs.ended(batch.select([columns.run, *columns.anchor]), hits.astype(int)):
            yield outcome(columns.kind, anchors, hit, columns.anchor, partner)
    for anchors, hit in runs.rest():
        yield outcome(columns.kind, anchors, hit, columns.anchor, partner)
