"""The Python walker of bpf/python_frames.h on memory made up by tests: every layout kind, and everything hostile."""

import ctypes
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelprof.ebpf.layout import wire
from otelprof.targets.cpython_layouts import TABLE
from otelprof.targets.python import kernel_layout
from otelprof.targets.thread_state import PointerPath
from tests.unit.walkers import build_walkers

READ = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64)
THREAD, STATE, FRAMES, CODES = 0x7F0000001000, 0x500000, 0x600000, 0x900000
UNREADABLE = 0xFFFFFFFF


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_walkers(tmp_path_factory.mktemp("walkers"))


class Memory:
    """Sparse memory: what isn't written can't be read."""

    def __init__(self):
        self.bytes = {}
        self.reads = 0

    def write(self, address, data):
        self.bytes.update({address + i: byte for i, byte in enumerate(data)})

    def word(self, address, value):
        self.write(address, struct.pack("<Q", value & (1 << 64) - 1))

    def read(self, to, size, address):
        self.reads += 1
        found = [self.bytes.get(address + i) for i in range(size)]
        if None in found:
            return 1
        ctypes.memmove(to, bytes(found), size)
        return 0


class Walk:
    """One walk through the host library."""

    def __init__(self, library, layout, memory):
        self.library = library
        self.memory = memory
        self._callback = READ(memory.read)
        ctypes.c_void_p.in_dll(library, "host_read").value = ctypes.cast(self._callback, ctypes.c_void_p).value
        self.state_memory = ctypes.create_string_buffer(library.size_of_python_walk())
        record = layout.to_record(wire().dtype("python_layout")).tobytes()
        ctypes.memmove(self.state_memory, record, len(record))

    def whole(self):
        self.library.walk_python_stack(self.state_memory, ctypes.c_uint64(THREAD))
        return self

    def in_portions(self, steps):
        if not self.library.walk_python_begin(self.state_memory, ctypes.c_uint64(THREAD)):
            while not self.library.walk_python_on(self.state_memory, steps):
                pass
        return self

    @property
    def state(self):
        return list(wire().enum("python_state"))[self.library.state_of(self.state_memory)]

    @property
    def frames(self):
        buffer = np.zeros(wire()["LIMIT_PYTHON_FRAMES"], wire().dtype("frame"))
        count = self.library.frames_of(self.state_memory, ctypes.c_void_p(buffer.ctypes.data))
        return [tuple(int(n) for n in frame) for frame in buffer[:count]]


class Stack:
    """A thread with a chain of frames, laid out as one CPython version does."""

    def __init__(self, key, path=(0x318,)):
        self.cpython = TABLE[key]
        self.layout = kernel_layout(self.cpython, PointerPath(path))
        self.memory = Memory()
        self.at = FRAMES
        self.expected = []
        self.chain = []

    def code(self, line, readable=True):
        address = CODES + 0x400 * len(self.chain)
        if readable:
            self.memory.write(address + self.cpython.code_first_line, struct.pack("<I", line))
        return address

    def python(self, line, position, readable=True):
        """A Python frame of a code object that begins at `line`, at the instruction `position` bytes into it."""
        code = self.code(line, readable)
        self.chain.append({"code": code, "position": position})
        self.expected.append((code, position, line if readable else UNREADABLE))
        return self

    def shim(self, owner=None):
        self.chain.append({"code": 0x1, "position": 0, "owner": self.cpython.shim_owner if owner is None else owner})
        return self

    def laid(self, thread_state=STATE):
        """Writes it all down, leaf first in `chain`."""
        addresses = [FRAMES + 0x100 * i for i in range(len(self.chain))] + [0]
        self._paths(thread_state, addresses[0])
        for number, frame in enumerate(self.chain):
            self._frame(addresses[number], frame, addresses[number + 1])
        return self

    def _paths(self, thread_state, leaf):
        at = THREAD
        for step, offset in enumerate(self.layout.thread_state.offset):
            last = step == len(self.layout.thread_state.offset) - 1
            self.memory.word(at + offset, thread_state if last else 0x400000 + 0x1000 * step)
            at = 0x400000 + 0x1000 * step
        at = thread_state
        for step, offset in enumerate(self.layout.frame.offset):
            last = step == len(self.layout.frame.offset) - 1
            self.memory.word(at + offset, leaf if last else 0x450000)
            at = 0x450000

    def _frame(self, address, frame, previous):
        layout = self.cpython
        data = bytearray(layout.frame_size)
        tag = 1 if layout.minor >= 14 else 0
        struct.pack_into("<Q", data, layout.frame_code, frame["code"] | tag)
        struct.pack_into("<Q", data, layout.frame_previous, previous)
        if layout.minor <= 10:
            struct.pack_into("<i", data, layout.frame_instruction, frame["position"])
        else:
            struct.pack_into("<Q", data, layout.frame_instruction, frame.get("instruction", frame["code"] + frame["position"]))
        if layout.minor >= 11:
            data[layout.frame_owner] = frame.get("owner", 0)
        if layout.code_tlbc:
            struct.pack_into("<i", data, layout.frame_tlbc_index, frame.get("copy", 0))
        self.memory.write(address, bytes(data))

    def walked(self, library):
        return Walk(library, self.layout, self.memory)


