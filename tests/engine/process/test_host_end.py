"""How an engine ends, what it leaves behind, and what the next one makes of that."""

import os
import signal
import subprocess
import time

from quail_spark.engine.processes import ProcessId, identify
from quail_spark.engine.runtime_dir import RuntimeDirectory
from quail_spark.engine.stats import read_stats


def names(lab):
    return sorted(path.name for path in RuntimeDirectory.of(lab.application, "cpu").path.glob("*"))


def test_idle(lab, gone):
    engine = lab.connect(idle_timeout=2)
    list(engine.rows(lab.filter, [[["wait 4"]]]))  # an open stream is not idle
    (pid,) = lab.engines()
    assert identify(pid)
    gone(pid)
    assert names(lab) == ["engine-1.log", "engine-1.stats.json", "engine.json", "engine.lock"]
    assert "ending: no stream used it" in RuntimeDirectory.of(lab.application, "cpu").log(1).read_text()
    (stats,) = read_stats(lab.application)
    assert (stats["state"], stats["alive"], stats["streams"]) == ("ended", False, 0)
    assert stats["reason"] and stats["operators"]["op"]["batches"] == 1
    assert "free" in lab.journal()


def test_stop_and_terminate(lab, gone):
    for end in (lambda pid: lab.connect().stop(), lambda pid: os.kill(pid, signal.SIGTERM)):
        pid = lab.connect().stats()["pid"]
        end(pid)
        gone(pid)
    assert [stats["state"] for stats in read_stats(lab.application)] == ["ended", "ended"]
    assert not [name for name in names(lab) if name.endswith("sock")]


def test_sigterm_that_interrupts_no_wait_of_the_main_thread(lab, gone):
    answers = lab.connect().rows(lab.filter, [[["terminate"]]])
    assert [batch.codes.tolist() for batch in answers] == [[[0]]]
    gone(*lab.engines())
    (stats,) = read_stats(lab.application)
    assert (stats["state"], stats["reason"]) == ("ended", "it got SIGTERM")


def test_stop_under_a_stream_does_not_wait_for_it(lab, gone):
    engine = lab.connect()
    answers = engine.rows(lab.filter, [[["a"]], [["hang"]]])
    next(answers)
    pid = engine.stats()["pid"]
    engine.stop()
    gone(pid)
    answers.close()


def test_an_engine_outlives_workers_and_ends_with_their_daemon(lab, python, gone, eventually):
    with subprocess.Popen(
        python("daemon.py"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as daemon:
        daemon_pid = int(daemon.stdout.readline())
        seen = set()
        for _ in range(2):
            daemon.stdin.write(lab.application + "\n")
            worker, engine, owner = map(int, daemon.stdout.readline().split())
            assert owner == daemon_pid == daemon.pid != worker
            seen.add(engine)
            time.sleep(1.5)  # no worker is left
            assert identify(engine)
        assert len(seen) == 1
        daemon.kill()
    gone(engine)
    assert not lab.root().exists()


def test_an_engine_lives_as_long_as_any_owner(lab, gone):
    sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        for sleeper in sleepers:
            engine = lab.connect(owner=identify(sleeper.pid))
        pid = engine.stats()["pid"]
        sleepers[0].kill()
        time.sleep(1.5)
        assert identify(pid)
        sleepers[1].kill()
        gone(pid)
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def test_owner_dies_while_the_model_loads(lab, gone, python, eventually):
    racer = subprocess.Popen(python("racer.py", lab.tmp, "fake://never", lab.application), stdin=subprocess.PIPE)
    (pid,) = eventually(lab.engines)
    racer.kill()
    racer.communicate()
    gone(pid)


def test_an_owner_whose_pid_was_reused_is_dead(lab, gone):
    engine = lab.connect(owner=ProcessId(os.getpid(), "earlier"))
    gone(engine.address.directory.state().process.pid)


def test_kill_of_everything_leaves_nothing_in_the_way(lab, gone):
    os.kill(lab.connect().stats()["pid"], signal.SIGKILL)
    assert "engine-1.sock" in names(lab)
    directory = RuntimeDirectory.of(lab.application, "cpu")
    assert directory.state().state == "ready"
    assert [batch.codes.tolist() for batch in lab.connect().rows(lab.filter, [[["bb"]]])] == [[[1]]]
    assert "engine-1.sock" not in names(lab) and "engine-2.sock" in names(lab)


def test_what_ended_applications_left_is_removed_at_the_next_start(lab, eventually):
    sleeper = subprocess.Popen(["sleep", "60"])
    dead = lab.connect(application="dead", owner=identify(sleeper.pid))
    kept = lab.connect(application="idle")
    for engine in (dead, kept):
        os.kill(engine.stats()["pid"], signal.SIGKILL)
        os.close(eventually(engine.address.directory.try_lock))  # its last thread is gone
    sleeper.kill()
    sleeper.wait()
    assert read_stats("dead") and read_stats("idle")
    lab.connect(application="new")
    assert not read_stats("dead") and not dead.address.directory.path.parent.exists()
    assert read_stats("idle")  # its application is this process


def test_a_removed_directory(lab, gone):
    engine = lab.connect()
    (first,) = lab.engines()
    answers = engine.rows(lab.filter, [[["a"]], [["wait 1"]], [["bb"]]])
    next(answers)
    engine.address.directory.remove()
    assert [batch.codes.tolist() for batch in answers] == [[[1]], [[1]]]  # a job in progress ends well
    gone(first)
    assert lab.connect().stats()["pid"] != first


def test_a_batch_in_progress_for_long_is_in_the_log(lab, monkeypatch, eventually):
    monkeypatch.setenv("FAKE_SLOW", "0.3")
    engine = lab.connect()
    answers = engine.rows(lab.filter, [[["wait 1"], ["b"]]])
    next(answers)
    assert "operator 'op': a batch of 2 items has been in progress for" in engine.address.directory.log(1).read_text()


def test_stacks_of_a_hung_engine_go_to_its_log(lab, eventually):
    engine = lab.connect()
    os.kill(engine.stats()["pid"], signal.SIGUSR1)
    eventually(lambda: "most recent call first" in engine.address.directory.log(1).read_text())
