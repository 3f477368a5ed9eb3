"""What the planner's rules share: settings of the query, the columns that go into an operator, what was decided."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature

from quail_spark.optimizer.anchor import SideSize
from quail_spark.optimizer.options import CallOptions
from quail_spark.optimizer.plan import LAYOUTS, OperatorSpec, Predicate

from .ai_calls import AiCall
from .conf import QuailConf
from .gpu_profile import gpu_profile
from .plan_statistics import PlanStatistics
from .scala import Catalyst, JavaObject, items, kind


class NotPlanned(Exception):
    """Internal: this shape is left to the UDF, for the reason given."""


@dataclass
class InputColumns:
    """Columns of the Project below an operator: kept attributes, and texts of arguments (each distinct one once)."""

    catalyst: Catalyst
    prefix: str = ""
    names: list[str] = field(default_factory=list)
    expressions: list[JavaObject] = field(default_factory=list)
    text_names: list[str] = field(default_factory=list)
    own_texts: list[str] = field(default_factory=list)  # those of them that hold nothing else
    _texts: list[JavaObject] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)

    def add(self, expression: JavaObject, name: str) -> str:
        """Append a column."""
        self.names.append(name)
        self.expressions.append(self.catalyst.alias(expression, name))
        return name

    def attribute(self, attribute: JavaObject) -> str:
        """The name of the column that holds this attribute, added when there is none."""
        held = self._holding(attribute)
        return held[0] if held else self.add(attribute, f"{self.prefix}x{len(self)}")

    def _holding(self, expression: JavaObject) -> list[str]:
        pairs = zip(self.names, self.expressions, strict=True)
        return [name for name, column in pairs if column.child().semanticEquals(expression)]

    def guarded(self, conditions: list[JavaObject]) -> list[JavaObject]:
        """The columns, with texts that are computed only where the conditions hold, and NULL elsewhere: computing one may
        raise where they do not."""
        return [
            self._guarded(name, column, conditions) for name, column in zip(self.names, self.expressions, strict=True)
        ]

    def _guarded(self, name: str, column: JavaObject, conditions: list[JavaObject]) -> JavaObject:
        text = column.child()
        if not conditions or name not in self.own_texts or kind(text) == "AttributeReference":
            return column
        return self.catalyst.alias(self.catalyst.only_where(conditions, text), name)

    def text(self, argument: JavaObject) -> int:
        """Index among the text columns of this argument's value, added when it is new."""
        for index, known in enumerate(self._texts):
            if known.semanticEquals(argument):
                return index
        held = self._holding(argument)
        self._texts.append(argument)
        if not held:
            self.own_texts.append(self.add(argument, f"{self.prefix}t{len(self._texts) - 1}"))
        self.text_names.append(held[0] if held else self.own_texts[-1])
        return len(self._texts) - 1


@dataclass(frozen=True)
class PlannedOperator:
    """An operator of the plan, with the query's own words for its predicates' arguments.

    `arguments[p][i]` is the SQL of argument `{i}` of predicate p; `rows` what Spark expects to come in (None: unknown),
    for a join anchors and partners; `words` name the kind of operator; `stops`: an anchor is done at its first TRUE.
    `sizes`: what Spark knows of the same inputs and the texts read there; `kind` of a join as its operator has it; `keyed`:
    it has an equality. `conf`: the settings that it was planned under.
    """

    spec: OperatorSpec
    arguments: tuple[tuple[str, ...], ...]
    rows: tuple[int | None, ...]
    words: str = "filter"
    stops: bool = False
    sizes: tuple[SideSize, ...] = ()
    kind: str = "inner"
    keyed: bool = False
    conf: QuailConf | None = None


