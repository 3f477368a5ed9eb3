"""Random tables and queries around AI calls, from a seed. See sql_model.py."""

import random

from .sql_model import (
    Ai,
    Case,
    Column,
    Compare,
    Expression,
    Grouped,
    IsNull,
    Join,
    Literal,
    Not,
    Or,
    Query,
    Subquery,
    Table,
    Tables,
    UnionAll,
)

NAMES = ("a", "b", "c")
WORDS = ("late parcel", "refund", "", "thank you", "it's broken", "zwölf 🥊", "{0}", "call back", None, None)
GROUPS = ("x", "y", "z", None)


def make_tables(seed: int) -> Tables:
    """Tables a, b, c of (id, text, grp, n): NULLs, duplicate texts and rows, now and then an empty one."""
    draw = random.Random(f"tables {seed}")
    tables = {}
    for name, most in zip(NAMES, (12, 8, 6), strict=True):
        rows = draw.choice([0, 1, *[most] * 8])
        few = draw.random() < 0.5
        texts = draw.sample(WORDS, 4) if few else WORDS
        made = [(i, draw.choice(texts), draw.choice(GROUPS), draw.choice([None, *range(6)])) for i in range(rows)]
        tables[name] = made + made[: draw.choice([0, 0, 2])]
    return tables


