"""Native stacks on the running kernel: C programs without frame pointers, and every interpreter, to the process's entry."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from otelprof.counters import UNWIND_TABLES, Counters
from otelprof.ebpf.layout import wire
from otelprof.ebpf.session import Session, SessionSettings
from otelprof.processes.table import Processes
from otelprof.receivers.ebpf.unwind import Unwinding
from otelprof.symbols.native import NativeNames
from tests.kernel.conftest import Collected, interpreters, python_target, until

pytestmark = [pytest.mark.kernel]

SHAPES = Path(__file__).with_name("native_shapes.c")
ENTRIES = ("_start", "clone3", "__clone3", "clone", "__clone", "start_thread")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """The C program, -O2 -fomit-frame-pointer."""
    program = tmp_path_factory.mktemp("shapes") / "shapes"
    flags = ["-O2", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-mavx2", "-Wno-infinite-recursion"]
    subprocess.run(["gcc", *flags, "-o", program, SHAPES, "-lpthread"], check=True)
    return str(program)


class Native:
    """A session that walks native stacks of one process and makes the tables that it needs."""

    def __init__(self, session):
        self.session = session
        self.counters = Counters()
        self.unwinding = Unwinding(session, self.counters)
        self.names = NativeNames()
        self.collected = Collected(session)
        self.processes = Processes()

    def watch(self, pid, target):
        """Make it a target; its incarnation is that of the record."""
        (change,) = self.processes.look(pid)
        self.process = change.process
        target["process"] = self.process.incarnation
        self.session.set_target(pid, target)
        self.session.attach_sampler(997)
        return self

    def samples(self, enough):
        """The first `enough` samples after the walk has first come to its end, as (Python id, frames leaf first, state)."""
        until(lambda: len(self._complete()) >= 3, "a complete native stack")
        after = len(self._own())
        until(lambda: self._turn() and len(self._own()) >= after + enough, "samples")
        return [self._decoded(sample) for sample in self._own()[after : after + enough]]

    def _turn(self):
        self.collected.more()
        chunks = self.collected.last.chunks
        self.unwinding.learn(chunks, {self.process.incarnation: self.process})
        self.unwinding.turn()
        return True

    def _own(self):
        return self.collected.of("samples", self.process.pid)

    def _complete(self):
        self._turn()
        own = self._own()
        return own[own["origin"]["native_state"] == wire()["NATIVE_COMPLETE"]]

    def _decoded(self, sample):
        origin = sample["origin"]
        frames = self.collected.stack(int(origin["native"]))
        addresses = np.array([address for address, _, _ in frames], np.uint64)
        returns = np.array([offset for _, offset, _ in frames], bool)
        names = [frame.name for frame in self.names.names(self.process, addresses, returns)]
        places = [check for _, _, check in frames]
        return int(origin["python"]), list(zip(names, places, strict=True)), int(origin["native_state"])

    def close(self):
        self.unwinding.close()
        self.processes.close()


@pytest.fixture
def native():
    """A session for one target."""
    opened = Session.open(SessionSettings(node=False, native="all"))
    made = Native(opened)
    yield made
    made.close()
    opened.close()


def started(shapes, shape, **options):
    """The program in the shape; it has said that it runs."""
    running = subprocess.Popen([shapes, shape], stdout=subprocess.PIPE, text=True, **options)
    running.stdout.readline()
    return running


def plain_target():
    """A target without Python."""
    return np.zeros(1, wire().dtype("target"))[0]


STACKS = {
    "deep": ["spin", *["deep"] * 21, "main"],
    "alloca": ["spin", *["deep"] * 3, *["with_alloca"] * 4, "main"],
    "realigned": ["spin", *["deep"] * 3, "realigned", "main"],
    "callback": ["spin", *["deep"] * 3, "compare"],
    "signal": ["spin", *["deep"] * 2, "on_signal"],
    "thread": ["spin", *["deep"] * 4, "in_thread"],
}
ENDS = {"callback": ["by_callback", "main"], "signal": [*["interrupted"] * 4, "by_signal", "main"]}


@pytest.mark.parametrize("shape", STACKS)
def test_a_program_without_frame_pointers_has_its_whole_stack(native, shapes, shape):
    """Each function that the program is in, in order, down to the entry of the process or thread."""
    running = started(shapes, shape)
    try:
        found = native.watch(running.pid, plain_target()).samples(40)
    finally:
        running.kill()
        running.communicate()
    expected = STACKS[shape]
    for _, frames, state in found:
        names = [name for name, _ in frames]
        assert names[: len(expected)] == expected
        assert state == wire()["NATIVE_COMPLETE"]
        if shape != "thread":
            assert names[-1] == "_start"
            end = ENDS.get(shape, ["main"])
            assert names[names.index("main") - len(end) + 1 : names.index("main") + 1] == end


def test_a_stack_is_whole_in_system_calls_too(native, shapes):
    """Most ticks fall into the kernel: the walk begins at the registers with which the thread entered it."""
    with open("/dev/zero", "rb") as zero:
        running = started(shapes, "kernel", stdin=zero)
        try:
            found = native.watch(running.pid, plain_target()).samples(60)
        finally:
            running.kill()
            running.communicate()
    whole = [frames for _, frames, state in found if state == wire()["NATIVE_COMPLETE"]]
    assert len(whole) == len(found)
    assert all([name for name, _ in frames][-1] == "_start" for frames in whole)
    assert sum("reading" in [name for name, _ in frames] for frames in whole) >= len(whole) - 1


MIXED = """
import ctypes, json
libc = ctypes.CDLL(None)
def innermost(n):
    while True: n = n * 31 % 1000003
def key(n): return innermost(n)
def sorting(): return sorted([3, 1, 2], key=key)
def recursive(n): return recursive(n - 1) if n else sorting()
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
def compare(a, b): return recursive(3)
def by_qsort():
    numbers = (ctypes.c_int * 3)(3, 1, 2)
    libc.qsort(numbers, 3, 4, FUNCTION(compare))
def outer(): by_qsort()
print(json.dumps(1), flush=True)
outer()
"""


@pytest.mark.parametrize("interpreter", interpreters())
def test_python_and_c_frames_stand_in_their_order(native, run, interpreter):
    """Python → ctypes → qsort → Python → sorted → Python: at least 99.5 % to the entry, every Python frame in its place."""
    running = run(interpreter, "-c", MIXED)
    running.line()
    target = python_target(running.pid, 1)
    found = native.watch(running.pid, target).samples(200)
    complete = [(python, frames) for python, frames, state in found if state == wire()["NATIVE_COMPLETE"]]
    assert len(complete) >= 0.995 * len(found)

    calls_each = int(target["python"]["version_minor"]) <= 10  # then each Python frame is one evaluation call
    for python, frames in complete[:50]:
        names, places = zip(*frames, strict=True)
        assert names[-1] == "_start"
        assert sum(places) == len(native.collected.stack(python)) == 11
        assert [count for count in places if count] == ([1] * 11 if calls_each else [2, 6, 3])
        called_back = names.index("qsort_r")
        assert sum(places[:called_back]) == 8, "innermost, key, sorting, four recursive and compare are above qsort"


def test_tables_are_made_only_for_what_is_run(native, shapes):
    """The program maps the math and C libraries, and runs in its own code alone."""
    running = started(shapes, "deep")
    try:
        native.watch(running.pid, plain_target()).samples(10)
    finally:
        running.kill()
        running.communicate()
    assert native.counters.get(UNWIND_TABLES) == 2  # the program's own, and the C library's, in which main was called
