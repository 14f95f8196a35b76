"""The CPU sampler on the running kernel: real interpreters, real stacks, exact counts of what was lost."""

import re
import sys

import numpy as np
import pytest

from otelprof.ebpf.layout import wire
from otelprof.ebpf.session import Session, SessionSettings
from tests.kernel.conftest import Collected, interpreters, python_target, until

pytestmark = [pytest.mark.kernel]

BUSY = """
import json, sys, threading
def busy():
    while True:
        pass
def middle(): busy()
def outer(): middle()
def deep(n): return deep(n - 1) if n else busy()
def through_c(n): return max([n], key=lambda n: through_c(n - 1)) if n else busy()
codes = {f.__name__: [id(f.__code__), f.__code__.co_firstlineno] for f in (busy, middle, outer, deep, through_c)}
sys.setrecursionlimit(3000)
print(json.dumps(codes), flush=True)
exec(sys.argv[1])
"""


def sampled(session, run, interpreter, statement, enough=30):
    """Runs `statement` in a target until it has `enough` samples; what was collected, the codes of its functions, its pid."""
    target = run(interpreter, "-c", BUSY, statement)
    codes = target.line()
    session.set_target(target.pid, python_target(target.pid, 7))
    session.attach_sampler(499)
    collected = Collected(session)
    until(lambda: len(collected.more().of("samples", target.pid)) >= enough, "samples")
    return collected, codes, target.pid


def states(samples):
    """How many samples have which state of the walk."""
    names = list(wire().enum("python_state"))
    values, times = np.unique(samples["origin"]["python_state"], return_counts=True)
    return {names[int(value)]: int(n) for value, n in zip(values, times, strict=True)}


@pytest.mark.parametrize("interpreter", interpreters())
def test_a_busy_thread_shows_its_whole_python_stack(session, run, interpreter):
    """busy ← middle ← outer ← <module>, each with its code object and first line, on every interpreter."""
    collected, codes, pid = sampled(session, run, interpreter, "outer()")
    samples = collected.of("samples", pid)
    whole = [collected.stack(int(leaf)) for leaf in samples["origin"]["python"]]
    expected = [tuple(codes[name]) for name in ("busy", "middle", "outer")]

    good = [stack for stack in whole if [(a, check) for a, _, check in stack[:3]] == expected]
    assert len(good) >= len(whole) - 2  # a tick may fall on the frame that is just being made
    assert all(len(stack) in (4, 5) for stack in good)  # below them the module, and exec's own
    assert set(samples["origin"]["process"]) == {7}
    assert states(samples) == {"PYTHON_COMPLETE": len(samples)}


@pytest.mark.parametrize("interpreter", interpreters())
def test_a_stack_of_five_hundred_frames_is_complete(session, run, interpreter):
    collected, codes, pid = sampled(session, run, interpreter, "deep(500)")
    stacks = [collected.stack(int(s["origin"]["python"])) for s in collected.of("samples", pid)]

    deepest = max(stacks, key=len)
    assert [address for address, _, _ in deepest].count(codes["deep"][0]) == 501
    assert len(deepest) > 501
    assert states(collected.of("samples", pid)[-10:]) == {"PYTHON_COMPLETE": 10}


def test_deeper_stacks_lose_their_root_and_say_so(session, run):
    collected, _, pid = sampled(session, run, interpreters()[-1], "deep(900)")
    last = collected.of("samples", pid)[-10:]

    assert states(last) == {"PYTHON_TRUNCATED": 10}
    assert len(collected.stack(int(last[0]["origin"]["python"]))) == wire()["LIMIT_PYTHON_FRAMES"]
    assert collected.last.counts["COUNT_PYTHON_TRUNCATED"] >= 10


@pytest.mark.parametrize("interpreter", interpreters())
def test_frames_of_c_between_python_frames_do_not_shorten_the_stack(session, run, interpreter):
    """Each of 150 calls goes through max(): from 3.12 on a shim stands between the frames."""
    collected, codes, pid = sampled(session, run, interpreter, "through_c(150)")
    last = collected.of("samples", pid)[-1]
    addresses = [address for address, _, _ in collected.stack(int(last["origin"]["python"]))]

    assert addresses.count(codes["through_c"][0]) == 151
    assert states(collected.of("samples", pid)[-10:]) == {"PYTHON_COMPLETE": 10}


def test_a_thread_without_the_lock_still_has_its_stack(session, run):
    """hashlib gives the GIL away; the thread's state must be found all the same."""
    work = "import hashlib\ndef hashing():\n  data = bytes(1 << 22)\n  while True: hashlib.sha256(data)\n"
    start = "threading.Thread(target=hashing, daemon=True).start(); busy()"
    collected, _, pid = sampled(session, run, interpreters()[-1], work + start, enough=100)
    samples = collected.of("samples", pid)

    others = samples[samples["origin"]["tid"] != pid]
    assert len(others) > 10
    assert set(states(others)) == {"PYTHON_COMPLETE"}


