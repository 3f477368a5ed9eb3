"""Semi, anti and existence AI joins: an anchor's partners are asked in growing rounds until one answers TRUE. Executor-side.

A round asks the next partners of many anchors at once. Its answers decide who takes part in the next one, so rounds of
some anchors are on their way to the engine while others are answered.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import pyarrow as pa

from quail_spark.engine.evaluator import Answers
from quail_spark.optimizer.plan import TRUE, OperatorSpec

from .blocks import Blocks, PairColumns, Pairs, bounded_pairs, first_text
from .conf import QuailConf
from .engines import task_engine, task_settings
from .failed_rows import FailedRows
from .operators import Batches, text_bytes
from .pairing import PAIRS_PER_ROW
from .runs import outcome
from .task_counts import Meter

KINDS = ("semi", "anti", "existence")
FIRST_ROUND = 4  # partners in an anchor's first round, at least; each later round is twice as large
WAITING_BYTES = 64 << 20  # of anchors (and their own blocks) that are not decided; more only when nothing can be asked


def run_matching(spec_json: str, columns: PairColumns, batches: Batches) -> Batches:
    """For each anchor whether a partner answered TRUE to every predicate, as rows of the join's kind."""
    spec, conf = OperatorSpec.from_json(spec_json), task_settings()[0]
    failed, meter = FailedRows(conf["onError"], spec), Meter(spec.name)
    search = Search(spec, columns, batches, conf)

    def anchors() -> Batches:
        for answers in task_engine().pairs(spec, search.requests()):
            meter.took(answers)
            failed.count(answers)
            search.take(answers)
            yield from search.decided(failed)
        yield from search.decided(failed)
        failed.finish()

    yield from meter.given(anchors())


@dataclass(eq=False)
class Source:
    """Anchors that came together: one row each. `size` bytes are held until none of them is `open`."""

    rows: pa.RecordBatch
    size: int
    open: int


@dataclass(eq=False, slots=True)
class Anchor:
    """One anchor and the blocks of partners that it still has to ask; `asked` counts within the first of them."""

    source: Source
    place: int
    number: int
    blocks: deque = field(default_factory=deque)  # of texts
    asked: int = 0
    round: int = 0  # partners in the next round; 0: none was asked yet
    busy: bool = False  # ready to ask, or waiting for answers
    hit: bool = False
    complete: bool = False  # no more blocks will come
    failure: tuple | None = None  # the first partner that could not be answered: its text, the predicate, why

    @property
    def decided(self) -> bool:
        """Whether it is known if a partner answers TRUE."""
        return self.hit or (self.complete and not self.busy)


@dataclass(frozen=True)
class Chunk:
    """One round of one anchor: partners `start` … `start + length - 1` of a block."""

    anchor: Anchor
    block: pa.RecordBatch | list
    start: int
    length: int

    @property
    def key(self) -> tuple[int, int, int]:
        """Equal for equal partners, while both chunks live."""
        return id(self.block), self.start, self.length

    @property
    def partners(self) -> pa.RecordBatch | list:
        """Their texts."""
        if isinstance(self.block, list):
            return self.block[self.start : self.start + self.length]
        return self.block.slice(self.start, self.length)