KEYS = sorted(TABLE)
IDS = [f"3.{minor}{'t' * free}" for minor, free in KEYS]


@pytest.mark.parametrize("key", KEYS, ids=IDS)
def test_every_layout_is_walked_from_the_leaf_to_the_root(library, key):
    stack = Stack(key).python(10, 214).python(20, 230).python(30, 8).laid()
    walk = stack.walked(library).whole()

    assert walk.state == "PYTHON_COMPLETE"
    assert walk.frames == stack.expected


@pytest.mark.parametrize("key", [key for key in KEYS if key[0] >= 12])
def test_shims_are_no_frames(library, key):
    stack = Stack(key).python(1, 220).shim().python(2, 230).shim().laid()
    walk = stack.walked(library).whole()

    assert walk.state == "PYTHON_COMPLETE"
    assert walk.frames == stack.expected


@pytest.mark.parametrize("key", [(14, True), (15, True)])
def test_instructions_in_a_threads_own_bytecode_are_told_as_if_in_the_code_object(library, key):
    stack = Stack(key).python(5, 300)
    code, layout, copies = stack.chain[0]["code"], stack.cpython, 0xA00000
    stack.memory.word(code + layout.code_tlbc, copies)
    for number, word in enumerate((3, code + layout.code_bytecode, 0xB00000, 0xC00000)):
        stack.memory.word(copies + 8 * number, word)
    stack.chain[0] |= {"copy": 2, "instruction": 0xC00000 + 300 - layout.code_bytecode}
    walk = stack.laid().walked(library).whole()

    assert walk.frames == stack.expected


@pytest.mark.parametrize("copy", [-1, 0, 3, 1 << 30])
def test_a_bytecode_copy_that_cannot_be_is_left_alone(library, copy):
    stack = Stack((14, True)).python(5, 300)
    stack.memory.word(stack.chain[0]["code"] + stack.cpython.code_tlbc, 0xA00000)
    stack.memory.word(0xA00000, 3)
    stack.memory.word(0xA00008, 0xB00000)
    stack.chain[0]["copy"] = copy

    assert stack.laid().walked(library).whole().frames == stack.expected


@pytest.mark.parametrize("path", [(0x318,), (-40,), (0x80, 8), (8, 48, 0x20)])
def test_thread_states_are_found_in_static_tls_keys_and_modules(library, path):
    stack = Stack((13, False), path).python(1, 210).laid()

    assert stack.walked(library).whole().frames == stack.expected


def test_a_code_object_that_is_not_in_memory_keeps_its_frame(library):
    stack = Stack((11, False)).python(1, 200).python(2, 210, readable=False).python(3, 220).laid()
    walk = stack.walked(library).whole()

    assert walk.state == "PYTHON_COMPLETE"
    assert walk.frames == stack.expected


