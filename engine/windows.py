"""How many items of a call are in work at a time, so that the documents that their later predicates need stay in KV pages."""

from collections import Counter

import numpy as np

from .kv import PagePool
from .prefix_tree import common_prefix
from .rendering import PromptQuestion
from .session import Window


def split_by_pages(
    pending: list[list[PromptQuestion]], pool: PagePool, room: int, reorder: bool, least: int = 2
) -> list[Window]:
    """Groups of items (indices into `pending`) whose recurring documents fit into `room` pages together.

    `reorder`: take items by their documents, so that those which share a prefix come together; then the prefix takes
    pages once. A document larger than `room` is a group of its own. Documents recur from `least` questions on.
    """
    documents = [recurring_documents(questions, least) for questions in pending]
    distinct = {key: ids for item in documents for key, ids in item.items()}
    most = sum(pool.pages_for(len(ids)) for ids in distinct.values())
    if most <= room:
        return [Window(list(range(len(pending))), most)]
    order = range(len(pending))
    if reorder:
        order = sorted(order, key=lambda item: [ids.astype(">u4").tobytes() for ids in documents[item].values()])
    windows: list[Window] = []
    items: list[int] = []
    held: set[bytes] = set()
    used, last = 0, np.empty(0, np.int32)
    for item in order:
        new = {key: ids for key, ids in documents[item].items() if key not in held}
        pages = sum(pool.pages_for(len(ids) - common_prefix(last, ids)) for ids in new.values())
        if items and used + pages > room:
            windows.append(Window(items, used))
            items, held, used, new = [], set(), 0, documents[item]
            pages = sum(pool.pages_for(len(ids)) for ids in new.values())
        items.append(item)
        held |= new.keys()
        used += pages
        last = next(reversed(new.values()), last)
    return [*windows, Window(items, used)]


def recurring_documents(questions: list[PromptQuestion], least: int = 2) -> dict[bytes, np.ndarray]:
    """Token ids of the documents that at least `least` of an item's questions are about, by key."""
    if len(questions) < least:
        return {}
    times = Counter(question.document_key for question in questions)
    return {q.document_key: q.parts[0] for q in questions if times[q.document_key] >= least}
