"""The native walker of bpf/native_frames.h on stacks made up by tests: each kind of rule, Python's places, hostile memory."""

import ctypes
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelprof.ebpf.layout import wire
from otelprof.symbols.cfi_lanes import Cfa, FramePointer
from otelprof.symbols.unwind import ROW
from tests.unit.walkers import build_walkers

READ = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64)
CODE, STACK = 0x400000, 0x7FFD00000000
RSP, RBP = 7, 6
FRAMES = 256


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_walkers(tmp_path_factory.mktemp("walkers"))


class Tables(ctypes.Structure):
    _fields_ = [("arrays", ctypes.c_void_p * 3), ("lengths", ctypes.c_uint32 * 3)]


class Stack:
    """A stack of words, the tables of its code, and the walk over them."""

    def __init__(self, library):
        self.library = library
        self.words = {}
        self.mappings, self.rows, self.rules = [], [], [(0, 0, 0, 0)]
        self.registers = [0] * 16
        self.python = ctypes.create_string_buffer(library.size_of_python_walk())

    def function(self, start, rule, size=0x100):
        """Code with one rule: (Cfa, FramePointer, rbp's offset, CFA's offset)."""
        self.rules.append(rule)
        self.rows += [(start - CODE, len(self.rules) - 1), (start - CODE + size, 0)]

    def word(self, address, value):
        self.words[address] = value

    def read(self, to, size, address):
        if size != 8 or address not in self.words:
            return 1
        ctypes.memmove(to, struct.pack("<Q", self.words[address]), 8)
        return 0

    def walk(self, ip, sp, bp=0):
        """[(address, is a return address, Python frames)], leaf first, and the state."""
        self.registers[RSP], self.registers[RBP] = sp, bp
        rows = np.array(sorted(self.rows), ROW)
        rules = np.array(self.rules, wire().dtype("unwind_rule"))
        mappings = self.mappings or [(CODE, CODE + 0x100000, CODE, 0, len(rows))]
        mappings = np.array(mappings, wire().dtype("unwind_mapping"))
        arrays = (mappings, rows, rules)
        tables = Tables.in_dll(self.library, "host_tables")
        for number, array in enumerate(arrays):
            tables.arrays[number], tables.lengths[number] = array.ctypes.data, len(array)
        callback = READ(self.read)
        ctypes.c_void_p.in_dll(self.library, "host_read").value = ctypes.cast(callback, ctypes.c_void_p).value
        state = ctypes.create_string_buffer(self.library.size_of_native_walk())
        frames = np.zeros(FRAMES, wire().dtype("frame"))
        registers = (ctypes.c_uint64 * 16)(*self.registers)
        pointer = ctypes.c_void_p(frames.ctypes.data)
        count = self.library.walk_native_stack(state, self.python, registers, ctypes.c_uint64(ip), pointer)
        names = list(wire().enum("native_state"))
        return [tuple(int(n) for n in frame) for frame in frames[:count]], names[self.library.native_state_of(state)]


@pytest.fixture
def stack(library):
    """A stack whose outermost function is at CODE."""
    made = Stack(library)
    made.function(CODE, (Cfa.END, 0, 0, 0))
    return made


def test_functions_without_frame_pointers_are_left_by_their_size(stack):
    stack.function(CODE + 0x1000, (Cfa.RSP, 0, 0, 32))
    stack.function(CODE + 0x2000, (Cfa.RSP, 0, 0, 8))
    stack.word(STACK, CODE + 0x1010)
    stack.word(STACK + 8 + 24, CODE + 0x20)
    frames, state = stack.walk(CODE + 0x2000, STACK)
    assert frames == [(CODE + 0x2000, 0, 0), (CODE + 0x1010, 1, 0), (CODE + 0x20, 1, 0)]
    assert state == "NATIVE_COMPLETE"


def test_a_function_with_a_frame_pointer_gives_it_back(stack):
    """The leaf saved rbp, which its caller needs."""
    stack.function(CODE + 0x1000, (Cfa.RBP, FramePointer.AT_CFA, -16, 16))
    stack.function(CODE + 0x2000, (Cfa.RSP, FramePointer.AT_CFA, -16, 24))
    stack.word(STACK + 8, STACK + 0x100)
    stack.word(STACK + 16, CODE + 0x1010)
    stack.word(STACK + 0x100, 0)
    stack.word(STACK + 0x108, CODE + 0x20)
    frames, state = stack.walk(CODE + 0x2004, STACK, bp=1)
    assert [address for address, _, _ in frames] == [CODE + 0x2004, CODE + 0x1010, CODE + 0x20]
    assert state == "NATIVE_COMPLETE"


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ((Cfa.DEREF_RBP, FramePointer.AT_RBP, 0, -8), 0x38),
        ((Cfa.DEREF_RSP, 0, 0, 0x38), 0x38),
    ],
    ids=["rbp", "rsp"],
)
def test_realigned_functions_keep_their_caller_in_memory(stack, rule, place):
    stack.function(CODE + 0x1000, rule)
    stack.word(STACK + place, STACK + 0x80)
    stack.word(STACK + 0x78, CODE + 0x20)
    stack.word(STACK + 0x40, 0)
    frames, state = stack.walk(CODE + 0x1000, STACK, bp=STACK + 0x40)
    assert [address for address, _, _ in frames] == [CODE + 0x1000, CODE + 0x20]
    assert state == "NATIVE_COMPLETE"


@pytest.mark.parametrize(("byte", "size"), [(0, 8), (10, 8), (11, 16), (15, 16)])
def test_a_jump_slot_is_left_by_where_it_stands(stack, byte, size):
    stack.function(CODE + 0x1000, (Cfa.PLT, 0, 0, 11))
    stack.word(STACK + size - 8, CODE + 0x20)
    assert stack.walk(CODE + 0x1000 + byte, STACK)[1] == "NATIVE_COMPLETE"


