"""Reading the memory of another process.

/proc/PID/mem is opened once and stays bound to that process image: after exec or exit it reads as empty, so bytes of an
image that took over the number are never taken for the old one's. Single reads are `pread` on it (1.4 µs measured); many
at once go through process_vm_readv (0.5 µs each, 1,024 in a call), after which the file says whether the image still lives.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from otelprof.errors import TargetError
from otelprof.processes.proc_files import advice

READ_LIMIT = 1 << 22
"""Most bytes of one read: no structure that we want is larger."""
_VECTORS = 1024  # IOV_MAX, linux/uio.h
_ADDRESS_LIMIT = 1 << 47  # end of user space on x86-64 with four page-table levels

_libc = ctypes.CDLL(None, use_errno=True)
_readv = _libc.process_vm_readv
_readv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
_readv.restype = ctypes.c_ssize_t

Spans = npt.NDArray[np.uint64]


class Memory:
    """Memory of one process image."""

    def __init__(self, pid: int) -> None:
        """Bind to the image that runs under `pid` now; TargetError when it ended or the kernel refuses."""
        self.pid = pid
        self.calls = 0
        """System calls made so far."""
        self._anchor = 0  # an address that could be read, asked again to see whether the image lives
        try:
            self._file = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise TargetError(f"process {pid}: memory can't be opened ({error.strerror}); {advice(error)}") from None

    def close(self) -> None:
        """Give the file back; safe twice."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            self.close()

    @property
    def alive(self) -> bool:
        """False once a known address of the image can't be read any more: it ended or called exec."""
        return not self._anchor or self._pread(self._anchor, 1) is not None

    def peek(self, address: int, size: int) -> bytes | None:
        """`size` bytes at `address`, or None when not all can be read."""
        if not 0 < address <= _ADDRESS_LIMIT - size or not 0 < size <= READ_LIMIT:
            return b"" if size == 0 else None
        found = self._pread(address, size)
        if found is not None:
            self._anchor = address
        return found

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at `address`; TargetError when not all can be read."""
        found = self.peek(address, size)
        if found is None:
            raise TargetError(f"process {self.pid}: {size} bytes at {address:#x} can't be read; it may have ended")
        return found

    def pointer(self, address: int) -> int:
        """The 8-byte little-endian number at `address`, 0 when it can't be read."""
        found = self.peek(address, 8)
        return int.from_bytes(found, "little") if found else 0

    def read_many(self, spans: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """The bytes of many (address, size), None where not all can be read; few system calls."""
        if not spans:
            return []
        table = np.array(
            [(a, s) if 0 < a <= _ADDRESS_LIMIT - s and 0 < s <= READ_LIMIT else (0, 0) for a, s in spans], np.uint64
        )
        found: list[bytes | None] = []
        for start in range(0, len(table), _VECTORS):
            found += self._scatter(table[start : start + _VECTORS])
        return found if self.alive else [None] * len(found)

    def _scatter(self, spans: Spans) -> list[bytes | None]:
        ends = [0, *map(int, np.cumsum(spans[:, 1]))]
        buffer = ctypes.create_string_buffer(max(ends[-1], 1))
        good = np.zeros(len(spans), np.bool_)
        start = 0
        while start < len(spans):
            start = self._read_from(spans, ends, start, (buffer, good))
        view = memoryview(buffer)
        return [bytes(view[a:b]) if ok and b > a else None for (a, b), ok in zip(pairwise(ends), good, strict=True)]

    def _read_from(
        self, spans: Spans, ends: list[int], start: int, out: tuple[ctypes.Array[ctypes.c_char], npt.NDArray[np.bool_]]
    ) -> int:
        """Read spans[start:] into the buffer; the number of the span to go on with, behind one that can't be read."""
        buffer, good = out
        remote = np.ascontiguousarray(spans[start:])
        local = np.array([ctypes.addressof(buffer) + ends[start], ends[-1] - ends[start]], np.uint64)
        self.calls += 1
        count = int(_readv(self.pid, local.ctypes.data, 1, remote.ctypes.data, len(remote), 0))
        if count < 0 and ctypes.get_errno() != errno.EFAULT:
            return len(spans)
        whole = int(np.searchsorted(ends, ends[start] + max(count, 0), "right")) - 1
        good[start:whole] = True
        return whole + 1

    def _pread(self, address: int, size: int) -> bytes | None:
        self.calls += 1
        try:
            found = os.pread(self._file, size, address)
        except OSError:
            return None
        return found if len(found) == size else None
