"""Faults inside an engine process, for test_faults.py: Python runs this file in every process with its folder on PYTHONPATH.

$QUAIL_SPARK_TEST_FAULT is `<fault>:<marker>`; the file <marker> is made when the fault happens.
* `memory`     no forward pass of more than 150 tokens finds memory
* `no_memory`  none does
* `disk`       from the first answered batch on no file of the engine can grow
"""

import os
import sys
from pathlib import Path

LARGEST_PASS = 150  # tokens


def lack_memory(most: int, marker: Path) -> None:
    """Let the runner's passes fail as torch's allocator would."""
    import torch

    from quail_spark.engine.runner import Runner

    start = Runner._start

    def start_or_fail(self, batch):
        if len(batch.tokens) > most:
            marker.touch()
            raise torch.OutOfMemoryError(f"Tried to allocate {len(batch.tokens)} rows. (a test)")
        return start(self, batch)

    Runner._start = start_or_fail


def fill_disk(marker: Path) -> None:
    """A limit on the size of files stands for a disk without room."""
    import resource

    from quail_spark.engine.stats import Stats

    add = Stats.add

    def add_and_fill(self, *answered):
        marker.touch()
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        add(self, *answered)

    Stats.add = add_and_fill


fault, _, where = os.environ.get("QUAIL_SPARK_TEST_FAULT", "").partition(":")
if fault and "quail_spark.engine.host" in sys.orig_argv:
    if fault == "disk":
        fill_disk(Path(where))
    else:
        lack_memory(LARGEST_PASS if fault == "memory" else 0, Path(where))