def test_a_signal_leads_to_what_it_interrupted(stack):
    """The interrupted instruction is no return address, and its stack may be another one."""
    stack.function(CODE + 0x1000, (Cfa.SIGNAL, 0, 0, 0))
    stack.function(CODE + 0x2000, (Cfa.RSP, 0, 0, 8))
    stack.function(CODE + 0x3000, (Cfa.RBP, 0, 0, 16))
    stack.word(STACK, CODE + 0x1000 + 1)
    for offset, value in ((120, STACK - 0x1000), (160, STACK - 0x1100), (168, CODE + 0x3000)):
        stack.word(STACK + 8 + offset, value)
    stack.word(STACK - 0x1000 + 8, CODE + 0x20)
    frames, state = stack.walk(CODE + 0x2000, STACK)
    assert frames[1:] == [(CODE + 0x1001, 1, 0), (CODE + 0x3000, 0, 0), (CODE + 0x20, 1, 0)]
    assert state == "NATIVE_COMPLETE"


def test_other_registers_serve_at_the_leaf_only(stack):
    stack.function(CODE + 0x1000, (Cfa.LEAF_REGISTER + 10, 0, 0, 0))
    stack.registers[10] = STACK + 0x20
    stack.word(STACK + 0x18, CODE + 0x1010)
    frames, state = stack.walk(CODE + 0x1000, STACK)
    assert [address for address, _, _ in frames] == [CODE + 0x1000, CODE + 0x1010]
    assert state == "NATIVE_NO_RULE"


def test_the_call_of_a_function_that_never_returns_belongs_to_its_caller(stack):
    """The return address is the first byte of the next function, which has another rule."""
    stack.function(CODE + 0x1000, (Cfa.RSP, 0, 0, 16), size=0x10)
    stack.function(CODE + 0x1010, (Cfa.RSP, 0, 0, 0x500), size=0x10)
    stack.function(CODE + 0x2000, (Cfa.RSP, 0, 0, 8))
    stack.word(STACK, CODE + 0x1010)
    stack.word(STACK + 16, CODE + 0x20)
    assert stack.walk(CODE + 0x2000, STACK)[1] == "NATIVE_COMPLETE"


def test_code_without_a_table_is_the_last_frame(stack):
    stack.function(CODE + 0x2000, (Cfa.RSP, 0, 0, 8))
    stack.word(STACK, 0x7F0000001234)
    frames, state = stack.walk(CODE + 0x2000, STACK)
    assert frames[-1] == (0x7F0000001234, 1, 0)
    assert state == "NATIVE_NO_TABLE"


def test_the_right_one_of_many_mappings_is_taken(stack):
    """The ends of the list and its middle."""
    stack.rows = [(0, 1)] * 5
    stack.rules = [(0, 0, 0, 0), (Cfa.END, 0, 0, 0)]
    stack.mappings = [(CODE + n * 0x2000, CODE + n * 0x2000 + 0x1000, CODE + n * 0x2000, n % 5, 1) for n in range(1000)]
    for number in (0, 1, 499, 998, 999):
        assert stack.walk(CODE + number * 0x2000 + 0xFFF, STACK)[1] == "NATIVE_COMPLETE"
        assert stack.walk(CODE + number * 0x2000 + 0x1000, STACK)[1] == "NATIVE_NO_TABLE"
    assert stack.walk(CODE - 1, STACK)[1] == "NATIVE_NO_TABLE"


def test_a_stack_deeper_than_the_limit_is_cut(stack):
    stack.function(CODE + 0x1000, (Cfa.RSP, 0, 0, 16))
    for frame in range(400):
        stack.word(STACK + 16 * frame + 8, CODE + 0x1020)
    frames, state = stack.walk(CODE + 0x1000, STACK)
    assert len(frames) == FRAMES
    assert state == "NATIVE_TRUNCATED"


def test_a_stack_that_does_not_rise_ends_the_walk(stack):
    stack.function(CODE + 0x1000, (Cfa.RBP, 0, 0, 16))
    stack.word(STACK + 8, CODE + 0x1020)
    frames, state = stack.walk(CODE + 0x1000, STACK, bp=STACK)
    assert len(frames) == 2
    assert state == "NATIVE_UNREADABLE"


def test_a_return_address_of_nothing_ends_a_thread(stack):
    stack.function(CODE + 0x1000, (Cfa.RSP, 0, 0, 8))
    stack.word(STACK, 0)
    assert stack.walk(CODE + 0x1000, STACK)[1] == "NATIVE_COMPLETE"


KINDS = st.sampled_from([int(kind) for kind in Cfa] + [22, 23, 26, 40, 255])


@settings(max_examples=200, deadline=None)
@given(
    rules=st.lists(st.tuples(KINDS, st.integers(0, 255), st.integers(-64, 64), st.integers(-128, 512)), min_size=1, max_size=6),
    words=st.lists(st.integers(0, 90), min_size=20, max_size=80),
    start=st.integers(0, 0x80),
)
def test_no_table_and_no_memory_makes_a_walk_endless(library, rules, words, start):
    """Random rules over a stack of random words, many of which point into the code or the stack."""
    stack = Stack(library)
    for number, rule in enumerate(rules):
        stack.function(CODE + 0x20 * number, rule, size=0x10)
    choices = [CODE + 8 * n for n in range(30)] + [STACK + 8 * n for n in range(60)] + [0]
    for number, choice in enumerate(words):
        stack.word(STACK + 8 * number, choices[choice])
    frames, state = stack.walk(CODE + start, STACK, bp=STACK + 0x40)
    assert 1 <= len(frames) <= FRAMES
    assert state != "NATIVE_NOT_WALKED"
