"""Five workloads of token ids in the structure that a planner sees: documents, questions, anchors, partners.

Flattened they are the prompts that other engines get (seeds, lengths and ids as in the yardstick that vLLM was measured
with): lengths as in film reviews, products, reports and agents' traces; ids uniform in 1,000 … 149,999.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

LOW, HIGH = 1_000, 150_000


@dataclass(frozen=True)
class Workload:
    """`kind` as an operator's. `documents`: a filter's rows or a join's anchors, int32 ids each.

    A filter asks `questions[p]` behind each document that the earlier questions left: `passes[p]` bool [documents] says
    which. A join asks `frame` behind each anchor and then every of `partners`, question included. `copies` names documents
    that extend one another (agents' traces): engines must find out.
    """

    name: str
    kind: str
    documents: list[np.ndarray]
    questions: tuple[np.ndarray, ...] = ()
    passes: tuple[np.ndarray, ...] = ()
    frame: np.ndarray | None = None
    partners: tuple[np.ndarray, ...] = ()

    def prompts(self) -> list[np.ndarray]:
        """All prompts, flat."""
        join = np.concatenate
        if self.kind == "pairs":
            return [join([anchor, self.frame, tail]) for anchor in self.documents for tail in self.partners]
        flat, live = [], np.ones(len(self.documents), bool)
        for question, passed in zip(self.questions, self.passes, strict=True):
            flat += [join([self.documents[i], question]) for i in np.flatnonzero(live)]
            live &= passed
        return flat


class _Ids:
    """Random ids in the order in which the yardstick draws them."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def __call__(self, count: int) -> np.ndarray:
        return self.rng.integers(LOW, HIGH, size=int(count), dtype=np.int64).astype(np.int32)

    def lengths(self, drawn: np.ndarray, low: int, high: int) -> np.ndarray:
        return np.clip(np.rint(drawn), low, high).astype(int)


def _reviews(count: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Log-normal lengths around 300 tokens, 40 to 1,500; and a question of 40."""
    ids = _Ids(101)
    question = ids(40)
    lengths = ids.lengths(ids.rng.lognormal(np.log(300.0), 0.6, size=4000), 40, 1500)
    return [ids(n) for n in lengths[:count]], question


def filter_(scale: float) -> Workload:
    """4,000 documents, one question."""
    documents, question = _reviews(_count(4000, scale))
    return Workload("filter", "filter", documents, (question,), (np.ones(len(documents), bool),))


def filters3(scale: float) -> Workload:
    """The same documents, three questions; 57 % and 24 % of the asked pass the first two."""
    documents, _ = _reviews(_count(4000, scale))
    ids = _Ids(606)
    live, questions, passes = np.arange(len(documents)), [], []
    for share in (1.0, 0.57, 0.24):
        if share < 1:
            live = live[ids.rng.random(len(live)) < share]
            passes.append(np.isin(np.arange(len(documents)), live))
        questions.append(ids(40))
    return Workload("filters3", "filter", documents, tuple(questions), (*passes, np.ones(len(documents), bool)))


def join(scale: float) -> Workload:
    """16 anchors of 2,500 tokens, 1,100 partners of 8, the question of 30 behind the partner."""
    ids = _Ids(202)
    question = ids(30)
    anchors = [ids(2500) for _ in range(_count(16, scale))]
    partners = tuple(np.concatenate([ids(8), question]) for _ in range(1100))
    return Workload("join", "pairs", anchors, frame=question[:0], partners=partners)


def bio(scale: float) -> Workload:
    """16 reports of about 4,100 tokens, framed once by a question of 35, 1,127 terms of 3 to 9 with a cue of 4."""
    ids = _Ids(505)
    frame, cue = ids(35), ids(4)
    anchors = [ids(n) for n in ids.rng.integers(2050, 6150, size=16)][: _count(16, scale)]
    partners = tuple(np.concatenate([ids(n), cue]) for n in ids.rng.integers(3, 10, size=1127))
    return Workload("bio", "pairs", anchors, frame=frame, partners=partners)


def agent(scale: float) -> Workload:
    """40 trajectories in 12 growing snapshots, about 700 tokens a step, one question of 40."""
    ids = _Ids(303)
    question, documents = ids(40), []
    for _ in range(_count(40, scale)):
        steps = ids.lengths(ids.rng.normal(700.0, 150.0, size=12), 200, 1400)
        history = np.empty(0, np.int32)
        for step in steps:
            history = np.concatenate([history, ids(step)])
            documents.append(history)
    return Workload("agent", "filter", documents, (question,), (np.ones(len(documents), bool),))


WORKLOADS: dict[str, Callable[[float], Workload]] = {
    "filter": filter_,
    "filters3": filters3,
    "join": join,
    "bio": bio,
    "agent": agent,
}


def _count(full: int, scale: float) -> int:
    return max(1, round(full * scale))
