"""The kernel's unwind tables (bpf/unwind_tables.h), filled through mapped memory: rows in pages, rules, mappings of processes.

Space is given out and taken back in runs. What was taken back is not given out again for a while, since a program may be
reading it and a forked child may have been born with its parent's mappings.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from otelprof.ebpf.layout import wire
from otelprof.ebpf.libbpf import MapCreateOptions, libbpf
from otelprof.ebpf.maps import Table
from otelprof.ebpf.refusals import refused

PAGES = 256
"""Entries of the map `unwind_rows`."""
MAPPINGS = 32_768
RULES = 16_384
RESTING = 3.0  # seconds until a run is given out again
_ARRAY, _MAPPED = 2, 1 << 10  # BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE


class Rows(Protocol):
    """A table as it comes from the parser."""

    rows: int
    rules: npt.NDArray[np.uint64] | None

    def read_rows(self, first: int, into: npt.NDArray[np.void]) -> None:
        """Rows from number `first` on, into an array of `struct unwind_row`."""


class Space:
    """Runs of numbers in [0, size): the first that fits is given out."""

    def __init__(self, size: int) -> None:
        self._free: list[tuple[int, int]] = [(0, size)] if size else []
        self._resting: deque[tuple[float, int, int]] = deque()
        self.used = 0

    def take(self, count: int) -> int | None:
        """The first number of a run of `count`; None when there is none so long."""
        self._wake()
        for place, (start, length) in enumerate(self._free):
            if length >= count:
                self._free[place : place + 1] = [(start + count, length - count)] if length > count else []
                self.used += count
                return start
        return None

    def give(self, start: int, count: int) -> None:
        """Take a run back."""
        self.used -= count
        self._resting.append((time.monotonic() + RESTING, start, count))

    def _wake(self) -> None:
        while self._resting and self._resting[0][0] <= time.monotonic():
            _, start, count = self._resting.popleft()
            self._free.append((start, count))
            self._join()

    def _join(self) -> None:
        joined: list[tuple[int, int]] = []
        for start, length in sorted(self._free):
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + length)
            else:
                joined.append((start, length))
        self._free = joined


class UnwindMaps:
    """See the module's text. `pages` bounds the memory of rows, 512 KiB each."""

    def __init__(self, maps: Mapping[str, int], pages: int = PAGES) -> None:
        self._fds = maps
        self._page_rows = wire()["LIMIT_PAGE_ROWS"]
        self._row = wire().dtype("unwind_row")
        self._directory = Table(maps["unwind_rows"], np.dtype("u4"), np.dtype("u4"))
        self._rows = Space(min(pages, PAGES) * self._page_rows)
        self._runs = Space(MAPPINGS)
        self._pages: dict[int, int] = {}
        self._rules: dict[int, int] = {0: 0}

    @property
    def rows(self) -> int:
        """Rows of all tables that are there."""
        return self._rows.used

    @property
    def bytes(self) -> int:
        """Kernel memory of the pages."""
        return len(self._pages) * self._page_rows * self._row.itemsize

    def add_table(self, table: Rows) -> int | None:
        """Write a table; the number of its first row, None when there is no room. MalformedInput when it is broken."""
        numbers = None if table.rules is None else self._rule_numbers(table.rules)
        start = self._rows.take(table.rows) if numbers is not None else None
        if start is None or numbers is None:
            return None
        try:
            for page, first, count in self._parts(start, table.rows):
                with self._opened(page) as rows:
                    part = rows[first : first + count]
                    table.read_rows(page * self._page_rows + first - start, part)
                    part["rule"] = numbers[np.minimum(part["rule"], len(numbers) - 1)]
        except BaseException:
            self._rows.give(start, table.rows)
            raise
        return start

    def drop_table(self, start: int, rows: int) -> None:
        """Take a table's rows back; no mapping may refer to them any more."""
        self._rows.give(start, rows)

    def put_mappings(self, mappings: Sequence[tuple[int, int, int, int, int]]) -> int | None:
        """Write a process's mappings (start, end, base, first row, rows), by rising address; the number of the first."""
        table = np.array(sorted(mappings), wire().dtype("unwind_mapping"))
        start = self._runs.take(len(table)) if len(table) else 0
        if start is not None and len(table):
            with _mapped(self._fds["unwind_mappings"], start, table.dtype, len(table)) as place:
                place[:] = table
        return start

    def drop_mappings(self, start: int, count: int) -> None:
        """Take them back."""
        if count:
            self._runs.give(start, count)

    def close(self) -> None:
        """Let go of the pages; the kernel keeps those that programs still use."""
        for fd in self._pages.values():
            os.close(fd)
        self._pages.clear()

    def _rule_numbers(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32] | None:
        """Our numbers of rules, new ones written first; None when they don't fit."""
        known = len(self._rules)
        new = [int(word) for word in words if int(word) not in self._rules]
        if known + len(new) > RULES:
            return None
        if new:
            with _mapped(self._fds["unwind_rules"], known, np.dtype("<u8"), len(new)) as place:
                place[:] = new
        self._rules.update({word: known + place for place, word in enumerate(new)})
        return np.array([self._rules[int(word)] for word in words], np.uint32)

    def _parts(self, start: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(page, first row in it, rows) of a run."""
        while count:
            page, first = divmod(start, self._page_rows)
            part = min(count, self._page_rows - first)
            yield page, first, part
            start, count = start + part, count - part

    @contextmanager
    def _opened(self, page: int) -> Iterator[npt.NDArray[np.void]]:
        if page not in self._pages:
            self._pages[page] = self._new_page()
            self._directory.put(page, self._pages[page])
        with _mapped(self._pages[page], 0, self._row, self._page_rows) as rows:
            yield rows

    def _new_page(self) -> int:
        options = MapCreateOptions(ctypes.sizeof(MapCreateOptions), map_flags=_MAPPED)
        size = (4, self._row.itemsize, self._page_rows)
        try:
            return int(libbpf().call("bpf_map_create", _ARRAY, b"unwind_page", *size, ctypes.byref(options)))
        except OSError as error:
            raise refused("bpf(BPF_MAP_CREATE)", error) from error


@contextmanager
def _mapped(fd: int, start: int, dtype: np.dtype[Any], count: int) -> Iterator[npt.NDArray[Any]]:
    """Values [start, start + count) of an array map as an array; only as long as the block lasts."""
    first = start * dtype.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
    length = (start + count) * dtype.itemsize - first
    memory = mmap.mmap(fd, -(-length // mmap.PAGESIZE) * mmap.PAGESIZE, mmap.MAP_SHARED, offset=first)
    values = np.frombuffer(memory, dtype, count, start * dtype.itemsize - first)
    try:
        yield values
    finally:
        del values
        with suppress(BufferError):  # somebody still holds a part: it is unmapped with that
            memory.close()
