"""Which questions a query of sql_model.py may put to the model."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from quail_spark.optimizer.template import placeholders

from .sql_model import Ai, Expression, Subquery, UnionAll, World, all_true


@dataclass
class Questions:
    """Every question that a query may put to the model: for a call that reads one table, of all its rows; for one that
    reads two, of the pairs that pass the relational conditions beside it."""

    world: World
    found: set = field(default_factory=set)

    def of(self, query) -> set:
        for part in query.queries() if isinstance(query, UnionAll) else [query]:
            for conditions in part.condition_lists():
                self._conditions(conditions, part.bases())
        return self.found

    def _conditions(self, conditions: tuple[Expression, ...], bases: dict[str, str]) -> None:
        for call, beside, extra in self._calls(conditions, ()):
            known = bases | extra
            names = sorted(call.aliases())
            world = World(self.world.tables, self._note)
            for rows in product(*(self.world.tables[known[name]] for name in names)):
                row = dict(zip(names, rows, strict=True))
                relational = [c for c in beside if not c.calls_ai() and c.aliases() <= set(names)]
                if len(names) < 2 or all_true(tuple(relational), row, world):
                    call.value(row, world)

    def _note(self, template: str, *texts: str | None) -> None:
        used = tuple(texts[i] for i in placeholders(template))
        if None not in used:
            self.found.add((template, used))

    def _calls(self, conditions, beside) -> Iterator[tuple[Ai, tuple, dict[str, str]]]:
        """Calls with the conditions beside them and the tables of subqueries around them."""
        for condition in conditions:
            yield from self._calls_in(condition, (*beside, *conditions))

    def _calls_in(self, expression, beside) -> Iterator[tuple[Ai, tuple, dict[str, str]]]:
        if isinstance(expression, Ai):
            yield expression, beside, {}
        elif isinstance(expression, Subquery):
            for call, around, extra in self._calls(expression.conditions, beside):
                yield call, around, {expression.alias: expression.table} | extra
        else:
            for part in expression.parts():
                yield from self._calls_in(part, beside)
