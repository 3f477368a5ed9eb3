"""From the suite's SQL to a logical plan, without Spark: sqlglot parses, and runs what stands around the AI calls.

The subset: inner joins ON equal columns and `AI.IF(PROMPT('… {alias.column} …'), {'selectivity': 0.1})`, WHERE with such
calls and `column <op> literal`, all under AND; then any SELECT list, GROUP BY, HAVING, ORDER BY, LIMIT that sqlglot's executor
knows. Raises SqlError for anything else.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp, parse_one
from sqlglot.executor import execute

from quail_spark.optimizer.errors import SqlError
from quail_spark.optimizer.logical import AiFilter, AiJoin, AiPredicate, Plan, Relation, TextRef
from quail_spark.optimizer.statistics import TableStats, count_bytes, table_stats

COMPARISONS = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
}
ACCEPTED = "AI.IF(PROMPT('… {alias.column} …'), {'selectivity': 0.1}), equal columns of two tables, column <op> literal"
RESULT = "matched"
FROM = "from_" if "from_" in exp.Select.arg_types else "from"  # in sqlglot 27


@dataclass(frozen=True)
class Query:
    """`plan` as the query is written; `tables` by alias, with the tests of columns applied; `select` is the statement."""

    plan: Plan
    tables: Mapping[str, pa.Table]
    select: exp.Select

    @property
    def ends(self) -> bool:
        """Whether more than a list of columns stands around the AI calls."""
        kinds = ("distinct", "group", "having", "order", "limit", "offset")
        return any(self.select.args.get(kind) for kind in kinds)

    def result(self, rows: Mapping[str, np.ndarray]) -> list[tuple]:
        """The statement's rows: SELECT list, GROUP BY and the rest over the rows (numbers by alias) that the AI calls left."""
        columns = {
            (c.table, c.name) for c in self.select.find_all(exp.Column) if not _inside(c, exp.From, exp.Join, exp.Where)
        }
        taken = {
            _flat(*name): self.tables[name[0]][name[1]].take(rows[name[0]]).to_pylist() for name in sorted(columns)
        }
        if not self.ends:
            listed = [each.unalias() for each in self.select.expressions]
            return list(zip(*(taken[_flat(c.table, c.name)] for c in listed), strict=True))
        if not len(next(iter(rows.values()))):
            return []  # the executor wants a row to know the columns
        matched = [dict(zip(taken, values, strict=True)) for values in zip(*taken.values(), strict=True)]
        return execute(self._around(), tables={RESULT: matched}).rows

    def _around(self) -> exp.Select:
        """The statement over one table of what the AI calls left."""
        around = self.select.copy()
        for part in ("joins", "where"):
            around.set(part, None)
        around.set(FROM, exp.From(this=exp.to_table(RESULT)))
        return around.transform(
            lambda n: exp.column(_flat(n.table, n.name)) if isinstance(n, exp.Column) and n.table else n
        )


def read_sql(sql: str, sources: Mapping[str, pa.Table], count: Callable[[str], float] = count_bytes) -> Query:
    """The plan of a statement over `sources` by name; statistics from the tables, a text's tokens by `count`."""
    select = _checked(parse_one(sql), sources)
    joins = select.args.get("joins") or []
    named = [select.args[FROM].this, *(join.this for join in joins)]
    on = [_conditions(join.args.get("on")) for join in joins]
    where = _conditions(select.args["where"].this if select.args.get("where") else None)
    if where.keys:
        raise SqlError(f"an equality of two tables stands in WHERE of {sql!r}; accepted: in ON")
    scans = {table.alias_or_name: _scan(table, sources, [*on, where]) for table in named}
    relations = [Relation(alias, _statistics(alias, *scan, [*on, where], count)) for alias, scan in scans.items()]
    plan: Plan = relations[0]
    for right, each in zip(relations[1:], on, strict=True):
        keys = tuple((b, a) if a.relation == right.name else (a, b) for a, b in each.keys)
        plan = AiJoin("inner", plan, right, keys, tuple(each.predicates))
    if where.predicates:
        plan = AiFilter(tuple(where.predicates), plan)
    return Query(plan, {alias: table for alias, (table, _) in scans.items()}, select)


