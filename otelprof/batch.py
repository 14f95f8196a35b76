"""The core types: what receivers make, processors change and exporters send.

A Batch holds four tables (Samples, Launches, GpuActivity, Spans) as numpy structured arrays. Cells that name something
(a stack, a resource, a thread …) are ids of the batch's Interner. A batch is immutable, and an id never outlives its
interner: a producer that starts a new interner (a new generation) never mixes ids of two generations in one batch.

Times are CLOCK_MONOTONIC nanoseconds of the host; `clock_offset` turns them into Unix time at the border (otlp, formats).
Nothing here does I/O and nothing here knows OTLP's dictionary indexes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Iterable, Sequence, Sized
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.void]
AttributeValue = str | int | float | bool
Attributes = tuple[tuple[str, AttributeValue], ...]


class FrameKind(IntEnum):
    """What a frame is; MARK frames are our own words in brackets, such as `[truncated]`."""

    MARK = 0
    CPYTHON = 1
    NATIVE = 2
    KERNEL = 3
    CUDA = 4


@dataclass(frozen=True, slots=True)
class Mapping:
    """A file as it is mapped into a process: path as the target sees it, GNU build id in hex, addresses in bytes."""

    file: str
    build_id: str = ""
    start: int = 0
    limit: int = 0
    offset: int = 0
    htlhash: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack.

    `name` is what people read (qualified for Python, demangled and short for native and CUDA), `system_name` the full or
    mangled one where that differs. Lines count from 1; 0 means not known. `address` is absolute in the process.
    """

    name: str
    kind: FrameKind
    file: str = ""
    line: int = 0
    start_line: int = 0
    system_name: str = ""
    mapping: Mapping | None = None
    address: int = 0


def mark(word: str) -> Frame:
    """The frame `[word]`, one of the marks that docs name: `mark("truncated")`."""
    return Frame(f"[{word}]", FrameKind.MARK)


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread: its id in the host's PID namespace and its name at the time of the sample."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Link:
    """The span that an event happened in: 16 and 8 bytes, big-endian as on the wire."""

    trace_id: bytes
    span_id: bytes


@dataclass(frozen=True, slots=True)
class Resource:
    """Who produced a row: sorted attributes of one incarnation of a process, or of a GPU, or of the agent."""

    attributes: Attributes

    def get(self, key: str, default: AttributeValue = "") -> AttributeValue:
        """The value of `key`, or `default`."""
        return next((value for name, value in self.attributes if name == key), default)


@dataclass(frozen=True, slots=True)
class ProfileType:
    """What the values of a profile count; names are in otelprof/otlp/semconv.py."""

    type: str
    unit: str
    period_type: str
    period_unit: str
    period: int = 1


_T = TypeVar("_T", bound=Hashable)


class Ids(Generic[_T]):
    """Values by small ids and back; id 0 is the value that means `none`."""

    def __init__(self, none: _T) -> None:
        self._values: list[_T] = [none]
        self._ids: dict[_T, int] = {none: 0}

    def id(self, value: _T) -> int:
        """The id of `value`, a new one at first sight."""
        found = self._ids.get(value)
        if found is None:
            found = self._ids[value] = len(self._values)
            self._values.append(value)
        return found

    def ids(self, values: Iterable[_T]) -> list[int]:
        """The ids of `values`, in order."""
        return [self.id(value) for value in values]

    def __getitem__(self, number: int) -> _T:
        return self._values[number]

    def __len__(self) -> int:
        return len(self._values)


_generations = itertools.count(1)


class Interner:
    """All values that the ids in a batch stand for. Append-only, so a batch can be read while its producer goes on.

    `stacks` holds tuples of frame ids, root first. `full` says that the producer should start a new generation.
    """

    LIMIT = 1_000_000

    def __init__(self) -> None:
        self.generation = next(_generations)
        self.strings: Ids[str] = Ids("")
        self.frames: Ids[Frame] = Ids(Frame("", FrameKind.MARK))
        self.stacks: Ids[tuple[int, ...]] = Ids(())
        self.threads: Ids[Thread] = Ids(Thread(0, ""))
        self.links: Ids[Link | None] = Ids(None)
        self.resources: Ids[Resource] = Ids(Resource(()))
        self.types: Ids[ProfileType | None] = Ids(None)
        self.attributes: Ids[Attributes] = Ids(())

    @property
    def full(self) -> bool:
        """True when a table has reached its limit."""
        tables: tuple[Sized, ...] = (
            self.strings,
            self.frames,
            self.stacks,
            self.threads,
            self.links,
            self.resources,
            self.attributes,
        )
        return max(len(table) for table in tables) >= self.LIMIT

    def stack(self, frames: Iterable[Frame]) -> int:
        """The id of a stack given root first."""
        return self.stacks.id(tuple(self.frames.ids(frames)))

    def frames_of(self, stack: int) -> tuple[Frame, ...]:
        """The frames of a stack, root first."""
        return tuple(self.frames[number] for number in self.stacks[stack])

    def link(self, trace_id: bytes, span_id: bytes) -> int:
        """The id of a link; 0 when both ids are zero."""
        return self.links.id(Link(trace_id, span_id)) if any(trace_id) or any(span_id) else 0


