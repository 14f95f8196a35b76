"""Processes that are gone before anybody looks: known programs are targets at once, and the kernel reads the names."""

import sys

import numpy as np
import pytest

from otelprof.ebpf.layout import wire
from otelprof.ebpf.session import Session, SessionSettings
from otelprof.processes.identity import program_of
from otelprof.symbols.python import CodeReader
from otelprof.targets.python import Recogniser
from tests.kernel.conftest import Collected, interpreters, python_target, until

pytestmark = [pytest.mark.kernel]

BUSY = """
import json, sys, time
def leaf(end):
    while time.monotonic() < end:
        pass
def caller(end):
    leaf(end)
print("[]", flush=True)
sys.stdin.readline()
caller(time.monotonic() + 1)
"""


@pytest.mark.parametrize("interpreter", interpreters())
def test_names_of_a_young_process_stay_when_it_is_gone(session, run, interpreter):
    target = run(interpreter, "-c", BUSY)
    target.line()
    layout = Recogniser().recognise(target.pid).target.cpython
    session.set_target(target.pid, python_target(target.pid, 7, wire()["TARGET_YOUNG"]))
    session.attach_sampler(499)
    target.say()
    target.process.wait()
    collected = Collected(session).more()
    reader = CodeReader(None, layout)
    reader.capture(collected.codes)
    records = np.concatenate([chunk["frames"][: chunk["count"]] for chunk in collected.chunks])
    names = {frame.name: frame.line for frame in reader.frames(records) if frame}

    assert {"leaf", "caller", "<module>"} <= set(names)
    assert 4 <= names["leaf"] <= 5
    assert names["caller"] == 7
    assert len(collected.codes) == len({(int(code["address"]), int(code["check"])) for code in collected.codes})


def test_code_objects_of_older_processes_are_left_to_python(session, run):
    target = run(interpreters()[-1], "-c", BUSY)
    target.line()
    session.set_target(target.pid, python_target(target.pid, 7))
    session.attach_sampler(499)
    target.say()
    target.process.wait()
    collected = Collected(session).more()

    assert len(collected.chunks)
    assert not len(collected.codes)


def test_a_known_program_is_a_target_from_its_exec_on(run):
    session = Session.open(SessionSettings(node=True))
    try:
        first = run(sys.executable, "-c", BUSY)
        first.line()
        python = python_target(first.pid, 1)["python"]
        session.set_program(*program_of(first.pid), python)
        second = run(sys.executable, "-c", BUSY)
        second.line()
        collected = Collected(session)
        executed = until(lambda: _executed(collected.more(), second.pid), "its exec")
        target = session.target(second.pid)

        assert int(executed["next"]) == int(target["process"]) >= wire()["INCARNATION_FORKED"]
        assert (int(executed["program"]["inode"]), int(executed["program"]["device"])) == program_of(second.pid)
        assert int(target["flags"]) == wire()["TARGET_PYTHON"] | wire()["TARGET_YOUNG"]
        assert target["python"].tobytes() == python.tobytes()

        session.set_program(*program_of(first.pid), None)
        third = run(sys.executable, "-c", BUSY)
        third.line()
        assert int(until(lambda: _executed(collected.more(), third.pid), "its exec")["next"]) == 0
        assert session.target(third.pid) is None
    finally:
        session.close()


def _executed(collected, pid):
    events = collected.of("events", pid)
    found = events[events["kind"] == wire()["PROCESS_EXEC"]]
    return found[-1] if len(found) else None