@dataclass
class Planning:
    """One run of the planner over one plan. `asked_later`: what operators above the present node ask (see keeping_kv).

    `fronts`: by call, the placeholders whose texts stand first, where join_order.py chose them.
    """

    catalyst: Catalyst
    builder: JavaObject
    conf: QuailConf
    operators: list[PlannedOperator] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    asked_later: frozenset[tuple[int, ...]] = frozenset()
    fronts: dict[tuple, tuple[int, ...]] = field(default_factory=dict)

    @property
    def layout(self) -> str:
        """Prompt layout of the questions of this query that have none of their own; for `auto` see layouts.py."""
        layout = self.conf["prompt.layout"]
        return LAYOUTS[0] if layout == "auto" else layout

    def layout_of(self, options: CallOptions) -> str:
        """Prompt layout of a call."""
        return options.layout or self.layout

    @cached_property
    def statistics(self) -> PlanStatistics:
        """What is known of the sizes of inputs."""
        return PlanStatistics(self.catalyst, self.builder, self.conf["statistics.footers"])

    @property
    def boolean_type(self) -> JavaObject:
        """Spark's BOOLEAN."""
        return self.catalyst.spark._jsparkSession.parseDataType('"boolean"')

    @property
    def long_type(self) -> JavaObject:
        """Spark's BIGINT."""
        return self.catalyst.spark._jsparkSession.parseDataType('"long"')

    def input_columns(self, prefix: str = "") -> InputColumns:
        """No columns yet; the names of added texts start with `prefix`."""
        return InputColumns(self.catalyst, prefix)

    def calls_ai(self, expression: JavaObject) -> bool:
        """Whether an AI call stands in this expression."""
        return self.builder.callsAi(expression)

    def mentions_ai(self, plan: JavaObject) -> bool:
        """Whether an AI call stands in this plan or below."""
        return self.builder.mentionsAi(plan)

    def nests_ai(self, plan: JavaObject) -> bool:
        """Whether an EXISTS or IN subquery in this plan or below has an AI call that becomes a join's condition."""
        return self.builder.nestsAi(plan)

    def awaits_outer(self, plan: JavaObject) -> bool:
        """Whether Spark joins this plan of a subquery to its outer query later; then its filters are conditions of that join."""
        return self.builder.awaitsOuter(plan)

    def note(self, reason: str) -> None:
        """Note, for EXPLAIN, what was not planned as asked (what runs as a plain UDF, say) and why."""
        self.notes.append(reason)

    def replace(self, spec, calls, function, names, kept, source, *inputs: JavaObject, **known):
        """The operator `spec` over `source`, and a Project that gives its columns `names` back as the attributes `kept`.

        `inputs` are the plans whose rows EXPLAIN counts; `known`: words, stops, kind and keyed as in PlannedOperator.
        """
        read = [call.arguments[i] for call in calls for i in call.used]
        sizes = tuple(self._input_size(plan, read) for plan in inputs)
        rows = tuple(size.rows for size in sizes)
        self.operators.append(PlannedOperator(spec, words_of(calls), rows, sizes=sizes, conf=self.conf, **known))
        templates = " AND ".join(repr(predicate.template) for predicate in spec.predicates)
        shown = f"{spec.name}: {templates if len(templates) <= 120 else templates[:119] + '…'}"
        return self.restored(function, shown, names, kept, source, gpu_profile(self.catalyst, self.conf))

    def _input_size(self, plan: JavaObject, texts: list[JavaObject]) -> SideSize:
        """As `PlanStatistics.size`; of what comes out of an AI operator Spark knows nothing, and its bytes mean nothing."""
        size = self.statistics.size(plan, [text for text in texts if text.references().subsetOf(plan.outputSet())])
        shown = plan.toString() if size.rows is None else ""
        planned_below = any(operator.spec.name in shown for operator in self.operators)
        return replace(size, total_bytes=None) if planned_below else size

    def restored(
        self,
        function,
        shown: str,
        names: list[str],
        kept: list[JavaObject],
        source: JavaObject,
        profile: JavaObject | None = None,
    ) -> JavaObject:
        """A MapInArrow, and a Project that gives its columns `names` back as the attributes `kept`.

        Without columns, one of TRUE makes the rows count. `profile`: the ResourceProfile of its stage.
        """
        outputs = [(name, attribute.dataType()) for name, attribute in zip(names, kept, strict=True)]
        outputs = outputs or [("n", self.boolean_type)]
        operator, fresh = self.catalyst.map_in_arrow(function, shown, outputs, source, profile)
        renamed = zip(fresh[: len(kept)], kept, strict=True)
        return self.catalyst.project([self.catalyst.alias(new, old.name(), old) for new, old in renamed], operator)

    def fits_lambda(self, condition: JavaObject) -> bool:
        """Whether a condition may be evaluated within an array: no UDF in Python, no subquery, nothing random."""
        return condition.deterministic() and not self.builder.leavesTheRow(condition)

    def attributes(self, expressions: list[JavaObject]) -> list[JavaObject]:
        """The distinct attributes that these expressions read."""
        found = [a for e in expressions for a in items(e.references().toSeq())]
        return list({a.exprId().id(): a for a in found}.values())

    def references(self, expressions: list[JavaObject]) -> set[int]:
        """Ids of the attributes that these expressions read."""
        return {a.exprId().id() for a in self.attributes(expressions)}

    def check_arrow_types(self, attributes: list[JavaObject]) -> None:
        """Raise NotPlanned when a column can't cross to Python as Arrow."""
        for attribute in attributes:
            if not self.crosses_as_arrow(attribute.dataType()):
                raise NotPlanned(
                    f"column {attribute.name()} of type {attribute.dataType().sql()} can't cross to Python as Arrow"
                )

    def crosses_as_arrow(self, data_type: JavaObject) -> bool:
        """Whether values of a type can cross to Python as Arrow."""
        from pyspark.sql.pandas.types import to_arrow_type
        from pyspark.sql.types import UserDefinedType, _parse_datatype_json_string

        zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}  # from Spark 4.3 on
        try:
            parsed = _parse_datatype_json_string(data_type.json())
            to_arrow_type(parsed, **zone)
        except Exception:
            return False
        return not isinstance(parsed, UserDefinedType)


def plain_sql(expression: JavaObject) -> str:
    """An argument as the user would write it: without the cast to a string and without expression ids."""
    text = expression.sql()
    match = re.fullmatch(r"CAST\((.*) AS STRING\)", text)
    return (match[1] if match else text).replace("`", "")


def words_of(calls: Sequence[AiCall]) -> tuple[tuple[str, ...], ...]:
    """The arguments of each call as `plain_sql`."""
    return tuple(tuple(plain_sql(argument) for argument in call.arguments) for call in calls)


def operator_name(kind: str, predicates: tuple[Predicate, ...], calls: Sequence[AiCall], *also: object) -> str:
    """A name that is equal for equal operators about the same columns, so that reports and pass rates of a repeated query meet."""
    asked = repr((predicates, words_of(calls), also))
    return f"ai_{kind}-{hashlib.blake2b(asked.encode(), digest_size=4).hexdigest()}"
