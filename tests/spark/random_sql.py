"""Random Spark SQL around AI calls, from a seed: `[a]` stands for a question about one text and `[a, b]` about two.

Every query has one result, as a multiset of rows: LIMIT and row_number() follow an order by all columns, no number is a
fraction, nothing is random. Spark may refuse a query, whatever stands for the questions.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

NUMBER, TEXT, TRUTH = "number", "text", "truth"
TABLES = {
    "t": {"id": NUMBER, "a": TEXT, "b": TEXT, "n": NUMBER, "grp": TEXT},
    "u": {"id": NUMBER, "a": TEXT, "n": NUMBER},
    "e": {"id": NUMBER, "a": TEXT},
    "e2": {"id": NUMBER, "c": TEXT, "v": TEXT},
}
VALUES = "(VALUES (1, 'red', 'tea'), (2, NULL, 'car'), (NULL, 'blue car', 'red'), (2, 'tea', NULL))"
LITERALS = {
    NUMBER: ("0", "1", "2", "3", "NULL"),
    TEXT: ("'red'", "'tea car'", "''", "NULL"),
    TRUTH: ("true", "false", "NULL"),
}
SET_OPERATIONS = ("UNION ALL", "UNION", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")
ON_JOINS = ("JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
MOST_DEPTH = 3


@dataclass(frozen=True)
class Column:
    """What an expression may read."""

    sql: str
    type: str


Scope = list[Column]


@dataclass(frozen=True)
class Place:
    """Where an expression stands: the columns of its own query, and those of the queries around it, nearest first."""

    own: Scope
    outer: tuple[Scope, ...] = ()
    depth: int = 0

    def below(self) -> tuple[Scope, ...]:
        """What a subquery that stands here may read besides its own."""
        return (self.own, *self.outer)


class RandomSql:
    """Makes one query."""

    def __init__(self, seed: int, most_relations: int = 6):
        self._draw = random.Random(f"sql {seed}")
        self._left = self._draw.randint(1, most_relations)  # tables that the query may still read
        self._names = 0
        self._ctes: list[tuple[str, list[str]]] = []

    def statement(self) -> str:
        """A whole query, with CTEs at times."""
        written = []
        for _ in range(self._draw.choice([0, 0, 0, 1, 1, 2])):
            types = self._types()
            written.append(f"{(name := self._name('w'))} AS ({self.query(types, (), 1)})")
            self._ctes.append((name, types))
        with_ = f"WITH {', '.join(written)} " if written else ""
        return with_ + self.query(self._types(), (), 0)

    # Queries

    def query(self, types: list[str], outer: tuple[Scope, ...], depth: int) -> str:
        """A query whose columns have these types; they are named by type and place, so that equal names have equal types."""
        if depth < MOST_DEPTH and self._left > 1 and self._chance(0.15):
            first, second = (self._block(types, outer, depth + 1) for _ in range(2))
            return f"({first}) {self._draw.choice(SET_OPERATIONS)} ({second})"
        return self._block(types, outer, depth)

    def _block(self, types: list[str], outer: tuple[Scope, ...], depth: int) -> str:
        source, own = self._source(outer, depth)
        place = Place(own, outer, depth)
        where = self._clause("WHERE", [self.condition(place) for _ in range(self._draw.choice([0, 0, 1, 1, 2]))])
        if self._chance(0.15):
            keys, after = self._grouped(place)
            having = self._clause("HAVING", [self.condition(after)] if self._chance(0.5) else [])
            group = f" GROUP BY {self._sets(keys)}" if keys else ""
            return f"SELECT {self._items(types, after)} FROM {source}{where}{group}{having}" + self._limited(
                types, depth
            )
        distinct = "DISTINCT " if self._chance(0.1) else ""
        items = self._items(types, place, windows=self._chance(0.15))
        return f"SELECT {distinct}{items} FROM {source}{where}" + self._limited(types, depth)

    def _clause(self, word: str, conditions: list[str]) -> str:
        return f" {word} {' AND '.join(conditions)}" if conditions else ""

    def _items(self, types: list[str], place: Place, windows: bool = False) -> str:
        made = [self._window(type_, place) if windows else self.value(type_, place) for type_ in types]
        return ", ".join(f"{sql} AS {name}" for sql, name in zip(made, names(types), strict=True))

    def _limited(self, types: list[str], depth: int) -> str:
        """ORDER BY all columns and LIMIT: equal rows are the only ones whose order is open."""
        if not self._chance(0.1):
            return ""
        directions = ("", " DESC", " NULLS LAST", " DESC NULLS FIRST")
        order = ", ".join(f"{i + 1}{self._draw.choice(directions)}" for i in range(len(types)))
        return f" ORDER BY {order} LIMIT {self._draw.choice([1, 2, 5])}{self._draw.choice(['', '', ' OFFSET 1'])}"

    def _sets(self, keys: list[str]) -> str:
        word = self._draw.choice(["", "", "", "ROLLUP ", "CUBE "])
        return f"{word}({', '.join(keys)})" if word else ", ".join(keys)

    def _grouped(self, place: Place) -> tuple[list[str], Place]:
        """GROUP BY's keys, and what HAVING and SELECT may read then."""
        keys: Scope = []
        for _ in range(self._draw.choice([0, 1, 1, 2])):
            type_ = self._draw.choice([NUMBER, TEXT, TRUTH])
            keys.append(Column(self._question(place) if type_ == TRUTH else self._column(type_, place.own), type_))
        keys = [key for key in keys if key.sql not in LITERALS[key.type]]
        text, number = self._column(TEXT, place.own), self._column(NUMBER, place.own)
        aggregates = [
            Column("count(*)", NUMBER),
            Column(f"max({text})", TEXT),
            Column(f"sum({number})", NUMBER),
            Column(f"bool_or({self._question(place)})", TRUTH),
            Column(f"count_if({self.condition(Place(place.own))})", NUMBER),
            Column(f"min({text}) FILTER (WHERE {self._question(place)})", TEXT),
            Column(f"count(DISTINCT {self._question(place)})", NUMBER),
        ]
        return [key.sql for key in keys], Place(keys + self._draw.sample(aggregates, 3), place.outer, place.depth)

    def _window(self, type_: str, place: Place) -> str:
        everything = ", ".join(column.sql for column in place.own)
        by = f"PARTITION BY {self.value(self._draw.choice([TEXT, TRUTH]), Place(place.own))}"
        if type_ == NUMBER:
            few = f"{by} ORDER BY {self._column(NUMBER, place.own)}"
            calls = (
                f"row_number() OVER ({by} ORDER BY {everything})",
                f"count(*) OVER ({by})",
                f"count(*) OVER ({few})",
            )
            return self._draw.choice(calls)
        if type_ == TEXT:
            return f"lag({self._column(TEXT, place.own)}) OVER (ORDER BY {everything})"
        return f"bool_or({self._question(Place(place.own))}) OVER ({by})"

    # FROM

    def _source(self, outer: tuple[Scope, ...], depth: int) -> tuple[str, Scope]:
        """FROM, and the columns that it shows."""
        sql, own = self._relation(outer, depth)
        joined = own  # what an ON sees: a comma hides what stands before it
        for _ in range(self._draw.choice([0, 0, 1, 1, 2, 3] if depth else [0, 1, 1, 2, 3])):
            if self._left < 1:
                break
            kind = self._draw.choices(["on", "comma", "cross", "named", "lateral"], [10, 2, 1, 2, 2])[0]
            if kind == "lateral" and depth < MOST_DEPTH:
                more, columns = self._lateral(own, joined, outer, depth)
                joined = columns if more.startswith(",") else joined + columns
                sql, own = sql + more, own + columns
                continue
            relation, columns = self._relation(outer, depth)
            if kind == "comma":
                sql, own, joined = f"{sql}, {relation}", own + columns, columns
                continue
            if kind == "cross":
                more, shown = f"CROSS JOIN {relation}", columns
            elif kind == "named":
                more, shown = self._named_join(relation, joined, columns)
            else:
                word = self._draw.choice(ON_JOINS)
                more = f"{word} {relation} ON {self._on(Place(joined, outer, depth), columns)}"
                shown = [] if "SEMI" in word or "ANTI" in word else columns
            sql, own, joined = f"{sql} {more}", own + shown, joined + shown
        return sql, own

    def _relation(self, outer: tuple[Scope, ...], depth: int) -> tuple[str, Scope]:
        alias = self._name("r")
        self._left -= 1
        if self._ctes and self._chance(0.5):
            name, types = self._draw.choice(self._ctes)
            return f"{name} AS {alias}", columns_of(alias, types)
        if depth < MOST_DEPTH and self._left > 0 and self._chance(0.25):
            types = self._types()
            around = outer[:1] if self._chance(0.4) else ()
            return f"({self.query(types, around, depth + 1)}) AS {alias}", columns_of(alias, types)
        if self._chance(0.08):
            types = [NUMBER, TEXT, TEXT]
            return f"{VALUES} AS {alias}({', '.join(names(types))})", columns_of(alias, types)
        table = self._draw.choices(list(TABLES), [12, 8, 1, 4])[0]
        return f"{table} AS {alias}", [Column(f"{alias}.{name}", type_) for name, type_ in TABLES[table].items()]

    def _lateral(self, own: Scope, joined: Scope, outer: tuple[Scope, ...], depth: int) -> tuple[str, Scope]:
        alias, types = self._name("r"), self._types()
        word = self._draw.choice([",", " CROSS JOIN", " JOIN", " LEFT JOIN"])
        around = (own if word == "," else joined, *outer)
        sql, columns = f"{word} LATERAL ({self.query(types, around, depth + 1)}) AS {alias}", columns_of(alias, types)
        if word in (" JOIN", " LEFT JOIN"):
            sql += f" ON {self._on(Place(joined, outer, depth), columns)}"
        return sql, columns

    def _named_join(self, relation: str, joined: Scope, columns: Scope) -> tuple[str, Scope]:
        """NATURAL or USING a name that each side has once, with the same type on both; else CROSS."""
        short, others = [[c.sql.split(".")[1] for c in scope] for scope in (joined, columns)]
        common = [name for name in short if short.count(name) == 1 and name in others]
        everywhere = all(short.count(name) < 2 for name in others)
        if not common:
            return f"CROSS JOIN {relation}", columns
        word = self._draw.choice(["JOIN", "LEFT JOIN", "FULL JOIN", "RIGHT JOIN"])
        if everywhere and "grp" not in common and self._chance(0.5):  # t joined with itself would compare maps
            return f"NATURAL {word} {relation}", columns
        if self._chance(0.2):
            return f"LEFT SEMI JOIN {relation} USING ({self._draw.choice(common)})", []
        return f"{word} {relation} USING ({self._draw.choice(common)})", columns

    def _on(self, place: Place, columns: Scope) -> str:
        """The condition of a join of what `place` has with `columns`: mostly a question about both sides."""
        left, both = place, Place(place.own + columns, place.outer, place.depth + 1)
        found = []
        if self._chance(0.8):
            arguments = [self._argument(left), self._argument(Place(columns))]
            self._draw.shuffle(arguments)
            found.append(f"[{', '.join(arguments)}]")
        if self._chance(0.3):
            type_ = self._draw.choice([NUMBER, TEXT])
            found.append(f"{self._column(type_, left.own)} = {self._column(type_, columns)}")
        if self._chance(0.25):
            found.append(f"{self._column(NUMBER, left.own)} <= {self._column(NUMBER, columns)}")
        if not found or self._chance(0.3):
            found.append(self.condition(both))
        self._draw.shuffle(found)
        return " AND ".join(found)

    # Expressions

    def condition(self, place: Place) -> str:
        """A condition, in parentheses where another could tear it apart."""
        kinds: list[tuple[Callable[[Place], str], int]] = [
            (self._question, 8),
            (self._comparison, 3),
            (self._wrapped, 6),
        ]
        if place.depth < MOST_DEPTH and self._left > 0:
            kinds.append((self._subquery, 6))
        return self._draw.choices([k for k, _ in kinds], [weight for _, weight in kinds])[0](place)

    def _question(self, place: Place) -> str:
        return f"[{', '.join(self._argument(place) for _ in range(self._draw.choice([1, 2])))}]"

    def _argument(self, place: Place) -> str:
        """A text, or now and then a number."""
        if self._chance(0.1):
            return self._column(NUMBER, self._seen(place))
        return self._column(TEXT, self._seen(place)) if self._chance(0.85) else self.value(TEXT, place)

    def _comparison(self, place: Place) -> str:
        number, other = (self._column(NUMBER, self._seen(place)) for _ in range(2))
        text = self._column(TEXT, self._seen(place))
        return self._draw.choice(
            [
                f"{number} {self._draw.choice(['<', '>=', '<>', '=', '<=>'])} {other}",
                f"{number} > {self._draw.choice(LITERALS[NUMBER])}",
                f"{text} IS NOT NULL",
                f"{text} = {self._column(TEXT, self._seen(place))}",
                f"{text} IN ('red', 'blue', 'g')",
            ]
        )

    def _wrapped(self, place: Place) -> str:
        below = Place(place.own, place.outer, place.depth + 1)
        call, other = self._question(place), self.condition(below)
        return self._draw.choice(
            [
                f"({call} OR {other})",
                f"NOT {call}",
                f"NOT ({call} AND {other})",
                f"{call} IS NULL",
                f"({call} IS DISTINCT FROM ({other}))",
                f"coalesce({call}, {other})",
                f"CASE WHEN {other} THEN {call} ELSE {self._draw.choice(LITERALS[TRUTH])} END",
                f"if({call}, {self._comparison(place)}, {other})",
                f"({call} <= ({other}))",
                f"({call} AND {other})",
            ]
        )

    def _subquery(self, place: Place) -> str:
        """EXISTS, IN or a comparison with a scalar subquery."""
        around, depth = place.below() if self._chance(0.85) else (), place.depth + 1
        around = around if self._chance(0.2) else around[:1]  # Spark lets few subqueries read two levels up
        not_, type_ = self._draw.choice(["", "NOT "]), self._draw.choice([NUMBER, TEXT])
        kind = self._draw.choices(["exists", "in", "in two", "scalar"], [5, 3, 1, 2])[0]
        if kind == "exists":
            return f"{not_}EXISTS ({self.query([NUMBER], around, depth)})"
        if kind == "in":
            type_ = self._draw.choice([type_, type_, TRUTH])
            if type_ == TRUTH:
                return f"{self._question(Place(place.own))} {not_}IN ({self.query([TRUTH], around, depth)})"
            return f"{self.value(type_, Place(place.own))} {not_}IN ({self.query([type_], around, depth)})"
        if kind == "in two":
            pair = ", ".join(self._column(wanted, place.own) for wanted in (NUMBER, TEXT))
            return f"({pair}) {not_}IN ({self.query([NUMBER, TEXT], around, depth)})"
        return f"{self._column(type_, place.own)} {self._draw.choice(['=', '<=', '>'])} {self._scalar(type_, around, depth)}"

    def _scalar(self, type_: str, around: tuple[Scope, ...], depth: int) -> str:
        """One aggregate over a query."""
        source, own = self._source(around, depth)
        where = self._clause(
            "WHERE", [self.condition(Place(own, around, depth)) for _ in range(self._draw.choice([1, 2]))]
        )
        text, number = (self._column(wanted, own) for wanted in (TEXT, NUMBER))
        aggregate = {TEXT: f"max({text})", NUMBER: self._draw.choice(["count(*)", f"max({number})", f"count({text})"])}
        return f"(SELECT {aggregate.get(type_, 'count(*) > 1')} FROM {source}{where})"

    def value(self, type_: str, place: Place) -> str:
        """An expression of a type: mostly a column."""
        if self._left > 0 and place.depth < MOST_DEPTH and self._chance(0.06):
            return self._scalar(type_, place.below()[:1], place.depth + 1)
        if type_ == TRUTH:
            return self.condition(place)
        column, other = self._column(type_, place.own), self._column(type_, self._seen(place))
        if self._chance(0.7):
            return column
        literal, test = self._draw.choice(LITERALS[type_]), self.condition(Place(place.own, place.outer, MOST_DEPTH))
        made = [f"coalesce({column}, {literal})", f"CASE WHEN {test} THEN {column} ELSE {other} END", literal]
        if type_ == TEXT:
            made += [f"({column} || ' ' || {other})", f"upper({column})", f"concat_ws(' ', {column}, {other})"]
            made += [f"CAST({self._column(NUMBER, place.own)} AS STRING)"]
        else:
            made += [f"({column} + 1)", f"({column} * {other})", f"length({self._column(TEXT, place.own)})"]
        return self._draw.choice([sql for sql in made if sql != "NULL"])

    def _column(self, type_: str, scope: Scope) -> str:
        """A column of this type, or a literal where there is none."""
        found = [column.sql for column in scope if column.type == type_]
        return self._draw.choice(found) if found else self._draw.choice(LITERALS[type_][:2])

    def _seen(self, place: Place) -> Scope:
        """The columns of the place, or of a query around it."""
        return self._draw.choice(place.outer) if place.outer and self._chance(0.4) else place.own

    # Draws

    def _types(self) -> list[str]:
        """Types of a query's columns, one of them TEXT."""
        return [NUMBER, TEXT, *self._draw.choices([NUMBER, TEXT, TRUTH], k=self._draw.choice([0, 0, 1, 2]))]

    def _chance(self, share: float) -> bool:
        return self._draw.random() < share

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"


def names(types: list[str]) -> list[str]:
    """Names of a query's columns."""
    return [f"{type_[:2]}{i}" for i, type_ in enumerate(types)]


def columns_of(alias: str, types: list[str]) -> Scope:
    """The columns of a query under an alias."""
    return [Column(f"{alias}.{name}", type_) for name, type_ in zip(names(types), types, strict=True)]
