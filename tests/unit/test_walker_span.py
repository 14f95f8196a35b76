"""The reader of spans of bpf/otel_span.h: on live programs' memory, on memory with nothing true in it, in bounds always."""

import ctypes
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelprof.ebpf.layout import wire
from otelprof.processes.memory import Memory
from otelprof.targets import thread_state
from otelprof.targets.cpython_layouts import TABLE
from otelprof.targets.opentelemetry import Attributes, SpanFinder, SpanLayout, SpanType, tree_hash
from tests.unit.opentelemetry_sdk import environment, interpreters
from tests.unit.python_programs import recognise, running, said
from tests.unit.walkers import build_walkers

READ = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64)
STATES = ("none", "found", "unreadable", "unknown")
READS_A_STEP = 12
STEPS = 96
KEYS = sorted(TABLE)
NODES = ["hamt_bit", "hamt_arr", "hamt_col"]

HOLDER = """
import contextvars, json, sys
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
tracer = trace.get_tracer("t")
context.get_current()
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    exec(json.loads(line), globals())
    found = trace.get_current_span().get_span_context()
    print(json.dumps([f"{found.trace_id:032x}", f"{found.span_id:016x}"]), flush=True)
"""
KEEP = "globals().setdefault('kept', []).append"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_walkers(tmp_path_factory.mktemp("walkers"), "spans")


class Reader:
    """Reads spans through the host library; what it learns stays in it, as it does in the kernel."""

    def __init__(self, library, layout, read):
        assert library.size_of_span_layout() == wire().dtype("span_layout").itemsize
        self.library, self.reads, self._read = library, 0, read
        self._callback = READ(self._counted)
        self.walk = ctypes.create_string_buffer(library.size_of_span_walk())
        record = layout if isinstance(layout, bytes) else layout.to_record(wire().dtype("span_layout")).tobytes()
        ctypes.memmove(self.walk, record, len(record))

    def _counted(self, to, size, address):
        self.reads += 1
        data = self._read(address, size)
        if data is None:
            return 1
        ctypes.memmove(to, data, size)
        return 0

    def span(self, thread_state):
        """(how it went, trace id and span id in hex)."""
        ctypes.c_void_p.in_dll(self.library, "host_read").value = ctypes.cast(self._callback, ctypes.c_void_p).value
        self.steps = self.library.read_span(self.walk, ctypes.c_uint64(thread_state))
        ids = ctypes.create_string_buffer(24)
        self.library.ids_of(self.walk, ids)
        return STATES[self.library.span_state_of(self.walk)], ids.raw[:16].hex(), ids.raw[16:].hex()


class Program:
    """A live program that enters spans as it is told, and a reader of its main thread."""

    def __init__(self, child, library):
        self.child = child
        assert said(child) == "ready"
        target, memory = recognise(child.pid), Memory(child.pid)
        (self.layout,) = SpanFinder(memory, target.cpython, target.runtime).look()
        ((self.state,),) = thread_state.threads_of(memory, target.cpython, target.runtime).values()
        self.reader = Reader(library, self.layout, memory.peek)

    def does(self, code):
        """Run code in the program: the ids that it then says are current."""
        self.child.stdin.write(json.dumps(code) + "\n")
        self.child.stdin.flush()
        return tuple(said(self.child))

    def span(self):
        return self.reader.span(self.state)


@pytest.fixture(params=interpreters(), ids=str)
def program(request, library):
    interpreter = request.param
    with running(interpreter, HOLDER, env=environment(interpreter)) as child:
        yield Program(child, library)


ENTER = f"s = tracer.start_as_current_span('one'); s.__enter__(); {KEEP}(s)"
LEAVE = "kept.pop().__exit__(None, None, None)"
VARIABLES = f"v = [contextvars.ContextVar(f'v{{{{n}}}}') for n in range({{}})]; {KEEP}(v); [x.set(1) for x in v]"
REMOTE = "context.attach(trace.set_span_in_context(trace.NonRecordingSpan(trace.SpanContext({}, {}, True))))"


def test_the_current_span_is_read_whatever_the_program_does_around_it(program):
    """Spans in spans, of callers elsewhere, with odd ids, in contexts of thousands of variables and keys, and no span."""
    none = ("none", "0" * 32, "0" * 16)
    assert program.span() == none
    steps = [
        ENTER, ENTER, LEAVE, "vars(trace.get_current_span())", "vars(trace.get_current_span())['other'] = 1", ENTER,
        "[setattr(trace.get_current_span(), f'a{n}', n) for n in range(50)]",
        REMOTE.format(1, 1), REMOTE.format(2**128 - 1, 2**64 - 1), REMOTE.format(1 << 90, 1 << 30),
        ENTER, VARIABLES.format(60), ENTER, VARIABLES.format(10_000), ENTER,
        "c = context.get_current()\nfor n in range(300): c = context.set_value(f'k{n}', n, c)\ncontext.attach(c)",
    ]  # fmt: skip
    for code in steps:
        expected = program.does(code)
        assert program.span() == ("found", *expected), code
        assert program.span() == ("found", *expected), f"{code}, with what the first time has taught"
    program.does(REMOTE.format(0, 5))
    assert program.span() == none
    program.does("context.attach(type(context.get_current())())")
    assert program.span() == none


