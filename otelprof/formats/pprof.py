"""pprof's gzip'd profile.proto, both ways; `go tool pprof` reads what is written here.

CPU samples are written as `samples/count` and as `cpu/nanoseconds` (times the period), as Go's own profiles do. pprof has no
frame types: CUDA and kernel frames carry `[cuda] ` and `[kernel] ` before their names. Labels: thread, thread_id,
process_id, service, trace_id, span_id.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from otelprof.batch import Attributes, AttributeValue, Batch, Frame, FrameKind, Interner, ProfileType, Resource, Thread
from otelprof.batch import Mapping as FileMapping
from otelprof.errors import MalformedInput, TooLarge
from otelprof.formats.merge import UNKNOWN, BatchBuilder, labelled, unlabelled
from otelprof.formats.pprof_schema import Profile
from otelprof.otlp import semconv
from otelprof.text import clean

MAX_INFLATED = 256 << 20
"""Bytes of a profile after gzip."""

THREAD, THREAD_ID, PROCESS_ID, SERVICE = "thread", "thread_id", "process_id", "service"
_Column = tuple[str, str, int]  # type, unit, factor


def write(batch: Batch) -> bytes:
    """All samples of the batch; values of several types that share stack and labels are one sample."""
    return gzip.compress(message(batch).SerializeToString(), 6, mtime=0)


def message(batch: Batch) -> Any:
    """The same as pprof's message (pprof_schema.Profile)."""
    return _Writer(batch).written()


