"""Finding where each thread of a process keeps its PyThreadState, so that the kernel can follow the same path.

Wanted is the slot that survives a release of the GIL: the pthread key of PyGILState up to 3.14, the thread-local variable
`_Py_tss_gilstate` from 3.15 on. No code is disassembled: the thread states are listed from outside, each knows its thread
pointer, and the right slot is the one that holds a thread's own state in every thread (a value scan).
Where a pthread key lives: glibc nptl/pthread_getspecific.c and nptl/descr.h (struct pthread: first block at 0x310, pointers to
blocks at 0x510; the same in 2.36 and 2.43), musl src/thread/pthread_getspecific.c (struct pthread: tsd at 0x80; 1.2.3).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from otelprof.processes.memory import Memory
from otelprof.targets.cpython_layouts import CPython

THREAD_LIMIT = 256
"""Thread states that are looked at; the list is newest first."""
INTERPRETER_LIMIT = 64

_GLIBC_FIRST_BLOCK, _GLIBC_BLOCKS, _GLIBC_KEYS = 0x310, 0x510, 32
_MUSL_TSD, _MUSL_KEYS = 0x80, 128
_STATIC_TLS = 4096
"""Bytes below the thread pointer that are scanned."""
_MODULES = 64
_MODULE_TLS = 4096
_DTV, _DTV_ENTRY = 8, 16  # glibc tcbhead_t.dtv, sizeof(dtv_t); sysdeps/x86_64/nptl/tls.h

Threads = Mapping[int, frozenset[int]]
"""The thread states of each thread, by thread pointer: more than one where a thread serves several interpreters."""


@dataclass(frozen=True, slots=True)
class PointerPath:
    """start + offset[0], read, + offset[1], read, …; the wire's pointer_path."""

    offset: tuple[int, ...]

    @property
    def steps(self) -> int:
        """How many reads it takes."""
        return len(self.offset)

    def follow(self, memory: Memory, start: int) -> int:
        """The pointer at the end, 0 when a step can't be read."""
        at = start
        for offset in self.offset:
            at = memory.pointer(at + offset)
            if not at:
                return 0
        return at


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a thread's state is found; `sure` is False when another look, with more threads, may find a better one."""

    path: PointerPath
    libc: str
    how: str
    sure: bool = True


@dataclass(frozen=True, slots=True)
class TlsHints:
    """What the interpreter's file says about its thread-local variables.

    The size of its TLS, the place of `_Py_tss_gilstate` in it where symbols are left, and the first bytes of
    PyGILState_GetThisThreadState, which loads that variable and little else.
    """

    size: int = 0
    gilstate: int | None = None
    reader: bytes = b""

    def names_static(self, offset: int) -> bool:
        """Whether the reader loads `offset` from the thread pointer, as an executable does: mov %fs:offset,%rax."""
        return b"\x64\x48\x8b\x04\x25" + struct.pack("<i", offset) in self.reader

    def names(self, offset: int) -> bool:
        """Whether the variable is at `offset` of the module's TLS: by symbol, or the reader has mov offset(%rax),%rax."""
        if offset == self.gilstate or b"\x48\x8b\x80" + struct.pack("<i", offset) in self.reader:
            return True
        return offset < 128 and b"\x48\x8b\x40" + bytes([offset]) in self.reader


def threads_of(memory: Memory, layout: CPython, runtime: int) -> Threads:
    """All thread states by thread pointer; empty while the interpreter isn't initialised. Bounded, whatever it reads."""
    found: dict[int, set[int]] = {}
    for state in islice(_states(memory, layout, runtime), THREAD_LIMIT):
        pointer = memory.pointer(state + layout.thread_id)
        if pointer and pointer % 8 == 0:
            found.setdefault(pointer, set()).add(state)
    return {pointer: frozenset(states) for pointer, states in found.items()}


def interpreters_of(memory: Memory, layout: CPython, runtime: int) -> Iterator[int]:
    """Addresses of the interpreters' states, newest first. Bounded, whatever it reads."""
    return _chain(memory, runtime + layout.runtime_interpreters, layout.interpreter_next, INTERPRETER_LIMIT)


def main_interpreter(memory: Memory, layout: CPython, runtime: int) -> int:
    """Address of the main interpreter's state, which stands behind the head of the list (pycore_runtime.h)."""
    return memory.pointer(runtime + layout.runtime_interpreters + 8)


def _states(memory: Memory, layout: CPython, runtime: int) -> Iterator[int]:
    for interpreter in interpreters_of(memory, layout, runtime):
        for state in _chain(memory, interpreter + layout.interpreter_threads, layout.thread_next, THREAD_LIMIT):
            if memory.pointer(state + layout.thread_interpreter) == interpreter:
                yield state


def _chain(memory: Memory, head: int, link: int, limit: int) -> Iterator[int]:
    """The items of a linked list from the address of its head pointer."""
    item = memory.pointer(head)
    for _ in range(limit):
        if not item:
            return
        yield item
        item = memory.pointer(item + link)


