"""The value scan: of all slots the one that holds a thread's own state, in each layout of thread-local storage."""

import struct

import pytest

from otelprof.targets.cpython_layouts import TABLE, debug_offsets
from otelprof.targets.thread_state import (
    THREAD_LIMIT,
    PointerPath,
    TlsHints,
    find_key_slot,
    glibc_key,
    key_of,
    scan,
    threads_of,
)

LAYOUT = TABLE[15, False]
RUNTIME, INTERPRETERS, STATES, POINTERS = 0x10000, 0x100000, 0x200000, 0x7000000


class FakeMemory:
    """Words at addresses; everything between known addresses reads as zero, everything else not at all."""

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.reads = 0

    def put(self, address: int, word: int) -> None:
        self.words[address] = word

    def peek(self, address: int, size: int) -> bytes | None:
        self.reads += 1
        if address < 4096:
            return None
        data = bytearray(size)
        for at in range(address, address + size, 8) if address % 8 == 0 else ():
            data[at - address : at - address + 8] = struct.pack("<Q", self.words.get(at, 0))[: address + size - at]
        return bytes(data)

    def pointer(self, address: int) -> int:
        found = self.peek(address, 8)
        return int.from_bytes(found, "little") if found else 0


def program(threads: int, interpreters: int = 1) -> FakeMemory:
    """Interpreters with a list of thread states each, as the runtime links them."""
    memory = FakeMemory()
    place = RUNTIME + LAYOUT.runtime_interpreters
    for number in range(interpreters):
        interpreter = INTERPRETERS + 0x8000 * number
        memory.put(place, interpreter)
        place = interpreter + LAYOUT.interpreter_next
        link = interpreter + LAYOUT.interpreter_threads
        for thread in range(threads):
            state = state_of(thread, number)
            memory.put(link, state)
            memory.put(state + LAYOUT.thread_interpreter, interpreter)
            memory.put(state + LAYOUT.thread_id, pointer_of(thread))
            link = state + LAYOUT.thread_next
    return memory


def state_of(thread: int, interpreter: int = 0) -> int:
    return STATES + 0x1000 * thread + 0x1000000 * interpreter


def pointer_of(thread: int) -> int:
    return POINTERS + 0x10000 * thread


def threads(memory: FakeMemory):
    return threads_of(memory, LAYOUT, RUNTIME)


def test_all_threads_of_all_interpreters_are_listed():
    found = threads(program(3, interpreters=2))
    assert found == {pointer_of(n): frozenset({state_of(n, 0), state_of(n, 1)}) for n in range(3)}


def test_before_the_interpreter_is_initialised_there_are_none():
    assert threads(FakeMemory()) == {}


def test_a_ring_of_thread_states_ends():
    memory = program(2)
    memory.put(state_of(1) + LAYOUT.thread_next, state_of(0))
    assert len(threads(memory)) == 2


def test_a_list_of_states_that_belong_to_nobody_is_left_out_and_ends_soon():
    memory = program(1)
    for number in range(1, 100_000):
        memory.put(state_of(0) + 64 * number + LAYOUT.thread_next, state_of(0) + 64 * (number + 1))
    memory.put(state_of(0) + LAYOUT.thread_next, state_of(0) + 64)
    assert len(threads(memory)) <= THREAD_LIMIT
    assert memory.reads < 10 * THREAD_LIMIT


@pytest.mark.parametrize("key", [0, 31, 32, 100])
def test_a_known_key_is_proven_where_glibc_keeps_it(key):
    memory, path = program(3), glibc_key(key)
    for n in range(3):
        at = pointer_of(n)
        for step in path.offset[:-1]:
            memory.put(at + step, at + 0x2000)
            at = at + 0x2000
        memory.put(at + path.offset[-1], state_of(n))
    slot = find_key_slot(memory, threads(memory), key)
    assert (slot.path, slot.libc, slot.sure) == (path, "glibc", True)


def test_a_known_key_is_proven_where_musl_keeps_it():
    memory = program(2)
    for n in range(2):
        memory.put(pointer_of(n) + 0x80, pointer_of(n) + 0x3000)
        memory.put(pointer_of(n) + 0x3000 + 8 * 5, state_of(n))
    slot = find_key_slot(memory, threads(memory), 5)
    assert (slot.path, slot.libc) == (PointerPath((0x80, 40)), "musl")
    assert scan(memory, threads(memory), TlsHints()).path == PointerPath((0x80, 40))


def test_a_key_that_no_thread_has_set_is_not_proven():
    memory = program(2)
    assert find_key_slot(memory, threads(memory), 1) is None


@pytest.mark.parametrize(("ready", "key", "found"), [(1, 7, 7), (0, 7, None), (1, 4096, None)])
def test_the_key_counts_once_it_was_made(ready, key, found):
    layout, memory = TABLE[14, False], FakeMemory()
    memory.put(RUNTIME + layout.runtime_tss_key, ready | key << 32)
    assert key_of(memory, layout, RUNTIME) == found


def test_the_slot_that_all_threads_share_wins_over_the_one_that_only_the_lock_holder_has():
    memory = program(3)
    for n in range(3):
        memory.put(pointer_of(n) - 40, state_of(n))
    memory.put(pointer_of(1) - 32, state_of(1))
    slot = scan(memory, threads(memory), TlsHints(size=48))
    assert (slot.path, slot.sure) == (PointerPath((-40,)), True)


def test_a_single_thread_that_holds_the_lock_is_told_by_the_function_that_reads_the_slot():
    memory = program(1)
    for offset in (-32, -40, -3000):
        memory.put(pointer_of(0) + offset, state_of(0))
    reader = b"\xf3\x0f\x1e\xfa\x64\x48\x8b\x04\x25" + struct.pack("<i", -32) + b"\xc3"
    named = scan(memory, threads(memory), TlsHints(48, None, reader))
    assert (named.path, named.sure) == (PointerPath((-32,)), True)
    guessed = scan(memory, threads(memory), TlsHints(48))
    assert (guessed.path, guessed.sure) == (PointerPath((-40,)), False)


def test_a_library_that_was_opened_late_is_reached_by_its_module():
    memory, module, block = program(2), 3, 0x9000000
    for n in range(2):
        table, own = pointer_of(n) + 0x4000, block + 0x1000 * n
        memory.put(pointer_of(n) + 8, table)
        memory.put(table + 16 * module, own)
        memory.put(own + 16, state_of(n))
        memory.put(own + 8, state_of(n))
    slot = scan(memory, threads(memory), TlsHints(48, gilstate=16))
    assert (slot.path, slot.sure) == (PointerPath((8, 48, 16)), True)
    assert slot.path.follow(memory, pointer_of(1)) == state_of(1)


def test_a_path_that_leads_nowhere_gives_nothing():
    memory = program(1)
    assert PointerPath((0x80, 8, 8)).follow(memory, pointer_of(0)) == 0
    assert scan(memory, threads(memory), TlsHints(48)) is None


@pytest.mark.parametrize("version", [0x030C0000, 0x03100000, 0x04000000, 0, 2**64 - 1])
def test_debug_offsets_of_unknown_versions_are_refused(version):
    assert "isn't supported" in debug_offsets(b"xdebugpy" + struct.pack("<QQ", version, 0) + bytes(1000))


def test_debug_offsets_that_cannot_be_are_refused():
    said = debug_offsets(b"xdebugpy" + struct.pack("<QQ", 0x030E00F0, 0) + b"\xff" * 1000)
    assert said == "CPython 3.14 publishes debug offsets that can't be right"
