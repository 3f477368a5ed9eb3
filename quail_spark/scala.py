"""Catalyst objects from Python: the few constructors and conversions the planner needs. Driver-side."""

from collections.abc import Callable, Iterable
from typing import Any

JavaObject = Any


def items(seq: JavaObject) -> list[JavaObject]:
    """A Scala Seq (or AttributeSet's `toSeq()`) as a Python list."""
    return [seq.apply(i) for i in range(seq.size())]


def kind(node: JavaObject) -> str:
    """Simple class name of a plan or expression, such as `Filter` or `PythonUDF`."""
    return node.getClass().getSimpleName()


def conjuncts(condition: JavaObject) -> list[JavaObject]:
    """The operands of a tree of ANDs, left to right."""
    if kind(condition) == "And":
        return conjuncts(condition.left()) + conjuncts(condition.right())
    return [condition]


class Catalyst:
    """Builds Catalyst nodes through the gateway of one driver."""

    def __init__(self, spark):
        self.spark = spark
        self.jvm = spark._jvm
        self._catalyst = spark._jvm.org.apache.spark.sql.catalyst
        self._expressions = self._catalyst.expressions
        self._logical = self._catalyst.plans.logical

    def seq(self, values: Iterable[JavaObject]) -> JavaObject:
        """An immutable Scala Seq."""
        array = self.jvm.java.util.ArrayList()
        for value in values:
            array.add(value)
        return self.jvm.org.apache.spark.api.python.PythonUtils.toSeq(array)

    def option(self, value: JavaObject | None) -> JavaObject:
        """Scala's Some or None."""
        return self.jvm.scala.Option.apply(value)

    def module(self, name: str) -> JavaObject:
        """A Scala object below `org.apache.spark.sql.catalyst`, such as `plans.Inner`."""
        return getattr(getattr(self.jvm, f"org.apache.spark.sql.catalyst.{name}$"), "MODULE$")

    def alias(self, expression: JavaObject, name: str, like: JavaObject | None = None) -> JavaObject:
        """`expression AS name`; with `like`, under the id, qualifier and metadata of that attribute."""
        expr_id = like.exprId() if like is not None else self.module("expressions.NamedExpression").newExprId()
        qualifier = like.qualifier() if like is not None else self.seq([])
        metadata = self.option(like.metadata()) if like is not None else self.option(None)
        return self._expressions.Alias(expression, name, expr_id, qualifier, metadata, self.seq([]))

    def project(self, expressions: list[JavaObject], child: JavaObject) -> JavaObject:
        """SELECT expressions FROM child."""
        return self._logical.Project(self.seq(expressions), child)

    def filter(self, conditions: list[JavaObject], child: JavaObject) -> JavaObject:
        """WHERE c1 AND c2 …; the child itself without conditions."""
        return self._logical.Filter(self.conjunction(conditions), child) if conditions else child

    def conjunction(self, conditions: list[JavaObject]) -> JavaObject:
        """c1 AND c2 … (at least one)."""
        whole = conditions[0]
        for condition in conditions[1:]:
            whole = self._expressions.And(whole, condition)
        return whole

    def equal(self, left: JavaObject, right: JavaObject) -> JavaObject:
        """left = right."""
        return self._expressions.EqualTo(left, right)

    def array_of_structs(self, fields: list[tuple[str, JavaObject]]) -> JavaObject:
        """The type ARRAY<STRUCT<name: type, …>>."""
        struct = ", ".join(
            f'{{"name": "{n}", "type": {t.json()}, "nullable": true, "metadata": {{}}}}' for n, t in fields
        )
        element = f'{{"type": "struct", "fields": [{struct}]}}'
        return self.spark._jsparkSession.parseDataType(
            f'{{"type": "array", "elementType": {element}, "containsNull": true}}'
        )

    def keep_in_block(self, block: JavaObject, conditions: list[JavaObject], fields: dict[int, int]) -> JavaObject:
        """`filter(block, row -> conditions)`, where attributes with an id in `fields` mean that field of a struct."""
        expr_id = self.module("expressions.NamedExpression").newExprId()
        cell = self.jvm.java.util.concurrent.atomic.AtomicReference()
        row = self._expressions.NamedLambdaVariable("row", block.dataType().elementType(), True, expr_id, cell)
        by_id = {i: self._expressions.GetStructField(row, n, self.option(None)) for i, n in fields.items()}
        body = self.conjunction([self.substitute(condition, by_id) for condition in conditions])
        function = self._expressions.LambdaFunction(body, self.seq([row]), False)
        return self._expressions.ArrayFilter(block, function)

    def substitute(self, expression: JavaObject, by_id: dict[int, JavaObject]) -> JavaObject:
        """The expression with other expressions in place of the attributes of these ids."""
        if kind(expression) == "AttributeReference":
            return by_id.get(expression.exprId().id(), expression)
        children = [self.substitute(child, by_id) for child in items(expression.children())]
        return expression.withNewChildren(self.seq(children)) if children else expression

    def cast_to_text_map(self, expression: JavaObject) -> JavaObject:
        """`CAST(expression AS MAP<STRING, STRING>)`."""
        data_type = self.spark._jsparkSession.parseDataType('"string"')
        text_map = self.jvm.org.apache.spark.sql.types.MapType(data_type, data_type, True)
        utc = self.option("UTC")
        return self._expressions.Cast(expression, text_map, utc, self.module("expressions.EvalMode").LEGACY())

    def text_map(self, entries: dict[str, str]) -> JavaObject:
        """`map('key', 'value', …)`."""
        literal = self.module("expressions.Literal")
        return self._expressions.CreateMap(self.seq(literal.apply(t) for item in entries.items() for t in item), False)

    def sort_within_partitions(self, keys: list[JavaObject], child: JavaObject) -> JavaObject:
        """A local sort, ascending."""
        ascending = self.module("expressions.Ascending")
        orders = [
            self._expressions.SortOrder(key, ascending, ascending.defaultNullOrdering(), self.seq([])) for key in keys
        ]
        sort = self._logical.Sort
        try:
            return sort(self.seq(orders), False, child, self.option(None))
        except Exception:  # Spark 4.0 has no hint
            return sort(self.seq(orders), False, child)

    def one_partition(self, child: JavaObject) -> JavaObject:
        """All rows in one partition, by a shuffle (so that the work below keeps its parallelism)."""
        return self._logical.Repartition(1, True, child)

    def repartition_by(self, keys: list[JavaObject], child: JavaObject) -> JavaObject:
        """All rows of a key in one partition."""
        repartition = self.module("plans.logical.RepartitionByExpression")
        return repartition.apply(self.seq(keys), child, self._shuffle_partitions())

    def shared(self, child: JavaObject) -> JavaObject:
        """`child` behind a shuffle, so that several readers of the same rows can share it."""
        return self._logical.Repartition(self._shuffle_partitions(), True, child)

    def _shuffle_partitions(self) -> int:
        return self.spark._jsparkSession.sessionState().conf().numShufflePartitions()

    def input_file_name(self) -> JavaObject:
        """`input_file_name()`."""
        return self._expressions.InputFileName()

    def row_number(self) -> JavaObject:
        """A number that no other row of the plan has, while it runs."""
        return self._expressions.MonotonicallyIncreasingID()

    def true(self) -> JavaObject:
        """The literal TRUE."""
        return self.module("expressions.Literal").TrueLiteral()

    def null(self, data_type: JavaObject) -> JavaObject:
        """A NULL of this type."""
        return self.module("expressions.Literal").create(None, data_type)

    def is_not_null(self, value: JavaObject) -> JavaObject:
        """value IS NOT NULL."""
        return self._expressions.IsNotNull(value)

    def is_null(self, value: JavaObject) -> JavaObject:
        """value IS NULL."""
        return self._expressions.IsNull(value)

    def is_not(self, condition: JavaObject, value: bool) -> JavaObject:
        """condition IS NOT TRUE, or IS NOT FALSE."""
        literal = self.module("expressions.Literal")
        literal = literal.TrueLiteral() if value else literal.FalseLiteral()
        return self._expressions.Not(self._expressions.EqualNullSafe(condition, literal))

    def about_both(self, a: JavaObject, b: JavaObject) -> JavaObject:
        """a >= 0 OR b >= 0. For numbers of rows TRUE, but Spark can't tell, and takes the join for no cross join."""
        zero = self.module("expressions.Literal").default(self.row_number().dataType())
        first, second = (self._expressions.GreaterThanOrEqual(number, zero) for number in (a, b))
        return self._expressions.Or(first, second)

    def if_(self, condition: JavaObject, value: JavaObject, other: JavaObject) -> JavaObject:
        """IF(condition, value, other)."""
        return self._expressions.If(condition, value, other)

    def only_where(self, conditions: list[JavaObject], value: JavaObject) -> JavaObject:
        """`value` where all conditions (at least one) are TRUE, NULL and not computed elsewhere."""
        return self.if_(self.conjunction(conditions), value, self.null(value.dataType()))

    def join(
        self, left: JavaObject, right: JavaObject, join_type: str, conditions: list[JavaObject], broadcast: bool
    ) -> JavaObject:
        """A join in which each left row's matches are adjacent: its right side is broadcast, or both sides are sorted by
        the equalities. `join_type`: Inner, Cross or LeftOuter."""
        strategy = self.module(f"plans.logical.{'BROADCAST' if broadcast else 'SHUFFLE_MERGE'}")
        hint = self.option(self._logical.HintInfo(self.option(strategy)))
        hints = self._logical.JoinHint(self.option(None) if broadcast else hint, hint)
        condition = self.option(self.conjunction(conditions) if conditions else None)
        return self._logical.Join(left, right, self.module(f"plans.{join_type}"), condition, hints)

    def inner_join(self, left: JavaObject, right: JavaObject, conditions: list[JavaObject]) -> JavaObject:
        """left JOIN right ON c1 AND c2 …, for Spark or the planner to carry out as they like."""
        no_hint = self._logical.JoinHint(self.option(None), self.option(None))
        condition = self.option(self.conjunction(conditions) if conditions else None)
        return self._logical.Join(left, right, self.module("plans.Inner"), condition, no_hint)

    def join_like(self, node: JavaObject, left: JavaObject, right: JavaObject, join_type: str) -> JavaObject:
        """A Join of other sides and another type with the condition of `node`."""
        no_hint = self._logical.JoinHint(self.option(None), self.option(None))
        return self._logical.Join(left, right, self.module(f"plans.{join_type}"), node.condition(), no_hint)

    def rejoined(
        self,
        node: JavaObject,
        *,
        left: JavaObject | None = None,
        right: JavaObject | None = None,
        join_type: JavaObject | None = None,
        condition: JavaObject | None = None,
    ) -> JavaObject:
        """A Join with what is given in place of its own; it keeps the rest, its hint too."""
        return self._logical.Join(
            left or node.left(),
            right or node.right(),
            join_type or node.joinType(),
            self.option(condition) if condition else node.condition(),
            node.hint(),
        )

    def crossed(self, node: JavaObject) -> JavaObject:
        """An inner Join as CROSS JOIN, which may have a condition as well."""
        return self.rejoined(node, join_type=self.module("plans.Cross"))

    def mirrored(self, node: JavaObject) -> JavaObject:
        """An inner or right outer Join with its sides exchanged (inner or left outer)."""
        join_type = {"RightOuter": "LeftOuter"}.get(kind(node.joinType()).rstrip("$"), "Inner")
        return self.join_like(node, node.right(), node.left(), join_type)

    def union(self, first: JavaObject, second: JavaObject) -> JavaObject:
        """UNION ALL by position."""
        return self.module("plans.logical.Union").apply(first, second)

    def in_order(self, plan: JavaObject, attributes: list[JavaObject]) -> JavaObject:
        """The plan with its columns in the order of these attributes, as far as it has them."""
        has = {a.exprId().id(): a for a in items(plan.output())}
        wanted = [has[a.exprId().id()] for a in attributes if a.exprId().id() in has]
        same = [a.exprId().id() for a in wanted] == list(has)
        return plan if same else self.project(wanted, plan)

    def without_predicate_subqueries(self, plan: JavaObject) -> JavaObject:
        """Spark's own rewriting of EXISTS and IN into joins, which it would do later; conditions on a new join become its own."""
        joined = self.module("optimizer.RewritePredicateSubquery").apply(plan)
        return self.module("optimizer.PushPredicateThroughJoin").apply(joined)

    def map_in_arrow(
        self,
        function: Callable,
        name: str,
        output: list[tuple[str, JavaObject]],
        child: JavaObject,
        profile: JavaObject | None = None,
    ) -> tuple[JavaObject, list[JavaObject]]:
        """A MapInArrow node and its output attributes. `output` gives the columns' names and Catalyst types; its stage runs
        under the ResourceProfile, where there is one.

        `function` maps an iterator of pyarrow.RecordBatch to one; it must pickle to the same bytes for the same plan,
        so that Spark can reuse exchanges. All columns of `child` (unique names) are its input.
        """
        from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string
        from pyspark.sql.udf import UserDefinedFunction
        from pyspark.util import PythonEvalType

        schema = StructType([StructField(n, _parse_datatype_json_string(t.json()), True) for n, t in output])
        arrow = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        udf = UserDefinedFunction(function, returnType=schema, name=name, evalType=arrow, deterministic=True)
        expression = udf._judf.builder(child.output())
        attributes = [self.attribute(n, t) for n, t in output]
        node = self._logical.MapInArrow(expression, self.seq(attributes), child, False, self.option(profile))
        return node, attributes

    def attribute(self, name: str, data_type: JavaObject) -> JavaObject:
        """A fresh nullable attribute."""
        expressions = self._expressions
        empty = getattr(getattr(self.jvm, "org.apache.spark.sql.types.Metadata$"), "MODULE$").empty()
        expr_id = self.module("expressions.NamedExpression").newExprId()
        return expressions.AttributeReference(name, data_type, True, empty, expr_id, self.seq([]))