def test_threads_without_python_say_so(library):
    assert Stack((11, False)).laid(thread_state=0).walked(library).whole().state == "PYTHON_NO_THREAD_STATE"
    assert Stack((11, False)).walked(library).whole().state == "PYTHON_NO_THREAD_STATE"
    assert Stack((11, False)).laid().walked(library).whole().state == "PYTHON_NO_FRAMES"
    assert Stack((13, False)).shim().laid().walked(library).whole().state == "PYTHON_NO_FRAMES"


@pytest.mark.parametrize(("depth", "state"), [(511, "PYTHON_COMPLETE"), (512, "PYTHON_COMPLETE"), (513, "PYTHON_TRUNCATED")])
@pytest.mark.parametrize("key", [(10, False), (15, False)])
def test_the_depth_is_capped(library, key, depth, state):
    """The frames next to the leaf stay; a shim at the root (3.15 has one) is no missing frame."""
    stack = Stack(key)
    for number in range(depth):
        stack.python(number, 300)
    if key[0] == 15:
        stack.shim()
    walk = stack.laid().walked(library).whole()

    assert walk.state == state
    assert walk.frames == stack.expected[:512]


def test_a_cycle_ends(library):
    stack = Stack((12, False)).python(1, 200).python(2, 210).laid()
    stack._frame(FRAMES + 0x100, stack.chain[1], FRAMES)
    walk = stack.walked(library).whole()

    assert walk.state == "PYTHON_TRUNCATED"
    assert walk.frames == stack.expected * 256
    assert stack.memory.reads < 3000


def test_a_cycle_of_shims_ends(library):
    stack = Stack((12, False)).python(1, 200).shim().laid()
    stack._frame(FRAMES + 0x100, stack.chain[1], FRAMES + 0x100)
    walk = stack.walked(library).whole()

    assert walk.state == "PYTHON_TRUNCATED"
    assert stack.memory.reads < 2000


def test_memory_that_cannot_be_read_ends_the_walk_and_keeps_the_leaf(library):
    stack = Stack((11, False)).python(1, 200).python(2, 210).laid()
    stack._frame(FRAMES + 0x100, stack.chain[1], 0xDEAD0000)
    walk = stack.walked(library).whole()

    assert walk.state == "PYTHON_UNREADABLE"
    assert walk.frames == stack.expected


@given(st.integers(0, 80), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_a_walk_that_is_interrupted_finds_the_same(library, depth, portion):
    stack = Stack((13, False))
    for number in range(depth):
        stack.python(number, 200 + number)
        if number % 3 == 0:
            stack.shim()
    stack.laid()
    whole, parts = stack.walked(library).whole(), stack.walked(library).in_portions(portion)

    assert (parts.frames, parts.state) == (whole.frames, whole.state)


class Noise(Memory):
    """Memory that answers anything, always the same at the same address."""

    def __init__(self, seed, gaps):
        super().__init__()
        self._seed, self._gaps = seed, gaps

    def read(self, to, size, address):
        self.reads += 1
        random = np.random.default_rng([self._seed, address & 0xFFFFFFFF, address >> 32])
        if random.random() < self._gaps:
            return 1
        ctypes.memmove(to, random.bytes(size), size)
        return 0


@given(st.sampled_from(KEYS), st.integers(0, 1 << 30), st.sampled_from([0.0, 0.01, 0.3]))
@settings(max_examples=60, deadline=None)
def test_any_memory_at_all_ends_in_bounds(library, key, seed, gaps):
    layout = kernel_layout(TABLE[key], PointerPath((0x318,)))
    memory = Noise(seed, gaps)
    walk = Walk(library, layout, memory).whole()

    assert len(walk.frames) <= 512
    assert memory.reads <= 6 + 1024 * 5


@given(st.binary(min_size=96, max_size=96), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_any_layout_at_all_stays_in_its_buffer(library, layout, seed):
    """The compiler's bounds checks trap when an offset leads out of the buffer."""
    walk = Walk(library, kernel_layout(TABLE[11, False], PointerPath((0x318,))), Noise(seed, 0.05))
    ctypes.memmove(walk.state_memory, layout, min(len(layout), wire().dtype("python_layout").itemsize))

    assert len(walk.whole().frames) <= 512
