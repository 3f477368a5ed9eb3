"""Pages and nodes: counts, sharing, return."""

import numpy as np
import pytest
import torch

from quail_spark.engine.kv import KVNode, PagePool
from quail_spark.kernels.fp8 import FP8
from quail_spark.optimizer.errors import EngineError, OutOfPagesError


def pool(pages: int = 20, page_size: int = 4) -> PagePool:
    return PagePool(2, 3, 8, pages, page_size, torch.float32, torch.device("cpu"))


def test_a_node_takes_and_returns_pages():
    p = pool()
    node = KVNode(p, 9)
    assert (p.free_pages, len(node.pages), node.tokens, node.length) == (17, 3, 9, 9)
    assert len(set(node.slots.tolist())) == 9 and node.slots.max() < 80
    node.release()
    assert p.free_pages == p.total_pages == 20


def test_pages_in_fp8_have_a_scale_for_each_head_of_a_slot():
    p = PagePool(2, 3, 8, 5, 4, FP8, torch.device("cpu"))
    for index in range(2):
        for kept in p.layer(index):
            assert kept.values.dtype == FP8 and kept.values.shape == (20, 3, 8)
            assert kept.scales.dtype == torch.float32 and kept.scales.shape == (20, 3)
    keys, values = p.layer(1)
    keys.scales[7, 2], values.scales[7, 2] = 5, 6
    assert [p.layer(i)[j].scales.sum().item() for i in range(2) for j in range(2)] == [0, 0, 5, 6]


def test_pages_live_as_long_as_any_reference():
    p = pool()
    root = KVNode(p, 4)
    child = KVNode(p, 1, root)
    grandchild = KVNode(p, 5, child)
    assert grandchild.length == 10 and p.free_pages == 16
    root.release()
    child.retain().release()
    child.release()
    assert p.free_pages == 16
    grandchild.release()
    assert p.free_pages == 20


def test_chain_slots_are_root_first():
    p = pool()
    root = KVNode(p, 5)
    child = KVNode(p, 3, root)
    assert child.chain_slots().tolist() == root.slots.tolist() + child.slots.tolist()


def test_use_after_the_last_release_is_an_error():
    node = KVNode(pool(), 2)
    node.release()
    for use in (node.release, node.retain, node.chain_slots):
        with pytest.raises(EngineError, match="KV of 2 tokens is used after its last release"):
            use()


def test_running_out_names_the_numbers_and_takes_nothing():
    p = pool(pages=3)
    parent = KVNode(p, 4)
    with pytest.raises(OutOfPagesError, match=r"9 tokens need 3 KV pages of 4 tokens, but 2 of 3 are free.*kvMemory"):
        KVNode(p, 9, parent)
    assert (p.free_pages, parent.references) == (2, 1)


def test_a_layer_is_a_view_by_slot():
    p = pool()
    node = KVNode(p, 6)
    keys, values = p.layer(1)
    keys[node.slots] = torch.arange(6.0)[:, None, None].expand(6, 3, 8)
    page, offset = node.pages[1], 1  # the sixth token
    assert (p.keys[1, page, offset] == 5).all() and values.shape == (80, 3, 8)


def test_random_trees_never_share_a_slot_and_give_everything_back():
    rng = np.random.default_rng()
    p, alive = pool(pages=3000, page_size=int(rng.integers(1, 9))), []
    for _ in range(400):
        if alive and rng.random() < 0.45:
            alive.pop(int(rng.integers(len(alive)))).release()
        else:
            parent = alive[int(rng.integers(len(alive)))] if alive and rng.random() < 0.7 else None
            alive.append(KVNode(p, int(rng.integers(1, 12)), parent))
        nodes, held = set(), list(alive)
        while held:
            node = held.pop()
            nodes.add(node)
            held += [node.parent] if node.parent else []
        slots = [s for node in nodes for s in node.slots.tolist()]
        assert len(slots) == len(set(slots))
        assert p.free_pages == p.total_pages - sum(len(node.pages) for node in nodes)
    for node in alive:
        node.release()
    assert p.free_pages == p.total_pages
