"""Python's own settings in a process that launches passes: what its threads do must not keep the device waiting."""

import gc
import sys

SWITCH_INTERVAL = 1e-4  # seconds; Python's default lets a thread that lays out rows hold up a launch for 5 ms


def favour_launches() -> None:
    """Call once, when the model is loaded: its objects, some hundred thousand, are left out of garbage collections.

    Each full collection over them stops all threads for 0.1–0.4 s.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()
