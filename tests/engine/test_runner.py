"""The runner against transformers' own forward on the same weights, for every way a prompt can be cut into segments."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from quail_spark.engine.config import EngineConfig
from quail_spark.engine.loader import load_model
from quail_spark.engine.runner import Runner, Segment, _lacks_memory
from quail_spark.optimizer.errors import ConfigError, EngineError, OutOfMemoryError, OutOfPagesError, RowError

sys.path.insert(0, str(Path(__file__).parent))
import checkpoints

IDS = (3, 77, 150, 210)
TOLERANCE = 1e-4  # logits of the random models lie within about ±30


@pytest.fixture(scope="module", params=checkpoints.KINDS)
def both(request, tmp_path_factory):
    """(runner, transformers' model) of one kind."""
    directory = tmp_path_factory.mktemp(request.param)
    model = checkpoints.write(request.param, directory)
    return runner(directory), model


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory):
    directory = tmp_path_factory.mktemp("qwen2")
    checkpoints.write("qwen2", directory)
    return directory


def runner(directory, **settings) -> Runner:
    config = EngineConfig(
        **{"model": str(directory), "dtype": "float32", "kv_bytes": 4 << 20, "threads": 1, **settings}
    )
    return Runner(load_model(str(directory), device="cpu", dtype=config.dtype), config, IDS)


def close(got, model, *texts):
    want = np.stack([checkpoints.reference(model, t, IDS) for t in texts])
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)


def test_plain(both):
    run, model = both
    rng = np.random.default_rng()
    texts = [checkpoints.text(rng, n) for n in (1, 40, 2, 131, 17, 40, 300, 16)]
    logits, nodes = run.run([Segment(t) for t in texts])
    assert logits.dtype == np.float32 and logits.shape == (8, 4) and nodes == [None] * 8
    close(logits, model, *texts)
    assert run.page_pool.free_pages == run.page_pool.total_pages


def test_prefix_kept_rewound_and_chained(both):
    run, model = both
    rng = np.random.default_rng()
    document, question, other, tail = (checkpoints.text(rng, n) for n in (37, 9, 1, 5))
    lone = checkpoints.text(rng, 21)
    join = np.concatenate
    # Keep the document, drop the question behind it.
    logits, (node, none) = run.run([Segment(join([document, question]), keep=37), Segment(lone)])
    close(logits, model, join([document, question]), lone)
    assert none is None and (node.tokens, node.length, node.parent) == (37, 37, None)
    # Another question on the kept document; a part of it kept as a child; a lone prompt between.
    logits, (child, _, whole) = run.run(
        [Segment(join([question, tail]), node, keep=4), Segment(lone), Segment(other, node, keep=1)]
    )
    close(logits, model, join([document, question, tail]), lone, join([document, other]))
    assert (child.tokens, child.length, child.parent) == (4, 41, node)
    node.release()  # the children still hold it
    # Chains of three, branches of two, with segments that only keep.
    logits, (silent, _, _) = run.run(
        [Segment(tail, child, keep=5, answer=False), Segment(question[4:], child), Segment(tail, whole)]
    )
    close(logits, model, join([document, question]), join([document, other, tail]))
    logits, _ = run.run([Segment(other, silent), Segment(lone, silent), Segment(lone[:3], whole)])
    start = join([document, question[:4], tail])
    close(logits, model, join([start, other]), join([start, lone]), join([document, other, lone[:3]]))
    for held in (child, whole, silent):
        held.release()
    assert run.page_pool.free_pages == run.page_pool.total_pages


def test_many_partners_of_two_anchors(both):
    run, model = both
    rng = np.random.default_rng()
    anchors = [checkpoints.text(rng, n) for n in (50, 83)]
    partners = [checkpoints.text(rng, int(n)) for n in rng.integers(1, 30, 24)]
    logits, nodes = run.run([Segment(a, keep=len(a), answer=False) for a in anchors])
    assert logits.shape == (0, 4)
    pairs = [(a, p) for p in range(len(partners)) for a in (0, 1)]  # interleaved on purpose
    logits, _ = run.run([Segment(partners[p], nodes[a]) for a, p in pairs])
    close(logits, model, *(np.concatenate([anchors[a], partners[p]]) for a, p in pairs))
    for node in nodes:
        node.release()


