"""Settings of one engine process."""

import json
import re
from dataclasses import asdict, dataclass
from urllib.parse import parse_qsl, urlsplit

from quail_spark.optimizer.errors import ConfigError

FP8_SETTINGS = ("auto", "row", "block", "off")
KV_SETTINGS = ("auto", "fp8-keys", "fp8")
BOUNDS = (  # field, its name in the docs, unit, least value, whether 0 is accepted beside it
    ("token_budget", "spark.quail.engine.tokenBudget", "", 16, True),
    ("kv_bytes", "spark.quail.engine.kvMemory", " bytes", 1 << 20, True),
    ("page_size", "page_size", "", 0, True),
    ("max_context", "spark.quail.engine.maxContext", "", 0, True),
    ("threads", "spark.quail.engine.threads", "", 0, True),
    ("answer_memory", "spark.quail.engine.answerMemory", "", 0, True),
    ("idle_timeout", "spark.quail.engine.idleTimeout", " s", 0, True),
    ("start_timeout", "spark.quail.engine.startTimeout", " s", 1, False),
    ("silence_timeout", "spark.quail.engine.silenceTimeout", " s", 1, False),
)
_SECRET = re.compile(r"secret|password|token|key", re.IGNORECASE)  # in the name of a URI's parameter


@dataclass(frozen=True)
class EngineConfig:
    """Checked at construction; travels to the engine process as JSON.

    `model`: a directory of safetensors, a hub id, a GGUF file, or `scripted://…` (tests, overhead measurements).
    `device`: `cpu` or `cuda:N`. `dtype`: `auto`, `float32`, `bfloat16`, `float16`. `fp8`: scales of FP8 products on a GPU,
    `row` or `block`; `auto` is `row` for FP8 checkpoints and none for others, `off` none. `kv`: number type of KV pages;
    `auto` is the activations'; on a GPU `fp8`, or for keys, and for queries with them, `fp8-keys`.
    Bytes are bytes, times are seconds, `token_budget` is new tokens per forward pass, `page_size` tokens per KV page,
    `threads` 0 means all cores; 0 for `token_budget`, `kv_bytes`, `page_size` means what suits the device and its free
    memory (`memory_plan`). `answer_memory` is how many answers are remembered (0: none); `answer_store` is where they
    are kept for other engines, an absolute path or a URI (empty: nowhere). `max_context` 0 means the model's own.
    `silence_timeout`: a client kills an engine that for so long answers nothing at all.
    """

    model: str
    device: str = "cpu"
    dtype: str = "auto"
    fp8: str = "auto"
    kv: str = "auto"
    token_budget: int = 0
    kv_bytes: int = 0
    page_size: int = 0
    max_context: int = 0
    threads: int = 0
    answer_memory: int = 1_000_000
    answer_store: str = ""
    idle_timeout: float = 900.0
    start_timeout: float = 600.0
    silence_timeout: float = 900.0

    def __post_init__(self):
        if not self.model:
            raise ConfigError("spark.quail.model is empty; accepted: a directory, a GGUF file, or a hub id")
        if self.device != "cpu" and not (self.device.startswith("cuda:") and self.device[5:].isdigit()):
            raise ConfigError(f"spark.quail.device is {self.device!r}; accepted: auto, cpu, cuda:N")
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ConfigError(f"spark.quail.dtype is {self.dtype!r}; accepted: auto, float32, bfloat16, float16")
        if self.fp8 not in FP8_SETTINGS:
            raise ConfigError(f"spark.quail.engine.fp8 is {self.fp8!r}; accepted: {', '.join(FP8_SETTINGS)}")
        if self.kv not in KV_SETTINGS:
            raise ConfigError(f"spark.quail.engine.kv is {self.kv!r}; accepted: {', '.join(KV_SETTINGS)}")
        if self.answer_store and "://" not in self.answer_store and not self.answer_store.startswith("/"):
            raise ConfigError(f"spark.quail.answerStore is {self.answer_store!r}; accepted: an absolute path, or a URI")
        refuse_credentials(self.answer_store)
        for field, name, unit, least, zero in BOUNDS:
            value = getattr(self, field)
            if value < least and not (zero and value == 0):
                accepted = f"{least}{unit} or more" + (", or 0" if zero and least else "")
                raise ConfigError(f"{name} is {value}{unit}; accepted: {accepted}")

    def to_json(self) -> str:
        """Stable text; equal configurations give equal bytes."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "EngineConfig":
        """Inverse of `to_json`."""
        return EngineConfig(**json.loads(text))


def refuse_credentials(location: str) -> None:
    """Raise ConfigError for an answer store's URI with credentials: logs and Spark's pages show settings."""
    uri = urlsplit(location)
    if uri.username or uri.password or any(_SECRET.search(name) for name, _ in parse_qsl(uri.query)):
        raise ConfigError(
            f"spark.quail.answerStore is a URI ({uri.scheme}://…) with credentials in it, which logs would show; accepted: "
            "a URI without, and the credentials where the file system's library looks for them (AWS_ACCESS_KEY_ID, …)"
        )