class _Writer:
    """One profile in the making; every table is filled at first use."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._interner: Interner = batch.interner
        self._profile = Profile(string_table=[""])
        self._ids: dict[tuple[Any, ...], int] = {("string", ""): 0}
        self._columns: dict[int, list[int]] = {}

    def written(self) -> Any:
        self._types()
        keys = ("stack", "thread", "resource", "link")
        samples: dict[tuple[int, ...], list[int]] = {}
        for row in self._batch.samples:
            columns = self._columns.get(int(row["type"]), [])
            values = samples.setdefault(tuple(int(row[key]) for key in keys), [0] * len(self._profile.sample_type))
            for column in columns:
                values[column] += int(row["value"]) * self._factors[column]
        for key, values in samples.items():
            self._sample(key, values)
        return self._profile

    def _types(self) -> None:
        """The columns of values, the period and the times."""
        used = sorted({int(number) for number in self._batch.samples["type"]})
        kinds = [(number, kind) for number in used if (kind := self._interner.types[number])]
        self._factors: list[int] = []
        for number, kind in kinds:
            for name, unit, factor in columns_of(kind):
                self._columns.setdefault(number, []).append(len(self._factors))
                self._factors.append(factor)
                self._profile.sample_type.add(type=self._string(name), unit=self._string(unit))
        if kinds:
            first = next((kind for _, kind in kinds if kind.type == semconv.CPU.type), kinds[0][1])
            self._profile.period_type.type = self._string(first.period_type)
            self._profile.period_type.unit = self._string(first.period_unit)
            self._profile.period = first.period
            self._profile.default_sample_type = self._string(columns_of(first)[-1][0])
        self._profile.time_nanos = self._batch.start + self._batch.clock_offset
        self._profile.duration_nanos = self._batch.end - self._batch.start

    def _sample(self, identity: tuple[int, ...], values: list[int]) -> None:
        stack, *owner = identity
        sample = self._profile.sample.add(value=[max(min(value, (1 << 63) - 1), -(1 << 63)) for value in values])
        frames = self._interner.frames_of(stack) or UNKNOWN
        sample.location_id.extend(self._location(frame) for frame in reversed(frames))
        for key, value in self._labels(*owner).items():
            if isinstance(value, int):
                sample.label.add(key=self._string(key), num=value)
            else:
                sample.label.add(key=self._string(key), str=self._string(str(value)))

    def _labels(self, thread_id: int, resource_id: int, link_id: int) -> Mapping[str, AttributeValue]:
        thread, link = self._interner.threads[thread_id], self._interner.links[link_id]
        resource = self._interner.resources[resource_id]
        found = {
            SERVICE: resource.get(semconv.SERVICE_NAME),
            PROCESS_ID: resource.get(semconv.PROCESS_PID),
            THREAD: thread.name,
            THREAD_ID: thread.id,
            "trace_id": link.trace_id.hex() if link else "",
            "span_id": link.span_id.hex() if link else "",
        }
        return {key: value for key, value in found.items() if value}

    def _string(self, text: str) -> int:
        text = clean(text)
        found = self._ids.setdefault(("string", text), len(self._profile.string_table))
        if found == len(self._profile.string_table):
            self._profile.string_table.append(text)
        return found

    def _new(self, key: tuple[Any, ...], table: Any, **fields: int | bool) -> int:
        """The id of a row, made when its key is new; ids count from 1."""
        found = self._ids.setdefault(key, len(table) + 1)
        if found == len(table) + 1:
            table.add(id=found, **fields)
        return found

    def _location(self, frame: Frame) -> int:
        if (known := self._ids.get(("frame", frame))) is not None:
            return known
        mapping = self._mapping(frame.mapping) if frame.mapping else 0
        found = self._ids["frame", frame] = len(self._profile.location) + 1
        location = self._profile.location.add(id=found, mapping_id=mapping, address=frame.address)
        location.line.add(function_id=self._function(frame), line=max(frame.line, 0))
        return found

    def _function(self, frame: Frame) -> int:
        fields = {
            "name": self._string(labelled(frame)),
            "system_name": self._string(frame.system_name or labelled(frame)),
            "filename": self._string(frame.file),
            "start_line": max(frame.start_line, 0),
        }
        return self._new(("function", *fields.values()), self._profile.function, **fields)

    def _mapping(self, mapping: FileMapping) -> int:
        return self._new(
            ("mapping", mapping),
            self._profile.mapping,
            memory_start=mapping.start,
            memory_limit=mapping.limit,
            file_offset=mapping.offset,
            filename=self._string(mapping.file),
            build_id=self._string(mapping.build_id),
            has_functions=True,  # so that nobody looks for symbols
        )


def columns_of(kind: ProfileType) -> list[_Column]:
    """How a profile type is written: type, unit and factor of each of its columns."""
    own = (kind.type, kind.unit, 1)
    is_cpu = (kind.type, kind.period_type) == (semconv.CPU.type, semconv.CPU.period_type)
    return [own, (kind.period_type, kind.period_unit, kind.period)] if is_cpu else [own]


def read(data: bytes, resource: Resource | None = None, start: int = 0, end: int = 0) -> Batch:
    """A profile as samples; its own time counts unless [start, end), Unix nanoseconds, is given.

    MalformedInput when it isn't a profile, TooLarge beyond MAX_INFLATED bytes.
    """
    try:
        profile = Profile.FromString(inflated(data))
        return _Reader(profile, resource or Resource(())).read(start, end)
    except DecodeError as error:
        raise MalformedInput(f"not a pprof profile: {str(error)[:200]}") from None
    except (IndexError, KeyError) as error:
        raise MalformedInput(f"not a sound pprof profile: it points to {error}, which isn't there") from None


def inflated(data: bytes) -> bytes:
    """The bytes of a profile, which may be gzip'd or not."""
    if data[:2] != b"\x1f\x8b":
        return data
    inflater = zlib.decompressobj(wbits=31)
    try:
        found = inflater.decompress(data, MAX_INFLATED)
    except zlib.error as error:
        raise MalformedInput(f"not a pprof profile: {error}") from None
    if inflater.unconsumed_tail:
        raise TooLarge(f"the profile is larger than {MAX_INFLATED >> 20} MiB after gzip")
    if not inflater.eof:
        raise MalformedInput("not a whole pprof profile: its gzip data ends early")
    return found