def _checked(tree: exp.Expression, sources: Mapping[str, pa.Table]) -> exp.Select:
    """The statement, if it is of the suite's SQL as far as conditions do not matter."""
    joins = tree.args.get("joins") or []
    tables = list(tree.find_all(exp.Table))
    grouped = bool(tree.args.get("group"))
    fits = (
        isinstance(tree, exp.Select)
        and not any(join.side or join.kind not in ("", "INNER") for join in joins)
        and all(table.name in sources for table in tables)
        and len({table.alias_or_name for table in tables}) == 1 + len(joins)
        and all(isinstance(each.unalias(), exp.Column) or grouped for each in tree.expressions)
    )
    if not fits:
        raise SqlError(
            f"the statement {tree.sql()!r} is not of the suite's SQL; accepted: SELECT of columns, or of aggregates with GROUP "
            f"BY, from inner joins of {', '.join(sources)}, each under a name of its own"
        )
    return tree


def _scan(table: exp.Table, sources: Mapping[str, pa.Table], conditions: list["_Conditions"]) -> tuple[pa.Table, str]:
    """The rows of a table that pass the tests of columns, and what they are called: the same for the same rows."""
    rows, name = sources[table.name], table.name
    for test in [t for each in conditions for t in each.tests if t.this.table == table.alias_or_name]:
        rows = rows.filter(COMPARISONS[type(test)](rows[test.this.name], _value(test.expression)))
        name += f" {type(test).__name__} {test.this.name} {test.expression.sql()}"
    return rows, name


class _Conditions:
    def __init__(self):
        self.keys: list[tuple[TextRef, TextRef]] = []
        self.predicates: list[AiPredicate] = []
        self.tests: list[exp.Expression] = []


def _conditions(tree: exp.Expression | None) -> _Conditions:
    found = _Conditions()
    for each in _conjuncts(tree):
        if isinstance(each, exp.Dot):
            found.predicates.append(_predicate(each))
        elif isinstance(each, exp.EQ) and isinstance(each.this, exp.Column) and isinstance(each.expression, exp.Column):
            found.keys.append(tuple(TextRef(side.table, side.name) for side in (each.this, each.expression)))
        elif (
            type(each) in COMPARISONS and isinstance(each.this, exp.Column) and isinstance(each.expression, exp.Literal)
        ):
            found.tests.append(each)
        else:
            raise SqlError(f"the condition {each.sql()!r} is not of the suite's SQL; accepted: {ACCEPTED}")
    return found


def _conjuncts(tree: exp.Expression | None) -> Iterator[exp.Expression]:
    if isinstance(tree, exp.And):
        yield from _conjuncts(tree.this)
        yield from _conjuncts(tree.expression)
    elif tree is not None:
        yield tree.this if isinstance(tree, exp.Paren) else tree


def _predicate(dot: exp.Dot) -> AiPredicate:
    call = dot.expression
    prompt = call.expressions[0] if isinstance(call, exp.Anonymous) and call.expressions else None
    if (
        f"{dot.this.name}.{call.name}".upper() != "AI.IF"
        or not isinstance(prompt, exp.Anonymous)
        or len(prompt.expressions) != 1
    ):
        raise SqlError(f"the call {dot.sql()!r} is not of the suite's SQL; accepted: {ACCEPTED}")
    options = {pair.this.name: _value(pair.expression) for each in call.expressions[1:] for pair in each.expressions}
    return AiPredicate.of(prompt.expressions[0].name, **options)


def _value(literal: exp.Literal) -> float | int | str:
    if literal.is_string:
        return literal.name
    return float(literal.name) if "." in literal.name else int(literal.name)


def _statistics(
    alias: str, table: pa.Table, source: str, conditions: list[_Conditions], count: Callable[[str], float]
) -> TableStats:
    """Rows, lengths of the texts that questions read, distinct values of keys, and which rows of which table they are."""
    used = {text for each in conditions for predicate in each.predicates for text in predicate.used}
    keys = {ref for each in conditions for pair in each.keys for ref in pair}
    columns = sorted(text.column for text in used if text.relation == alias)
    samples = {column: table[column].to_pylist() for column in columns}
    known = table_stats(columns, table.num_rows, samples=samples, count=count)
    distinct = {
        ref.column: float(pc.count_distinct(table[ref.column]).as_py()) for ref in keys if ref.relation == alias
    }
    return TableStats(known.rows, known.texts, distinct, source)


def _flat(alias: str, column: str) -> str:
    return f"{alias}_{column}"


def _inside(node: exp.Expression, *kinds: type) -> bool:
    return node.find_ancestor(*kinds) is not None