def test_ids_at_the_end_of_mapped_memory_are_read_as_long_as_they_are(program):
    """Small ints are shorter than what is read at once: as if the page behind them weren't there."""
    memory = Memory(program.child.pid)
    program.reader = Reader(
        program.reader.library, program.layout, lambda at, size: None if size == 36 else memory.peek(at, size)
    )
    for ids in ((1, 1), (3 << 40, 5 << 40), (2**128 - 1, 2**64 - 1)):
        expected = program.does(REMOTE.format(*ids))
        assert program.span() == ("found", *expected)


def test_variables_whose_hashes_are_the_same_are_told_apart(program):
    """Thirty ContextVars with the hash of OpenTelemetry's own, written into them: the context keeps them in one node."""
    collide = """
import ctypes
own = context._RUNTIME_CONTEXT._current_context
place = next(n for n in range(24, 80, 8) if ctypes.c_ssize_t.from_address(id(own) + n).value == hash(own))
v = [contextvars.ContextVar(f"c{n}") for n in range(30)]
for x in v: ctypes.c_ssize_t.from_address(id(x) + place).value = hash(own)
globals().setdefault("kept", []).append(v)
for x in v: x.set(1)
"""
    program.does(collide)
    assert program.span()[0] == "none"
    expected = program.does(ENTER)
    assert program.span() == ("found", *expected)
    assert program.reader.steps > 3, "a collision node was walked"


# --- made-up memory ------------------------------------------------------------------------------------------------


def made_up(key, seed=0):
    """A layout of a version with addresses that mean nothing."""
    cpython = TABLE[key]
    rest = np.random.default_rng(seed).integers(1 << 12, 1 << 46, 8).tolist()
    kind = {8: 1, 9: 1, 10: 1, 11: 2, 12: 3}.get(cpython.minor, 4)
    return SpanLayout(
        *rest[:8], types=(SpanType(rest[3], -24, 16),), variable_hash=tree_hash(seed), attributes=Attributes(kind),
        version_minor=cpython.minor, header=cpython.header, thread_interpreter=16, thread_context=cpython.thread_context,
        tuple_items=cpython.tuple_items, type_cached_keys=cpython.type_cached_keys,
    )  # fmt: skip


def noise(seed, gaps):
    """Memory that answers anything, always the same at the same address."""

    def read(address, size):
        random = np.random.default_rng([seed, address & 0xFFFFFFFF, address >> 32])
        return None if random.random() < gaps else random.bytes(size)

    return read


@given(st.sampled_from(KEYS), st.integers(0, 1 << 30), st.sampled_from([0.0, 0.01, 0.3]))
@settings(max_examples=60, deadline=None)
def test_any_memory_at_all_ends_in_bounds_without_a_span(library, key, seed, gaps):
    reader = Reader(library, made_up(key, seed), noise(seed, gaps))
    state, *ids = reader.span(0x7F0000001000)

    assert state in ("none", "unreadable", "unknown")
    assert ids == ["0" * 32, "0" * 16]
    assert reader.steps <= STEPS
    assert reader.reads <= 3 + STEPS * READS_A_STEP


@given(
    st.sampled_from(KEYS), st.integers(0, 1 << 30), st.lists(st.sampled_from(["hamt_bit", "hamt_arr", "hamt_col"]), min_size=1)
)
@settings(max_examples=60, deadline=None)
def test_trees_that_lead_in_circles_end(library, key, seed, names):
    """Every node is a node of the tree, of any kind, whose children are such nodes again."""
    numbers = np.random.default_rng(seed)

    def read(address, size):
        if size == 8 and address < 1 << 20:
            return names[address % len(names)].encode()
        words = [struct.pack("<Q", int(word)) for word in numbers.integers(1 << 10, 1 << 20, 1 + size // 8)]
        return (bytes(8) if numbers.random() < 0.3 else b"".join(words) + bytes(8))[:size].ljust(size, b"\xff")

    reader = Reader(library, made_up(key, seed), read)
    reader.span(0x7F0000001000)
    assert reader.steps <= STEPS


@given(st.binary(min_size=400, max_size=400), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_any_layout_at_all_stays_in_bounds(library, layout, seed):
    """The compiler's bounds checks trap when an offset leads out of an array."""
    size = wire().dtype("span_layout").itemsize
    reader = Reader(library, (layout * 2)[:size], noise(seed, 0.02))
    assert reader.span(seed)[0] in STATES
    assert reader.steps <= STEPS


@pytest.mark.parametrize("value", [0, 1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF0])
def test_hashes_are_folded_as_hamt_c_does(value):
    folded = ctypes.c_int32(ctypes.c_int32(value & 0xFFFFFFFF).value ^ ctypes.c_int32(value >> 32 & 0xFFFFFFFF).value).value
    assert tree_hash(value & (1 << 64) - 1) == (folded if folded != -1 else -2) & 0xFFFFFFFF


def test_the_limits_here_are_those_of_the_c():
    header = (Path(__file__).parents[2] / "bpf" / "otel_span.h").read_text()
    assert f"SPAN_STEPS = {STEPS}," in header
