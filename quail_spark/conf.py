"""The settings `spark.quail.*`: one table, read on the driver from the session and on executors from the task."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quail_spark.engine.config import FP8_SETTINGS, KV_SETTINGS, EngineConfig, refuse_credentials
from quail_spark.optimizer.device import DEVICES, find_device
from quail_spark.optimizer.errors import ConfigError
from quail_spark.optimizer.options import LAYOUT_OPTIONS

PREFIX = "spark.quail."


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower())
    if not match:
        raise ValueError("bytes, such as 8m or 2g")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2]]


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?", text.strip().lower())
    if not match:
        raise ValueError("a time, such as 90s or 15m")
    return float(match[1]) * {"ms": 0.001, "s": 1, None: 1, "m": 60, "min": 60, "h": 3600}[match[2]]


def _location(text: str) -> str:
    refuse_credentials(text)
    return text


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d+", text.strip()):
        raise ValueError("a whole number")
    return int(text)


def _count(text: str) -> int:
    if not re.fullmatch(r"\d+", text.strip()) or int(text) < 1:
        raise ValueError("1 or more")
    return int(text)


def _known_device(text: str) -> str:
    if text not in ("", "auto") and not re.fullmatch(r"cuda:\d+", text) and find_device(text) is None:
        raise ValueError(", ".join(["cpu", *(device.name for device in DEVICES), "auto", "cuda:N"]))
    return text


def _number(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        raise ValueError("a number")
    return float(text)


def _share(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text.strip()) or float(text) > 1:
        raise ValueError("a number from 0 to 1")
    return float(text)


def _one_of(*accepted: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in accepted:
            raise ValueError(", ".join(accepted))
        return text

    return read


@dataclass(frozen=True)
class Setting:
    """One row of the table: `name` without the prefix, default as text, reader (raises ValueError with what is accepted), meaning."""

    name: str
    default: str
    read: Callable[[str], Any]
    meaning: str
    engine_field: str | None = None


SETTINGS = (
    Setting(
        "model",
        "",
        str,
        "Directory of safetensors, GGUF file, or hub id. Empty: the default small model (`quail-spark fetch-model`).",
        "model",
    ),
    Setting("device", "auto", str, "`auto`, `cpu` or `cuda:N`; see gpus.md.", "device"),
    Setting(
        "dtype",
        "auto",
        _one_of("auto", "float32", "bfloat16", "float16"),
        "Number type of weights and KV: `bfloat16`, `float16`, `float32`; `auto`: bfloat16 where the hardware multiplies it, else float32.",
        "dtype",
    ),
    Setting("optimizer.enabled", "true", _flag, "Off: AI calls run as plain UDFs wherever Spark puts them."),
    Setting(
        "optimizer.strict",
        "false",
        _flag,
        "Raise when planning an AI operator fails, instead of warning and running the UDF. For tests.",
    ),
    Setting(
        "onError",
        "fail",
        _one_of("fail", "null"),
        "A row that can't be answered: `fail` stops with an error that names it, `null` answers NULL and counts it (and stops where a "
        "task's rows fail one and all, two or more).",
    ),
    Setting(
        "prompt.layout",
        "document_first",
        _one_of(*LAYOUT_OPTIONS),
        "Where the document stands: before the question (`document_first`: KV shared between predicates), or where the "
        "template has it (`literal`); `auto`: what is expected to cost less, for each question; see prompts.md.",
    ),
    Setting(
        "statistics.footers",
        "8",
        _whole,
        "Of how many Parquet files of a table the driver reads the footers for the planner, at most, where Spark has no "
        "statistics of it (ANALYZE TABLE); 0: none.",
    ),
    Setting(
        "estimate.device",
        "",
        _known_device,
        f"Device that `quail_spark.explain` estimates for: {', '.join(f'`{device.name}`' for device in DEVICES)}, `cpu`, `cuda:N` or `auto`. Empty: the one that `spark.quail.device` means on the driver.",
    ),
    Setting(
        "estimate.pricePerHour",
        "0",
        _number,
        "Money for an hour of the device, for `quail_spark.explain`; 0: none is shown.",
    ),
    Setting(
        "progress",
        "auto",
        _one_of("auto", "true", "false"),
        "Progress line on the driver while a query runs; `auto`: when stderr is a terminal.",
    ),
    Setting("batch.rows", "256", _count, "Rows per message to the engine, at most."),
    Setting("batch.bytes", "4m", _bytes, "Text per message to the engine, at most (one row may exceed it)."),
    Setting("join.blockRows", "1024", _count, "Partner rows in one block of an AI join, at most."),
    Setting(
        "join.broadcastBytes",
        "64m",
        _bytes,
        "Partners of an AI join are broadcast up to this size, as Spark expects it; larger ones are shuffled by the join's "
        "equality and sorted. Without an equality they are broadcast anyway.",
    ),
    Setting(
        "resources.gpuPerTask",
        "0",
        _share,
        "GPU of a task, such as `1` or `0.25`, that the stages of AI operators ask Spark for, and no others; see gpus.md. 0: what "
        "`spark.task.resource.gpu.amount` says, for all stages.",
    ),
    Setting(
        "resources.gpuPerExecutor",
        "0",
        _whole,
        "GPUs of the executors that dynamic allocation starts for those stages; 0: as `spark.executor.resource.gpu.amount` says.",
    ),
    Setting(
        "engine.fp8",
        "auto",
        _one_of(*FP8_SETTINGS),
        "FP8 products on a GPU, with one scale a `row` or for each 128 × 128 `block`; `auto`: `row` for FP8 checkpoints, "
        "none for others; `off`: none.",
        "fp8",
    ),
    Setting(
        "engine.kv",
        "auto",
        _one_of(*KV_SETTINGS),
        "Number type of KV pages; `auto`: as the activations. On a GPU, `fp8-keys` holds keys in FP8, and queries with them, for models "
        "that norm heads (Qwen3): 2–6 % faster and a third more tokens in the same memory, and the one that rounds most; `fp8` holds nearly twice "
        "the tokens, with a scale for each head of a token, about as fast as `auto`. See benchmarks.md.",
        "kv",
    ),
    Setting(
        "engine.tokenBudget",
        "0",
        _whole,
        "New tokens per forward pass; 0: 4096 on a CPU, on a GPU up to 32768 as its free memory allows.",
        "token_budget",
    ),
    Setting(
        "engine.kvMemory",
        "0",
        _bytes,
        "Memory for KV pages; 0: 2g on a CPU, on a GPU what is free after the model and its activations.",
        "kv_bytes",
    ),
    Setting(
        "engine.maxContext",
        "0",
        _whole,
        "Longest prompt in tokens; 0: the model's own limit, or what `engine.kvMemory` holds if that is less.",
        "max_context",
    ),
    Setting("engine.threads", "0", _whole, "CPU threads of the engine; 0: all cores.", "threads"),
    Setting(
        "engine.answerMemory",
        "1000000",
        _whole,
        "Answers the engine remembers, so that equal prompts are computed once; 0: none.",
        "answer_memory",
    ),
    Setting(
        "answerStore",
        "",
        _location,
        "Directory or URI (s3://, gs://, …) where answers are kept as Parquet, so that later queries, and a job that "
        "starts again, compute only what is new; see answer-store.md. Empty: none.",
        "answer_store",
    ),
    Setting("engine.idleTimeout", "15m", _seconds, "An engine without work ends after this time.", "idle_timeout"),
    Setting(
        "engine.startTimeout",
        "10m",
        _seconds,
        "How long a task waits for the engine to load its model.",
        "start_timeout",
    ),
    Setting(
        "engine.silenceTimeout",
        "15m",
        _seconds,
        "An engine process that answers nothing at all for this time, not even a call for its totals, is killed; another takes "
        "its place. However long a batch takes does not matter.",
        "silence_timeout",
    ),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


class QuailConf:
    """All settings as checked values: `conf["onError"]`, `conf.engine(device)`. Immutable."""

    def __init__(self, given: Mapping[str, str] | None = None):
        """`given` maps full names (`spark.quail.onError`) to text. Raises ConfigError for an unknown name or bad value."""
        given = {k: v for k, v in (given or {}).items() if k.startswith(PREFIX)}
        for name in given:
            if name[len(PREFIX) :] not in _BY_NAME:
                raise ConfigError(f"{name} is not a setting; accepted: {', '.join(PREFIX + s for s in _BY_NAME)}")
        self._values = {s.name: _value(s, given.get(PREFIX + s.name, s.default)) for s in SETTINGS}
        self._names_model = PREFIX + "model" in given
        device = self[
            "device"
        ]  # the engine checks its part: of the device and the default model, only a task knows which
        self.engine(model=self["model"] or "default", device="cpu" if device == "auto" else device)

    def enabled(self) -> "QuailConf":
        """These settings, if a model is among them, be it as the empty name of the default one: `enable` sees to that.

        Raises ConfigError where there is none, since then the settings that `enable` was given are not here.
        """
        if not self._names_model:
            raise ConfigError(
                "an AI call runs in a Spark session in which quail-spark is not enabled: spark.quail.model is not set there "
                "(RESET and spark.newSession() drop what enable() has set); accepted: quail_spark.enable(spark, …), again, in "
                "that session, or a model in spark.quail.model"
            )
        return self

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def engine(self, **changes: Any) -> EngineConfig:
        """The engine's part; `changes` replace fields, such as the resolved `model` and `device`."""
        fields = {s.engine_field: self._values[s.name] for s in SETTINGS if s.engine_field}
        return EngineConfig(**{**fields, **changes})

    @staticmethod
    def of_session(spark) -> "QuailConf":
        """Driver-side: the session's settings (classic Spark or Connect)."""
        return QuailConf(
            {PREFIX + s.name: value for s in SETTINGS if (value := spark.conf.get(PREFIX + s.name, None)) is not None}
        )

    @staticmethod
    def of_task() -> "QuailConf":
        """Executor-side: Spark copies every `spark.*` setting of the session into the task's local properties."""
        from pyspark import TaskContext

        task = TaskContext.get()
        read = task.getLocalProperty if task else lambda name: None
        return QuailConf({PREFIX + s.name: value for s in SETTINGS if (value := read(PREFIX + s.name)) is not None})


def _value(setting: Setting, text: str) -> Any:
    try:
        return setting.read(text)
    except ValueError as error:
        raise ConfigError(f"{PREFIX}{setting.name} is {text!r}; accepted: {error}") from None


def settings_table() -> str:
    """The table of the docs, in Markdown."""
    rows = [f"| `{PREFIX}{s.name}` | `{s.default or '(empty)'}` | {s.meaning} |" for s in SETTINGS]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])
