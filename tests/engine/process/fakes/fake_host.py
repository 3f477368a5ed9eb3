"""An engine process with an evaluator that obeys its model's name and its texts. Run in place of quail_spark.engine.host.

Models: `fake://ok`, `fake://slow` (loads for a second), `fake://stuck` (the first engine loads for ever, later ones at once), `fake://bug` and `fake://missing` (fail to load),
`fake://dies` (killed while loading), `fake://never` (loads for ever).
Texts (first column): `kill`, `kill once`, `terminate`, `hang`, `freeze`, `freeze once`, `bug`, `poison`, `refuse`, `fail`, `wait <seconds>`; any
other text is TRUE when its length is even. Everything that happens is noted in the file $FAKE_JOURNAL, a line each.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from quail_spark.engine import host, lifetime, server
from quail_spark.engine.evaluator import Answers, Counts
from quail_spark.optimizer.errors import ModelError, RowError
from quail_spark.optimizer.plan import FAILED, NULL

JOURNAL = Path(os.environ["FAKE_JOURNAL"])


def note(text):
    with JOURNAL.open("a") as file:
        file.write(text + "\n")


class AcceleratorError(RuntimeError):
    """Named like torch's, for an error after which a device can't be used any more."""


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


class FakeSession:
    def __init__(self, spec):
        self.width, self.cancelled = len(spec.predicates), threading.Event()

    def rows(self, rows):
        note(f"rows {len(rows)}")
        return self.answers([row[0] if row else "" for row in rows])

    def pairs(self, anchors, anchor_ids, partners):
        note(f"pairs {sum(map(len, partners))}")
        texts = [f"{a[0]}{p[0]}" for a, block in zip(anchors, partners, strict=True) for p in block]
        return self.answers(texts)

    def answers(self, texts):
        errors = []
        codes = np.zeros((len(texts), self.width), np.int8)
        for item, text in enumerate(texts):
            if text == "fail":
                errors.append((item, 0, "row is too long: 9 tokens; accepted: 8"))
            codes[item] = NULL if text is None else FAILED if text == "fail" else self.answer(text)
        counts = Counts(
            rows=len(texts), evaluations=len(texts), asked=[len(texts)] * self.width, passed=[0] * self.width
        )
        return Answers(codes, codes.astype(np.float32), errors, counts)

    def answer(self, text):
        word, _, rest = text.partition(" ")
        if word == "kill" and (rest != "once" or "killed" not in JOURNAL.read_text()):
            note("killed")
            kill_self()
        elif word == "terminate":
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # interrupts this thread alone
        elif word == "hang":
            note("hangs")
            self.cancelled.wait(60)
        elif word == "freeze" and (rest != "once" or "frozen" not in JOURNAL.read_text()):
            note("frozen")
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.5)  # on a busy machine it takes a moment to come into effect
        elif word == "wait":
            time.sleep(float(rest))
        elif word == "bug":
            raise ZeroDivisionError("a bug in the model")
        elif word == "poison":
            raise AcceleratorError("CUDA error: device-side assert triggered")
        elif word == "refuse":
            raise RowError("row 'refuse' can't be answered — ask less")
        return len(text) % 2 == 0

    def cancel(self):
        self.cancelled.set()
        note("cancel")

    def close(self):
        note("close")


class FakeEvaluator:
    store = None

    def __init__(self, config):
        note(f"load {config.model} {os.getpid()}")
        self.config = config
        mode = config.model.removeprefix("fake://")
        if mode == "slow":
            time.sleep(1)
        elif mode == "never" or (mode == "stuck" and JOURNAL.read_text().count("load") == 1):
            time.sleep(100)
        elif mode == "bug":
            raise ZeroDivisionError("a bug while loading")
        elif mode == "missing":
            print("looked everywhere")
            raise ModelError(f"there is no model {config.model!r}; accepted: one that exists")
        elif mode == "dies":
            kill_self()

    def open(self, spec):
        note(f"open {spec.name}")
        return FakeSession(spec)

    def describe(self):
        return {
            "model": self.config.model,
            "argv": sys.argv,
            "path": sys.path,
            "environment": dict(os.environ),
            "heavy": [name for name in ("torch", "transformers", "pandas", "pyspark") if name in sys.modules],
        }

    def close(self):
        note("free")


if __name__ == "__main__":
    server.SLOW = float(os.environ.get("FAKE_SLOW", server.SLOW))
    lifetime.POLL, lifetime.OWNERLESS, lifetime.LEAST_IDLE = 0.1, 0.8, 0.5
    host.main(make_evaluator=FakeEvaluator)
