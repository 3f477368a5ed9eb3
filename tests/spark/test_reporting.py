"""What a user sees: the plan, the progress line, the report."""

import io
import re
from functools import partial

import pytest

import quail_spark
from quail_spark import estimating
from quail_spark.catalyst import running_tasks
from quail_spark.optimizer.model_spec import known_model
from quail_spark.optimizer.plan import OperatorSpec
from quail_spark.planning import PlannedOperator
from quail_spark.progress import ERASE, IDLE, INTERVAL, ProgressLine, TimeLeft, expected_rows, line

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


def test_explain_knows_how_often_the_question_was_true_before(messages):
    sql = "SELECT id FROM messages WHERE AI.IF(PROMPT('{0} asks e8', text)) AND AI.IF(PROMPT('{0} asks e9', text), {'selectivity': 0.3})"
    assert "pass rate assumed, then observed" in quail_spark.explain(messages.sql(sql))
    messages.sql("SELECT id FROM messages WHERE AI.IF(PROMPT('{0} asks e8', text))").collect()
    passed = sum(answer("{0} asks e8", text) for text in TEXTS)
    text = quail_spark.explain(messages.sql(sql))
    assert f"expected pass rate {(passed + 0.2 * 20) / (30 + 20):.0%} (30 answers before)" in text
    assert "expected pass rate 30%" in text and "assumed" not in text
    other = quail_spark.explain(messages.sql("SELECT id FROM messages m WHERE AI.IF(PROMPT('{0} asks e8', m.text))"))
    assert "pass rate assumed, then observed" in other  # another table, for all we know


def test_one_question_about_two_tables_is_told_apart(messages):
    messages.sql("SELECT id, concat('new ', text) AS text FROM messages LIMIT 7").createOrReplaceTempView("news")
    for table in ("messages", "news", "news"):
        messages.sql(f"SELECT id FROM {table} WHERE AI.IF(PROMPT('{{0}} asks e10', {table}.text))").collect()
    operators = quail_spark.report(messages).operators
    found = [(p.question, p.asked) for o in operators for p in o.predicates if "e10" in p.question]
    assert found == [("{messages.text} asks e10", 30), ("{news.text} asks e10", 14)]


def test_the_report_sets_what_was_expected_beside_what_was(messages, monkeypatch):
    values = ", ".join(f"({i}, '{t}')" for i, t in enumerate(TEXTS))
    messages.sql(f"SELECT * FROM VALUES {values} AS v(id, text)").createOrReplaceTempView("exact")
    messages.conf.set("spark.quail.estimate.device", "H200")
    for ask in ("{0} is r2", "{0} is r3"):
        messages.sql(f"SELECT id FROM exact WHERE AI.IF(PROMPT('{ask}', text), {{'selectivity': 0.5}})").collect()
    assert all(o.expected is None for o in quail_spark.report(messages).operators)  # a scripted model has no shape
    monkeypatch.setattr(estimating, "model_spec", lambda setting: known_model("qwen3-4b"))
    report = quail_spark.report(messages)
    (operator,) = [o for o in report.operators if any("is r3" in p.question for p in o.predicates)]
    assert operator.evaluations == operator.expected.answers == 30
    assert 0 < operator.expected.seconds < 1 and operator.expected.device == "H200"
    assert operator.expected.fresh_tokens > 30
    assert "expected of one run: 30 answers, " in str(report) and " on H200" in str(report)
    assert report.as_dict()["operators"][-1]["expected"]["answers"] == 30


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


def test_progress_line_tells_rows_pass_rate_speed_and_time_left():
    before = {"f": totals(batches=1, fresh_tokens=400, reused_tokens=50)}
    assert line({"f": totals()}, before, {}) == "f: 50 rows, 50% TRUE, 550 tokens/s, time left unknown"
    assert line({"f": totals()}, before, {"f": 20.2}).endswith(", 0:20 left")
    assert line({"f": totals()}, before, {"f": 3671.0}).endswith(", 1:01:11 left")
    assert (
        line({"j": totals(kind="pairs", asked=[0], passed=[0])}, {}, {"j": 61.0})
        == "j: 50 pairs, 1,000 tokens/s, 1:01 left"
    )


