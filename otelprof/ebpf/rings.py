"""A BPF ring buffer of records of one size, read as numpy structured arrays.

Layout (kernel/bpf/ringbuf.c): page 0 the consumer's position, page 1 the producer's, then the data. Each record has a
header of 8 bytes, its length with two flag bits; with one size all of them stand `stride` apart. Positions only grow.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

BUSY = np.uint32(1 << 31)
DISCARDED = np.uint32(1 << 30)
HEADER = 8


class Ring:
    """One ring. `read` copies, so that what it returns stays valid."""

    def __init__(self, fd: int, size: int, record: np.dtype[Any]) -> None:
        self.size = size
        self._none = np.zeros(0, record)
        self._stride = HEADER + (record.itemsize + 7) // 8 * 8
        self._consumer = mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        self._data = mmap.mmap(fd, mmap.PAGESIZE + size, mmap.MAP_SHARED, mmap.PROT_READ, offset=mmap.PAGESIZE)
        self._position = np.frombuffer(self._consumer, np.uint64, 1)
        self._end = np.frombuffer(self._data, np.uint64, 1)
        self._bytes = np.frombuffer(self._data, np.uint8, size, mmap.PAGESIZE)
        self._words = self._bytes.view(np.uint32)
        self._slot = np.dtype({"names": ["record"], "formats": [record], "offsets": [HEADER], "itemsize": self._stride})

    @property
    def backlog(self) -> int:
        """Records that wait, those that are still being written included."""
        return (int(self._end[0]) - int(self._position[0])) // self._stride

    def read(self) -> npt.NDArray[np.void]:
        """Everything up to the first record that is still being written. Never waits."""
        start, backlog = int(self._position[0]), self.backlog
        if not backlog:
            return self._none
        headers = self._headers(start, backlog)
        busy = np.flatnonzero(headers & BUSY)
        count = int(busy[0]) if len(busy) else len(headers)
        records = self._copy(start, count * self._stride).view(self._slot)["record"]
        self._position[0] = start + count * self._stride
        kept: npt.NDArray[np.void] = records[(headers[:count] & DISCARDED) == 0]
        return kept

    def close(self) -> None:
        """Unmap. What was read stays."""
        del self._position, self._end, self._words, self._bytes
        self._consumer.close()
        self._data.close()

    def _headers(self, start: int, count: int) -> npt.NDArray[np.uint32]:
        """Length words of the next `count` records: looked at before any contents, since a record may still be written."""
        at = (start + self._stride * np.arange(count, dtype=np.int64)) & (self.size - 1)
        words: npt.NDArray[np.uint32] = self._words[at >> 2]
        return words

    def _copy(self, start: int, length: int) -> npt.NDArray[np.uint8]:
        first = start & (self.size - 1)
        head = self._bytes[first : first + length]
        rest = self._bytes[: length - len(head)]
        return np.concatenate([head, rest])