class Maker:
    """Makes one query. Templates are unique to it, by `tag`."""

    def __init__(self, seed: int, tag: str):
        self.draw = random.Random(f"query {seed}")
        self._tag, self._templates = tag, 0

    def query(self):
        """A query of any shape."""
        shapes = (self.one_table, self.join, self.join, self.join, self.chain, self.chain, self.exists, self.exists)
        return self.draw.choice((*shapes, self.grouped, self.union, self.inner_joins, self.inner_joins))()

    # Expressions

    def ai(self, *aliases: str) -> Ai:
        """A call about these tables' texts; at times also about a group or a number."""
        self._templates += 1
        arguments = [Column(alias, "text") for alias in aliases]
        if self.draw.random() < 0.2:
            arguments.append(Column(self.draw.choice(aliases), self.draw.choice(["grp", "n"])))
        self.draw.shuffle(arguments)
        places = [f"{{{i}}}" for i in range(len(arguments))]
        self.draw.shuffle(places)
        return Ai(f"{' and '.join(places)} {self._tag}.{self._templates}", tuple(arguments))

    def relational(self, *aliases: str) -> Expression:
        alias = self.draw.choice(aliases)
        others = [other for other in aliases if other != alias]
        if others and self.draw.random() < 0.7:
            other = self.draw.choice(others)
            name = self.draw.choice(["n", "n", "grp"])
            return Compare(self.draw.choice(["<>", "<", ">=", "<=>"]), Column(alias, name), Column(other, name))
        return self.draw.choice(
            [
                Compare("<", Column(alias, "n"), Literal(self.draw.randint(1, 5))),
                IsNull(Column(alias, "grp")),
                Compare("<>", Column(alias, "grp"), Literal("x")),
            ]
        )

    def equality(self, a: str, b: str) -> Expression:
        name = self.draw.choice(["grp", "n"])
        return Compare("=", Column(a, name), Column(b, name))

    def wrapped(self, call: Expression, *aliases: str) -> Expression:
        """A call inside OR, NOT, IS NULL or CASE."""
        return self.draw.choice(
            [
                lambda: Or(call, self.relational(*aliases)),
                lambda: Or(call, self.ai(*aliases)),
                lambda: Not(call),
                lambda: IsNull(call),
                lambda: Case(self.relational(*aliases), call, Literal(self.draw.choice([True, False, None]))),
            ]
        )()

    def condition(self, *aliases: str) -> Expression:
        """About one row: mostly a plain AI call."""
        kind = self.draw.random()
        if kind < 0.2:
            return self.relational(*aliases)
        call = self.ai(*self.draw.sample(aliases, min(len(aliases), self.draw.choice([1, 1, 2]))))
        return call if kind < 0.8 else self.wrapped(call, *aliases)

    def on(self, a: str, b: str) -> tuple[Expression, ...]:
        """The conjuncts of an ON clause over tables a and b."""
        draw = self.draw
        conditions = [self.ai(a, b) if draw.random() < 0.5 else self.ai(b, a)]
        if draw.random() < 0.15:
            conditions = [self.wrapped(conditions[0], a, b)]
        if draw.random() < 0.4:
            conditions.append(self.equality(a, b))
        if draw.random() < 0.35:
            conditions.append(self.relational(a, b))
        if draw.random() < 0.2:
            conditions.append(self.ai(a, b))
        if draw.random() < 0.2:
            conditions.append(self.ai(draw.choice([a, b])))
        if draw.random() < 0.05:
            conditions.append(self.wrapped(self.ai(draw.choice([a, b])), a, b))
        draw.shuffle(conditions)
        return tuple(conditions)

    # Queries

    def table(self, alias: str, name: str | None = None) -> Table:
        filters = (self.condition(alias),) if self.draw.random() < 0.2 else ()
        return Table(name or self.draw.choice(NAMES), alias, filters)

    def some(self, *aliases: str) -> tuple[Expression, ...]:
        """WHERE, or none."""
        return tuple(self.condition(*aliases) for _ in range(self.draw.choice([0, 0, 1, 2])))

    def items(self, aliases: list[str]) -> tuple[Expression, ...]:
        columns: list[Expression] = [Column(alias, "id") for alias in aliases]
        if self.draw.random() < 0.3:
            columns.append(Column(self.draw.choice(aliases), self.draw.choice(["text", "grp"])))
        if self.draw.random() < 0.2:
            columns.append(self.ai(self.draw.choice(aliases)))
        if self.draw.random() < 0.1:
            columns.append(self.wrapped(self.ai(aliases[0]), aliases[0]))
        return tuple(columns)

    def one_table(self) -> Query:
        where = tuple(self.condition("x") for _ in range(self.draw.choice([1, 2, 3])))
        return Query(self.items(["x"]), self.table("x"), where, self.draw.random() < 0.2)

    def join(self) -> Query:
        kinds = ["inner", "cross", "comma", "left", "left", "right", "full", "full", "semi", "anti"]
        kind, on = self.draw.choice(kinds), self.on("x", "y")
        made = Join(kind, self.table("x"), self.table("y"), () if kind == "comma" else on)
        where = self.some(*made.visible) + (on if kind == "comma" else ())
        return Query(self.items(made.visible), made, where, self.draw.random() < 0.1)

    def chain(self) -> Query:
        """Three tables, each joined to any before it: chains and stars."""
        kinds = [self.draw.choice(["inner", "inner", "left", "right", "full", "semi", "anti"]) for _ in range(2)]
        first = Join(kinds[0], Table(self.draw.choice(NAMES), "x"), self.table("y"), self.on("x", "y"))
        known = self.draw.choice(first.visible)
        made = Join(kinds[1], first, Table(self.draw.choice(NAMES), "z"), self.on(known, "z"))
        return Query(self.items(made.visible), made, self.some(*made.visible))

    def hinted(self, *aliases: str) -> Ai:
        """A call with options, right or wrong, that move it in the order of joins."""
        call, options = self.ai(*aliases), []
        if self.draw.random() < 0.7:
            options.append(("selectivity", self.draw.choice([0.01, 0.3, 0.9])))
        if self.draw.random() < 0.2:
            options.append(("anchor", self.draw.choice(aliases)))
        return Ai(call.template, call.arguments, tuple(options))

    def inner_joins(self) -> Query:
        """Three or four tables joined to any before them, with filters on some: the planner may take any order."""
        draw, filters = self.draw, []
        made: Table | Join = self.table("x")
        aliases = ["x", "y", "z", "v"][: draw.choice([3, 3, 4])]
        for number, alias in enumerate(aliases[1:], 1):
            known = draw.choice(aliases[:number])
            on: list[Expression] = [self.hinted(known, alias) if draw.random() < 0.5 else self.hinted(alias, known)]
            on = draw.choice([on, on, [*on, self.equality(known, alias)], [self.equality(known, alias)]])
            if draw.random() < 0.2:
                on.append(self.relational(known, alias))
            comma = draw.random() < 0.2 and alias == aliases[-1]
            filters += on if comma else []
            kind = "comma" if comma else draw.choice(["inner", "inner", "cross"])
            made = Join(kind, made, Table(draw.choice(NAMES), alias), () if comma else tuple(on))
        filters += [self.hinted(alias) for alias in aliases if draw.random() < 0.4]
        if draw.random() < 0.2:
            filters.append(self.ai(*draw.sample(aliases, 2)))
        return Query(self.items(aliases), made, tuple(filters), draw.random() < 0.1)

    def subquery(self, outer: str, inner: str, depth: int = 1) -> Subquery:
        """Of `outer` about `inner`; at times with another one inside."""
        draw = self.draw
        conditions, negated, table = self.on(outer, inner), draw.random() < 0.5, draw.choice(NAMES)
        if depth and draw.random() < 0.15:
            conditions = (*conditions, self.subquery(inner, "v", depth - 1))
        if draw.random() < 0.5:
            return Subquery(table, inner, conditions, negated)
        name = draw.choice(["n", "grp"])
        return Subquery(table, inner, conditions, negated, Column(outer, name), name)

    def exists(self) -> Query:
        source, outer = self.table("x"), ["x"]
        if self.draw.random() < 0.2:
            source = Join(self.draw.choice(["inner", "left", "full"]), source, self.table("y"), self.on("x", "y"))
            outer = ["x", "y"]
        found = self.subquery(self.draw.choice(outer), "z")
        items, where, place = self.items(outer), list(self.some(*outer)), self.draw.random()
        if place < 0.15 and found.item is None:
            items = (*items, found)
        elif place < 0.4 and not (found.negated and found.item is not None):
            where.append(Or(found, self.condition(*outer)))
        else:
            where.append(found)
        return Query(items, source, tuple(where))

    def grouped(self) -> Grouped:
        key: Expression = Column("x", "grp") if self.draw.random() < 0.6 else self.ai("x")
        having = self.ai("x") if isinstance(key, Column) and self.draw.random() < 0.5 else None
        if having is not None:
            having = Ai(having.template.replace("{1}", "{0}"), (key,))
        source = self.table("x")
        if self.draw.random() < 0.4:
            source = Join("inner", source, self.table("y"), self.on("x", "y"))
        return Grouped(key, self.ai("x"), source, self.some("x"), having)

    def union(self) -> UnionAll:
        items = (Column("x", "id"), Column("x", "text"))
        first, second = (Query(items, q.source, q.where) for q in (self.one_table(), self.one_table()))
        return UnionAll(first, first, cte=True) if self.draw.random() < 0.4 else UnionAll(first, second)
