"""From a task's settings to its engine: which model, which device, one client per Python worker. Executor-side, torch-free."""

import json
import os
from collections.abc import Mapping, Sequence

from quail_spark.engine.client import EngineClient, connect
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.devices import count_gpus, device_of
from quail_spark.optimizer.errors import SetupError

from .conf import QuailConf

APPLICATION = "spark.app.id"
OUTSIDE_SQL = "quail-spark.settings"  # a thread's local property: the settings, for tasks that are not part of a query

_clients: dict[tuple[EngineConfig, str], EngineClient] = {}


def task_settings() -> tuple[QuailConf, str]:
    """The session's settings and the Spark application id, inside a task.

    Spark hands both down to the tasks of a query. It does not for `DataFrame.rdd`; there, what `propagate` noted in
    the thread that started the job is used. Raises SetupError where there is neither, ConfigError where the session is not
    enabled.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is not None and (application := task.getLocalProperty(APPLICATION)):
        return QuailConf.of_task().enabled(), application
    if task is not None and (noted := task.getLocalProperty(OUTSIDE_SQL)):
        settings = json.loads(noted)
        return QuailConf(settings).enabled(), settings[APPLICATION]
    raise SetupError(
        "an AI call runs outside of a Spark SQL query (through DataFrame.rdd on another thread, say), where Spark does "
        "not hand down the settings spark.quail.*; accepted: DataFrame operations, such as write, collect or mapInArrow"
    )


def propagate(spark) -> None:
    """Driver-side: note the session's settings for jobs that this thread starts outside of a query. Classic Spark."""
    settings = {key: value for key, value in spark.conf.getAll.items() if key.startswith("spark.quail.")}
    settings[APPLICATION] = spark.sparkContext.applicationId
    spark.sparkContext.setLocalProperty(OUTSIDE_SQL, json.dumps(settings, sort_keys=True))


def task_engine() -> EngineClient:
    """The engine that this task uses, started if need be; the same client for later tasks of this Python worker.

    Raises what the engine's start raises, ModelError when there is no model.
    """
    conf, application = task_settings()
    device = resolve_device(conf["device"], task_gpus(), partition=task_partition())
    config = conf.engine(model=resolve_model(conf["model"]), device=device)
    if (config, application) not in _clients:
        _clients[config, application] = connect(config, application)
    return _clients[config, application]


def resolve_model(setting: str) -> str:
    """`spark.quail.model`, or the default model. Raises ModelError when there is none."""
    if setting:
        return setting
    from .models import default_model

    return str(default_model())


def task_gpus() -> Sequence[str]:
    """The addresses of the GPUs that Spark gave to this task; empty where it manages none (`local[N]`, say)."""
    from pyspark import TaskContext

    task = TaskContext.get()
    gpu = task.resources().get("gpu") if task is not None else None
    return gpu.addresses if gpu is not None else []


def task_partition() -> int:
    """The number of this task's partition; 0 outside of a task."""
    from pyspark import TaskContext

    task = TaskContext.get()
    return task.partitionId() if task is not None else 0


def resolve_device(
    setting: str, gpus: Sequence[str] = (), environment: Mapping[str, str] = os.environ, partition: int = 0
) -> str:
    """`auto` becomes the task's first GPU; where Spark manages none, the visible GPUs take turns by partition, so that
    a partition stays on its GPU through the stages of a query and its retries; `cpu` where none is visible."""
    if setting != "auto":
        return setting
    if gpus:
        return device_of(gpus[0], environment)
    count = count_gpus(environment)
    return f"cuda:{partition % count}" if count else "cpu"
