"""What Spark's own UI shows of AI operators: read from the stores behind its pages and its REST interface."""

import logging

import pytest
from py4j.protocol import Py4JJavaError

import quail_spark
from quail_spark import spark_ui
from quail_spark.scala import items
from quail_spark.spark_ui import SparkUi, _Forwarded

from .oracle import answer

TEXTS = [f"message {i % 20}" for i in range(30)]  # ten come twice
JOBS = 20  # more than a test starts
ROWS = ", ".join(f"({i}, '{text}')" for i, text in enumerate(TEXTS))


class Ui:
    """The pages of one session."""

    def __init__(self, spark):
        self._spark, self._context = spark, spark.sparkContext._jsc.sc()
        self._sql = spark._jsparkSession.sharedState().statusStore()

    def node(self, operator: str) -> dict[str, str]:
        """The metrics of this operator's node in the last query, as the SQL page words them."""
        self._context.listenerBus().waitUntilEmpty()
        number = max(execution.executionId() for execution in items(self._sql.executionsList()))
        values = self._sql.executionMetrics(number)
        (node,) = [n for n in items(self._sql.planGraph(number).allNodes()) if n.name() == operator]
        found = {metric.name(): values.get(metric.accumulatorId()) for metric in items(node.metrics())}
        return {name: value.get() for name, value in found.items() if value.isDefined()}

    def stages(self, operator: str) -> list[dict[str, float]]:
        """This operator's accumulators in every stage that has some, oldest first."""
        self._context.listenerBus().waitUntilEmpty()
        jobs = items(self._context.statusStore().jobsList(None))
        latest = sorted(jobs, key=lambda job: job.jobId())[-JOBS:]
        found = [self._accumulators(s) for s in sorted({s for job in latest for s in items(job.stageIds())})]
        wanted = [{n.split(": ")[1]: v for n, v in names.items() if n.startswith(operator)} for names in found]
        return [names for names in wanted if names]

    def _accumulators(self, stage: int) -> dict[str, float]:
        """By name; none of a stage that Spark has forgotten, which keeps a thousand."""
        try:
            shown = self._context.statusStore().lastStageAttempt(stage)
        except Py4JJavaError as error:
            if "NoSuchElementException" not in str(error):
                raise
            return {}
        return {a.name(): float(a.value()) for a in items(shown.accumulatorUpdates())}


@pytest.fixture
def texts(spark):
    """A view of the texts in three partitions, and the pages."""
    spark.sql(f"SELECT /*+ REPARTITION(3) */ * FROM VALUES {ROWS} AS v(id, text)").createOrReplaceTempView("texts")
    return spark


def reported(spark, question: str):
    """The engine's own totals of the operator that asks it."""
    return next(o for o in quail_spark.report(spark).operators if any(question in p.question for p in o.predicates))


def whole(figure: str) -> int:
    return int(figure.replace(",", ""))


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_a_filter_under_its_name_with_its_counts(texts, adaptive):
    texts.conf.set("spark.sql.adaptive.enabled", adaptive)
    ask = f"{{0}} is shown {adaptive}"
    rows = texts.sql(f"SELECT id FROM texts WHERE AI.IF(PROMPT('{ask}', text))").collect()
    operator = reported(texts, f"is shown {adaptive}")
    expected = {
        "rows in": len(TEXTS),
        "rows out": sum(answer(ask, text) for text in TEXTS),
        "fresh tokens": operator.fresh_tokens,
        "reused tokens": operator.reused_tokens,
        "recomputed tokens": operator.recomputed_tokens,
    }
    assert len(rows) == expected["rows out"] and operator.fresh_tokens > 0 and operator.reused_tokens > 0
    node = Ui(texts).node(operator.name)
    assert {name: whole(node[name]) for name in expected} == expected
    assert "number of output rows" in node and "engine time" in node
    (stage,) = Ui(texts).stages(operator.name)
    assert stage.pop("engine seconds") == pytest.approx(operator.seconds)
    assert stage == expected


def test_a_join_counts_pairs(texts):
    ask = "{0} answers {1} shown"
    sql = f"SELECT a.id FROM texts a JOIN texts b ON AI.IF(PROMPT('{ask}', a.text, b.text)) AND a.id < 7"
    rows = texts.sql(sql).collect()
    assert len(rows) == sum(answer(ask, a, b) for a in TEXTS[:7] for b in TEXTS)
    name = next(o.name for o in quail_spark.report(texts).operators if any("shown" in p.question and o.kind == "pairs" for p in o.predicates))  # fmt: skip
    node = Ui(texts).node(name)
    assert (whole(node["rows in"]), whole(node["rows out"])) == (7 * len(TEXTS), len(rows))


def test_a_query_shows_its_own_run(texts):
    """The second run of a query finds every answer in the engine's memory."""
    ask = "{0} is shown twice"
    query = f"SELECT id FROM texts WHERE AI.IF(PROMPT('{ask}', text))"
    texts.sql(query).collect()
    name = reported(texts, "is shown twice").name
    first = Ui(texts).node(name)
    texts.sql(query).collect()
    second = Ui(texts).node(name)
    assert first["rows in"] == second["rows in"] == str(len(TEXTS))
    assert whole(first["fresh tokens"]) > 0 == whole(second["fresh tokens"])
    assert whole(second["reused tokens"]) == whole(first["fresh tokens"]) + whole(first["reused tokens"])


def test_an_operator_behind_a_subquery_and_a_cached_table(texts):
    """Spark plans both apart from the query that needs them."""
    texts.sql("SELECT * FROM texts WHERE AI.IF(PROMPT('{0} is cached shown', text))").createOrReplaceTempView("kept")
    texts.catalog.cacheTable("kept")
    assert texts.sql("SELECT count(*) FROM kept").first()[0] == sum(answer("{0} is cached shown", t) for t in TEXTS)
    (stage,) = Ui(texts).stages(reported(texts, "is cached shown").name)
    assert stage["rows in"] == len(TEXTS)
    sql = "SELECT id FROM texts WHERE id < (SELECT max(id) FROM texts WHERE AI.IF(PROMPT('{0} is nested shown', text)))"
    most = max(i for i, text in enumerate(TEXTS) if answer("{0} is nested shown", text))
    assert len(texts.sql(sql).collect()) == most
    assert whole(Ui(texts).node(reported(texts, "is nested shown").name)["rows in"]) == len(TEXTS)


def test_what_the_ui_cannot_take_ends_no_job(texts, monkeypatch, caplog):
    class Broken:
        def add(self, *_):
            raise RuntimeError("no such method in this Spark")

    ui = SparkUi(texts)
    ui._builder = Broken()
    with caplog.at_level(logging.WARNING, logger=spark_ui.__name__):
        try:
            found = texts.sql("SELECT id FROM texts WHERE AI.IF(PROMPT('{0} is not shown', text))").collect()
        finally:
            SparkUi(texts)  # the accumulator is the last one's
    assert len(found) == sum(answer("{0} is not shown", text) for text in TEXTS)
    assert caplog.text.count("no such method in this Spark") >= 1 and ui._builder is None
    assert _Forwarded(ui).addInPlace([], [("o", None, 0, (1, 1, 1, 1, 1), 0.5)]) == []
