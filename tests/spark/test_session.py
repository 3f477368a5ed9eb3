"""enable() and disable(): what they change, what they refuse, and that they can be undone."""

import inspect
import subprocess
import sys

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, PythonException

import quail_spark
from quail_spark.engines import resolve_device
from quail_spark.errors import ConfigError, ModelError, SetupError
from quail_spark.functions import ai_if, prompt
from quail_spark.jvm import java_class
from quail_spark.sql_method import unwrap_sql, wrap_sql

from .conftest import MODEL
from .oracle import answer

Q = "is {0} red?"
CALL = f"AI.IF(PROMPT('{Q}', CAST(id AS STRING)))"
EXPECTED = [answer(Q, str(i)) for i in range(8)]


def answers(spark, call=CALL):
    return [row.a for row in spark.sql(f"SELECT id, {call} AS a FROM range(8) ORDER BY id").collect()]


def test_enable_returns_the_session_and_may_be_repeated(spark):
    wrapped = spark.sql
    assert quail_spark.enable(spark, model=MODEL) is spark
    assert spark.sql == wrapped
    assert answers(spark) == EXPECTED


def test_spark_sql_keeps_its_face(spark):
    quail_spark.disable(spark)
    original = type(spark).sql
    quail_spark.enable(spark, model=MODEL)
    assert spark.sql.__func__ is not original and spark.sql.__doc__ == original.__doc__
    assert list(inspect.signature(spark.sql).parameters) == list(inspect.signature(original).parameters)[1:]
    assert spark.sql(sqlQuery="SELECT 1 AS x").first().x == 1
    assert spark.sql("SELECT :x AS x", {"x": 2}).first().x == 2
    assert spark.sql("SELECT {x} AS x", x=3).first().x == 3


def test_settings_by_keyword(spark):
    quail_spark.enable(spark, on_error="null", engine_token_budget=512, optimizer_enabled=False, **{"batch.rows": 9})
    got = {name: spark.conf.get(f"spark.quail.{name}") for name in ("onError", "engine.tokenBudget", "batch.rows")}
    assert got == {"onError": "null", "engine.tokenBudget": "512", "batch.rows": "9"}
    assert spark.conf.get("spark.quail.optimizer.enabled") == "false"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"on_eror": "null"}, "'on_eror'"),
        ({"on_error": "ignore"}, "spark.quail.onError is 'ignore'; accepted: fail, null"),
        ({"batch_bytes": "many"}, "spark.quail.batch.bytes"),
        ({"batch_rows": 0}, "spark.quail.batch.rows is '0'; accepted: 1 or more"),
        ({"join_block_rows": 0}, "spark.quail.join.blockRows is '0'; accepted: 1 or more"),
        ({"device": "gpu"}, "spark.quail.device is 'gpu'; accepted: auto, cpu, cuda:N"),
        ({"device": "CPU"}, "spark.quail.device is 'CPU'"),
        ({"device": ""}, "spark.quail.device is ''"),
        ({"engine_token_budget": 1}, "spark.quail.engine.tokenBudget is 1; accepted: 16 or more, or 0"),
        (
            {"engine_kv_memory": "9k"},
            "spark.quail.engine.kvMemory is 9216 bytes; accepted: 1048576 bytes or more, or 0",
        ),
        ({"engine_start_timeout": "0"}, "spark.quail.engine.startTimeout is 0.0 s; accepted: 1 s or more"),
        ({"estimate_device": "H9000"}, "spark.quail.estimate.device is 'H9000'; accepted: cpu, H200, H100"),
    ],
)
def test_a_wrong_setting_changes_nothing(spark, settings, words):
    before = dict(spark.conf.getAll)
    with pytest.raises(ConfigError) as caught:
        quail_spark.enable(spark, progress="true", **settings)
    assert words in str(caught.value)
    assert dict(spark.conf.getAll) == before


def test_a_misspelled_setting_of_the_session_is_refused(spark):
    spark.conf.set("spark.quail.onEror", "null")
    with pytest.raises(ConfigError, match=r"spark\.quail\.onEror is not a setting"):
        quail_spark.enable(spark)


@pytest.mark.parametrize(
    ("name", "value"), [("answerStore", "answers"), ("device", "gpu"), ("engine.tokenBudget", "1"), ("batch.rows", "0")]
)
def test_a_wrong_setting_is_refused_when_a_query_is_planned(spark, name, value):
    spark.conf.set(f"spark.quail.{name}", value)
    for frame in frames(spark):
        with pytest.raises(IllegalArgumentException, match=rf"ConfigError: spark\.quail\.{name} is "):
            frame.explain()


