"""A cluster of inner joins in the optimizer's algebra, with what Spark's plan knows of its inputs. Driver-side; nothing runs."""

from dataclasses import dataclass, field, replace

from quail_spark.optimizer.logical import AiFilter, AiJoin, AiPredicate, Plan, Relation, TextRef, relations
from quail_spark.optimizer.statistics import TableStats, table_stats

from .ai_calls import AiCall, ai_call
from .anchors import anchor_placeholders, anchor_text
from .join_cluster import Cluster, Filtered, Input, Joined, Written
from .join_conditions import is_constant, sort_conditions
from .join_sides import anchor_is_left
from .planning import NotPlanned, Planning, plain_sql
from .scala import JavaObject, items, kind

UNUSED = "unused"  # the column of an argument that no placeholder names


@dataclass
class Table:
    """One input: its name in the query, and the texts and keys read of it, by their name in the logical plan."""

    plan: JavaObject
    name: str
    read: dict[str, JavaObject] = field(default_factory=dict)
    keys: dict[str, JavaObject] = field(default_factory=dict)

    def column(self, expression: JavaObject, among: dict[str, JavaObject]) -> str:
        """The name of an expression over this input, added to `among` when it is new."""
        bare = expression
        while kind(bare) == "Cast":
            bare = bare.child()
        name = bare.name() if kind(bare) == "AttributeReference" else plain_sql(expression)
        while name in among and not among[name].semanticEquals(expression):
            name += "'"
        among[name] = expression
        return name


