"""The adaptive order of an operator's predicates: cheap and selective ones first, from hints and observed pass rates."""

from collections.abc import Hashable, Sequence
from itertools import permutations
from threading import Lock

from quail_spark.optimizer.plan import OperatorSpec

DEFAULT_SELECTIVITY = 0.2
PRIOR_WEIGHT = 20  # a hint counts as this many observed rows
EXHAUSTIVE = 5  # up to this many predicates every order is costed


class PassRates:
    """Observed answers per operator name, shared by all sessions of an evaluator. Thread-safe."""

    def __init__(self):
        self._observed: dict[tuple, tuple[list[int], list[int]]] = {}
        self._lock = Lock()

    def observe(self, spec: OperatorSpec, asked: Sequence[int], passed: Sequence[int]) -> None:
        """Add one call's answers, per predicate."""
        with self._lock:
            totals = self._observed.setdefault(_identity(spec), ([0] * len(asked), [0] * len(asked)))
            for total, new in zip(totals, (asked, passed), strict=True):
                total[:] = [a + b for a, b in zip(total, new, strict=True)]

    def estimate(self, spec: OperatorSpec) -> list[float]:
        """Expected share of TRUE per predicate: the hint (or the default), moved by what was observed."""
        with self._lock:
            nothing = [0] * len(spec.predicates)
            asked, passed = self._observed.get(_identity(spec), (nothing, nothing))
            rates = []
            for predicate, n, true in zip(spec.predicates, asked, passed, strict=True):
                hint = DEFAULT_SELECTIVITY if predicate.selectivity is None else predicate.selectivity
                rates.append((hint * PRIOR_WEIGHT + true) / (PRIOR_WEIGHT + n))
            return rates


def _identity(spec: OperatorSpec) -> tuple:
    return spec.name, tuple((p.template, p.arguments) for p in spec.predicates)


def expected_cost(
    order: Sequence[int], pass_rates: Sequence[float], own: Sequence[float], documents: Sequence[tuple[Hashable, float]]
) -> float:
    """Tokens computed per row when predicates are tried in `order` and a row leaves at its first FALSE.

    `own[p]` is paid each time p is asked; `documents[p]` is p's document (any name) and its tokens, paid by the first
    predicate about that document.
    """
    cost, reach, seen = 0.0, 1.0, set()
    for p in order:
        name, tokens = documents[p]
        cost += reach * (own[p] + (0 if name in seen else tokens))
        seen.add(name)
        reach *= pass_rates[p]
    return cost


def best_order(
    pass_rates: Sequence[float], own: Sequence[float], documents: Sequence[tuple[Hashable, float]]
) -> tuple[int, ...]:
    """The order of least `expected_cost`: exact for few predicates, else by cost per rejected row."""
    count = len(own)
    if count <= EXHAUSTIVE:
        return min(permutations(range(count)), key=lambda order: expected_cost(order, pass_rates, own, documents))
    return tuple(sorted(range(count), key=lambda p: own[p] / max(1e-9, 1 - pass_rates[p])))
