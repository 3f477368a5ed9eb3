"""First passes of an engine on a GPU: every variant of the kernels is compiled before a user waits for it."""

import numpy as np

from .batch import Segment
from .kv import KVNode
from .runner import Runner

QUESTION = 30
PREFIXES = (70, 700)  # tokens: below and above where attention changes kernels
DOCUMENTS = (30, 200, 2100)  # likewise


def warm_up(runner: Runner) -> None:
    """Run random prompts alone, behind short and behind long kept prefixes, then a pass of the whole token budget.

    Takes seconds; with a cold kernel cache most of a minute. Every page is free again afterwards.
    """
    rng = np.random.default_rng(0)

    def tokens(count: int) -> np.ndarray:
        return rng.integers(0, runner.model.config.vocab, count).astype(np.int32)

    def segment(count: int, parent: KVNode | None = None, keep: int = 0) -> Segment:
        return Segment(tokens(count), parent, keep)

    longest = runner.max_context - QUESTION - 1
    runner.run([segment(min(length, longest)) for length in DOCUMENTS])
    for length in PREFIXES:
        length = min(length, longest)
        _, nodes = runner.run([segment(length + 1, keep=length) for _ in range(2)])
        runner.run([segment(QUESTION, node) for node in nodes for _ in range(3)])
        _, deeper = runner.run([segment(QUESTION, nodes[0], keep=QUESTION)])
        for node in [*nodes, *deeper]:
            node.release()
    each = min(512, longest)
    runner.run([segment(each) for _ in range(max(1, runner.plan.token_budget // each))])
