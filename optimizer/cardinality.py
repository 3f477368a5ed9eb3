"""How many rows of each relation are left when some of a query's predicates are applied, in whatever order.

Rows are assumed independent: a filter passes a share of a relation's rows, an AI join a share of the pairs, an equality
joins each row with an expected number of partners. What is left of a relation in a tree of joins follows by passing counts
along the tree, so it is a function of the set of predicates alone: planning by sets of predicates is exact.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

Pair = frozenset[str]


@dataclass(frozen=True)
class Edge:
    """What joins two relations: share of pairs with equal keys, share of those that AI predicates pass.

    `preserved`: sides whose rows stay without a partner (outer joins).
    """

    equal: float = 1.0
    ai: float = 1.0
    preserved: frozenset[str] = frozenset()

    def survival(self, side: str, partners: float) -> float:
        """Probability that a row of `side` keeps at least one of `partners` rows; an equality gives each row its share."""
        return 1.0 if side in self.preserved else self.matched(partners)

    def matched(self, partners: float) -> float:
        """Probability of at least one match among `partners` rows."""
        equal = partners * self.equal
        return max(0.0, min(1.0, equal) * (1 - (1 - self.ai) ** max(1.0, equal)))


@dataclass(frozen=True)
class Cardinality:
    """`rows`: by relation, after its own filters. `edges`: what joins two. `further`: (relations, rate) of predicates over
    more than two. Values are rows (not tokens) and need not be whole."""

    rows: Mapping[str, float]
    edges: Mapping[Pair, Edge] = field(default_factory=dict)
    further: tuple[tuple[Pair, float], ...] = ()

    def __or__(self, other: "Cardinality") -> "Cardinality":
        """Both, not joined."""
        return Cardinality(self.rows | other.rows, self.edges | other.edges, self.further + other.further)

    def asked(self, relations: Iterable[str], rate: float) -> "Cardinality":
        """After a predicate over these relations that passes a share `rate`."""
        names = frozenset(relations)
        if len(names) == 1:
            (name,) = names
            return replace(self, rows={**self.rows, name: self.rows[name] * rate})
        if len(names) == 2:
            edge = self.edges.get(names, Edge())
            return replace(self, edges={**self.edges, names: replace(edge, ai=edge.ai * rate)})
        return replace(self, further=tuple(sorted((*self.further, (names, rate)), key=_further_order)))

    def equal(self, left: str, right: str, share: float) -> "Cardinality":
        """After an equality that holds for a `share` of the pairs."""
        pair = frozenset((left, right))
        edge = self.edges.get(pair, Edge())
        return replace(self, edges={**self.edges, pair: replace(edge, equal=edge.equal * share)})

    def preserving(self, left: str, right: str, sides: Iterable[str]) -> "Cardinality":
        """With `sides` of this join preserved."""
        pair = frozenset((left, right))
        edge = replace(self.edges.get(pair, Edge()), preserved=frozenset(sides))
        return replace(self, edges={**self.edges, pair: edge})

    def live(self, name: str) -> float:
        """Distinct rows of a relation that are left."""
        return self._lives[name]

    @cached_property
    def _lives(self) -> dict[str, float]:
        lives = {name: self._reaching(name, None) for name in self.rows}
        for names, rate in self._checks:
            together = self._joined(names)
            for name in names & lives.keys():
                each = together / lives[name] if lives[name] else 0.0
                lives[name] *= max(0.0, 1 - (1 - rate) ** max(1.0, each)) if each else 0.0
        return lives

    @cached_property
    def total(self) -> float:
        """Rows of everything joined; relations that nothing joins multiply."""
        rows = 1.0
        for component in self.components:
            rows *= self._joined(component)
        for _, rate in self._checks:
            rows *= rate
        return rows

    def combinations(self, relations: Iterable[str]) -> float:
        """Distinct combinations of rows of these relations that are left; without a join between them, all of them."""
        names = sorted(set(relations))
        everything = 1.0
        for name in names:
            everything *= self.live(name)
        if len(names) == 2 and frozenset(names) in self._tree:
            a, b = names
            edge = self._tree[frozenset(names)]
            return min(everything, self._reaching(a, b) * self._reaching(b, a) * edge.equal * edge.ai)
        for component in self.components:
            together = component & set(names)
            if len(together) > 1:
                apart = 1.0
                for name in together:
                    apart *= self.live(name)
                if apart:
                    everything *= min(1.0, self._joined(component) / apart)
        return everything

    @cached_property
    def components(self) -> tuple[frozenset[str], ...]:
        """Relations that are joined with each other."""
        return components(self.rows, [*self.edges, *(names for names, _ in self.further)])

    @cached_property
    def _forest(self) -> tuple[dict[Pair, Edge], list[tuple[Pair, float]]]:
        """Edges of a spanning forest, by name; the others, which only check rows that are joined already."""
        tree: dict[Pair, Edge] = {}
        checks = []
        root = {name: name for name in self.rows}

        def find(name: str) -> str:
            while root[name] != name:
                name = root[name]
            return name

        for pair in sorted(self.edges, key=sorted):
            ends = {find(name) for name in pair if name in root}
            if len(ends) == 2:
                a, b = ends
                root[a] = b
                tree[pair] = self.edges[pair]
            else:
                checks.append((pair, self.edges[pair].equal * self.edges[pair].ai))
        for names, rate in self.further:
            for a, b in pairwise(sorted(names)):
                if (x := find(a)) != (y := find(b)):
                    root[x] = y
                    tree[frozenset((a, b))] = Edge()
            checks.append((names, rate))
        return tree, checks

    @property
    def _tree(self) -> dict[Pair, Edge]:
        return self._forest[0]

    @property
    def _checks(self) -> list[tuple[Pair, float]]:
        return self._forest[1]

    @cached_property
    def _neighbours(self) -> dict[str, list[tuple[str, Edge]]]:
        found: dict[str, list[tuple[str, Edge]]] = {name: [] for name in self.rows}
        for pair, edge in self._tree.items():
            a, b = sorted(pair)
            found[a].append((b, edge))
            found[b].append((a, edge))
        return found

    def _reaching(self, name: str, without: str | None) -> float:
        """Rows of `name` that are left when the branch towards `without` is cut off."""
        rows = self.rows[name]
        for other, edge in self._neighbours[name]:
            if other != without:
                rows *= edge.survival(name, self._reaching(other, name))
        return rows

    def _joined(self, names: Iterable[str]) -> float:
        """Rows of the component around `names`, by the tree alone."""
        root = min(names)
        return self.rows[root] * self._fan(root, None)

    def _fan(self, name: str, came_from: str | None) -> float:
        """Joined rows per row of `name`, away from `came_from`."""
        fan = 1.0
        for other, edge in self._neighbours[name]:
            if other == came_from:
                continue
            partners = self._reaching(other, name)
            each = self.rows[other] * edge.equal * edge.ai * self._fan(other, name)
            if name in edge.preserved:
                each += 1 - edge.matched(partners)
            if other in edge.preserved and self.rows[name]:
                each += self.rows[other] * (1 - edge.matched(self._reaching(name, other))) / self.rows[name]
            fan *= each
        return fan


def _further_order(item: tuple[Pair, float]) -> tuple:
    return sorted(item[0]), item[1]


def components(names: Iterable[Hashable], groups: Iterable[frozenset]) -> tuple[frozenset, ...]:
    """The connected parts of `names`, of which each group connects some."""
    found = [frozenset([name]) for name in names]
    for group in groups:
        touched = [part for part in found if part & group]
        if len(touched) > 1:
            found = [part for part in found if not part & group] + [frozenset().union(*touched)]
    return tuple(found)