def key_of(memory: Memory, layout: CPython, runtime: int) -> int | None:
    """The pthread key of PyGILState (up to 3.14); None before the interpreter made it."""
    data = memory.peek(runtime + layout.runtime_tss_key, 8)
    ready, key = struct.unpack("<iI", data) if data else (0, 0)
    return key if ready == 1 and key < 1024 else None


def find_key_slot(memory: Memory, threads: Threads, key: int) -> Slot | None:
    """The slot of a known pthread key, proven by the threads: glibc's place, else musl's."""
    places = (("glibc", glibc_key(key)), ("musl", PointerPath((_MUSL_TSD, 8 * key))))
    for libc, path in places:
        if any(path.follow(memory, pointer) in states for pointer, states in threads.items()):
            return Slot(path, libc, f"pthread key {key}")
    return None


def glibc_key(key: int) -> PointerPath:
    """Where glibc keeps the value of a pthread key."""
    if key < _GLIBC_KEYS:
        return PointerPath((_GLIBC_FIRST_BLOCK + 16 * key + 8,))
    return PointerPath((_GLIBC_BLOCKS + 8 * (key // _GLIBC_KEYS), 16 * (key % _GLIBC_KEYS) + 8))


def scan(memory: Memory, threads: Threads, hints: TlsHints) -> Slot | None:
    """The slot of an unknown place: pthread keys first, then static TLS, then TLS of libraries opened late."""
    return _best_key(memory, threads) or _best_static(memory, threads, hints) or _best_module(memory, threads, hints)


def _best_key(memory: Memory, threads: Threads) -> Slot | None:
    votes: Counter[tuple[str, int]] = Counter()
    for pointer, states in threads.items():
        glibc = _matches(memory.peek(pointer + _GLIBC_FIRST_BLOCK, 16 * _GLIBC_KEYS), states)
        musl = _matches(memory.peek(memory.pointer(pointer + _MUSL_TSD), 8 * _MUSL_KEYS), states)
        votes.update(("glibc", at // 16) for at in glibc if at % 16 == 8)
        votes.update(("musl", at // 8) for at in musl)
    for (libc, key), count in votes.most_common(1):
        path = glibc_key(key) if libc == "glibc" else PointerPath((_MUSL_TSD, 8 * key))
        return Slot(path, libc, f"pthread key {key}, by value", sure=count > 1)
    return None


def _best_static(memory: Memory, threads: Threads, hints: TlsHints) -> Slot | None:
    votes: Counter[int] = Counter()
    for pointer, states in threads.items():
        found = _matches(memory.peek(pointer - _STATIC_TLS, _STATIC_TLS), states)
        votes.update(at - _STATIC_TLS for at in found)
    if not votes:
        return None
    most = max(votes.values())
    best = [at for at, count in votes.items() if count == most]
    first = next(iter(threads))
    blocks = [block - first for _, block in _modules(memory, first)]
    named = [at for at in best if hints.names_static(at) or any(_names_within(hints, at - start) for start in blocks)]
    chosen = named[0] if len(named) == 1 else _lowest_together(best, hints)
    return Slot(PointerPath((chosen,)), "glibc", f"thread-local variable at {chosen}", len(named) == 1 or len(best) == 1 < most)


def _names_within(hints: TlsHints, offset: int) -> bool:
    return 0 <= offset < hints.size and hints.names(offset)


def _lowest_together(best: list[int], hints: TlsHints) -> int:
    """Of several slots one: the variables lie together near the thread pointer, what is left on a stack further away.

    While a thread holds the GIL `_Py_tss_tstate` has the same value; in executables it stands above (measured on 3.15).
    """
    return min(at for at in best if max(best) - at < max(hints.size, 64))


def _best_module(memory: Memory, threads: Threads, hints: TlsHints) -> Slot | None:
    votes: Counter[tuple[int, int]] = Counter()
    size = min(hints.size, _MODULE_TLS)
    for pointer, states in threads.items() if size else ():
        for module, block in _modules(memory, pointer):
            votes.update((module, at) for at in _matches(memory.peek(block, size), states))
    if not votes:
        return None
    most = max(votes.values())
    best = sorted(place for place, count in votes.items() if count == most)
    named = [place for place in best if hints.names(place[1])]
    module, at = named[0] if len(named) == 1 else best[0]
    path = PointerPath((_DTV, _DTV_ENTRY * module, at))
    return Slot(path, "glibc", f"thread-local variable {at} of module {module}", len(named) == 1 or len(best) == 1 < most)


def _modules(memory: Memory, pointer: int) -> Iterator[tuple[int, int]]:
    """(number, address of the thread's block) of the modules with TLS that the thread has used."""
    table = memory.pointer(pointer + _DTV)
    for module in range(1, _MODULES):
        block = memory.pointer(table + _DTV_ENTRY * module) if table else 0
        if block and block % 8 == 0:
            yield module, block


def _matches(data: bytes | None, states: frozenset[int]) -> list[int]:
    """Offsets of the aligned words that are one of `states`."""
    words = struct.unpack(f"<{len(data) // 8}Q", data) if data else ()
    return [8 * number for number, word in enumerate(words) if word in states]
