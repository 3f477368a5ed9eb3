"""The real engine process, but for its clocks: $STORE_FLUSH seconds between writes of answers, short lives."""

import os

from quail_spark.engine import answer_store, host, lifetime

if __name__ == "__main__":
    answer_store.FLUSH_SECONDS = float(os.environ["STORE_FLUSH"])
    lifetime.POLL, lifetime.OWNERLESS, lifetime.LEAST_IDLE = 0.1, 0.8, 0.5
    host.main()
