"""First passes of an engine on a GPU: every variant of the kernels is compiled before a user waits for it."""

import logging

import numpy as np

from quail_spark.optimizer.errors import OutOfMemoryError

from .batch import Segment
from .kv import KVNode
from .runner import Runner

QUESTION = 30
PREFIXES = (70, 700)  # tokens: below and above where attention changes kernels
DOCUMENTS = (30, 200, 2100)  # likewise
EACH = 512  # tokens of a document in the full pass

_log = logging.getLogger(__name__)


def warm_up(runner: Runner) -> None:
    """Run random prompts alone, behind short and behind long kept prefixes, then a pass of the whole token budget.

    All within the memory plan, so a small one compiles less. Takes seconds; with a cold kernel cache most of a minute. Every page is
    free again afterwards.
    """
    rng, plan, pool = np.random.default_rng(0), runner.plan, runner.page_pool

    def segment(count: int, parent: KVNode | None = None, keep: int = 0) -> Segment:
        return Segment(rng.integers(0, runner.model.config.vocab, count).astype(np.int32), parent, keep)

    longest = min(runner.max_context, plan.token_budget)
    for length in dict.fromkeys(min(length, longest) for length in DOCUMENTS):
        runner.run([segment(length)])
    kept = (pool.total_pages - pool.pages_for(QUESTION)) // 2 * pool.page_size
    behind = min(runner.max_context - QUESTION, plan.token_budget - 1, kept)
    for length in dict.fromkeys(min(length, behind) for length in PREFIXES if behind > 0):
        _warm_up_behind(runner, segment, length)
    each = min(EACH, longest)
    try:
        runner.run([segment(each) for _ in range(max(1, plan.token_budget // each))])
    except OutOfMemoryError as error:  # the scheduler makes its passes smaller then
        _log.warning("%s; passes will be smaller than planned", error)


def _warm_up_behind(runner: Runner, segment, length: int) -> None:
    """Questions behind two prefixes of this length, and a longer one behind one of them."""
    nodes = [runner.run([segment(length + 1, keep=length)])[1][0] for _ in range(2)]
    runner.run([segment(QUESTION, node) for node in nodes for _ in range(3)])
    _, deeper = runner.run([segment(QUESTION, nodes[0], keep=QUESTION)])
    for node in [*nodes, *deeper]:
        node.release()