class _Reader:
    """Turns a profile's rows into samples."""

    def __init__(self, profile: Any, resource: Resource) -> None:
        self._profile = profile
        self._functions = {row.id: row for row in profile.function}
        self._mappings = {row.id: self._mapping(row) for row in profile.mapping}
        self._locations = {row.id: list(self._frames(row)) for row in profile.location}
        self._builder = BatchBuilder(resource)

    def read(self, start: int, end: int) -> Batch:
        columns = self._columns()
        for sample in self._profile.sample:
            if len(sample.value) != len(self._profile.sample_type):
                raise MalformedInput("not a sound pprof profile: a sample has another number of values than there are types")
            frames = [frame for number in reversed(sample.location_id) for frame in self._locations[number]]
            thread, attributes = self._labels(sample.label)
            for column, kind in columns:
                if sample.value[column]:
                    self._builder.add(frames, sample.value[column], kind, thread, attributes)
        start = start or max(self._profile.time_nanos, 0)
        return self._builder.batch(start, end or start + max(self._profile.duration_nanos, 1))

    def _string(self, number: int) -> str:
        if number < 0:
            raise IndexError(number)
        return str(self._profile.string_table[number])

    def _columns(self) -> list[tuple[int, ProfileType]]:
        """The columns that are read, and what they are. The time of CPU samples is left out where their number is there."""
        period = self._profile.period_type
        tail = self._string(period.type), self._string(period.unit), max(self._profile.period, 1)
        named = [(self._string(kind.type), self._string(kind.unit)) for kind in self._profile.sample_type]
        found = []
        for column, (name, unit) in enumerate(named):
            if (name, unit) == tail[:2] and (semconv.CPU.type, semconv.CPU.unit) in named:
                continue
            is_sampled = (name, unit) == (semconv.CPU.type, semconv.CPU.unit) or (name, unit) == tail[:2]
            found.append(
                (column, ProfileType(name, unit, *tail) if is_sampled else ProfileType(name, unit, *_period_of(name, unit)))
            )
        return found

    def _labels(self, labels: Sequence[Any]) -> tuple[Thread | None, Attributes]:
        found = {self._string(label.key): self._string(label.str) or label.num for label in labels}
        number, name = found.pop(THREAD_ID, 0), found.pop(THREAD, "")
        thread = Thread(number if isinstance(number, int) else 0, str(name)) if number or name else None
        return thread, tuple(sorted(found.items()))

    def _mapping(self, row: Any) -> FileMapping:
        name, build_id = self._string(row.filename), self._string(row.build_id)
        return FileMapping(name, build_id, row.memory_start, row.memory_limit, row.file_offset)

    def _frames(self, row: Any) -> Iterator[Frame]:
        """The frames of a location, root first: its lines have the innermost inlined function first."""
        mapping = self._mappings[row.mapping_id] if row.mapping_id else None
        for line in reversed(row.line):
            function = self._functions[line.function_id]
            file, system = self._string(function.filename), self._string(function.system_name)
            name, kind = unlabelled(self._string(function.name), FrameKind.NATIVE if mapping or not file else FrameKind.CPYTHON)
            system = "" if system == self._string(function.name) else system
            yield Frame(name, kind, file, max(line.line, 0), max(function.start_line, 0), system, mapping, row.address)
        if not row.line:
            yield Frame(
                f"{mapping.file if mapping else ''}+{row.address:#x}", FrameKind.NATIVE, mapping=mapping, address=row.address
            )


def _period_of(name: str, unit: str) -> tuple[str, str, int]:
    """The period of a type that isn't the profile's own: ours where it is one of ours."""
    ours = next((kind for kind in vars(semconv).values() if isinstance(kind, ProfileType) and kind.type == name), None)
    return (ours.period_type, ours.period_unit, ours.period) if ours else (name, unit, 1)
