"""A small SQL in plain Python: expressions and queries that print themselves as Spark SQL and compute their own result.

Three-valued logic; NULL is None. A row of a query maps each alias to a table's row; `None` stands for a row of NULLs.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass

COLUMNS = ("id", "text", "grp", "n")
TableRow = tuple
Row = dict[str, TableRow | None]
Tables = dict[str, list[TableRow]]
Ask = Callable[..., bool | None]


class Expression:
    """`sql()` prints it, `value(row, world)` computes it, `parts()` are its operands."""

    def parts(self) -> tuple["Expression", ...]:
        return ()

    def aliases(self) -> set[str]:
        """Aliases of the tables that it reads, without those of its own subquery."""
        return set().union(*(part.aliases() for part in self.parts()))

    def calls_ai(self) -> bool:
        return any(part.calls_ai() for part in self.parts())

    def is_pair_call(self) -> bool:
        """Whether a UDF in it reads two tables."""
        return any(part.is_pair_call() for part in self.parts())


@dataclass(frozen=True)
class World:
    """What expressions are computed in: the tables and the model."""

    tables: Tables
    ask: Ask


@dataclass(frozen=True)
class Column(Expression):
    alias: str
    name: str

    def sql(self):
        return f"{self.alias}.{self.name}"

    def value(self, row, world):
        found = row[self.alias]
        return None if found is None else found[COLUMNS.index(self.name)]

    def aliases(self):
        return {self.alias}


@dataclass(frozen=True)
class Literal(Expression):
    constant: object

    def sql(self):
        words = [word for value, word in ((True, "TRUE"), (False, "FALSE"), (None, "NULL")) if self.constant is value]
        return words[0] if words else repr(self.constant)

    def value(self, row, world):
        return self.constant


@dataclass(frozen=True)
class Ai(Expression):
    template: str
    arguments: tuple[Expression, ...]
    options: tuple[tuple[str, object], ...] = ()

    def sql(self):
        arguments = "".join(f", {a.sql()}" for a in self.arguments)
        options = ", ".join(f"'{name}': {value!r}" for name, value in self.options)
        return f"AI.IF(PROMPT('{self.template}'{arguments}){f', {{{options}}}' if options else ''})"

    def value(self, row, world):
        values = (a.value(row, world) for a in self.arguments)
        return world.ask(self.template, *(None if v is None else str(v) for v in values))

    def parts(self):
        return self.arguments

    def calls_ai(self):
        return True

    def is_pair_call(self):
        return len(self.aliases()) > 1


COMPARE = {"=": operator.eq, "<>": operator.ne, "<": operator.lt, ">=": operator.ge}


@dataclass(frozen=True)
class Compare(Expression):
    op: str
    a: Expression
    b: Expression

    def sql(self):
        return f"{self.a.sql()} {self.op} {self.b.sql()}"

    def value(self, row, world):
        a, b = self.a.value(row, world), self.b.value(row, world)
        if self.op == "<=>":
            return a == b
        return None if None in (a, b) else COMPARE[self.op](a, b)

    def parts(self):
        return self.a, self.b


@dataclass(frozen=True)
class IsNull(Expression):
    a: Expression

    def sql(self):
        return f"({self.a.sql()}) IS NULL"

    def value(self, row, world):
        return self.a.value(row, world) is None

    def parts(self):
        return (self.a,)


@dataclass(frozen=True)
class Not(Expression):
    a: Expression

    def sql(self):
        return f"NOT ({self.a.sql()})"

    def value(self, row, world):
        value = self.a.value(row, world)
        return None if value is None else not value

    def parts(self):
        return (self.a,)


@dataclass(frozen=True)
class Or(Expression):
    a: Expression
    b: Expression

    def sql(self):
        return f"({self.a.sql()} OR {self.b.sql()})"

    def value(self, row, world):
        values = self.a.value(row, world), self.b.value(row, world)
        return True if True in values else None if None in values else False

    def parts(self):
        return self.a, self.b


@dataclass(frozen=True)
class Case(Expression):
    condition: Expression
    a: Expression
    b: Expression

    def sql(self):
        return f"CASE WHEN {self.condition.sql()} THEN {self.a.sql()} ELSE {self.b.sql()} END"

    def value(self, row, world):
        chosen = self.a if self.condition.value(row, world) is True else self.b
        return chosen.value(row, world)

    def parts(self):
        return self.condition, self.a, self.b


def all_true(conditions: tuple[Expression, ...], row: Row, world: World) -> bool:
    """Whether a conjunction is TRUE; relational conditions are looked at first."""
    return all(c.value(row, world) is True for c in sorted(conditions, key=Expression.calls_ai))


def conjunction(conditions: tuple[Expression, ...]) -> str:
    return " AND ".join(c.sql() for c in conditions) or "TRUE"


@dataclass(frozen=True)
class Subquery(Expression):
    """[NOT] EXISTS (SELECT … FROM table alias WHERE conditions), or with `item`: item [NOT] IN (SELECT column …)."""

    table: str
    alias: str
    conditions: tuple[Expression, ...]
    negated: bool
    item: Expression | None = None
    column: str = "n"

    def sql(self):
        word = "NOT " if self.negated else ""
        where = f"FROM {self.table} {self.alias} WHERE {conjunction(self.conditions)}"
        if self.item is None:
            return f"{word}EXISTS (SELECT 1 {where})"
        return f"{self.item.sql()} {word}IN (SELECT {self.alias}.{self.column} {where})"

    def value(self, row, world):
        rows = [{**row, self.alias: r} for r in world.tables[self.table]]
        rows = [r for r in rows if all_true(self.conditions, r, world)]
        if self.item is None:
            return bool(rows) is not self.negated
        values = [Compare("=", self.item, Column(self.alias, self.column)).value(r, world) for r in rows]
        found = True if True in values else None if None in values else False
        return found if found is None else found is not self.negated

    def parts(self):
        return (*self.conditions, *([self.item] if self.item else []))

    def aliases(self):
        return super().aliases() - {self.alias}


@dataclass(frozen=True)
class Table:
    name: str
    alias: str
    conditions: tuple[Expression, ...] = ()  # of a subquery in FROM

    def sql(self):
        if not self.conditions:
            return f"{self.name} {self.alias}"
        return f"(SELECT * FROM {self.name} {self.alias} WHERE {conjunction(self.conditions)}) {self.alias}"

    def rows(self, world) -> list[Row]:
        rows = ({self.alias: r} for r in world.tables[self.name])
        return [r for r in rows if all_true(self.conditions, r, world)]

    def bases(self):
        return {self.alias: self.name}

    def condition_lists(self):
        yield self.conditions


JOINS = {
    "inner": "JOIN",
    "cross": "CROSS JOIN",
    "comma": ",",
    "left": "LEFT JOIN",
    "right": "RIGHT OUTER JOIN",
    "full": "FULL OUTER JOIN",
    "semi": "LEFT SEMI JOIN",
    "anti": "LEFT ANTI JOIN",
}


@dataclass(frozen=True)
class Join:
    kind: str
    left: "Table | Join"
    right: Table
    on: tuple[Expression, ...]

    def sql(self):
        on = f" ON {conjunction(self.on)}" if self.on else ""
        return f"{self.left.sql()} {JOINS[self.kind]} {self.right.sql()}{on}"

    def rows(self, world):
        lefts, rights = list(enumerate(self.left.rows(world))), list(enumerate(self.right.rows(world)))
        hits = {(i, j) for i, left in lefts for j, right in rights if all_true(self.on, {**left, **right}, world)}
        left_hits, right_hits = {i for i, _ in hits}, {j for _, j in hits}
        if self.kind in ("semi", "anti"):
            return [left for i, left in lefts if (i in left_hits) == (self.kind == "semi")]
        rows = [{**left, **right} for i, left in lefts for j, right in rights if (i, j) in hits]
        if self.kind in ("left", "full"):
            rows += [{**left, self.right.alias: None} for i, left in lefts if i not in left_hits]
        if self.kind in ("right", "full"):
            nothing = dict.fromkeys(self.left.bases())
            rows += [{**nothing, **right} for j, right in rights if j not in right_hits]
        return rows

    def bases(self):
        return self.left.bases() | self.right.bases()

    def condition_lists(self):
        yield from self.left.condition_lists()
        yield from self.right.condition_lists()
        yield self.on

    @property
    def visible(self) -> list[str]:
        """Aliases that may be used above."""
        left = self.left.visible if isinstance(self.left, Join) else [self.left.alias]
        return left if self.kind in ("semi", "anti") else [*left, self.right.alias]


@dataclass(frozen=True)
class Query:
    """SELECT [DISTINCT] items FROM source WHERE conditions."""

    items: tuple[Expression, ...]
    source: Table | Join
    where: tuple[Expression, ...] = ()
    distinct: bool = False

    def sql(self) -> str:
        items = ", ".join(f"{item.sql()} AS c{i}" for i, item in enumerate(self.items))
        where = f" WHERE {conjunction(self.where)}" if self.where else ""
        return f"SELECT {'DISTINCT ' if self.distinct else ''}{items} FROM {self.source.sql()}{where}"

    @property
    def width(self) -> int:
        return len(self.items)

    def rows(self, world: World) -> list[tuple]:
        rows = [r for r in self.source.rows(world) if all_true(self.where, r, world)]
        rows = [tuple(item.value(r, world) for item in self.items) for r in rows]
        return list(dict.fromkeys(rows)) if self.distinct else rows

    def condition_lists(self):
        yield from self.source.condition_lists()
        yield self.where
        for item in self.items:
            yield (item,)

    def bases(self):
        return self.source.bases()


@dataclass(frozen=True)
class Grouped:
    """SELECT key, count(*), count_if(asked), count(*) FILTER (WHERE asked) FROM source WHERE … GROUP BY key HAVING having."""

    key: Expression
    asked: Expression
    source: Table | Join
    where: tuple[Expression, ...]
    having: Expression | None  # over the key
    width: int = 4

    def sql(self) -> str:
        key, asked = self.key.sql(), self.asked.sql()
        having = f" HAVING {self.having.sql()}" if self.having else ""
        return (
            f"SELECT {key} AS c0, count(*) AS c1, count_if({asked}) AS c2, count(*) FILTER (WHERE {asked}) AS c3 "
            f"FROM {self.source.sql()} WHERE {conjunction(self.where)} GROUP BY {key}{having}"
        )

    def rows(self, world: World) -> list[tuple]:
        groups: dict[object, list[Row]] = {}
        for row in self.source.rows(world):
            if all_true(self.where, row, world):
                groups.setdefault(self.key.value(row, world), []).append(row)
        result = []
        for key, rows in groups.items():
            if self.having is None or self.having.value(rows[0], world) is True:
                true = sum(self.asked.value(row, world) is True for row in rows)
                result.append((key, len(rows), true, true))
        return result

    def condition_lists(self):
        yield from self.source.condition_lists()
        yield self.where
        yield (self.key,)
        yield (self.asked,)
        if self.having:
            yield (self.having,)

    def bases(self):
        return self.source.bases()


@dataclass(frozen=True)
class UnionAll:
    """first UNION ALL second; with `cte` they are the same query twice, by name."""

    first: Query
    second: Query
    cte: bool = False

    @property
    def width(self) -> int:
        return self.first.width

    def sql(self) -> str:
        if self.cte:
            return f"WITH w AS ({self.first.sql()}) SELECT * FROM w UNION ALL SELECT * FROM w"
        return f"{self.first.sql()} UNION ALL {self.second.sql()}"

    def rows(self, world: World) -> list[tuple]:
        return self.first.rows(world) + (self.first if self.cte else self.second).rows(world)

    def queries(self) -> list[Query]:
        return [self.first, self.second]
