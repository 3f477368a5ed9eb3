"""From prefix trees to forward passes: which segments run together, under a token budget and the free KV pages.

Trees are taken in groups whose KV fits into the free pages, and a group is computed level by level: a node's children
run once its KV is there. A tree that does not fit is opened: its root is computed alone and its children become trees
behind it. A root that does not even fit alone is not shared: its tokens run again with each child. So too few pages
cost time and never an answer. Nor does too little memory for a pass: all is run again, in smaller ones.
"""

import logging
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np

from quail_spark.optimizer.errors import OutOfMemoryError

from .kv import KVNode
from .prefix_tree import Node
from .runner import Pass, Runner, Segment

LEAST_PASS = 32  # tokens: passes are not made smaller than this when one finds no memory
RECOVERY = 256  # passes after which larger ones are tried again

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Task:
    """A node that can run: its ancestors' KV is in `parent`. `tokens`: what must run for it, normally the node's own."""

    node: Node
    parent: KVNode | None = None
    tokens: np.ndarray = None

    def __post_init__(self):
        if self.tokens is None:
            self.tokens = self.node.tokens


@dataclass
class Outcome:
    """What was launched. `kept` by mark: KV whose reference goes to the caller.

    `recomputed_tokens` is the part of `fresh_tokens` that ran again for lack of pages.
    """

    kept: dict[Hashable, KVNode] = field(default_factory=dict)
    fresh_tokens: int = 0
    recomputed_tokens: int = 0
    launched: list[tuple[list[int], Pass]] = field(default_factory=list)

    def wait(self) -> None:
        """For the last pass."""
        if self.launched:
            self.launched[-1][1].wait()

    def logits(self) -> tuple[dict[int, np.ndarray], float]:
        """Wait for the device: logits by leaf (float32 [answer tokens]), and the seconds that it computed. Call once."""
        found, seconds = {}, 0.0
        for leaves, launched in self.launched:
            logits, took = launched.read()
            found.update(zip(leaves, logits, strict=True))
            seconds += took
        return found, seconds


@dataclass(slots=True)
class _Frame:
    """Tasks to run, and the KV to release when they are done."""

    tasks: list[Task]
    held: list[KVNode] = field(default_factory=list)

    def release(self) -> None:
        while self.held:
            self.held.pop().release()


