"""New executable mappings of any process, told by the kernel: libraries that are opened after the agent's start.

A perf event that never fires (PERF_COUNT_SW_DUMMY) on each CPU carries PERF_RECORD_MMAP2 records in a small ring; layouts
from include/uapi/linux/perf_event.h and perf_event_open(2). A full ring loses records, which the kernel counts.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from otelprof.ebpf.perf_event import DUMMY, MMAP, MMAP2, SOFTWARE, Attr, online_cpus, open_event
from otelprof.ebpf.refusals import refused

DATA_PAGES = 16  # 64 KiB on each CPU; perf_event_mlock_kb allows 512 KiB to anybody
_RECORD_LOST, _RECORD_MMAP2 = 2, 10
_HEADER = struct.Struct("<IHH")  # type, misc, size
_MAPPING = struct.Struct("<IIQQQIIQQII")  # pid, tid, address, length, offset, major, minor, inode, generation, prot, flags
_LOST = struct.Struct("<QQ")  # id, how many
_HEAD, _TAIL = 1024, 1032  # data_head and data_tail in struct perf_event_mmap_page


@dataclass(frozen=True, slots=True)
class NewMapping:
    """Executable memory that a process has just mapped: bytes [address, address + length) are a file's from `offset` on.

    `device` is (major, minor); `path` is as the process sees it, or a name such as `//anon` or `[vdso]`.
    """

    pid: int
    address: int
    length: int
    offset: int
    device: tuple[int, int]
    inode: int
    path: str


class Mappings:
    """Rings of all CPUs. `lost` counts mappings that found no room."""

    def __init__(self, cpus: Iterable[int] | None = None) -> None:
        self.lost = 0
        self._rings = [_Ring(cpu) for cpu in (online_cpus() if cpus is None else cpus)]

    def read(self) -> list[NewMapping]:
        """What is new since the last time, CPU by CPU."""
        found = []
        for ring in self._rings:
            for kind, body in ring.read():
                if kind == _RECORD_MMAP2:
                    found.append(_mapping(body))
                elif kind == _RECORD_LOST:
                    self.lost += _LOST.unpack_from(body)[1]
        return found

    def close(self) -> None:
        """Stop."""
        for ring in self._rings:
            ring.close()
        self._rings.clear()


def _mapping(body: bytes) -> NewMapping:
    pid, _, address, length, offset, major, minor, inode, *_ = _MAPPING.unpack_from(body)
    path = os.fsdecode(body[_MAPPING.size :].split(b"\0", 1)[0])
    return NewMapping(pid, address, length, offset, (major, minor), inode, path)


class _Ring:
    """The ring of one CPU."""

    def __init__(self, cpu: int) -> None:
        try:
            self._fd = open_event(Attr(SOFTWARE, DUMMY, flags=(MMAP, MMAP2)), -1, cpu)
            self._memory = mmap.mmap(self._fd, (1 + DATA_PAGES) * mmap.PAGESIZE)
        except OSError as error:
            raise refused("perf_event_open", error) from error

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Type and body of each record that is there."""
        (end,) = struct.unpack_from("<Q", self._memory, _HEAD)
        (at,) = struct.unpack_from("<Q", self._memory, _TAIL)
        while at < end:
            kind, _, size = _HEADER.unpack(self._bytes(at, _HEADER.size))
            if size < _HEADER.size:
                break
            yield kind, self._bytes(at + _HEADER.size, size - _HEADER.size)
            at += size
        struct.pack_into("<Q", self._memory, _TAIL, end)

    def close(self) -> None:
        self._memory.close()
        os.close(self._fd)

    def _bytes(self, position: int, length: int) -> bytes:
        size = DATA_PAGES * mmap.PAGESIZE
        start = position % size
        head = self._memory[mmap.PAGESIZE + start : mmap.PAGESIZE + min(start + length, size)]
        return head + self._memory[mmap.PAGESIZE : mmap.PAGESIZE + length - len(head)]
