"""Plays pyspark's daemon: forks workers on request (a line on stdin each), which connect and print the engine's pid.

A worker lives until its line is answered; the daemon until its stdin ends.
"""

import os
import sys

from quail_spark.engine import launcher

launcher.HOST_MODULE = "fake_host"


def work(application):
    from quail_spark.engine.client import connect
    from quail_spark.engine.config import EngineConfig

    engine = connect(EngineConfig("fake://ok"), application)
    print(os.getpid(), engine.stats()["pid"], engine.address.owner.pid, flush=True)


print(os.getpid(), flush=True)
for line in sys.stdin:
    worker = os.fork()
    if worker == 0:
        work(line.strip())
        os._exit(0)
    os.waitpid(worker, 0)
