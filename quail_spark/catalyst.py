"""The planner in Catalyst: a rule in the session's optimizer that hands plans with AI calls to Python. Driver-side.

The rule runs once per query, after Spark pushed predicates down and pruned columns (its PreCBO batch). It reaches every
session of the JVM, since extensions are shared, but plans only for sessions that were enabled, and for their clones. It refuses AI
calls in sessions that were not and have no model of their own.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from quail_spark.optimizer.errors import QuailError

from .conf import QuailConf
from .file_names import read_file_names_first
from .front_end import FrontEnd
from .guards import guard_calls
from .join_kinds import refuse_unplanned
from .join_order import order_joins
from .jvm import new_instance
from .keeping_kv import Document, asked_below
from .layouts import settle_layouts
from .plan_filter import plan_filter
from .plan_join import plan_join
from .planning import NotPlanned, PlannedOperator, Planning
from .scala import Catalyst, JavaObject, items, kind
from .spark_ui import SparkUi
from .sql import MENTION

RULES = {"Filter": plan_filter, "Join": plan_join}
PLACES = {  # what EXPLAIN calls the places of AI calls that no rule reaches
    "Project": "a SELECT list, or an expression computed before another step",
    "Aggregate": "GROUP BY or an aggregate function",
    "Window": "a window",
    "Sort": "ORDER BY",
    "Generate": "LATERAL VIEW",
}

MARK = "quail-spark.planned"  # a setting of the sessions whose queries are planned

_log = logging.getLogger(__name__)
_bridges: WeakKeyDictionary = WeakKeyDictionary()  # py4j gateway -> _Bridge
_lock = threading.Lock()


def install(spark) -> None:
    """Plan the AI calls of this session (classic Spark). Idempotent."""
    gateway = spark.sparkContext._gateway
    with _lock:
        if gateway not in _bridges:
            _bridges[gateway] = _Bridge(spark)
        _bridges[gateway].attach(spark)
    _bridges[gateway].parser.replaceIn(spark._jsparkSession.sessionState())
    spark.conf.set(MARK, "true")


def uninstall(spark) -> None:
    """Leave this session's AI calls to the UDF."""
    spark.conf.unset(MARK)


def running_tasks(spark, operator: str) -> tuple[int, int]:
    """Finished and all tasks of the running stages that have this operator; (0, 0) where that is not known."""
    bridge = _bridges.get(spark.sparkContext._gateway)
    return bridge.ui.tasks(operator) if bridge else (0, 0)


class _Bridge:
    """What one driver JVM needs once: the callbacks, the rule's and the parser's builder, the operators in Spark's UI."""

    def __init__(self, spark):
        from pyspark.java_gateway import ensure_callback_server_started

        gateway = spark.sparkContext._gateway
        ensure_callback_server_started(gateway)
        self.builder = new_instance(spark, "PlanRuleBuilder", _Callback(gateway), MARK)
        self.parser = new_instance(spark, "AiParserBuilder", FrontEnd(gateway), MENTION.pattern)
        self.ui = SparkUi(spark)
        self._contexts: list[JavaObject] = []

    def attach(self, spark) -> None:
        """Add rule and parser to the session's extensions, which new sessions of the same context share."""
        extensions = spark._jsparkSession.extensions()
        if not any(extensions.equals(known) for known in self._contexts):
            extensions.injectPreCBORule(self.builder)
            extensions.injectParser(self.parser)
            self.ui.attach(extensions)
            self._contexts.append(extensions)


class Planned:
    """What the planner decided lately, by operator name, and on request all that it decides from now on."""

    def __init__(self, most: int = 10_000):
        self._most = most
        self._operators: OrderedDict[str, PlannedOperator] = OrderedDict()
        self._recordings: list[list[Planning]] = []

    def add(self, planning: Planning) -> None:
        """Note one run of the planner."""
        with _lock:
            self._operators.update({operator.spec.name: operator for operator in planning.operators})
            while len(self._operators) > self._most:
                self._operators.popitem(last=False)
            for recording in self._recordings:
                recording.append(planning)

    def get(self, name: str) -> PlannedOperator | None:
        """The operator of this name, if this driver planned it."""
        return self._operators.get(name)

    @contextmanager
    def recording(self) -> Iterator[list[Planning]]:
        """Within the block, every run of the planner is appended to the list."""
        runs: list[Planning] = []
        with _lock:
            self._recordings.append(runs)
        try:
            yield runs
        finally:
            with _lock:
                self._recordings = [other for other in self._recordings if other is not runs]


