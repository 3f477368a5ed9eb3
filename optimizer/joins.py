"""The order of AI filters and joins of one query, and their anchors: dynamic programming over sets of applied predicates.

A state is the set of predicates applied so far and the document whose KV the last one left behind. What is left of
each relation depends on the set alone (see `cardinality`), so the cheapest way into a state is all that matters of its
past. Where a table stands under several names, the questions that were asked of one and may come again belong to the state as
well: what was asked before costs nothing (see `repeats`). Orders are left-deep: what is joined grows by one input at a time. Equalities are applied before, by Spark. Filters
take part like joins, so that one is held back until a join has left it fewer rows where that is cheaper.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from .cardinality import Cardinality, components
from .repeats import Asking, asked_before
from .steps import Step
from .work import Work

EXACT = 10  # up to this many predicates the search is complete; beyond, the BEAM cheapest states of each size go on
BEAM = 256
TIE = 1 - 1e-9  # of equally cheap orders the one closest to the query's text is taken


class Move(NamedTuple):
    """Ask step `step` with this anchor; `keep`: the documents' KV is there for the next move."""

    step: int
    anchor: str
    keep: bool


class State(NamedTuple):
    """`applied`: bits of the steps that are done. `held`: the document whose KV is there. `asked`: of the steps that others
    repeat, (step, anchor, number of its `Asking`)."""

    applied: int
    held: Hashable | None
    asked: frozenset[tuple[int, str, int]] = frozenset()


@dataclass(frozen=True)
class JoinProblem:
    """`blocks`: relations that are joined beforehand, a block each; `start`: their rows with equalities applied.

    `cost` turns work into seconds, or anything else to be made small.
    """

    steps: Sequence[Step]
    blocks: Sequence[frozenset[str]]
    start: Cardinality
    cost: Callable[[Work], float]
    chunk: float = 32_768.0
    _rows: dict[int, Cardinality] = field(default_factory=dict)
    _costs: dict[tuple, float] = field(default_factory=dict)
    _askings: dict[tuple[int, int], int] = field(default_factory=dict)
    _repeated: dict[tuple[frozenset[int], int], float] = field(default_factory=dict)
    _numbers: dict[Asking, int] = field(default_factory=dict)  # equal askings have one number: fewer states

    def rows(self, applied: int) -> Cardinality:
        """What is left when these steps are done."""
        if (known := self._rows.get(applied)) is None:
            known = self.start
            for number, step in enumerate(self.steps):
                if applied >> number & 1:
                    known = step.after(known)
            self._rows[applied] = known
        return known

    def price(self, state: State, move: Move) -> float:
        """Cost of a move."""
        step = self.steps[move.step]
        held, again = state.held is not None and step.document(move.anchor) == state.held, self.again(state, move)
        name = (state.applied, move, held, again)
        if (known := self._costs.get(name)) is None:
            work = step.work(self.rows(state.applied), move.anchor, held, move.keep, self.chunk)
            known = self._costs[name] = self.cost(work * (1 - again))
        return known

    def again(self, state: State, move: Move) -> float:
        """Share of the questions of a move that an earlier one asked under another alias."""
        if not state.asked or not self._twins[move.step]:
            return 0.0
        prompt = self.steps[move.step].prompts[move.anchor]
        earlier = frozenset(n for step, anchor, n in state.asked if self.steps[step].prompts[anchor] == prompt)
        name = (earlier, self._asking(move.step, state.applied))
        if (known := self._repeated.get(name)) is None:
            askings = list(self._numbers)
            known = self._repeated[name] = asked_before([askings[n] for n in earlier], askings[name[1]])
        return known

    def _asking(self, number: int, applied: int) -> int:
        if (known := self._askings.get((number, applied))) is None:
            passed: dict[str, list] = {}
            for n, step in enumerate(self.steps):
                if applied >> n & 1 and len(step.relations) == 1:
                    passed.setdefault(step.relations[0], []).append((step.question, step.rate))
            asking = self.steps[number].asking(self.rows(applied), passed)
            known = self._askings[number, applied] = self._numbers.setdefault(asking, len(self._numbers))
        return known

    def next(self, state: State, move: Move) -> State:
        """The state after a move."""
        kept = move.keep and self.again(state, move) < 0.5  # what is mostly known already leaves no KV behind
        applied = state.applied | 1 << move.step
        asked = state.asked
        if self._twins[move.step]:
            asked |= {(move.step, move.anchor, self._asking(move.step, state.applied))}
            asked = frozenset(each for each in asked if self._twins[each[0]] & ~applied)
        return State(applied, self.steps[move.step].document(move.anchor) if kept else None, asked)

    def moves(self, state: State) -> Iterator[Move]:
        """What may come next, in the order of the query. Questions about several relations keep their anchors' KV."""
        open_steps = [n for n in range(len(self.steps)) if not state.applied >> n & 1]
        allowed = [n for n in open_steps if self._extends(state.applied, n)] or open_steps
        for number in allowed:
            step = self.steps[number]
            for anchor in step.shapes:
                keeps = (True,) if len(step.relations) > 1 else (False, True)
                yield from (Move(number, anchor, keep) for keep in keeps)

    def _extends(self, applied: int, number: int) -> bool:
        """Whether the order stays left-deep: at most one input that nothing was joined with yet, or two to begin with."""
        touched = self._touched[number]
        if len(touched) < 2:
            return True
        joined: set[int] = set()
        for other in self._linked[number]:
            if applied >> other & 1 and len(self._touched[other]) > 1:
                joined |= self._touched[other]
        return len(touched - joined) <= (1 if joined else 2)

    @cached_property
    def _twins(self) -> list[int]:
        """For each step the bits of the others that ask the same."""
        questions = [step.question for step in self.steps]
        return [sum(1 << m for m, q in enumerate(questions) if m != n and q == own) for n, own in enumerate(questions)]

    @cached_property
    def _touched(self) -> list[frozenset[int]]:
        """The blocks that each step reads."""
        return [
            frozenset(i for i, block in enumerate(self.blocks) if block & set(step.relations)) for step in self.steps
        ]

    @cached_property
    def _linked(self) -> list[list[int]]:
        """For each step the steps of the same connected part of the query."""
        parts = components(range(len(self.blocks)), self._touched)
        homes = [next(part for part in parts if touched <= part) for touched in self._touched]
        return [[n for n, home in enumerate(homes) if home == mine] for mine in homes]


