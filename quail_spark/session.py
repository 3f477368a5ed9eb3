"""Switch AI-SQL on and off in one Spark session. Driver-side."""

import os
import re
import sys
from typing import Any

from quail_spark.optimizer.errors import ConfigError, ModelError

from .conf import PREFIX, SETTINGS, QuailConf
from .engines import OUTSIDE_SQL, propagate
from .sql_method import is_connect, unwrap_sql, wrap_sql

FUNCTIONS = ("ai_if", "ai_filter", "ai_if_details", "prompt")
_STATE = "_quail_spark_before"  # on the session: the settings that `disable` restores
_PROGRESS = "_quail_spark_progress"  # on the session: its progress line
_KEYWORDS = {re.sub(r"([A-Z])", r"_\1", s.name).replace(".", "_").lower(): s.name for s in SETTINGS}


def enable(spark, model: str | None = None, **settings: Any):
    """Make `spark` answer AI calls, in SQL texts and DataFrames; returns `spark`. May be called again.

    `model`: a directory of safetensors, a GGUF file or a hub id; where neither this nor `spark.quail.model` is given,
    the model that `quail-spark fetch-model` brought. `settings` are the other `spark.quail.*`, written as `on_error="null"`,
    `engine_token_budget=8192`, `optimizer_enabled=False`; `spark.conf.set` changes them later.

    Registers the functions `ai_if`, `ai_filter`, `ai_if_details` and `prompt`, and reads AI calls wherever Spark parses SQL of
    the session. On a local master Spark's Python workers are this interpreter unless $PYSPARK_PYTHON or spark.pyspark.python
    say otherwise.
    With Spark Connect all works but the planner: AI calls run as UDFs.
    Raises ConfigError for an unknown or bad setting, ModelError for a model that is not there (on a local master).
    """
    given = _named(settings | ({} if model is None else {"model": model}))
    if _is_local(spark):
        given |= _local_store((_quail_settings(spark) | given).get(PREFIX + "answerStore", ""))
    conf = QuailConf(_quail_settings(spark) | given)
    given.setdefault(PREFIX + "model", conf["model"])  # even if empty: by it a session is known to be enabled
    if _is_local(spark):
        given |= _local_model(conf["model"])
    if not hasattr(spark, _STATE):
        setattr(spark, _STATE, {})
    before = getattr(spark, _STATE)
    for name, value in given.items():
        before.setdefault(name, spark.conf.get(name, None))
        spark.conf.set(name, value)
    if is_connect(spark):
        _register_connect(spark)
    else:
        _use_this_python(spark)
        _register(spark)
        propagate(spark)
    wrap_sql(spark)
    _planner(spark, "install")
    _restart_progress(spark)
    return spark


def disable(spark) -> None:
    """Undo `enable`: functions, settings, `spark.sql` and the planner are as before. Nothing happens without it."""
    if not hasattr(spark, _STATE):
        return
    _planner(spark, "uninstall")
    _stop_progress(spark)
    unwrap_sql(spark)
    for name, value in vars(spark).pop(_STATE).items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
    if not is_connect(spark):
        spark.sparkContext.setLocalProperty(OUTSIDE_SQL, None)
    for name in FUNCTIONS:
        spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name}")


def _named(settings: dict[str, Any]) -> dict[str, str]:
    """Full names and text for keyword arguments."""
    named = {}
    for keyword, value in settings.items():
        name = _KEYWORDS.get(keyword, keyword.removeprefix(PREFIX))
        if name not in _KEYWORDS.values():
            raise ConfigError(f"enable() got the setting {keyword!r}; accepted: {', '.join(_KEYWORDS)}")
        named[PREFIX + name] = str(value).lower() if isinstance(value, bool) else str(value)
    return named


def _quail_settings(spark) -> dict[str, str]:
    return {name: value for name, value in spark.conf.getAll.items() if name.startswith(PREFIX)}


def _is_local(spark) -> bool:
    return not is_connect(spark) and spark.sparkContext.master.startswith("local")


def _local_model(model: str) -> dict[str, str]:
    """Check the model where driver and workers are one machine, and make a path independent of the working directory."""
    from .models import default_model, looks_like_hub_id

    if not model:
        default_model()
        return {}
    path = os.path.expanduser(model)
    if os.path.exists(path):
        return {PREFIX + "model": os.path.abspath(path)}
    if "://" not in model and not looks_like_hub_id(model):
        raise ModelError(
            f"the model {model!r} does not exist; accepted: a directory of safetensors, a GGUF file, a hub id "
            "(owner/name), or nothing, after `quail-spark fetch-model`"
        )
    return {}


def _local_store(location: str) -> dict[str, str]:
    """A path that does not depend on the working directory, where driver and workers are one machine."""
    if not location or "://" in location:
        return {}
    return {PREFIX + "answerStore": os.path.abspath(os.path.expanduser(location))}


def _use_this_python(spark) -> None:
    """Without $PYSPARK_PYTHON, pyspark would take the first `python3` of the PATH."""
    if _is_local(spark) and not os.environ.get("PYSPARK_PYTHON"):
        spark.sparkContext.pythonExec = spark.sparkContext.getConf().get("spark.pyspark.python", sys.executable)


def _register(spark) -> None:
    from pyspark.sql.udf import UserDefinedFunction

    from .functions import ai_if_details_udf, ai_if_udf
    from .jvm import new_instance

    for names, carrier in ((("ai_if", "ai_filter"), ai_if_udf()), (("ai_if_details",), ai_if_details_udf())):
        udf = UserDefinedFunction(carrier.func, carrier.returnType, name=names[0], evalType=carrier.evalType)
        for name in names:  # in plans ai_filter is ai_if
            spark._jsparkSession.udf().registerPython(name, udf._judf)
    registry = spark._jsparkSession.sessionState().functionRegistry()
    registry.createOrReplaceTempFunction("prompt", new_instance(spark, "PromptBuilder"), "scala_udf")


def _register_connect(spark) -> None:
    """`prompt` can't be registered without the JVM: the front end writes out what it stands for."""
    from .functions import ai_if_details_udf, ai_if_udf

    for name, carrier in (("ai_if", ai_if_udf()), ("ai_filter", ai_if_udf()), ("ai_if_details", ai_if_details_udf())):
        spark.udf.register(name, carrier)


def _planner(spark, action: str) -> None:
    if not is_connect(spark):
        from . import catalyst

        getattr(catalyst, action)(spark)


def _restart_progress(spark) -> None:
    if is_connect(spark):
        return
    from .progress import start_progress

    _stop_progress(spark)
    setattr(spark, _PROGRESS, start_progress(spark))


def _stop_progress(spark) -> None:
    progress = vars(spark).pop(_PROGRESS, None)
    if progress is not None:
        progress.stop()