def test_a_relative_answer_store_of_the_session_becomes_absolute(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = spark.newSession()
    other.conf.set("spark.quail.answerStore", "answers")
    quail_spark.enable(other, model=MODEL, progress="false")
    assert other.conf.get("spark.quail.answerStore") == str(tmp_path / "answers")


def test_a_model_that_is_not_there(spark):
    with pytest.raises(ModelError, match=r"'\./no-model' does not exist"):
        quail_spark.enable(spark, model="./no-model")


def test_a_relative_path_becomes_absolute(spark, tmp_path, monkeypatch):
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    quail_spark.enable(spark, model="tiny")
    assert spark.conf.get("spark.quail.model") == str(tmp_path / "tiny")


def test_settings_changed_later_reach_the_workers(spark):
    spark.conf.set("spark.quail.model", "scripted://contains?word=3")
    call = "ai_if(prompt('{0}', CAST(id AS STRING)))"
    assert answers(spark, call) == [i == 3 for i in range(8)]
    spark.conf.set("spark.quail.model", "scripted://contains?word=5")
    assert answers(spark, call) == [i == 5 for i in range(8)]


@pytest.mark.parametrize("model", ["scripted://unknown", "scripted://hash?rate=x"])
def test_what_the_engine_refuses_is_named(spark, model):
    spark.conf.set("spark.quail.model", model)
    with pytest.raises(PythonException) as caught:
        answers(spark)
    assert model in str(caught.value) and "accepted:" in str(caught.value)


def test_disable_puts_everything_back(bare_spark):
    quail_spark.disable(bare_spark)
    bare_spark.conf.set("spark.quail.onError", "null")
    before = dict(bare_spark.conf.getAll)
    quail_spark.enable(bare_spark, model=MODEL, on_error="fail")
    assert answers(bare_spark) == EXPECTED
    quail_spark.disable(bare_spark)
    try:
        assert dict(bare_spark.conf.getAll) == before
        for call in (CALL, "ai_if(1)", "ai_filter(1)", "prompt('x')"):
            with pytest.raises(AnalysisException, match="UNRESOLVED_ROUTINE"):
                bare_spark.sql(f"SELECT {call} FROM range(1) AS t(id)")
        quail_spark.disable(bare_spark)  # nothing left to do
    finally:
        bare_spark.conf.unset("spark.quail.onError")


def test_sessions_are_apart(spark):
    other = spark.newSession()
    with pytest.raises(AnalysisException):
        other.sql("SELECT ai_if(prompt('x'))")
    quail_spark.enable(other, model="scripted://contains?word=7")
    assert answers(other) == [i == 7 for i in range(8)]
    assert answers(spark) == EXPECTED


def frames(spark):
    """A UDF's and a planned operator's query, which are not planned yet."""
    call = ai_if(prompt(Q, "id"))
    return [spark.range(8).select(call), spark.range(8).filter(call)]


def test_a_reset_session_is_refused_until_it_is_enabled_again(spark):
    waiting, planned = frames(spark), frames(spark)
    for frame in planned:
        frame._jdf.queryExecution().executedPlan()
    spark.sql("RESET")
    for frame in waiting + frames(spark):
        with pytest.raises(IllegalArgumentException, match=r"ConfigError: .*not enabled.*enable\(spark"):
            frame.collect()
    for frame in planned:  # only the tasks can tell
        with pytest.raises(PythonException, match=r"ConfigError: .*not enabled.*enable\(spark"):
            frame.collect()
    assert spark.range(3).count() == 3
    quail_spark.enable(spark, model=MODEL)
    assert answers(spark) == EXPECTED
    assert [row[0] for row in frames(spark)[0].collect()] == EXPECTED


def test_a_new_session_is_refused(spark):
    for frame in frames(spark.newSession()):
        with pytest.raises(IllegalArgumentException, match=r"ConfigError: .*not enabled"):
            frame.collect()


def test_a_disabled_session_is_refused(spark):
    waiting = frames(spark)
    quail_spark.disable(spark)
    for frame in waiting:
        with pytest.raises(IllegalArgumentException, match=r"ConfigError: .*not enabled"):
            frame.collect()


def test_a_model_among_the_settings_is_as_good_as_enabled(spark):
    other = spark.newSession()
    other.conf.set("spark.quail.model", MODEL)
    every, passing = frames(other)
    assert [row[0] for row in every.collect()] == EXPECTED
    assert [row.id for row in passing.collect()] == [i for i, passes in enumerate(EXPECTED) if passes]


def test_the_default_model_is_one_too(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("QUAIL_SPARK_MODEL", str(tmp_path))
    other = spark.newSession()
    quail_spark.enable(other)
    assert other.conf.get("spark.quail.model") == ""
    assert "ai_filter" in frames(other)[1]._jdf.queryExecution().optimizedPlan().toString()
    quail_spark.disable(other)
    assert other.conf.get("spark.quail.model", None) is None


def test_a_stream_s_batches_run_in_a_clone_that_is_enabled(spark, tmp_path):
    spark.range(8).write.parquet(str(tmp_path / "in"))
    got = []

    def keep(batch, _):
        got.append(batch.sparkSession.conf.get("spark.quail.model"))
        got.append(sorted(row.id for row in batch.filter(ai_if(prompt(Q, "id"))).collect()))
        batch.createOrReplaceTempView("batch")
        got.append(sorted(row.id for row in batch.sparkSession.sql(f"SELECT id FROM batch WHERE {CALL}").collect()))

    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "in")).writeStream.foreachBatch(keep)
    stream.option("checkpointLocation", str(tmp_path / "progress")).trigger(
        availableNow=True
    ).start().awaitTermination()
    passing = [i for i, passes in enumerate(EXPECTED) if passes]
    assert got == [MODEL, passing, passing]


