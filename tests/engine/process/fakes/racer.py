"""A client process among several: waits for the file `go`, connects, answers a batch, prints engine pid and answers."""

import sys
import time
from pathlib import Path

from quail_spark.engine import launcher
from quail_spark.engine.client import connect
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.processes import ProcessId
from quail_spark.optimizer.errors import QuailError
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate

go, model, application = sys.argv[1:4]
owner = ProcessId(int(sys.argv[4]), sys.argv[5]) if len(sys.argv) > 4 else None
launcher.HOST_MODULE = "fake_host"
spec = OperatorSpec("op", "filter", (Predicate("Is {0} even?", (Argument(0),)),))
print("waiting", flush=True)
while not Path(go).exists():
    time.sleep(0.001)
try:
    engine = connect(EngineConfig(model), application, owner)
    answers = [batch.codes.tolist() for batch in engine.rows(spec, [[["a"], ["bb"]]])]
    heavy = [name for name in ("torch", "pandas", "transformers", "pyarrow.parquet") if name in sys.modules]
    print(engine.stats()["pid"], answers, heavy, flush=True)
except QuailError as error:
    print(type(error).__name__, str(error).replace("\n", "|"), flush=True)
sys.stdin.read()  # stay, as an owner