@dataclass(frozen=True)
class JoinPlan:
    """The moves in order, the cost of each, and whether every order was considered."""

    moves: tuple[Move, ...]
    costs: tuple[float, ...]
    exact: bool

    @property
    def cost(self) -> float:
        """Of all moves."""
        return sum(self.costs)


def plan_joins(problem: JoinProblem) -> JoinPlan:
    """The cheapest order of all steps, with anchors and what is kept between them."""
    exact = len(problem.steps) <= EXACT
    start = State(0, None)
    level: dict[State, tuple[float, tuple[Move, ...], tuple[float, ...]]] = {start: (0.0, (), ())}
    for _ in problem.steps:
        following: dict[State, tuple[float, tuple[Move, ...], tuple[float, ...]]] = {}
        for state, (cost, moves, costs) in _narrowed(level, exact).items():
            for move in problem.moves(state):
                price = problem.price(state, move)
                after = problem.next(state, move)
                if after not in following or cost + price < following[after][0] * TIE:
                    following[after] = (cost + price, (*moves, move), (*costs, price))
        level = following
    best = None
    for found in level.values():
        if best is None or found[0] < best[0] * TIE:
            best = found
    return JoinPlan(best[1], best[2], exact)


def _narrowed(level: dict, exact: bool) -> dict:
    if exact or len(level) <= BEAM:
        return level
    cheapest = sorted(level, key=lambda state: level[state][0])[:BEAM]
    return {state: level[state] for state in cheapest}