def test_threads_do_not_matter(qwen2):
    """The same chunk by one thread and by three; keeps and prefixes among it."""
    rng, outcomes = np.random.default_rng(), []
    first = [checkpoints.text(rng, int(n)) for n in rng.integers(1, 400, 12)]
    then = [checkpoints.text(rng, int(n)) for n in rng.integers(1, 60, 12)]
    for threads in (1, 3):
        run = runner(qwen2, threads=threads)
        logits, nodes = run.run([Segment(t, keep=len(t) // 2) for t in first])
        more, _ = run.run([Segment(t, node) for t, node in zip(then, nodes, strict=True)])
        outcomes.append(np.concatenate([logits, more]))
    np.testing.assert_allclose(outcomes[0], outcomes[1], rtol=0, atol=TOLERANCE)


def test_batch_composition_does_not_matter(both):
    run, _ = both
    rng = np.random.default_rng()
    texts = [checkpoints.text(rng, int(n)) for n in rng.integers(1, 120, 20)]
    together, _ = run.run([Segment(t) for t in texts])
    alone = np.concatenate([run.run([Segment(t)])[0] for t in texts])
    np.testing.assert_allclose(together, alone, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("page_size", [1, 7, 16, 64])
def test_page_sizes(qwen2, page_size):
    run, model = runner(qwen2, page_size=page_size), checkpoints.CLASSES["Qwen2"].from_pretrained(qwen2)
    rng = np.random.default_rng()
    first, second, third = (checkpoints.text(rng, n) for n in (page_size, page_size + 1, 3))
    _, (a,) = run.run([Segment(first, keep=len(first), answer=False)])
    _, (b,) = run.run([Segment(second, a, keep=len(second), answer=False)])
    logits, _ = run.run([Segment(third, b)])
    close(logits, model, np.concatenate([first, second, third]))


def test_kept_without_an_answer_beyond_the_kept_part(qwen2):
    """Tokens that are neither kept nor answered are not computed."""
    run = runner(qwen2)
    tokens = checkpoints.text(np.random.default_rng(), 30)
    logits, nodes = run.run([Segment(tokens, keep=10, answer=False), Segment(tokens, keep=0, answer=False)])
    assert logits.shape == (0, 4) and nodes[0].tokens == 10 and nodes[1] is None
    assert run.run([])[0].shape == (0, 4)


def test_out_of_pages_takes_nothing(qwen2):
    run = runner(qwen2, kv_bytes=1 << 20, page_size=16)
    total = run.page_pool.total_pages
    tokens = checkpoints.text(np.random.default_rng(), 500)
    need = -(-500 // 16)
    few = total // need
    segments = [Segment(tokens, keep=500) for _ in range(few + 1)]
    with pytest.raises(
        OutOfPagesError, match=f"500 tokens need {need} KV pages of 16 tokens, but {total - few * need} of {total}"
    ):
        run.run(segments)
    assert run.page_pool.free_pages == total
    _, nodes = run.run(segments[:few])
    assert run.page_pool.free_pages == total - few * need
    assert [n.release() for n in nodes] and run.page_pool.free_pages == total


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        MemoryError("Unable to allocate 3. GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp] . DefaultCPUAllocator: can't allocate memory: you tried to allocate"
        ),
    ],
)
def test_out_of_memory_takes_nothing(qwen2, error, monkeypatch):
    run = runner(qwen2)
    forward = run.model.forward

    def fails(*_):
        raise error

    monkeypatch.setattr(run.model, "forward", fails)
    texts = [Segment(checkpoints.text(np.random.default_rng(), 50), keep=20) for _ in range(3)]
    with pytest.raises(
        OutOfMemoryError, match=r"a pass of 150 new tokens finds no memory on cpu: .*allocate"
    ) as caught:
        run.launch(texts)
    assert caught.value.__cause__ is caught.value.__context__ is None  # or the pass's tensors would stay
    assert run.page_pool.free_pages == run.page_pool.total_pages
    monkeypatch.setattr(run.model, "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.launch(texts)
    monkeypatch.setattr(run.model, "forward", forward)
    logits, nodes = run.run(texts)
    assert logits.shape == (3, 4) and all(node.length == 20 for node in nodes)


def test_a_real_allocator_of_a_cpu_says_what_is_looked_for():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert _lacks_memory(caught.value)
    assert not _lacks_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_more_kv_memory_than_there_is(qwen2):
    with pytest.raises(ConfigError, match=rf"engine\.kvMemory is {1 << 50} bytes, which cpu does not have; accepted: "):
        runner(qwen2, kv_bytes=1 << 50)


def test_segments_are_checked(qwen2):
    run = runner(qwen2, max_context=64)
    tokens = np.zeros(65, np.int32)
    with pytest.raises(RowError, match="segment 1: the prompt has 65 tokens, but the context is 64"):
        run.run([Segment(tokens[:64]), Segment(tokens)])
    _, (node,) = run.run([Segment(tokens[:60], keep=60)])
    with pytest.raises(RowError, match="has 65 tokens"):
        run.run([Segment(tokens[:5], node)])
    with pytest.raises(EngineError, match="segment 0 has no tokens"):
        run.run([Segment(tokens[:0])])
    with pytest.raises(EngineError, match="segment 0 has token ids 0 to 211; accepted: 0 to 210"):
        run.run([Segment(np.array([0, 211], np.int32))])
    with pytest.raises(EngineError, match="keeps 3 of 2 tokens"):
        run.run([Segment(tokens[:2], keep=3)])


def test_pages_in_fp8_are_refused_on_a_cpu(qwen2):
    for kv in ("fp8", "fp8-keys"):
        with pytest.raises(
            ConfigError, match=rf"engine\.kv is '{kv}'; accepted for this model \(Qwen2\) on cpu: auto \("
        ):
            runner(qwen2, kv=kv)
    with pytest.raises(ConfigError, match=r"engine\.kv is 'int4'; accepted: auto, fp8-keys, fp8"):
        runner(qwen2, kv="int4")


def test_describe(qwen2):
    facts = runner(qwen2).describe()
    assert facts["kv_dtype"] == "float32"
    assert facts["kv_token_bytes"] == 2 * 3 * 2 * 8 * 4
    assert facts["kv_bytes"] <= 4 << 20 and facts["kv_pages"] == (4 << 20) // (16 * 384)
    assert facts["max_context"] == 512 and facts["dtype"] == "float32"