planned = Planned()


class _Callback:
    """`java.util.function.Function` from [session, plan] to a plan, or to the text of an error for the user."""

    def __init__(self, gateway):
        self._gateway = gateway

    def apply(self, arguments: JavaObject) -> JavaObject:
        """Called by PlanRule in the thread that plans the query."""
        session, plan = arguments[0], arguments[1]
        try:
            return plan_query(_bridges[self._gateway].builder, _PlanningSession(session, self._gateway), plan)
        except QuailError as error:
            return f"{type(error).__name__}: {error}"

    class Java:
        implements = ("java.util.function.Function",)


class _PlanningSession:
    """The parts of a SparkSession that planning needs, for whichever session the query runs in."""

    def __init__(self, jsession: JavaObject, gateway):
        from pyspark import SparkContext

        self._jsparkSession = jsession
        self._jvm = gateway.jvm
        self.sparkContext = SparkContext._active_spark_context

    def settings(self) -> QuailConf:
        """The session's `spark.quail.*`."""
        confs = self._jsparkSession.sessionState().conf().getAllConfs()
        names = [name for name in items(confs.keys().toSeq()) if name.startswith("spark.quail.")]
        return QuailConf({name: confs.apply(name) for name in names})


def plan_query(builder: JavaObject, session: _PlanningSession, plan: JavaObject) -> JavaObject:
    """The plan with AI operators where a rule applies; the same plan when planning is off or fails.

    Raises QuailError for a call that can't be right (a placeholder without an argument, an unknown option), for a query
    that Spark would refuse in words of its own, and for a session that is not enabled.
    """
    conf = session.settings().enabled()
    planning = Planning(Catalyst(session), builder, conf)
    plan = read_file_names_first(planning, settle_layouts(planning, plan))
    if not conf["optimizer.enabled"]:
        refuse_unplanned(planning, unnested(planning, plan))
        return guard_calls(planning, plan)
    try:
        flat = unnested(planning, plan)
        ordered = flat if planning.awaits_outer(flat) else order_joins(planning, flat)
        rewritten = guard_calls(planning, rewrite(planning, ordered, None))
        planned.add(planning)
        return rewritten
    except QuailError:
        raise
    except Exception:
        if conf["optimizer.strict"]:
            raise
        _log.warning("AI calls of a query run as plain UDFs because planning failed", exc_info=True)
        return plan


def unnested(planning: Planning, plan: JavaObject) -> JavaObject:
    """The plan with joins for EXISTS and IN, if one of them asks about its outer query's values."""
    return planning.catalyst.without_predicate_subqueries(plan) if planning.nests_ai(plan) else plan


def rewrite(
    planning: Planning, plan: JavaObject, required: set[int] | None, asked: frozenset[Document] = frozenset()
) -> JavaObject:
    """Apply the rules bottom-up. `required`: ids of the attributes that are read above `plan` (None: all); `asked`: the
    documents that operators above ask about."""
    if not planning.mentions_ai(plan):
        return plan
    below, asked_below_it = _required_below(planning, plan, required), asked_below(planning, plan, asked)
    children = items(plan.children())
    rewritten = [rewrite(planning, child, below, asked_below_it) for child in children]
    if any(new is not old for new, old in zip(rewritten, children, strict=True)):
        plan = plan.withNewChildren(planning.catalyst.seq(rewritten))
    if kind(plan) == "Filter" and planning.awaits_outer(plan):
        return plan
    rule = RULES.get(kind(plan))
    if rule is None:
        if any(planning.calls_ai(e) for e in items(plan.expressions())):
            planning.note(f"an AI call in {PLACES.get(kind(plan), kind(plan))} runs as a UDF")
        return plan
    planning.asked_later = asked
    try:
        return rule(planning, plan, required)
    except NotPlanned as reason:
        planning.note(str(reason))
        return plan


def _required_below(planning: Planning, plan: JavaObject, required: set[int] | None) -> set[int] | None:
    """Project and Aggregate say what they read; Filter and Join add to what is read above; others read all."""
    own = planning.references(items(plan.expressions()))
    if kind(plan) in ("Project", "Aggregate"):
        return own
    if kind(plan) in ("Filter", "Join") and required is not None:
        return required | own
    return None