class Search:
    """The anchors of one task, from their arrival to the decision."""

    def __init__(self, spec: OperatorSpec, columns: PairColumns, batches: Batches, conf: QuailConf):
        self._spec, self._columns = spec, columns
        self._most_pairs, self._most_bytes = PAIRS_PER_ROW * conf["batch.rows"], conf["batch.bytes"]
        self._parts = (p for b in batches for p in bounded_pairs(b, columns, self._most_pairs, self._most_bytes))
        self._blocks = Blocks(columns)
        self._open: deque[Anchor] = deque()  # not yet given out, in order of arrival
        self._ready: deque[Anchor] = deque()  # with a round to ask
        self._asked: deque[list[Chunk]] = deque()  # messages without answers
        self._last: tuple[int, Anchor] | None = None  # the run that may go on in the next part
        self._numbers = self._held = 0

    def requests(self) -> Iterator[tuple]:
        """Messages for the engine. One without anchors where all rounds wait for answers that are on their way."""
        while self._ready or any(self._asked) or self._admit():
            chunks = self._next_chunks()
            self._asked.append(chunks)
            yield self._message(chunks)

    def take(self, answers: Answers) -> None:
        """The answers to the oldest message."""
        chunks = self._asked.popleft()
        starts = np.cumsum([0, *(chunk.length for chunk in chunks)])
        for item, predicate, message in answers.errors:
            index = int(np.searchsorted(starts, item, side="right")) - 1
            text = self._text(chunks[index], item - int(starts[index]), predicate)
            anchor = chunks[index].anchor
            anchor.failure = anchor.failure or (text, predicate, message)
        true = (answers.codes == TRUE).all(axis=1)
        again = []
        for chunk, start in zip(chunks, starts, strict=False):
            anchor = chunk.anchor
            anchor.hit = bool(true[start : start + chunk.length].any())
            if anchor.hit:
                anchor.blocks.clear()
            anchor.busy = bool(anchor.blocks)
            if anchor.busy:
                again.append(anchor)
        self._ready.extendleft(reversed(again))

    def decided(self, failed: FailedRows) -> Batches:
        """What the join gives for the next anchors, in order of arrival, as far as they are decided.

        A partner that could not be answered is a failure only of an anchor that no other partner decides.
        """
        while self._open and self._open[0].decided:
            source = self._open[0].source
            anchors = []
            while self._open and self._open[0].source is source and self._open[0].decided:
                anchors.append(self._open.popleft())
            source.open -= len(anchors)
            if not source.open:
                self._held -= source.size
            for anchor in anchors:
                if anchor.failure and not anchor.hit:
                    failed.add(*anchor.failure)
            rows = source.rows.take(pa.array([anchor.place for anchor in anchors]))
            hit = np.array([anchor.hit for anchor in anchors])
            yield outcome(self._columns.kind, rows, hit, self._columns.anchor.kept, [])

    def _admit(self) -> bool:
        """Let in the next part of the input. False when there is none, or no room."""
        if self._held > WAITING_BYTES and (self._ready or any(self._asked)):
            return False
        part = next(self._parts, None)
        if part is None:
            self._end_run()
            return False
        self._take_part(part)
        return True

    def _end_run(self) -> None:
        if self._last is not None:
            self._last[1].complete = True
            self._last = None

    def _take_part(self, part: pa.RecordBatch) -> None:
        pairs = Pairs(part, self._columns)
        runs = part.column(self._columns.run).to_numpy(zero_copy_only=False)
        continued = self._last is not None and self._last[0] == runs[0]
        firsts = np.flatnonzero(np.concatenate([[not continued], runs[1:] != runs[:-1]]))
        source = self._source(part, firsts)
        place = 0
        for row, block in enumerate(self._blocks.of(pairs)):
            if place < len(firsts) and firsts[place] == row:
                self._end_run()
                self._numbers += 1
                anchor = Anchor(source, place, self._numbers)
                self._open.append(anchor)
                self._last = int(runs[row]), anchor
                place += 1
            if pairs.lengths[row]:
                self._give(self._last[1], block)

    def _source(self, part: pa.RecordBatch, firsts: np.ndarray) -> Source:
        """The anchors that begin in rows `firsts` of a part; a copy, so that the part is not held."""
        names = dict.fromkeys([*self._columns.anchor.kept, *self._columns.anchor.texts, self._columns.run])
        rows = part.select(list(names)).take(pa.array(firsts))
        source = Source(rows, part.nbytes if self._columns.number is None else rows.nbytes, len(firsts))
        self._held += source.size if source.open else 0
        return source

    def _give(self, anchor: Anchor, block: pa.RecordBatch | list) -> None:
        if anchor.hit:
            return
        anchor.blocks.append(block)
        if not anchor.busy:
            anchor.busy = True
            self._ready.append(anchor)

    def _next_chunks(self) -> list[Chunk]:
        chunks, pairs, size = [], 0, 0
        while pairs < self._most_pairs and size < self._most_bytes and (self._ready or self._admit()):
            if not self._ready:
                continue
            chunk, nbytes = self._next_chunk(self._ready.popleft())
            chunks.append(chunk)
            pairs, size = pairs + chunk.length, size + nbytes
        return chunks

    def _next_chunk(self, anchor: Anchor) -> tuple[Chunk, int]:
        """The anchor's next round within one block, and its bytes of text."""
        block = anchor.blocks[0]
        own = int(text_bytes(anchor.source.rows.slice(anchor.place, 1), self._columns.anchor.texts)[0])
        partners = block_bytes(block) / len(block)
        anchor.round = 2 * anchor.round or first_round(own, partners)
        length = min(anchor.round, len(block) - anchor.asked)
        chunk = Chunk(anchor, block, anchor.asked, length)
        anchor.asked += length
        if anchor.asked == len(block):
            anchor.blocks.popleft()
            anchor.asked = 0
        return chunk, own + int(length * partners)

    def _message(self, chunks: list[Chunk]) -> tuple:
        """Anchors, their numbers, the partners of each; partners that several ask are one object."""
        partners = {key: chunk.partners for key, chunk in {chunk.key: chunk for chunk in chunks}.items()}
        anchors = [chunk.anchor for chunk in chunks]
        numbers = [anchor.number for anchor in anchors]
        return self._anchor_texts(anchors), numbers, [partners[chunk.key] for chunk in chunks]

    def _anchor_texts(self, anchors: list[Anchor]) -> pa.RecordBatch | list:
        names = self._columns.anchor.texts
        if not names or not anchors:
            return [[] for _ in anchors]
        batches = [
            source.rows.select(list(names)).take(pa.array([anchor.place for anchor in group]))
            for source, group in groupby(anchors, key=lambda anchor: anchor.source)
        ]
        columns = [pa.concat_arrays([batch.column(i) for batch in batches]) for i in range(len(names))]
        return pa.RecordBatch.from_arrays(columns, names=list(names))

    def _text(self, chunk: Chunk, item: int, predicate: int) -> str | None:
        anchor = chunk.anchor.source.rows, chunk.anchor.place
        return first_text(self._spec, predicate, self._columns, anchor, (chunk.partners, item))


def block_bytes(block: pa.RecordBatch | list) -> int:
    """Bytes of a block's texts."""
    return 0 if isinstance(block, list) else int(text_bytes(block, tuple(block.schema.names)).sum())


def first_round(anchor: int, partner: float) -> int:
    """Partners in an anchor's first round, from the bytes of its text and a partner's.

    A later round may have to read the anchor again; so the partners of a round are about as much text as the anchor.
    """
    return max(FIRST_ROUND, round(anchor / max(1.0, partner)))
