"""Which questions a query of sql_model.py may put to the model."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from quail_spark.optimizer.template import placeholders

from .sql_model import Ai, Column, Compare, Expression, Subquery, UnionAll, World, all_true


def is_equality(condition: Expression) -> bool:
    """Whether it is `column = column`."""
    return isinstance(condition, Compare) and condition.op == "=" and isinstance(condition.b, Column)


@dataclass
class Questions:
    """Every question that a query may put to the model: for a call that reads one table, of all its rows; for one that
    reads two, of the pairs that pass the relational conditions beside it. A call about one column may also be put to
    what an equality of the query makes equal to it: Spark filters both sides then."""

    world: World
    found: set = field(default_factory=set)

    def of(self, query) -> set:
        for part in query.queries() if isinstance(query, UnionAll) else [query]:
            equal = [c for conditions in part.condition_lists() for c in conditions if is_equality(c)]
            for conditions in part.condition_lists():
                self._conditions(conditions, part.bases(), equal)
        return self.found

    def _conditions(self, conditions: tuple[Expression, ...], bases: dict[str, str], equal: list[Compare]) -> None:
        for call, beside, extra in self._calls(conditions, ()):
            known = bases | extra
            names = sorted(call.aliases())
            world = World(self.world.tables, self._note)
            for rows in product(*(self.world.tables[known[name]] for name in names)):
                row = dict(zip(names, rows, strict=True))
                relational = [c for c in beside if not c.calls_ai() and c.aliases() <= set(names)]
                if len(names) < 2 or all_true(tuple(relational), row, world):
                    call.value(row, world)
            if len(set(call.arguments)) == 1:
                self._copies(call, known, equal, world)

    def _copies(self, call: Ai, bases: dict[str, str], equal: list[Compare], world: World) -> None:
        """The call about every column that is equal to its only one, directly or by others."""
        columns = [call.arguments[0]]
        for column in columns:
            for a, b in (pair for c in equal for pair in ((c.a, c.b), (c.b, c.a))):
                if a == column and b not in columns:
                    columns.append(b)
        for column in columns[1:]:
            copy = Ai(call.template, (column,) * len(call.arguments))
            for row in world.tables[bases[column.alias]]:
                copy.value({column.alias: row}, world)

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
