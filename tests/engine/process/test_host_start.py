"""How an engine starts: exactly one, privately, or with an error that says why."""

import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import quail_spark
from quail_spark.engine import connection, launcher
from quail_spark.engine.client import connect
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.processes import identify, own_process
from quail_spark.engine.runtime_dir import RuntimeDirectory
from quail_spark.optimizer.errors import ConfigError, EngineError, EngineStartError, ModelError


def race(lab, python, racers, model="fake://ok"):
    """What each of several client processes printed after all of them started at once."""
    go = lab.tmp / "go"
    processes = [
        subprocess.Popen(
            python("racer.py", go, model, lab.application), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(racers)
    ]
    try:
        assert [process.stdout.readline().strip() for process in processes] == ["waiting"] * racers
        go.touch()
        return [process.stdout.readline().strip() for process in processes]
    finally:
        for process in processes:
            process.communicate("")


def test_eight_clients_at_once_get_one_engine(lab, python):
    printed = race(lab, python, 8)
    (pid,) = lab.engines()
    assert printed == [f"{pid} [[[0], [1]]] []"] * 8  # no client needs a slow import


def test_a_failed_start_reaches_all_who_wait(lab, python):
    printed = race(lab, python, 4, "fake://missing")
    assert [line.split()[0] for line in printed] == ["ModelError"] * 4
    assert len(lab.engines()) == 1


def test_a_failed_start_says_why_and_is_remembered_for_a_while(lab, monkeypatch):
    for _ in range(3):
        with pytest.raises(ModelError) as caught:
            lab.connect("missing")
    message = str(caught.value)
    assert message.startswith("there is no model 'fake://missing'; accepted: one that exists\n")
    assert f"{lab.root()}" in message and "engine-1.log" in message and socket.gethostname() in message
    assert "looked everywhere" in message  # the end of the log
    assert len(lab.engines()) == 1
    assert lab.connect("ok").stats()["run"] == 2  # other settings are another matter
    monkeypatch.setattr(launcher, "FAILURE_MEMORY", 0.0)
    lab.connect("ok").stop()
    with pytest.raises(ModelError, match=r"engine-3\.log"):
        lab.connect("missing")
    assert len(lab.engines()) == 3


def test_a_bug_while_loading(lab):
    with pytest.raises(EngineError, match="ZeroDivisionError in the engine: a bug while loading") as caught:
        lab.connect("bug")
    assert "fake_host.py" in str(caught.value)  # the traceback


def test_killed_while_loading(lab):
    """Whoever killed it may not do so again: lack of memory, say."""
    with pytest.raises(EngineStartError, match=r"died while it was starting \(killed by signal 9; 3 in a row\)"):
        lab.connect("dies")
    assert len(lab.engines()) == 3
    with pytest.raises(EngineStartError, match="3 in a row"):
        lab.connect("dies")
    assert len(lab.engines()) == 3  # remembered for a while


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_once_while_loading(lab, python, eventually, number):
    """By the process that started it, or by another, which does not know how it ended."""
    process = subprocess.Popen(
        python("racer.py", lab.tmp, "fake://stuck", lab.application),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    (pid,) = eventually(lab.engines)
    with ThreadPoolExecutor() as pool:
        mine = pool.submit(lab.connect, "stuck")
        time.sleep(0.2)
        os.kill(pid, number)
        assert mine.result().stats()["pid"] != pid
    assert process.communicate("")[0].splitlines()[1].endswith("[[[0], [1]]] []")
    assert len(lab.engines()) == 2


def test_hung_while_loading(lab, monkeypatch, eventually):
    """The engine can't give up by itself then."""
    monkeypatch.setattr(launcher, "_SLACK", 1.0)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(lab.connect, "stuck", start_timeout=3)
        (pid,) = eventually(lab.engines)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EngineStartError, match=rf"engine process {pid} hung while it was loading, .* was killed"):
            waiting.result()
    assert lab.connect("stuck", start_timeout=30).stats()["pid"] != pid


def test_hung_when_a_new_client_comes(lab, monkeypatch):
    """A new Python worker, say: no stream watches the engine."""
    monkeypatch.setattr(connection, "ACTION_TIMEOUT", 0.3)
    monkeypatch.setattr(launcher, "_SLACK", 0.5)
    pid = lab.connect(silence_timeout=5, start_timeout=4).stats()["pid"]
    os.kill(pid, signal.SIGSTOP)
    engine = lab.connect(silence_timeout=5, start_timeout=4)
    assert engine.stats()["pid"] != pid and identify(pid) is None


def test_a_model_that_never_loads(lab, eventually):
    with pytest.raises(EngineStartError, match=r"did not load within the start time \(1 s\)"):
        lab.connect("never", start_timeout=1)
    (pid,) = lab.engines()
    eventually(lambda: identify(pid) is None)


def test_the_engine_process_cannot_be_started(lab, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(EngineStartError, match="can't run /no/such/python: No such file"):
        lab.connect()


@contextmanager
def full_disk():
    """No file of this process, or of those that it starts, can grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_directory_that_cannot_be_written(lab):
    with (
        full_disk(),
        pytest.raises(
            EngineStartError, match=r"can't write to the engine's directory .*: File too large; make"
        ) as caught,
    ):
        lab.connect()
    assert str(lab.root()) in str(caught.value) and "TMPDIR" in str(caught.value)
    assert lab.engines() == []
    assert [batch.codes.tolist() for batch in lab.connect().rows(lab.filter, [[["bb"]]])] == [[[1]]]


def test_a_log_that_cannot_be_written(lab, monkeypatch):
    """Whatever the engine has to say is lost; it serves, its errors reach the client, and it ends."""
    monkeypatch.setattr(RuntimeDirectory, "log", lambda self, run: Path("/dev/full"))
    monkeypatch.setattr(launcher, "log_tail", lambda *_: "")  # reading it would never end
    engine = lab.connect()
    assert [batch.codes.tolist() for batch in engine.rows(lab.filter, [[["bb"]]])] == [[[1]]]
    with pytest.raises(EngineError, match="unexpected ZeroDivisionError in the engine: a bug in the model"):
        list(engine.rows(lab.filter, [[["bug"]]]))
    (pid,) = lab.engines()
    process = identify(pid)
    engine.stop()
    launcher._children.popitem()[1].wait(60)
    assert identify(pid) != process
    with pytest.raises(ModelError, match="there is no model"):
        lab.connect("missing")


def test_broken_installation(lab, monkeypatch):
    monkeypatch.setattr(launcher, "HOST_MODULE", "no_such_module")
    with pytest.raises(EngineStartError, match=r"exit status 1(?s:.*)No module named no_such_module"):
        lab.connect()


def test_the_real_host_reports_what_the_factory_raises(lab, monkeypatch):
    monkeypatch.setattr(launcher, "HOST_MODULE", "quail_spark.engine.host")
    with pytest.raises(ConfigError, match="accepted: scripted://hash"):
        connect(EngineConfig("scripted://no_such_mode"), lab.application)
    engine = connect(EngineConfig("scripted://contains?word=b"), lab.application)
    assert [batch.codes.tolist() for batch in engine.rows(lab.filter, [[["a"], ["b"]]])] == [[[0], [1]]]


def test_same_settings_same_engine(lab):
    first, second = lab.connect(idle_timeout=100), lab.connect(idle_timeout=50, start_timeout=20)
    assert first.stats()["pid"] == second.stats()["pid"]
    assert lab.connect(application="another").stats()["pid"] != first.stats()["pid"]


def test_other_settings_replace_an_idle_engine(lab, eventually):
    first = lab.connect(token_budget=100)
    (old,) = lab.engines()
    second = lab.connect(token_budget=200)
    assert second.stats()["pid"] != old and identify(old) is None
    assert [batch.codes.tolist() for batch in first.rows(lab.filter, [[["bb"]]])] == [[[1]]]  # and back
    assert len(lab.engines()) == 3


def test_other_settings_do_not_disturb_an_engine_at_work(lab, monkeypatch):
    monkeypatch.setattr(launcher, "REPLACE_WAIT", 0.5)
    answers = lab.connect(token_budget=100).rows(lab.filter, [[["a"]]] * 9)
    next(answers)
    with pytest.raises(EngineError, match=r'"token_budget": 100.*at work \(1 open streams\).*"token_budget": 200'):
        lab.connect(token_budget=200)
    assert len(list(answers)) == 8
    assert lab.connect(token_budget=200).stats()["run"] == 2


def test_a_client_waits_for_an_engine_that_another_started(lab, python, eventually):
    process = subprocess.Popen(
        python("racer.py", lab.tmp, "fake://slow", lab.application), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    (pid,) = eventually(lab.engines)
    assert lab.connect("slow").stats()["pid"] == pid
    process.communicate(b"")


def test_the_starter_may_be_killed_while_the_model_loads(lab, python, eventually):
    """A Python worker, say; its owner, the daemon, lives."""
    process = subprocess.Popen(
        python("racer.py", lab.tmp, "fake://slow", lab.application, *own_process()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    (pid,) = eventually(lab.engines)
    process.kill()
    process.wait()
    assert lab.connect("slow").stats()["pid"] == pid
    assert len(lab.engines()) == 1


def test_directory_and_socket_are_private(lab):
    directory = lab.connect().address.directory.path
    for path in (directory, directory.parent, directory.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700 and path.stat().st_uid == os.geteuid()
    for path in directory.iterdir():
        with suppress(FileNotFoundError):  # renamed meanwhile
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert str(directory).startswith(str(lab.tmp))


def test_socket_paths_are_short(lab, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "long" * 9)
    directory = RuntimeDirectory.of("application_1700000000000_0001" * 5, "cuda:15")
    assert len(str(directory.socket(99999))) < 104
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "long" * 50)
    assert str(RuntimeDirectory.of("a", "cpu").path).startswith(f"/tmp/quail-spark-{os.geteuid()}/")


@pytest.mark.parametrize("problem", ["open", "link", "file", "stranger"])
def test_a_directory_that_is_not_private_is_refused(lab, problem):
    root = lab.root()
    if problem == "link":
        (lab.tmp / "elsewhere").mkdir(mode=0o700)
        root.symlink_to(lab.tmp / "elsewhere")
    elif problem == "file":
        root.touch()
    else:
        root.mkdir(mode=0o700)
        root.chmod(0o755 if problem == "open" else 0o700)
        if problem == "stranger":
            if os.geteuid():
                pytest.skip("only root can give a directory away")
            os.chown(root, 12345, 12345)
    says = {
        "open": "open to others .mode 0755.",
        "link": "symbolic link",
        "file": "not a directory",
        "stranger": "belongs to user 12345",
    }
    with pytest.raises(EngineStartError, match=f"{says[problem]}.*mode 0700.*TMPDIR"):
        lab.connect()
    assert not lab.engines()


def test_no_network_port(lab):
    engine = lab.connect()
    list(engine.rows(lab.filter, [[["a"]]]))
    with socket.create_server(("127.0.0.1", 0)):
        assert len(network_sockets(os.getpid())) == 1  # the helper sees ports
    assert network_sockets(engine.stats()["pid"]) == []


def network_sockets(pid):
    """Inodes of the TCP and UDP sockets of a process."""
    open_files = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            open_files.add(os.readlink(link))
        except OSError:
            continue
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6", "udp", "udp6")]
    inodes = [line.split()[9] for table in tables for line in table.splitlines()[1:]]
    return [inode for inode in inodes if f"socket:[{inode}]" in open_files]


def test_what_the_process_is_given(lab, monkeypatch, tmp_path):
    checkout = Path(quail_spark.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], "", str(checkout)]))
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "hush")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    monkeypatch.chdir(checkout)
    with (tmp_path / "a file of the client").open("w") as opened:
        os.set_inheritable(opened.fileno(), True)
        engine = lab.connect()
        pid = engine.stats()["pid"]
        assert str(opened.name) not in [os.path.realpath(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    described = engine.describe()
    assert not {"PYTHON_WORKER_FACTORY_SECRET", "OMP_NUM_THREADS"} & set(described["environment"])
    assert described["environment"]["MALLOC_ARENA_MAX"] == "2"
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    assert launcher.engine_environment()["MALLOC_ARENA_MAX"] == "7"
    assert "hush" not in Path(f"/proc/{pid}/cmdline").read_text() and "fake://" not in " ".join(described["argv"])
    assert "" not in described["path"] and str(checkout) not in described["path"]  # no folder shadows a package
    assert os.readlink(f"/proc/{pid}/cwd") == str(engine.address.directory.path)
    assert os.getsid(pid) == pid != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    assert described["heavy"] == []  # the process adds no slow import to the evaluator's


def test_time(lab):
    started = time.time()
    stats = lab.connect("slow").stats()
    assert started < stats["started"] < time.time() and 1 < stats["load_seconds"] < 60