SAMPLES = np.dtype(
    [
        ("time", "i8"),  # of the event
        ("value", "i8"),  # in the unit of the type; one event of a count is 1
        ("type", "u4"),  # Interner.types
        ("resource", "u4"),
        ("stack", "u4"),
        ("thread", "u4"),
        ("link", "u4"),
        ("attributes", "u4"),  # further sample attributes, few and of low cardinality
    ]
)


class CallKind(IntEnum):
    """What a driver call does: the `kind` of LAUNCHES and GPU_ACTIVITY."""

    KERNEL = 1
    GRAPH = 2
    MEMCPY = 3
    MEMSET = 4
    SYNC = 5


LAUNCHES = np.dtype(
    [
        ("time", "i8"),  # of the call
        ("duration", "i8"),  # CPU time of the call, -1: not known
        ("dispatch", "u8"),  # id made in the kernel, 0: not from there
        ("correlation", "i8"),  # CUPTI's correlation id (u32), -1: none
        ("kind", "u1"),  # CallKind
        ("resource", "u4"),
        ("stack", "u4"),  # the CPU stack, without the kernel's frame
        ("thread", "u4"),
        ("link", "u4"),
        ("entry", "u4"),  # Interner.strings: the driver's entry point
        ("kernel", "u4"),  # Interner.frames: the CUDA frame, 0: not known
        ("device", "i4"),  # -1: not known
        ("stream", "u8"),
        ("grid", "u4", (3,)),
        ("block", "u4", (3,)),
        ("shared", "u4"),  # bytes
        ("bytes", "i8"),  # of a copy or memset
    ]
)

GPU_ACTIVITY = np.dtype(
    [
        ("start", "i8"),
        ("end", "i8"),
        ("kind", "u1"),  # CallKind
        ("resource", "u4"),
        ("correlation", "i8"),  # u32, -1: none
        ("kernel", "u4"),  # Interner.frames
        ("device", "i4"),
        ("stream", "u8"),
        ("graph_node", "u8"),  # 0: none
        ("bytes", "i8"),
    ]
)

SPANS = np.dtype(
    [
        ("trace_id", "u1", (16,)),
        ("span_id", "u1", (8,)),
        ("parent", "u1", (8,)),  # zero: a root span
        ("start", "i8"),
        ("end", "i8"),
        ("name", "u4"),  # Interner.strings
        ("resource", "u4"),
        ("attributes", "u4"),
        ("link", "u4"),  # a further span that this one points to
    ]
)


def empty(dtype: np.dtype[np.void]) -> Table:
    """A table without rows."""
    return frozen(np.zeros(0, dtype))


def frozen(table: Table) -> Table:
    """`table`, made read-only."""
    table.flags.writeable = False
    return table


def clock_offset() -> int:
    """Unix time minus CLOCK_MONOTONIC now, nanoseconds; taken once for each batch."""
    before = time.monotonic_ns()
    unix = time.time_ns()
    return unix - (before + time.monotonic_ns()) // 2


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one interval [start, end), CLOCK_MONOTONIC nanoseconds."""

    interner: Interner
    start: int
    end: int
    samples: Table = field(default_factory=lambda: empty(SAMPLES))
    launches: Table = field(default_factory=lambda: empty(LAUNCHES))
    activity: Table = field(default_factory=lambda: empty(GPU_ACTIVITY))
    spans: Table = field(default_factory=lambda: empty(SPANS))
    clock_offset: int = field(default_factory=clock_offset)

    def __post_init__(self) -> None:
        for table in (self.samples, self.launches, self.activity, self.spans):
            frozen(table)

    @property
    def is_empty(self) -> bool:
        """True when no table has a row."""
        return not (len(self.samples) or len(self.launches) or len(self.activity) or len(self.spans))


def rows(dtype: np.dtype[np.void], values: Sequence[tuple[object, ...]]) -> Table:
    """A table of `dtype` from tuples, one per row, in the order of its fields."""
    return np.array(list(values), dtype)


Process = Callable[[Batch], Batch]
"""A stateless processor may be just such a function."""
