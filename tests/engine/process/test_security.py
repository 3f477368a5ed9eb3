"""An engine with a real model: what it listens on, who may touch its files, what its files tell."""

import os
import stat
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from quail_spark.engine import launcher
from quail_spark.engine.client import connect
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.processes import own_process
from quail_spark.engine.stats import read_all_stats
from quail_spark.optimizer.errors import QuailError
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate
from quail_spark.prometheus import machine_metrics

SPEC = OperatorSpec("op", "filter", (Predicate("is {0} red?", (Argument(0),)),))
SECRETS = {
    "HF_TOKEN": "canary-hub",
    "AWS_SECRET_ACCESS_KEY": "canary-cloud",
    "DATABASE_PASSWORD": "canary-database",
    "PYTHON_WORKER_FACTORY_SECRET": "canary-worker",
}
LISTENING = "00010000"  # __SO_ACCEPTCON


@pytest.fixture
def engine(lab, tiny_checkpoint, monkeypatch):
    """Over the tiny checkpoint, with an answer store, and secrets in the environment; it has answered a row."""
    monkeypatch.setattr(launcher, "HOST_MODULE", "store_host")
    monkeypatch.setenv("STORE_FLUSH", "0.1")
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    config = EngineConfig(
        str(tiny_checkpoint), dtype="float32", threads=1, kv_bytes=16 << 20, answer_store=str(lab.tmp / "store")
    )
    engine = connect(config, lab.application, own_process())
    list(engine.rows(SPEC, [[["a text"]]]))
    return engine


def sockets(pid: int) -> set[str]:
    """Inodes of a process's sockets."""
    links = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.add(os.readlink(link))
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def table(pid: int, name: str) -> list[list[str]]:
    return [line.split() for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]


def test_it_listens_on_its_own_unix_socket_only(engine):
    pid = engine.stats()["pid"]
    own = sockets(pid)
    for kind in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        assert not [row for row in table(pid, kind) if row[9] in own], kind
    listening = [row[7] for row in table(pid, "unix") if row[6] in own and row[3] == LISTENING]
    assert listening == [str(engine.address.directory.socket(1))]


def test_directories_and_files_are_the_users_alone(engine, lab, eventually):
    store = lab.tmp / "store"
    eventually(lambda: list(store.glob("*/answers-*.parquet")))
    for above in (lab.root(), store):
        for path in (above, *above.rglob("*")):
            with suppress(FileNotFoundError):  # renamed meanwhile
                facts = path.lstat()
                assert facts.st_uid == os.geteuid() and not stat.S_IMODE(facts.st_mode) & 0o077, path
                assert not stat.S_ISDIR(facts.st_mode) or stat.S_IMODE(facts.st_mode) == 0o700, path


def test_a_stranger_cannot_connect(engine):
    """As another user, in a process of its own; the same attempt as the owner works."""
    if os.geteuid():
        pytest.skip("only root can act as another user")
    path = str(engine.address.directory.socket(1))
    script = f"import socket, os; os.setuid(int(os.environ['AS'])); socket.socket(socket.AF_UNIX).connect({path!r})"
    done = {
        user: subprocess.run([sys.executable, "-c", script], env={"AS": str(user)}, capture_output=True, text=True)
        for user in (0, 12345)
    }
    assert done[0].returncode == 0, done[0].stderr
    assert "PermissionError" in done[12345].stderr


def test_secrets_are_in_no_file_and_no_message(engine, lab, gone):
    list(engine.rows(SPEC, [[["a text"], [None]], [["word " * 2000]]]))  # with a row that fails
    with pytest.raises(QuailError) as caught:
        connect(EngineConfig(str(lab.tmp / "no model")), "another", own_process())
    told = [str(caught.value), str(engine.describe()), str(engine.stats()), str(read_all_stats()), machine_metrics()]
    pid = engine.stats()["pid"]
    engine.stop()
    gone(pid)
    files = [path for path in (*lab.root().rglob("*"), *(lab.tmp / "store").rglob("*")) if path.is_file()]
    assert {path.suffix for path in files} >= {".log", ".json", ".parquet"}
    told += [path.read_bytes().decode(errors="replace") for path in files]
    for secret in SECRETS.values():
        assert not [text for text in told if secret in text]
    environment = Path("/proc/self/environ").read_bytes()
    assert b"canary" not in environment  # the secrets were set after this process began, as in a notebook


def test_texts_of_rows_are_in_no_file_of_the_engine(engine, lab, gone):
    """Neither in the log nor in the totals or the store: hashes and numbers only."""
    list(engine.rows(SPEC, [[["quite private text"]], [["quite private text " * 500]]]))
    pid = engine.stats()["pid"]
    engine.stop()
    gone(pid)
    for path in (*lab.root().rglob("*"), *(lab.tmp / "store").rglob("*")):
        if path.is_file():
            assert b"quite private" not in path.read_bytes(), path


def test_the_helper_sees_ports():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = struct.pack(">H", server.getsockname()[1]).hex().upper()
        assert [r for r in table(os.getpid(), "tcp") if r[9] in sockets(os.getpid()) and r[1].endswith(f":{port}")]