class Course:
    """A query as the progress line sees it: time, tasks of the running stages, what Spark expects."""

    def __init__(self, expected: int | None):
        self.now, self.finished, self.every = 100.0, 0, 0
        self.left = TimeLeft(lambda name: (self.finished, self.every), lambda name: expected, lambda: self.now)

    def after(self, seconds: float, rows: int, before: int | None, finished: int = 0, every: int = 0) -> float | None:
        self.now += seconds
        self.finished, self.every = finished, every
        return self.left.of("f", None if before is None else {"rows": before}, {"rows": rows})


def test_time_left_by_rows_where_spark_knows_them_else_by_tasks_else_unknown():
    by_rows = Course(expected=1000)
    assert by_rows.after(0, 100, None) == pytest.approx(9 * INTERVAL)
    assert by_rows.after(9, 500, 400, finished=1, every=4) == pytest.approx(9 + INTERVAL)
    assert by_rows.after(1, 1200, 500, finished=2, every=4) is None  # the statistics were wrong
    by_tasks = Course(expected=None)
    assert by_tasks.after(0, 10, None, finished=0, every=4) is None
    assert by_tasks.after(9, 90, 10, finished=1, every=4) == pytest.approx(3 * (9 + INTERVAL))
    assert by_tasks.after(10, 190, 90, finished=4, every=4) is None  # the next stage is not known
    assert Course(expected=None).after(0, 10, None) is None


def test_time_left_is_that_of_the_present_query():
    """The engine's totals go on from one query to the next."""
    course = Course(expected=1000)
    course.after(0, 1000, 0, finished=3, every=4)
    course.every = course.finished = 0
    course.now += IDLE + 1
    course.left.forget_idle()
    assert course.after(50, 1100, 1000) == pytest.approx(9 * INTERVAL)
    course.after(9, 1500, 1400, finished=2, every=4)
    assert course.after(1, 1600, 1500, finished=0, every=4) == pytest.approx(9 * INTERVAL)  # another one at once


def test_a_slow_batch_is_no_end():
    course = Course(expected=None)
    course.after(0, 10, None, finished=0, every=4)
    course.now += 10 * IDLE
    course.left.forget_idle()
    assert course.after(0, 20, 10, finished=1, every=4) == pytest.approx(3 * (10 * IDLE + INTERVAL))


def test_what_spark_knows_of_a_join_is_all_its_pairs():
    spec = OperatorSpec("j", "pairs", ())
    assert expected_rows(PlannedOperator(spec, (), (20, 30))) == 600
    assert expected_rows(PlannedOperator(spec, (), (20, None))) is None
    assert expected_rows(PlannedOperator(spec, (), (20, 30), stops=True)) is None
    assert expected_rows(PlannedOperator(spec, (), (20, 30), keyed=True)) is None
    assert expected_rows(None) is None


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


def test_time_left_is_told_by_finished_tasks_where_spark_knows_no_rows(messages):
    messages.conf.set("spark.quail.model", "scripted://hash?rate=0.5&delay_ms=700")
    terminal = Terminal()
    application = messages.sparkContext.applicationId
    progress = ProgressLine(application, terminal, partial(running_tasks, messages))
    rows = "(SELECT CONCAT('row ', CAST(id AS STRING)) AS text FROM range(0, 32, 1, 8) WHERE id % 2 = 0)"
    messages.sql(f"SELECT text FROM {rows} WHERE AI.IF(PROMPT('{{0}} p2', text))").collect()
    progress.stop()
    assert re.search(r"tokens/s, 0:\d\d left", terminal.getvalue())
    assert running_tasks(messages, "ai_filter-00000000") == (0, 0)
