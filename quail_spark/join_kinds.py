"""Join types: which are planned and how, and what Spark refuses when they are not. Driver-side."""

from quail_spark.optimizer.errors import SqlError

from .ai_calls import ai_call, ai_expressions
from .explaining import question
from .planning import Planning, plain_sql
from .scala import JavaObject, items, kind

# What an operator does for a join of Spark's type. A right outer join is a left outer one with its sides exchanged; a
# full outer join is a left outer one and the rows of the right side that match nothing. LeftSingle is a left outer join
# that may have one match at most.
KINDS = {
    "Inner": "inner",
    "Cross": "inner",
    "LeftOuter": "left",
    "LeftSingle": "single",
    "LeftSemi": "semi",
    "LeftAnti": "anti",
    "ExistenceJoin": "existence",
}
WORDS = {
    "Inner": "inner join",
    "Cross": "inner join",
    "LeftOuter": "left outer join",
    "LeftSingle": "scalar subquery",
    "RightOuter": "right outer join",
    "FullOuter": "full outer join",
    "LeftSemi": "left semi join (or EXISTS, IN)",
    "LeftAnti": "left anti join (or NOT EXISTS, NOT IN)",
    "ExistenceJoin": "join for EXISTS or IN within another condition",
}


def join_type(node: JavaObject) -> str:
    """Spark's name of a Join's type, such as LeftOuter."""
    return kind(node.joinType()).rstrip("$")


def words(node: JavaObject) -> str:
    """The type of a Join as SQL has it."""
    return WORDS.get(join_type(node), join_type(node))


def refused_calls(planning: Planning, node: JavaObject) -> list[JavaObject]:
    """The AI calls in a Join's condition for which Spark refuses the join: UDFs over both sides, unless it is inner."""
    if node.condition().isEmpty() or KINDS.get(join_type(node)) == "inner":
        return []
    left, right = node.left().outputSet(), node.right().outputSet()
    calls = ai_expressions(planning, node.condition().get())
    return [c for c in calls if not (c.references().subsetOf(left) or c.references().subsetOf(right))]


def refusal(planning: Planning, node: JavaObject, reason: str) -> SqlError:
    """The error for a join that Spark would refuse, in the query's own words."""
    call = ai_call(planning.catalyst, refused_calls(planning, node)[0])
    asked = question(call, tuple(plain_sql(a) for a in call.arguments)) if call else "with a computed prompt"
    return SqlError(
        f"the AI condition {asked!r} reads both sides of a {words(node)}, which Spark can't evaluate as a UDF, and "
        f"{reason}. Or write it as an inner join"
    )


def refuse_unplanned(planning: Planning, plan: JavaObject) -> None:
    """Raise SqlError where Spark will refuse this plan, because the planner is off."""
    if not planning.mentions_ai(plan):
        return
    if kind(plan) == "Join" and refused_calls(planning, plan):
        raise refusal(planning, plan, "spark.quail.optimizer.enabled is false; accepted: true")
    for child in items(plan.children()):
        refuse_unplanned(planning, child)
