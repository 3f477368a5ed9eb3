"""Python's own settings in a process that launches passes: what its threads do must not keep the device waiting."""

import gc
import sys

# Seconds. A thread gives the interpreter up at each kernel that it launches; another, laying out the next pass, would hold
# it for Python's 5 ms each time, and a pass has hundreds of kernels.
SWITCH_INTERVAL = 1e-4


def favour_launches() -> None:
    """Call once, when the model is loaded: its objects, some hundred thousand, are left out of garbage collections.

    Each full collection over them stops all threads for 0.1–0.4 s.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()