def test_every_object_of_the_session_takes_ai_calls(spark):
    another = type(spark)(spark.sparkContext, spark._jsparkSession)
    assert another is not spark and answers(another) == EXPECTED


def test_the_class_gets_its_method_back_with_its_last_session():
    class Session:
        def __init__(self):
            self.conf = {}

        def sql(self, text):
            return text

    class Vendors(Session):
        pass

    original, (one, two) = Session.sql, (Session(), Vendors())
    for session in (one, two, one):
        wrap_sql(session)
    unwrap_sql(one)
    assert one.sql("SELECT AI.IF(PROMPT('x'))") == "SELECT AI.IF(PROMPT('x'))" and Session.sql is not original
    unwrap_sql(two)
    assert Session.sql is original


def test_disabling_one_session_leaves_the_others(spark):
    other = spark.newSession()
    quail_spark.enable(other, model=MODEL)
    quail_spark.disable(other)
    with pytest.raises(AnalysisException, match="UNRESOLVED_ROUTINE"):
        answers(other)
    assert answers(spark) == EXPECTED


def test_permanent_views_are_refused_by_spark(spark):
    with pytest.raises(AnalysisException, match="temporary"):
        spark.sql(f"CREATE VIEW v AS SELECT {CALL} a FROM range(3)")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda spark: spark.range(1).show(), r"got None; accepted: a DataFrame.*show\(\) returns None"),
        (lambda spark: "SELECT 1", "got a str; accepted: a DataFrame"),
        (lambda spark: spark, "got a SparkSession; accepted: a DataFrame"),
        (lambda spark: ai_if(prompt(Q, "id")), "got a Column; accepted: a DataFrame"),
    ],
)
def test_only_a_dataframe_can_be_explained(spark, make, words):
    with pytest.raises(ConfigError, match=words):
        quail_spark.explain(make(spark))


def test_workers_are_this_interpreter(spark):
    assert spark.sparkContext.pythonExec == sys.executable


def test_the_verbatim_query(spark):
    spark.createDataFrame([(1, "runner"), (2, "reader")], "id int, profile string").createOrReplaceTempView("customers")
    products = [(10, "shoes"), (20, "a novel"), (30, None)]
    spark.createDataFrame(products, "id int, description string").createOrReplaceTempView("products")
    got = spark.sql(
        "SELECT customers.id, products.id FROM customers JOIN products "
        'ON AI.IF(PROMPT("{customers.profile} might buy this: {products.description}"))'
    ).collect()
    expected = [
        (customer, product)
        for customer, profile in ((1, "runner"), (2, "reader"))
        for product, description in products
        if answer("{0} might buy this: {1}", profile, description)
    ]
    assert sorted(map(tuple, got)) == expected


def test_importing_is_light():
    heavy = "{'torch', 'pyspark', 'pandas', 'pyarrow', 'sqlglot', 'numpy'}"
    code = f"import sys, quail_spark; dir(quail_spark); print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_exports_stay_functions():
    code = (
        "import quail_spark, quail_spark.session, quail_spark.progress, quail_spark.functions\n"
        "print([callable(getattr(quail_spark, name)) for name in quail_spark._EXPORTS for _ in range(2)])"
    )
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert got == str([True] * 2 * len(quail_spark._EXPORTS)) + "\n"


def test_driver_and_workers_do_without_torch():
    code = "import sys, quail_spark.session, quail_spark.carrier, quail_spark.engines; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_class_that_is_not_there(spark):
    with pytest.raises(SetupError, match=r"quail_spark/java/Missing\.java"):
        java_class(spark, "Missing")


@pytest.mark.parametrize(
    ("setting", "gpus", "hidden", "found", "device"),
    [
        ("cpu", ["3"], None, True, "cpu"),
        ("cuda:2", [], None, False, "cuda:2"),
        ("auto", ["3", "1"], None, True, "cuda:3"),
        ("auto", ["3", "1"], "1,3", True, "cuda:1"),
        ("auto", [], None, True, "cuda:0"),
        ("auto", [], "0", True, "cuda:0"),
        ("auto", [], "", True, "cpu"),
        ("auto", [], "-1", True, "cpu"),
        ("auto", [], None, False, "cpu"),
    ],
)
def test_device(monkeypatch, setting, gpus, hidden, found, device):
    monkeypatch.setattr("quail_spark.engine.devices.glob", lambda pattern: ["/dev/nvidia0"] if found else [])
    assert resolve_device(setting, gpus, {} if hidden is None else {"CUDA_VISIBLE_DEVICES": hidden}) == device
