"""Births and deaths as the kernel tells them, what they do to targets, and new mappings of code."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otelprof.ebpf.layout import wire
from otelprof.ebpf.session import Session, SessionSettings
from tests.kernel.conftest import Collected, until

pytestmark = [pytest.mark.kernel]

LIFE = """
import json, os, subprocess, sys, threading
print("[]", flush=True)
for line in sys.stdin:
    thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
    child = os.fork()
    if not child:
        os.execv("/bin/true", ["true"]) if "exec" in line else os._exit(0)
    os.waitpid(child, 0)
    print(json.dumps(child), flush=True)
"""


@pytest.fixture
def node():
    """A session that watches the whole node."""
    session = Session.open(SessionSettings(node=True))
    yield session
    session.close()


def life_of(collected, pid):
    """(kind, process, name) of a process's events, in order."""
    kinds = list(wire().enum("process_event_kind"))
    return [(kinds[int(e["kind"]) - 1], int(e["process"]), e["comm"]) for e in collected.of("events", pid)]


def plain_target(process, flags=0):
    """A target without Python."""
    return wire().record("target", {"process": process, "flags": flags})


def test_a_child_of_a_target_is_a_target_until_it_ends(node, run):
    parent = run(sys.executable, "-c", LIFE)
    parent.line()
    node.set_target(parent.pid, plain_target(3))
    parent.say()
    child = parent.line()
    collected = Collected(node)
    until(lambda: len(collected.more().of("events", child)) == 2, "birth and death")
    (born, process, _), (died, again, _) = life_of(collected, child)

    assert (born, died) == ("PROCESS_FORK", "PROCESS_EXIT")
    assert process == again
    assert process & wire()["INCARNATION_FORKED"]
    assert collected.of("events", child)[0]["parent"] == parent.pid
    assert node.target(child) is None
    assert node.target(parent.pid)["process"] == 3


def test_exec_ends_a_target(node, run):
    parent = run(sys.executable, "-c", LIFE)
    parent.line()
    node.set_target(parent.pid, plain_target(3))
    parent.say("exec")
    child = parent.line()
    collected = Collected(node)
    until(lambda: len(collected.more().of("events", child)) == 3, "birth, exec and death")
    born, executed, died = life_of(collected, child)

    assert executed == ("PROCESS_EXEC", born[1], b"true")
    assert died == ("PROCESS_EXIT", 0, b"true")


def test_children_of_strangers_are_told_of_without_an_incarnation(node, run):
    parent = run(sys.executable, "-c", LIFE)
    parent.line()
    parent.say()
    child = parent.line()
    collected = Collected(node)
    until(lambda: len(collected.more().of("events", child)) == 2, "birth and death")

    assert [event[:2] for event in life_of(collected, child)] == [("PROCESS_FORK", 0), ("PROCESS_EXIT", 0)]


def test_threads_are_no_processes(node, run):
    """The program starts a thread for each line, none of which is an event."""
    parent = run(sys.executable, "-c", LIFE)
    parent.line()
    parent.say()
    child = parent.line()
    collected = Collected(node)
    until(lambda: len(collected.more().of("events", child)) == 2, "birth and death")
    born = collected.events[collected.events["parent"] == parent.pid]

    assert born["pid"].tolist() == [child]
    assert [kind for kind, _, _ in life_of(collected, parent.pid)] == ["PROCESS_FORK", "PROCESS_EXEC"]


def test_a_process_whose_main_thread_leaves_lives_on(node, run):
    """The exit that counts is the last thread's."""
    code = (
        "import ctypes, json, threading, sys\nprint('[]', flush=True)\n"
        "def work():\n  for line in sys.stdin:\n    print('[]', flush=True)\n    if 'end' in line: break\n"
        "threading.Thread(target=work).start()\nctypes.CDLL(None).pthread_exit(None)"
    )
    running = run(sys.executable, "-c", code)
    running.line()
    node.set_target(running.pid, plain_target(4))
    until(lambda: "Z" in Path(f"/proc/{running.pid}/task/{running.pid}/stat").read_text().rpartition(")")[2][:3], "its exit")
    running.say("on")
    running.line()
    collected = Collected(node).more()
    assert [kind for kind, _, _ in life_of(collected, running.pid) if kind == "PROCESS_EXIT"] == []
    assert node.target(running.pid)["process"] == 4

    running.process.kill()
    running.process.wait()
    until(lambda: [e for e in life_of(collected.more(), running.pid) if e[0] == "PROCESS_EXIT"], "the last exit")
    assert life_of(collected, running.pid)[-1][:2] == ("PROCESS_EXIT", 4)


def test_children_follow_only_where_that_is_wanted(session, run):
    """With targets alone in scope, a child of an unmarked target is none."""
    parent = run(sys.executable, "-c", LIFE)
    parent.line()
    collected = Collected(session)
    incarnations = []
    for flags in (0, wire()["TARGET_FOLLOW"]):
        session.set_target(parent.pid, plain_target(3, flags))
        parent.say()
        child = parent.line()
        until(lambda child=child: len(collected.more().of("events", child)) == 2, "birth and death")
        incarnations.append(life_of(collected, child)[0][1])

    assert incarnations[0] == 0
    assert incarnations[1] & wire()["INCARNATION_FORKED"]


def test_events_without_room_are_counted(run):
    """Seen + lost = truth: each child makes a birth, an exec and a death."""
    session = Session.open(SessionSettings(node=True, events=4096))
    try:
        before = Collected(session).more().last.counts["COUNT_EVENTS_LOST"]
        children = 60
        for _ in range(children):
            subprocess.run(["/bin/true"], check=True)
        collected = Collected(session).more()

        stride = 8 + wire().dtype("process_event").itemsize
        assert len(collected.events) == 4096 // stride
        assert len(collected.events) + collected.last.counts["COUNT_EVENTS_LOST"] - before >= 3 * children
    finally:
        session.close()


def test_code_that_is_mapped_later_is_told_of(node, tmp_path):
    """A library that this process opens: its path, inode, and where in memory which part of the file lies."""
    library = tmp_path / "liblate.so"
    subprocess.run(["cc", "-shared", "-o", library, "-x", "c", "-"], input=b"int late(void) { return 7; }", check=True)
    node.watch_mappings()
    node.mappings()
    loaded = ctypes.CDLL(str(library))
    (found,) = [new for new in node.mappings() if new.path == str(library)]
    address = ctypes.cast(loaded.late, ctypes.c_void_p).value

    assert found.pid == os.getpid()
    assert found.inode == library.stat().st_ino
    assert found.device == (os.major(library.stat().st_dev), os.minor(library.stat().st_dev))
    assert found.address <= address < found.address + found.length
    assert node.mappings_lost == 0


def test_mappings_without_room_are_counted(node):
    """Seen + lost = truth; others on the same CPU may lose some too."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    file = os.open("/bin/true", os.O_RDONLY)
    many = 3000

    def maps():
        for _ in range(many):
            libc.munmap(libc.mmap(None, 4096, 5, 2, file, 0), 4096)

    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everywhere)})  # each CPU has its own ring
    node.watch_mappings()
    maps()
    seen = [new for new in node.mappings() if new.pid == os.getpid()]
    libc.munmap(libc.mmap(None, 4096, 5, 2, file, 0), 4096)  # the kernel tells of losses with the next record
    seen += [new for new in node.mappings() if new.pid == os.getpid()]
    os.sched_setaffinity(0, everywhere)
    os.close(file)

    assert 0 < len(seen) < many
    assert len(seen) + node.mappings_lost >= many
