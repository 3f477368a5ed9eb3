"""Settings of the process, so in one of their own."""

import subprocess
import sys

PROGRAM = """
import gc, sys
from quail_spark.engine.interpreter import SWITCH_INTERVAL, favour_launches
kept = [[i] for i in range(1000)]
favour_launches()
assert gc.get_freeze_count() > 1000
assert abs(sys.getswitchinterval() - SWITCH_INTERVAL) < 1e-6
later = [[] for _ in range(1000)]
for item in later:
    item.append(item)
del later, item
assert gc.collect() >= 1000
"""


def test_what_is_loaded_is_frozen_and_what_comes_later_is_collected():
    subprocess.run([sys.executable, "-P", "-c", PROGRAM], check=True)
