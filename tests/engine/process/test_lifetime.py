"""When an engine ends, by a clock of our own; and which process is which."""

import os
import signal
import subprocess
import sys
import time

import pytest

from quail_spark.engine import processes
from quail_spark.engine.lifetime import LEAST_IDLE, OWNERLESS, End, Ending, Lifetime
from quail_spark.engine.processes import ProcessId, identify, is_alive, own_process

ONE, TWO = ProcessId(1, "a"), ProcessId(2, "b")


class World:
    """A clock, and who lives."""

    def __init__(self, idle_timeout=100.0, start_timeout=50.0):
        self.now, self.living = 1000.0, {ONE}
        self.lifetime = Lifetime(
            [ONE], idle_timeout, start_timeout, clock=lambda: self.now, alive=lambda owner: owner in self.living
        )

    def after(self, seconds):
        """Look every second, as the process does; the reason to end, if there is one by then."""
        for _ in range(int(seconds)):
            self.now += 1
            self.lifetime.look()
        return self.lifetime._end


def test_idle():
    world = World(idle_timeout=100)
    assert world.after(40) is None  # loading
    world.lifetime.ready()
    assert world.after(99) is None
    with world.lifetime.stream():
        assert world.after(500) is None
    assert world.after(99) is None
    world.lifetime.register(ONE, 100)
    assert world.after(99) is None
    assert world.after(1) is End.IDLE


def test_the_newest_idle_time_holds():
    world = World(idle_timeout=100)
    world.lifetime.ready()
    world.lifetime.register(ONE, 10)
    assert world.after(9) is None
    assert world.after(1) is End.IDLE


def test_no_idle_time_leaves_time_to_open_a_stream():
    world = World(idle_timeout=0)
    world.lifetime.ready()
    assert world.after(LEAST_IDLE - 1) is None
    with world.lifetime.stream():
        assert world.after(10) is None
    assert world.after(LEAST_IDLE) is End.IDLE


def test_a_model_that_never_loads():
    world = World(start_timeout=50)
    assert world.after(49) is None
    assert world.after(1) is End.NOT_READY


def test_no_owner():
    world = World()
    world.living.clear()
    with world.lifetime.stream():  # a stream does not replace an owner
        assert world.after(1) is None
        assert world.after(OWNERLESS) is End.NO_OWNER


def test_an_owner_may_follow_another():
    world = World()
    world.lifetime.register(TWO, 100)
    world.living = {TWO}
    assert world.after(2 * OWNERLESS) is None
    assert world.lifetime.owners == (TWO,)
    world.living = {ONE}  # an owner that died never comes back, whatever its id does
    assert world.after(1) is None
    world.lifetime.register(ONE, 100)
    assert world.after(2 * OWNERLESS) is None


def test_an_ending_engine_takes_no_streams():
    world = World()
    world.lifetime.ready()
    world.lifetime.end(End.STOPPED)
    world.lifetime.end(End.SIGNAL)
    assert world.lifetime.wait(lambda: None) is End.STOPPED
    with pytest.raises(Ending), world.lifetime.stream():
        pass
    with pytest.raises(Ending):
        world.lifetime.register(ONE, 1)


def test_end_unless_used():
    world = World()
    with world.lifetime.stream(), world.lifetime.stream():
        assert world.lifetime.end_unless_used(End.STOPPED) == 2
        assert world.after(1) is None
    assert world.lifetime.end_unless_used(End.STOPPED) == 0
    assert world.after(1) is End.STOPPED


def test_process_identity():
    own = own_process()
    assert own.pid == os.getpid() and is_alive(own)
    assert not is_alive(ProcessId(own.pid, "another start"))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = identify(child.pid)
    assert is_alive(process) and process.start != own.start
    child.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while is_alive(process):  # though not waited for: a zombie is dead
        assert time.monotonic() < deadline
    child.wait()
    assert identify(child.pid) is None


def test_identity_without_proc():
    ours, theirs = processes._facts_of_proc(os.getpid()), processes._facts_of_ps(os.getpid())
    assert theirs.parent == ours.parent and theirs.command[0] == ours.command[0]
    assert processes._facts_of_ps(2**22 + 1) is None


@pytest.mark.parametrize(
    ("own", "parent", "owner"),
    [
        (["python", "-m", "pyspark.daemon"], ["python", "-m", "pyspark.daemon"], "parent"),
        (["python", "-m", "pyspark.worker"], ["java"], "parent"),
        (["python", "-m", "pyspark.daemon"], ["init"], "own"),
        (["python", "job.py"], ["bash"], "own"),
        (["python", "job.py"], None, "own"),
    ],
)
def test_owner(monkeypatch, own, parent, owner):
    facts = {10: processes._Facts(9, "own", tuple(own))}
    if parent:
        facts[9] = processes._Facts(1, "parent", tuple(parent))
    monkeypatch.setattr(processes.os, "getpid", lambda: 10)
    monkeypatch.setattr(processes, "_facts", facts.get)
    assert processes.owner_process() == {"own": ProcessId(10, "own"), "parent": ProcessId(9, "parent")}[owner]
