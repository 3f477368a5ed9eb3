"""Windows of items whose recurring documents fit into the pages."""

import random

import numpy as np
import pytest
import torch

from quail_spark.engine.kv import PagePool
from quail_spark.engine.rendering import PromptQuestion
from quail_spark.engine.session import Window
from quail_spark.engine.windows import recurring_documents, split_by_pages

POOL = PagePool(1, 1, 1, 100, 4, torch.float32, "cpu")


def question(document: np.ndarray) -> PromptQuestion:
    key = document.tobytes()
    return PromptQuestion(key, len(document) + 1, len(document), None, (document, document[:0], document[:1]), key, key)


def random_items(rng: random.Random, count: int) -> list[list[PromptQuestion]]:
    documents = [np.full(rng.randrange(1, 60), i % 7, np.int32) for i in range(20)]
    return [[question(rng.choice(documents)) for _ in range(rng.randrange(4))] for _ in range(count)]


@pytest.mark.parametrize("reorder", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_every_item_is_in_one_window_that_fits(seed, reorder):
    pending = random_items(random.Random(seed), 50)
    windows = split_by_pages(pending, POOL, room := 20, reorder)
    assert sorted(item for window in windows for item in window.items) == list(range(50))
    if not reorder:
        assert [item for window in windows for item in window.items] == list(range(50))
    for window in windows:
        # what the documents of a window take when each distinct prefix is held once, plus a partial page for each
        documents = {key: ids for item in window.items for key, ids in recurring_documents(pending[item]).items()}
        prefixes = {tuple(ids[: end + 1]) for ids in documents.values() for end in range(len(ids))}
        items = [item for item in window.items if recurring_documents(pending[item])]
        assert len(prefixes) <= room * POOL.page_size or len(items) == 1
        assert window.pages <= room or len(items) == 1


def pages_of(pending: list[list[PromptQuestion]]) -> int:
    documents = {key: ids for item in pending for key, ids in recurring_documents(item).items()}
    return sum(-(-len(ids) // POOL.page_size) for ids in documents.values())


def test_one_window_where_everything_fits():
    pending = random_items(random.Random(1), 30)
    assert split_by_pages(pending, POOL, 10_000, True) == [Window(list(range(30)), pages_of(pending))]
    assert split_by_pages([], POOL, 10, True) == [Window([], 0)]


def test_a_document_asked_about_once_takes_no_room():
    pending = [[question(np.full(200, i, np.int32))] for i in range(10)]
    assert split_by_pages(pending, POOL, 5, False) == [Window(list(range(10)), 0)]


def test_rows_that_extend_each_other_share_a_window():
    text = np.arange(80, dtype=np.int32)
    pending = [[question(text[:end])] * 2 for end in (80, 20, 60, 40)]
    other = [[question(text[:end] + 1000)] * 2 for end in (20, 80, 40, 60)]
    windows = split_by_pages([q for pair in zip(pending, other, strict=True) for q in pair], POOL, 20, True)
    assert [window.items for window in windows] == [[2, 6, 4, 0], [1, 5, 7, 3]]