class Translation:
    """`written`: the cluster as a logical plan; `calls` by predicate; `relational`: the conditions without AI.

    Raises NotPlanned for a condition that is not understood and for an input of unknown size.
    """

    def __init__(self, planning: Planning, cluster: Cluster):
        self._planning = planning
        self.tables = [Table(plan, "") for plan in cluster.inputs]
        self.calls: dict[AiPredicate, AiCall] = {}
        self.relational: list[JavaObject] = []
        self._keys: dict[int, tuple[TextRef, TextRef]] = {}  # by the condition's place in `relational`
        self._name(cluster.conditions)
        self._tree = self._understood(cluster.written)
        self._stats = self._statistics()
        self.written = self._plan(self._tree)

    def table(self, name: str) -> Table:
        """The input of this name."""
        return next(table for table in self.tables if table.name == name)

    def owner(self, expression: JavaObject) -> Table | None:
        """The one input whose columns an expression reads."""
        found = [table for table in self.tables if expression.references().subsetOf(table.plan.outputSet())]
        return found[0] if found and not is_constant(expression) else None

    def _name(self, conditions: list[JavaObject]) -> None:
        """Names of the query: the qualifiers of the columns that its conditions read, else of the input's own."""
        read = self._planning.attributes(conditions)
        for number, table in enumerate(self.tables):
            columns = [a for a in read if table.plan.outputSet().contains(a)] + items(table.plan.output())
            qualifiers = [str(items(a.qualifier())[-1]) for a in columns if not a.qualifier().isEmpty()]
            name = qualifiers[0] if qualifiers else f"input {number + 1}"
            taken = {other.name for other in self.tables[:number]}
            table.name = name if name not in taken else f"{name} ({number + 1})"

    def _understood(self, written: Written) -> Written:
        """The tree with questions (predicates) and relational conditions (their places) for conditions."""
        if isinstance(written, Input):
            return written
        conditions = tuple(map(self._condition, written.conditions))
        if isinstance(written, Filtered):
            return replace(written, conditions=conditions, child=self._understood(written.child))
        left, right = self._understood(written.left), self._understood(written.right)
        return replace(written, conditions=conditions, left=left, right=right)

    def _condition(self, condition: JavaObject) -> AiPredicate | int:
        if self._planning.calls_ai(condition):
            call = ai_call(self._planning.catalyst, condition)
            if call is None:
                raise NotPlanned(
                    "an AI call stands inside OR, NOT, CASE or another expression, or its prompt is computed"
                )
            predicate = self._predicate(call)
            self.calls.setdefault(predicate, call)
            return predicate
        if not self._planning.fits_lambda(condition):
            raise NotPlanned(f"{plain_sql(condition)} needs Python or a subquery")
        self.relational.append(condition)
        if kind(condition) == "EqualTo":
            sides = [(self.owner(e), e) for e in items(condition.children())]
            if None not in (tables := [table for table, _ in sides]) and tables[0] is not tables[1]:
                refs = tuple(TextRef(table.name, table.column(e, table.keys)) for table, e in sides)
                self._keys[len(self.relational) - 1] = refs
        return len(self.relational) - 1

    def _predicate(self, call: AiCall) -> AiPredicate:
        owners = {i: self.owner(call.arguments[i]) for i in call.used if not is_constant(call.arguments[i])}
        if None in owners.values():
            raise NotPlanned("an argument of an AI call computes with columns of two tables")
        if not owners:
            raise NotPlanned("an AI call reads no column")
        first = next(iter(owners.values()))
        arguments = []
        for i, argument in enumerate(call.arguments):
            table = owners.get(i, first)
            column = table.column(argument, table.read) if i in call.used else UNUSED
            arguments.append(TextRef(table.name, column))
        options, hint = call.options, self._hint(call, owners)
        return AiPredicate(call.template, tuple(arguments), options.selectivity, hint, options.layout)

    def _hint(self, call: AiCall, owners: dict[int, Table]) -> str | None:
        """The option `anchor` as numbers of placeholders of one table; None where it says nothing here."""
        if call.options.anchor is None:
            return None
        numbers = anchor_placeholders(call.options.anchor, len(call.arguments)) or ()
        if not numbers and len({id(table) for table in owners.values()}) > 1:
            name = call.options.anchor.lower()
            numbers = tuple(
                i for i, table in owners.items() if name in _qualifiers(call.arguments[i]) or name == table.name.lower()
            )
        numbers = [i for i in numbers if i in owners]
        return anchor_text(i for i in numbers if owners[i] is owners[numbers[0]]) or None

    def _statistics(self) -> dict[str, TableStats]:
        found: dict[str, TableStats] = {}
        statistics = self._planning.statistics
        for number, table in enumerate(self.tables):
            rows = statistics.rows_read(table.plan)
            if rows is None:
                raise NotPlanned(f"it is not known how many rows {table.name} has")
            lengths = {name: statistics.text_bytes(table.plan, e) for name, e in table.read.items()}
            average = {name: n for name, n in lengths.items() if n is not None}
            texts = table_stats(list(table.read), rows, int(str(table.plan.stats().sizeInBytes())), average)
            counts = {name: statistics.distinct(table.plan, e) for name, e in table.keys.items()}
            distinct = {name: n for name, n in counts.items() if n is not None}
            found[table.name] = replace(texts, distinct=distinct, source=self._source(number))
        return {
            name: replace(stats, distinct=self._assumed(name, found) | stats.distinct) for name, stats in found.items()
        }

    def _assumed(self, name: str, found: dict[str, TableStats]) -> dict[str, float]:
        """Distinct values of this input's keys where Spark does not count them: an equality is taken for that of a foreign key,
        which leaves no row of either side out and gives each row of the larger one partner."""
        assumed: dict[str, float] = {}
        for pair in self._keys.values():
            fewer = min(found[ref.relation].rows.value for ref in pair)
            for ref in pair:
                if ref.relation == name:
                    assumed[ref.column] = min(fewer, assumed.get(ref.column, fewer))
        return assumed

    def _source(self, number: int) -> str:
        """Equal for inputs that are the same rows."""
        plan = self.tables[number].plan
        twin = next(n for n, other in enumerate(self.tables) if n == number or other.plan.sameResult(plan))
        return str(twin)

    def _plan(self, tree: Written) -> Plan:
        if isinstance(tree, Input):
            name = self.tables[tree.number].name
            return Relation(name, self._stats[name])
        predicates = tuple(dict.fromkeys(c for c in tree.conditions if isinstance(c, AiPredicate)))
        if isinstance(tree, Filtered):
            child = self._plan(tree.child)
            return AiFilter(predicates, child) if predicates else child
        left, right = self._plan(tree.left), self._plan(tree.right)
        keys = tuple(self._keys[c] for c in tree.conditions if isinstance(c, int) and c in self._keys)
        keys = tuple(key if key[0].relation in relations(left) else key[::-1] for key in keys)
        return AiJoin("inner", left, right, keys, predicates, self._anchor(tree, left, right, predicates))

    def _anchor(self, tree: Joined, left: Plan, right: Plan, predicates: tuple[AiPredicate, ...]) -> str | None:
        """The anchor of a join where it stands."""
        about_pairs = [p for p in predicates if len(p.relations) > 1]
        if not about_pairs:
            return None
        quiet = replace(self._planning, notes=[])
        is_left = anchor_is_left(quiet, tree.node, sort_conditions(quiet, tree.node))
        side = relations(left if is_left else right)
        return next((name for p in about_pairs for name in p.relations if name in side), None)


def crosses(tree: Written) -> int:
    """Joins without a condition."""
    if isinstance(tree, Input):
        return 0
    if isinstance(tree, Filtered):
        return crosses(tree.child)
    return crosses(tree.left) + crosses(tree.right) + (not tree.conditions)


def _qualifiers(expression: JavaObject) -> set[str]:
    return {str(part).lower() for a in items(expression.references().toSeq()) for part in items(a.qualifier())}
