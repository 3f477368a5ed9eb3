"""What a user sees: the plan, the progress line, the report."""

import io
import re

import pytest

import quail_spark
from quail_spark.progress import ERASE, ProgressLine, line

from .oracle import answer

TEXTS = [f"message {i}" for i in range(30)]


@pytest.fixture
def messages(spark):
    spark.createDataFrame(
        [(i, t, i % 2) for i, t in enumerate(TEXTS)], "id int, text string, n int"
    ).createOrReplaceTempView("messages")
    return spark


def test_explain_names_operators_questions_and_anchor(messages):
    text = quail_spark.explain(messages.sql(
        "SELECT x.id FROM messages x JOIN messages y ON x.n = y.n AND AI.IF(PROMPT('{x.text} answers {y.text} e1'), {'anchor': 'y'}) "
        "WHERE AI.IF(PROMPT('{0} asks e2', x.text), {'selectivity': 0.3}) AND x.id < 5"
    ))  # fmt: skip
    assert re.search(r"^1\. AI filter .*\[ai_filter-[0-9a-f]{8}\]$", text, re.M)
    assert "asks e2" in text and "expected pass rate 30%" in text
    assert re.search(r"^2\. AI join", text, re.M)
    assert re.search(r"anchor: \S*text; partner: \S*text", text)
    assert "plain UDF" not in text


def test_explain_says_what_stays_a_udf(messages):
    text = quail_spark.explain(messages.sql("SELECT id FROM messages WHERE id = 1 OR AI.IF(PROMPT('{0} e3', text))"))
    assert "1 AI call(s) run as a plain UDF" in text
    assert "AI filter" not in text


def test_explain_estimates_for_a_known_model_and_device(messages):
    values = ", ".join(f"({i}, '{t}')" for i, t in enumerate(TEXTS))
    messages.sql(f"SELECT * FROM VALUES {values} AS v(id, text)").createOrReplaceTempView("exact")
    sql = (
        "SELECT x.id FROM exact x JOIN exact y ON AI.IF(PROMPT('{x.text} answers {y.text} e6')) "
        "WHERE AI.IF(PROMPT('{0} asks e7', x.text), {'selectivity': 0.5})"
    )
    assert "estimate" not in quail_spark.explain(messages.sql(sql))  # a scripted model has no shape
    settings = {"model": "Qwen/Qwen3-4B-FP8", "estimate.device": "H200", "estimate.pricePerHour": "4"}
    for name, value in settings.items():
        messages.conf.set(f"spark.quail.{name}", value)
    lines = re.findall(
        r"^ +estimate: about (\S+) answers, .* on H200 \(speed of light .*\)",
        quail_spark.explain(messages.sql(sql)),
        re.M,
    )
    assert lines == ["30"]  # of what the filter passes on, Spark knows nothing


def test_explain_without_ai_and_without_running(messages):
    assert quail_spark.explain(messages.sql("SELECT id FROM messages")) == "No AI calls in this query."
    before = str(quail_spark.report(messages))
    quail_spark.explain(messages.sql("SELECT id FROM messages WHERE AI.IF(PROMPT('{0} never asked e4', text))"))
    assert str(quail_spark.report(messages)) == before


def test_the_planner_can_be_switched_off(messages):
    sql = "SELECT id FROM messages WHERE AI.IF(PROMPT('{0} e5', text))"
    messages.conf.set("spark.quail.optimizer.enabled", "false")
    assert "plain UDF" in quail_spark.explain(messages.sql(sql))
    messages.conf.set("spark.quail.optimizer.enabled", "true")
    assert "AI filter" in quail_spark.explain(messages.sql(sql))


def test_report_counts_rows_evaluations_and_pass_rates(messages):
    asks = "{0} is r1"
    messages.sql(f"SELECT id FROM messages WHERE AI.IF(PROMPT('{asks}', text)) AND n = 1").collect()
    texts = [t for i, t in enumerate(TEXTS) if i % 2]
    report = quail_spark.report(messages)
    (operator,) = [o for o in report.operators if any("is r1" in p.question for p in o.predicates)]
    assert (operator.kind, operator.rows, operator.evaluations, operator.errors) == ("filter", 15, 15, 0)
    (predicate,) = operator.predicates
    assert (predicate.asked, predicate.passed) == (15, sum(answer(asks, t) for t in texts))
    assert operator.fresh_tokens > 0
    assert f"{predicate.passed} of 15 TRUE" in str(report)
    assert report.as_dict()["operators"][-1]["name"]


def test_metrics_are_the_report_for_prometheus(messages):
    messages.sql("SELECT id FROM messages WHERE AI.IF(PROMPT('{0} is m1', text))").collect()
    (operator,) = [
        o for o in quail_spark.report(messages).operators if any("is m1" in p.question for p in o.predicates)
    ]
    text = quail_spark.metrics(messages)
    (tokens,) = re.findall(rf'^quail_spark_fresh_tokens_total\{{.*operator="{operator.name}".*\}} (\d+)$', text, re.M)
    assert int(tokens) == operator.fresh_tokens > 0
    assert f'application="{messages.sparkContext.applicationId}"' in text
    assert re.search(r"^quail_spark_engine_up\{.*\} 1$", text, re.M)


def totals(**changes):
    return {"kind": "filter", "batches": 2, "rows": 50, "fresh_tokens": 900, "reused_tokens": 100,
            "asked": [50, 20], "passed": [20, 15], "first": 100.0, "last": 110.0} | changes  # fmt: skip


class Expected:
    """An operator of which Spark knows how many rows come in."""

    rows = (150,)


def test_progress_line_tells_rows_pass_rate_speed_and_time_left():
    before = {"f": totals(batches=1, fresh_tokens=400, reused_tokens=50)}
    assert line({"f": totals()}, before, lambda name: None) == "f: 50 rows, 50% TRUE, 550 tokens/s"
    assert line({"f": totals()}, before, lambda name: Expected).endswith(", 0:20 left")
    assert (
        line({"j": totals(kind="pairs", asked=[0], passed=[0])}, {}, lambda name: None) == "j: 50 pairs, 1,000 tokens/s"
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_line_is_written_while_a_query_runs_and_erased(messages):
    messages.conf.set("spark.quail.model", "scripted://hash?rate=0.5&delay_ms=400")
    messages.conf.set("spark.quail.batch.rows", "5")
    terminal = Terminal()
    progress = ProgressLine(messages.sparkContext.applicationId, terminal)
    messages.sql("SELECT id FROM messages WHERE AI.IF(PROMPT('{0} p1', text))").collect()
    progress.stop()
    written = terminal.getvalue()
    assert re.search(r"ai_filter-\w+: \d+ rows, \d+% TRUE, [\d,]+ tokens/s", written)
    assert written.endswith(f"\r{ERASE}")
