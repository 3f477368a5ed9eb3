"""The ragged shape that attention works on: segments of new tokens, some of them behind a shared, cached prefix."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PrefixGroup:
    """Segments `first` … `last − 1` attend to the same cached prefix, whose tokens lie in the pool rows `slots` (int64 [length])."""

    first: int
    last: int
    slots: torch.Tensor


@dataclass(frozen=True)
class Ragged:
    """New tokens of all segments lie behind one another: segment s owns rows `starts[s]` … `starts[s + 1] − 1`.

    A token attends to its segment's prefix and to its own segment up to itself. Groups are disjoint and ascending.
    `answers`: segments whose last token is a query in `attend_last`, ascending.
    """

    starts: list[int]
    groups: list[PrefixGroup]
    answers: list[int]

    @property
    def segments(self) -> int:
        return len(self.starts) - 1

    @property
    def rows(self) -> int:
        return self.starts[-1]

    def length(self, segment: int) -> int:
        return self.starts[segment + 1] - self.starts[segment]