def test_a_deep_stack_shares_the_chunks_of_its_root(session, run):
    """Two leaves over the same 300 frames: the chunks below are sent once."""
    leaves = "def a():\n  for _ in range(9999): pass\ndef b():\n  for _ in range(9999): pass\n"
    statement = leaves + "def busy():\n  while True:\n    a(); b()\nglobals()['busy'] = busy\ndeep(300)"
    collected, _, pid = sampled(session, run, interpreters()[-1], statement, enough=100)
    chunks = collected.chunks
    full = chunks[chunks["count"] == wire()["LIMIT_CHUNK_FRAMES"]]

    assert len(np.unique(chunks["id"])) == len(chunks)
    assert len(np.unique(collected.of("samples", pid)["origin"]["python"])) >= 2
    assert (full["parent"] == 0).sum() <= 2
    assert collected.last.counts["COUNT_CHUNKS_SENT"] == len(chunks)


def test_a_full_ring_is_counted_exactly(run):
    """Ticks seen = records + losses, by process, when nobody reads the ring."""
    session = Session.open(SessionSettings(node=False, samples=4096))
    try:
        target = run(interpreters()[-1], "-c", BUSY, "busy()")
        target.line()
        session.set_target(target.pid, python_target(target.pid, 9))
        session.attach_sampler(999)
        until(lambda: session.counts()["COUNT_LOST"] > 50, "losses")
        session.drop_target(target.pid)
        until(lambda: session.counts() == session.counts(), "the last program to end")
        collected = Collected(session).more()
        lost = collected.last.losses

        assert list(zip(lost["process"], lost["pid"], lost["kind"], strict=True)) == [(9, target.pid, wire()["LOST_SAMPLE"])]
        assert len(collected.samples) == 4096 // (8 + wire().dtype("sample").itemsize)
        assert collected.last.counts["COUNT_SAMPLES_SEEN"] == len(collected.samples) + lost["count"].sum()
    finally:
        session.close()


def test_ignored_processes_and_strangers_make_no_samples(session, run):
    target = run(sys.executable, "-c", BUSY, "busy()")
    stranger = run(sys.executable, "-c", BUSY, "busy()")
    witness = run(sys.executable, "-c", BUSY, "busy()")
    for running in (target, stranger, witness):
        running.line()
    session.set_target(target.pid, python_target(target.pid, 1, wire()["TARGET_IGNORED"]))
    session.set_target(witness.pid, python_target(witness.pid, 2))
    session.attach_sampler(499)
    collected = Collected(session)
    until(lambda: len(collected.more().of("samples", witness.pid)) >= 100, "samples")

    assert set(collected.samples["origin"]["pid"]) == {witness.pid}


AS_OFTEN = """
import time
def half(t):
    while time.perf_counter() < t: pass
def rest(t):
    while time.perf_counter() < t: pass
print(json.dumps([id(half.__code__), id(rest.__code__)]), flush=True)
t, mine, all = time.perf_counter(), 0, 0
while True:
    for _ in range(99):
        start = time.thread_time(); half(t + 0.5 / 99); middle = time.thread_time(); t += 1 / 99; rest(t)
        mine += middle - start; all += time.thread_time() - start
    print(json.dumps(mine / all), flush=True)
"""


def test_a_program_that_works_as_often_as_it_is_sampled_shows_its_share(session, run):
    """99 times a second `half` runs for 5 of 10.1 ms and then `rest` for the others: both get what they say they use."""
    target = run(interpreters()[-1], "-c", BUSY, AS_OFTEN)
    target.line()
    half, rest = target.line()
    session.set_target(target.pid, python_target(target.pid, 1))
    session.attach_sampler(99)
    collected, truth = Collected(session), 0
    while len(collected.of("samples", target.pid)) < 600:
        truth = target.line()
        collected.more()
    leaves = [collected.stack(int(s["origin"]["python"]))[0][0] for s in collected.of("samples", target.pid)]
    share = leaves.count(half) / (leaves.count(half) + leaves.count(rest))

    assert 0.4 < truth < 0.6
    assert abs(share - truth) < 0.06


def test_the_user_instruction_is_known_inside_system_calls(session, run):
    """A program that does nothing but system calls: most ticks fall into the kernel, and each has a user address."""
    target = run(sys.executable, "-c", BUSY, "import os\nf = os.open('/dev/zero', 0)\nwhile True: os.pread(f, 1 << 20, 0)")
    target.line()
    session.set_target(target.pid, python_target(target.pid, 1))
    session.attach_sampler(499)
    collected = Collected(session)
    until(lambda: len(collected.more().of("samples", target.pid)) >= 50, "samples")

    mapped = executable_ranges(target.pid)
    instructions = collected.of("samples", target.pid)["instruction"]
    assert all(any(start <= int(at) < end for start, end in mapped) for at in instructions)


def executable_ranges(pid):
    """Address ranges of a process's code."""
    with open(f"/proc/{pid}/maps") as maps:
        lines = [re.match(r"(\w+)-(\w+) ..x", line) for line in maps]
    return [(int(m[1], 16), int(m[2], 16)) for m in lines if m]
