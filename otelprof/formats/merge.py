"""Batches added up into one, in bounded memory: what `record` writes at its end, however long it ran.

Rows that are equal in all but time are one row with the sum of their values; types that hold a state keep the last value.
The sum has an interner of its own, since those of the batches come and go.
"""

from __future__ import annotations

import numpy as np

from otelprof.batch import SAMPLES, Attributes, Batch, Frame, FrameKind, Interner, ProfileType, Resource, Table, Thread, mark
from otelprof.otlp import semconv
from otelprof.otlp.profiles import distinct

MAX_STACKS = 200_000
"""Stacks that are kept; a sample of a further one keeps its value, under a mark that says so."""

MAX_ROWS = 1_000_000
"""Rows that are kept; a further one is added to the row without thread, link and attributes."""

TOO_MANY = mark("lost: too many stacks")

UNKNOWN = (mark("unknown"),)
"""What a sample without frames shows."""

UNNAMED = "[unnamed]"
"""What stands for an empty name."""

_Key = tuple[int, int, int, int, int, int]
_COLUMNS = ("type", "resource", "stack", "thread", "link", "attributes")


class Merged:
    """The sum of batches. Links are kept only when asked for: each request of a server is a new one."""

    def __init__(self, keep_links: bool = False) -> None:
        self._keep_links = keep_links
        self._interner = Interner()
        self._values: dict[_Key, int] = {}
        self._start: int | None = None
        self._end = self._clock_offset = 0
        self._source = _Source(Interner())

    def __len__(self) -> int:
        return len(self._values)

    def add(self, batch: Batch) -> None:
        """Add the samples of a batch."""
        if self._start is None:
            self._start, self._clock_offset = batch.start, batch.clock_offset
        self._start, self._end = min(self._start, batch.start), max(self._end, batch.end)
        if self._source.interner is not batch.interner:
            self._source = _Source(batch.interner)
        for key, value in _sums(batch.samples, self._keep_links):
            self._add(self._moved(key), value)

    def batch(self) -> Batch:
        """All rows as one batch over the whole time."""
        table = np.zeros(len(self._values), SAMPLES)
        if self._values:
            keys = np.array(list(self._values), np.uint32)
            for number, name in enumerate(_COLUMNS):
                table[name] = keys[:, number]
            table["value"], table["time"] = list(self._values.values()), self._start
        start = self._start or 0
        return Batch(self._interner, start, max(self._end, start + 1), samples=table, clock_offset=self._clock_offset)

    def _add(self, key: _Key, value: int) -> None:
        if key not in self._values and len(self._values) >= MAX_ROWS:
            key = (*key[:3], 0, 0, 0)
        kind = self._interner.types[key[0]]
        known = 0 if kind is not None and kind.type in semconv.LAST_VALUE else self._values.get(key, 0)
        self._values[key] = known + value

    def _moved(self, key: _Key) -> _Key:
        """The ids of the batch's interner as ids of ours."""
        kind, resource, stack, thread, link, attributes = key
        source, mine = self._source.interner, self._interner
        return (
            mine.types.id(source.types[kind]),
            mine.resources.id(source.resources[resource]),
            self._stack(stack),
            mine.threads.id(source.threads[thread]),
            mine.links.id(source.links[link]),
            mine.attributes.id(source.attributes[attributes]),
        )

    def _stack(self, stack: int) -> int:
        found = self._source.stacks.get(stack)
        if found is None:
            found = self._source.stacks[stack] = self._new_stack(self._source.interner.frames_of(stack))
        return found

    def _new_stack(self, frames: tuple[Frame, ...]) -> int:
        full = len(self._interner.stacks) >= MAX_STACKS
        return self._interner.stack([TOO_MANY] if full else frames)


class _Source:
    """The interner of the latest batches, and which of our stacks its stacks are."""

    def __init__(self, interner: Interner) -> None:
        self.interner = interner
        self.stacks: dict[int, int] = {}


def _sums(rows: Table, keep_links: bool) -> list[tuple[_Key, int]]:
    """The rows of one batch by all but time, with the sums of their values."""
    if not len(rows):
        return []
    columns = [rows[name] for name in _COLUMNS]
    if not keep_links:
        columns[4] = np.zeros(len(rows), np.int64)
    first, kind = distinct(*columns)
    order = np.argsort(kind, kind="stable")
    counts = np.bincount(kind)
    values = np.add.reduceat(rows["value"][order], np.cumsum(counts) - counts)
    keys = zip(*(column[first].tolist() for column in columns), strict=True)
    return list(zip(keys, values.tolist(), strict=True))


class BatchBuilder:
    """Makes a batch of samples row by row, for readers of other formats. Times are Unix nanoseconds."""

    def __init__(self, resource: Resource) -> None:
        self.interner = Interner()
        self._resource = self.interner.resources.id(resource)
        self._rows: list[tuple[int, ...]] = []

    def add(
        self, frames: list[Frame], value: int, kind: ProfileType, thread: Thread | None = None, attributes: Attributes = ()
    ) -> None:
        """Add one sample, its frames root first."""
        interner = self.interner
        row = interner.stack(frames), interner.threads.id(thread or Thread(0, "")), 0, interner.attributes.id(attributes)
        self._rows.append((0, value, interner.types.id(kind), self._resource, *row))

    def batch(self, start: int, end: int) -> Batch:
        """The rows so far as a batch of [start, end)."""
        table = np.array(self._rows, SAMPLES)
        table["time"] = start
        return Batch(self.interner, start, max(end, start + 1), samples=table, clock_offset=0)


def labelled(frame: Frame) -> str:
    """A frame's name for formats without frame types: `[cuda] NAME`, `[kernel] NAME`, others bare."""
    return semconv.LABELS.get(frame.kind, "") + frame.name


def unlabelled(name: str, otherwise: FrameKind) -> tuple[str, FrameKind]:
    """The bare name and the kind that a label, or the brackets of a mark, say."""
    for kind, label in semconv.LABELS.items():
        if name.startswith(label):
            return name[len(label) :], kind
    is_mark = len(name) > 2 and name.startswith("[") and name.endswith("]") and not {"[", "]"} & set(name[1:-1])
    return name, FrameKind.MARK if is_mark else otherwise