class Scheduler:
    """Runs trees on a `Runner` with at most `token_budget` new tokens a forward pass."""

    def __init__(self, runner: Runner, token_budget: int):
        self._runner, self._pool = runner, runner.page_pool
        self._planned = self._budget = token_budget
        self._last = 0  # tokens of the last pass that was to be launched
        self._passes = 0  # since one found no memory

    def parts(self, tasks: list[Task]) -> list[list[Task]]:
        """Tasks to `run` one part after another, in as many passes as together, so that other work may come between.

        A part is a pass. Trees of several levels stay together: a pass takes as much of a level as it can.
        """
        if not all(self._takes_one_pass(task) for task in tasks):
            return [tasks]
        return [tasks[first:last] for first, last in self._cuts(list(map(self._size, tasks)))]

    def run(self, tasks: list[Task]) -> Outcome:
        """Launch all trees. The caller's references on the parents must last until this returns.

        While the device computes one pass the next is laid out here. On an error nothing is kept. A mark whose KV finds
        no page is not kept. Raises OutOfMemoryError when the device has no memory even for small passes, or
        for a prompt beyond the token budget that no pages are left to compute in parts.
        """
        if self._passes >= RECOVERY:
            self._budget, self._passes = min(self._planned, 2 * self._budget), 0
        while True:
            try:
                return self._run(tasks)
            except OutOfMemoryError as error:
                if self._last > self._budget or self._last < 2 * LEAST_PASS:
                    raise
                self._budget, self._passes = self._last // 2, 0
                _log.warning("%s; from now on passes have at most %d tokens", error, self._budget)

    def _run(self, tasks: list[Task]) -> Outcome:
        outcome = Outcome()
        frames = [_Frame(list(tasks))]
        try:
            while frames:
                if frames[-1].tasks:
                    self._step(frames, outcome)
                else:
                    frames.pop().release()
        except BaseException:
            for frame in frames:
                frame.release()
            _Frame([], list(outcome.kept.values())).release()
            raise
        return outcome

    def _step(self, frames: list[_Frame], outcome: Outcome) -> None:
        """Compute the first trees that fit together; if not even one does, open it."""
        tasks = frames[-1].tasks
        if count := self._fitting(tasks):
            group = tasks[:count]
            del tasks[:count]
            self._levels(group, outcome)
            return
        task = tasks.pop(0)
        if task.node.leaf is not None:
            self._forward([task], [], outcome)  # in one pass, however long: a leaf needs no pages then
        elif self._pages(task) <= self._pool.free_pages:
            frames.append(_Frame([]))
            task = self._shorten(task, frames[-1].held, outcome)
            frames[-1].tasks += self._forward([task], frames[-1].held, outcome)
        else:
            children = [Task(c, task.parent, np.concatenate([task.tokens, c.tokens])) for c in task.node.children]
            outcome.recomputed_tokens += len(task.tokens) * (len(children) - 1)
            frames.append(_Frame(children))

    def _levels(self, tasks: list[Task], outcome: Outcome) -> None:
        """Compute trees that fit into the free pages."""
        frame = _Frame(tasks)
        try:
            while frame.tasks:
                level, frame.tasks = frame.tasks, []
                for chunk in self._chunks(level, frame.held, outcome):
                    frame.tasks += self._forward(chunk, frame.held, outcome)
        finally:
            frame.release()

    def _chunks(self, tasks: list[Task], held: list[KVNode], outcome: Outcome) -> Iterator[list[Task]]:
        """Split tasks into chunks within the token budget."""
        tasks = [self._shorten(task, held, outcome) for task in tasks]
        for first, last in self._cuts(list(map(self._size, tasks))):
            yield tasks[first:last]

    def _cuts(self, sizes: list[int]) -> Iterator[tuple[int, int]]:
        """First and last + 1 of as few chunks as the budget allows, about as large as one another: small passes are slow."""
        left, first, size, aim = sum(sizes), 0, 0, 0.0
        for index, new in enumerate(sizes):
            if index > first and (size >= aim or size + new > self._budget):
                yield first, index
                left, first, size = left - size, index, 0
            if index == first:
                aim = left / max(1, -(-left // self._budget))
            size += new
        if sizes:
            yield first, len(sizes)

    def _size(self, task: Task) -> int:
        """Tokens that run for a task, with the leaf that joins it."""
        leaf = self._joining(task)
        return len(task.tokens) + (len(leaf.tokens) if leaf else 0)

    def _takes_one_pass(self, task: Task) -> bool:
        """Whether nothing follows once it has run."""
        below = task.node.children
        whole = not below or (len(below) == 1 and self._joining(task) is not None)
        return whole and len(task.tokens) <= self._budget

    def _shorten(self, task: Task, held: list[KVNode], outcome: Outcome) -> Task:
        """Run all but the last of a task's tokens in passes of their own, when there are more than the budget."""
        tokens, parent = task.tokens, task.parent
        if len(tokens) <= self._budget:
            return task
        while len(tokens) > self._budget:
            part, tokens = tokens[: self._budget], tokens[self._budget :]
            (parent,) = self._launch([Segment(part, parent, keep=len(part), answer=False)], [], outcome)
            held.append(parent)
        return Task(task.node, parent, tokens)

    def _forward(self, chunk: list[Task], held: list[KVNode], outcome: Outcome) -> list[Task]:
        """One forward pass; returns the tasks that it makes possible. A node's first leaf runs in the node's segment."""
        joining = [self._joining(task) for task in chunk]
        segments = [_segment(task, leaf) for task, leaf in zip(chunk, joining, strict=True)]
        leaves = [leaf.leaf if leaf else task.node.leaf for task, leaf in zip(chunk, joining, strict=True)]
        nodes = self._launch(segments, [leaf for leaf in leaves if leaf is not None], outcome)
        held += [kv for kv in nodes if kv is not None]
        following = []
        for task, leaf, kv in zip(chunk, joining, nodes, strict=True):
            outcome.kept.update({name: kv.retain() for name in task.node.marks})
            following += [Task(child, kv) for child in task.node.children if child is not leaf]
        return following

    def _launch(self, segments: list[Segment], leaves: list[int], outcome: Outcome) -> list[KVNode | None]:
        self._last = sum(len(segment.tokens) for segment in segments)
        launched = self._runner.launch(segments)
        self._passes += 1
        outcome.launched.append((leaves, launched))
        outcome.fresh_tokens += self._last
        return launched.nodes

    def _joining(self, task: Task) -> Node | None:
        """The leaf that runs in the segment of its parent, which saves a level."""
        if task.node.leaf is not None:
            return None
        room = self._budget - len(task.tokens)
        return next((c for c in task.node.children if c.leaf is not None and len(c.tokens) <= room), None)

    def _fitting(self, tasks: list[Task]) -> int:
        """How many of the first trees fit into the free pages together."""
        free = self._pool.free_pages
        for count, task in enumerate(tasks):
            free -= self.pages(task)
            if free < 0:
                return count
        return len(tasks)

    def pages(self, task: Task) -> int:
        """KV pages that a whole tree takes."""
        pages, below = 0, [task]
        while below:
            top = below.pop()
            pages += self._pages(top)
            below += [Task(child) for child in top.node.children if self._takes_pages(child)]
        return pages

    def _takes_pages(self, node: Node) -> bool:
        return node.leaf is None or len(node.tokens) > self._budget

    def _pages(self, task: Task) -> int:
        """KV pages that a node takes: all of it when others come behind it, else what runs in earlier passes."""
        earlier, last = divmod(len(task.tokens) - 1, self._budget)
        own = earlier * self._pool.pages_for(self._budget)
        return own if task.node.leaf is not None else own + self._pool.pages_for(last + 1)


def _segment(task: Task, leaf: Node | None) -> Segment:
    if task.node.leaf is not None:
        return Segment(task.tokens, task.parent)
    tokens = np.concatenate([task.tokens, leaf.tokens]) if leaf else task.tokens
    return Segment(tokens, task.parent, keep=len(task.tokens), answer=leaf is not None)
