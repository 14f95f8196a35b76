"""A recorded session as JSON Lines, both ways: what `record --format session` writes and receivers/replay reads.

One object a line, each with a `kind`:
    sample   pid tid thread time_unix_nano stack count [type unit period_type period_unit period trace_id span_id attributes]
    launch   pid tid thread time_unix_nano stack kernel device stream correlation_id [graph duration_nano dispatch entry grid
             block shared_bytes bytes trace_id span_id]
    memcpy memset sync   the same, for a call; with start_unix_nano and end_unix_nano, for what the GPU did
    kernel graph         pid name device stream correlation_id start_unix_nano end_unix_nano [graph_node bytes]
    span     trace_id span_id parent_span_id name start_unix_nano end_unix_nano [pid attributes link]
    process  pid attributes: the resource of this PID from here on (else it is just its PID)
Unknown kinds and fields are ignored. A stack is a list, root first, of names or of objects with name, kind, file, line.
Times are Unix nanoseconds, 0 for not known. Batches that come from a session hold Unix times (clock offset 0).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from otelprof.batch import (
    GPU_ACTIVITY,
    LAUNCHES,
    SAMPLES,
    SPANS,
    Batch,
    CallKind,
    Frame,
    Interner,
    ProfileType,
    Resource,
    Thread,
    rows,
)
from otelprof.errors import MalformedInput, TooLarge
from otelprof.formats import session_values as values
from otelprof.formats.session_values import I64, U32, U64, Json, Record, Resources, integer
from otelprof.otlp import semconv

LINE_LIMIT = 4 << 20
"""Bytes of one line."""
ROWS_LIMIT = 10_000
"""Rows of one batch."""
BATCH_NANOSECONDS = 1_000_000_000
"""Time that one batch spans at most."""

_CALLS = {"launch": CallKind.KERNEL, "memcpy": CallKind.MEMCPY, "memset": CallKind.MEMSET, "sync": CallKind.SYNC}
_ACTIVITIES = {
    "kernel": CallKind.KERNEL,
    "graph": CallKind.GRAPH,
    "memcpy": CallKind.MEMCPY,
    "memset": CallKind.MEMSET,
    "sync": CallKind.SYNC,
}
_CALL_NAMES = {kind: name for name, kind in _CALLS.items()} | {CallKind.GRAPH: "launch"}
_ACTIVITY_NAMES = {kind: name for name, kind in _ACTIVITIES.items()}
_TYPE_FIELDS = ("type", "unit", "period_type", "period_unit", "period")


Parser = Callable[[Record], tuple[int, tuple[object, ...]]]
"""Makes the number of a table and a row of it."""


# --- reading ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shift:
    """What makes a further pass over the same session another one: later times, other correlation ids."""

    nanoseconds: int = 0
    correlation: int = 0


def read_session(lines: Iterable[bytes], name: str, shift: Shift | None = None) -> Iterator[Batch]:
    """The batches of a session, in order, each of bounded size; MalformedInput names the first bad line.

    `name` is for messages. `lines` may hold lines cut at LINE_LIMIT + 1 bytes, which are refused as too long.
    """
    reader = _Reader(shift or Shift())
    for number, line in enumerate(lines, 1):
        if line.isspace():
            continue
        try:
            record = _record(line)
            parse = reader.parser(record)
            if parse is None:
                continue
            if reader.is_full(record):
                yield reader.batch()
            reader.take(record, parse)
        except MalformedInput as error:
            raise type(error)(f"{name}: line {number}: {error}") from None
    if reader.size:
        yield reader.batch()


def _record(line: bytes) -> Record:
    if len(line) > LINE_LIMIT:
        raise TooLarge(f"longer than {LINE_LIMIT} bytes")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise MalformedInput('not a JSON object with a "kind"')
    return found


@dataclass(slots=True)
class _Reader:
    """Collects rows until a batch is full."""

    shift: Shift
    interner: Interner = field(default_factory=Interner)
    resources: Resources = field(default_factory=Resources)
    tables: tuple[list[tuple[object, ...]], ...] = field(default_factory=lambda: ([], [], [], []))
    first: int = 0
    last: int = 0

    @property
    def size(self) -> int:
        """Rows so far."""
        return sum(map(len, self.tables))

    def parser(self, record: Record) -> Parser | None:
        """What makes a row of the record; None when there is none, as for kinds that we don't know."""
        kind = record["kind"]
        if kind == "process":
            self.resources.learn(record)
        if kind in _ACTIVITIES and (kind not in _CALLS or "start_unix_nano" in record or "end_unix_nano" in record):
            return self._activity
        if kind in _CALLS:
            return self._call
        return {"sample": self._sample, "span": self._span}.get(kind)

    def is_full(self, record: Record) -> bool:
        """True when the record belongs into the next batch."""
        time = self._shown_time(record)
        far = time and self.first and not self.last - BATCH_NANOSECONDS < time < self.first + BATCH_NANOSECONDS
        return bool(self.size and (far or self.size >= ROWS_LIMIT))

    def take(self, record: Record, parse: Parser) -> None:
        """One record and what makes a row of it."""
        table, row = parse(record)
        self.tables[table].append(row)
        time = self._shown_time(record)
        self.first = min(self.first or time, time) if time else self.first
        self.last = max(self.last, time)

    def batch(self) -> Batch:
        """A batch of the rows so far; begins anew."""
        samples, launches, activity, spans = self.tables
        batch = Batch(
            self.interner, self.first, self.last + 1, rows(SAMPLES, samples), rows(LAUNCHES, launches),
            rows(GPU_ACTIVITY, activity), rows(SPANS, spans), clock_offset=0,
        )  # fmt: skip
        self.tables = ([], [], [], [])
        self.first = self.last = 0
        if self.interner.full:
            self.interner = Interner()
        return batch

    def _shown_time(self, record: Record) -> int:
        return self._time(record, "time_unix_nano") or self._time(record, "start_unix_nano")

    def _time(self, record: Record, key: str) -> int:
        time = integer(record, key)
        return min(time + self.shift.nanoseconds, I64) if time else 0

    def _correlation(self, record: Record) -> int:
        number = integer(record, "correlation_id", -1, high=U32)
        return -1 if number < 0 else (number + self.shift.correlation) & U32

    def _sample(self, record: Record) -> tuple[int, tuple[object, ...]]:
        who = self.interner
        return 0, (
            self._time(record, "time_unix_nano"), integer(record, "count", 1, low=-I64), self._type(record),
            self._resource(record), who.stack(values.stack(record)), self._thread(record), self._link(record),
            who.attributes.id(values.attributes(record, "attributes")),
        )  # fmt: skip

    def _call(self, record: Record) -> tuple[int, tuple[object, ...]]:
        kind = CallKind.GRAPH if record.get("graph") is True and record["kind"] == "launch" else _CALLS[record["kind"]]
        return 1, (
            self._time(record, "time_unix_nano"), integer(record, "duration_nano", -1), integer(record, "dispatch", high=U64),
            self._correlation(record), kind, self._resource(record), self.interner.stack(values.stack(record)),
            self._thread(record), self._link(record), self.interner.strings.id(values.text(record, "entry")),
            self._kernel(record, "kernel"), integer(record, "device", -1, high=2**31 - 1), integer(record, "stream", high=U64),
            values.three(record, "grid"), values.three(record, "block"), integer(record, "shared_bytes", high=U32),
            integer(record, "bytes"),
        )  # fmt: skip

    def _activity(self, record: Record) -> tuple[int, tuple[object, ...]]:
        return 2, (
            self._time(record, "start_unix_nano"), self._time(record, "end_unix_nano"), _ACTIVITIES[record["kind"]],
            self._resource(record), self._correlation(record), self._kernel(record, "name"),
            integer(record, "device", -1, high=2**31 - 1), integer(record, "stream", high=U64),
            integer(record, "graph_node", high=U64), integer(record, "bytes"),
        )  # fmt: skip

    def _span(self, record: Record) -> tuple[int, tuple[object, ...]]:
        ids = (("trace_id", 16), ("span_id", 8), ("parent_span_id", 8))
        return 3, (
            *(tuple(values.octets(record, key, size)) for key, size in ids),
            self._time(record, "start_unix_nano"), self._time(record, "end_unix_nano"),
            self.interner.strings.id(values.text(record, "name")), self._resource(record),
            self.interner.attributes.id(values.attributes(record, "attributes")), self._link(values.mapping(record, "link")),
        )  # fmt: skip

    def _resource(self, record: Record) -> int:
        return self.interner.resources.id(self.resources.of(record))

    def _thread(self, record: Record) -> int:
        return self.interner.threads.id(Thread(integer(record, "tid", high=U32), values.text(record, "thread")))

    def _link(self, record: Record) -> int:
        return self.interner.link(values.octets(record, "trace_id", 16), values.octets(record, "span_id", 8))

    def _kernel(self, record: Record, key: str) -> int:
        found = values.kernel_frame(record.get(key))
        return self.interner.frames.id(found) if found else 0

    def _type(self, record: Record) -> int:
        if "type" not in record:
            return self.interner.types.id(semconv.CPU)
        name, unit, period_type, period_unit = (values.text(record, key) for key in _TYPE_FIELDS[:-1])
        kind = ProfileType(name, unit, period_type, period_unit, integer(record, "period"))
        return self.interner.types.id(kind if kind.type else None)


# --- writing ---------------------------------------------------------------------------------------------------


class SessionWriter:
    """Writes batches as lines; one writer for one session, since it says once what belongs to a process."""

    def __init__(self) -> None:
        self._resources = Resources()

    def write(self, batch: Batch) -> bytes:
        """The lines of all rows: samples, launches, activity, spans."""
        fields = _Fields(batch)
        tables = (
            (batch.samples, fields.sample),
            (batch.launches, fields.call),
            (batch.activity, fields.activity),
            (batch.spans, fields.span),
        )
        return b"".join(self._line(batch, row, make) for table, make in tables for row in table)

    def _line(self, batch: Batch, row: np.void, make: Callable[[np.void], dict[str, Json]]) -> bytes:
        resource: Resource = batch.interner.resources[int(row["resource"])]
        before, who = self._resources.json(resource)
        found = make(row)
        line = _encoded({"kind": found.pop("kind"), **who, **found})
        return line if before is None else _encoded(before) + line


def _encoded(record: dict[str, Json]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _without(record: dict[str, Json], defaults: dict[str, Json]) -> dict[str, Json]:
    """`record` without the fields that have their default."""
    return {key: value for key, value in record.items() if key not in defaults or value != defaults[key]}


_CALL_DEFAULTS: dict[str, Json] = {
    "duration_nano": -1, "dispatch": 0, "correlation_id": -1, "entry": "", "kernel": "", "device": -1, "stream": 0,
    "grid": [0, 0, 0], "block": [0, 0, 0], "shared_bytes": 0, "bytes": 0, "graph": False,
}  # fmt: skip
_ACTIVITY_DEFAULTS: dict[str, Json] = {
    "correlation_id": -1, "name": "", "device": -1, "stream": 0, "graph_node": 0, "bytes": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of rows, with what their ids stand for."""

    batch: Batch

    def sample(self, row: np.void) -> dict[str, Json]:
        """A line of kind `sample`."""
        kind = self.batch.interner.types[int(row["type"])]
        shown = {} if kind == semconv.CPU else {key: getattr(kind, key) for key in _TYPE_FIELDS} if kind else {"type": ""}
        further = values.attributes_json(self.batch.interner.attributes[int(row["attributes"])])
        return {
            "kind": "sample",
            **self._where(row),
            "count": int(row["value"]),
            **shown,
            **({"attributes": further} if further else {}),
        }

    def call(self, row: np.void) -> dict[str, Json]:
        """A line for a call of the driver."""
        kind = CallKind(int(row["kind"]))
        found = {
            "duration_nano": int(row["duration"]), "dispatch": int(row["dispatch"]), "correlation_id": int(row["correlation"]),
            "entry": self.batch.interner.strings[int(row["entry"])], "kernel": self._kernel(row), "device": int(row["device"]),
            "stream": int(row["stream"]), "grid": row["grid"].tolist(), "block": row["block"].tolist(),
            "shared_bytes": int(row["shared"]), "bytes": int(row["bytes"]), "graph": kind is CallKind.GRAPH,
        }  # fmt: skip
        return {"kind": _CALL_NAMES[kind], **self._where(row), **_without(found, _CALL_DEFAULTS)}

    def activity(self, row: np.void) -> dict[str, Json]:
        """A line for what the GPU did."""
        found = {
            "name": self._kernel(row), "correlation_id": int(row["correlation"]), "device": int(row["device"]),
            "stream": int(row["stream"]), "graph_node": int(row["graph_node"]), "bytes": int(row["bytes"]),
        }  # fmt: skip
        return {
            "kind": _ACTIVITY_NAMES[CallKind(int(row["kind"]))],
            **self._interval(row),
            **_without(found, _ACTIVITY_DEFAULTS),
        }

    def span(self, row: np.void) -> dict[str, Json]:
        """A line of kind `span`."""
        interner = self.batch.interner
        ids = {"trace_id": row["trace_id"], "span_id": row["span_id"], "parent_span_id": row["parent"]}
        further = {
            "attributes": values.attributes_json(interner.attributes[int(row["attributes"])]),
            "link": values.link_json(interner.links[int(row["link"])]),
        }
        return {
            "kind": "span", **{key: value.tobytes().hex() for key, value in ids.items() if value.any()},
            "name": interner.strings[int(row["name"])], **self._interval(row),
            **{key: value for key, value in further.items() if value},
        }  # fmt: skip

    def _where(self, row: np.void) -> dict[str, Json]:
        """Thread, time, stack and link of a row."""
        interner = self.batch.interner
        thread: Thread = interner.threads[int(row["thread"])]
        frames: tuple[Frame, ...] = interner.frames_of(int(row["stack"]))
        found = {"tid": thread.id, "thread": thread.name}
        return {
            **_without(found, {"tid": 0, "thread": ""}), "time_unix_nano": self._unix(row["time"]),
            "stack": [values.frame_json(frame) for frame in frames], **values.link_json(interner.links[int(row["link"])]),
        }  # fmt: skip

    def _interval(self, row: np.void) -> dict[str, Json]:
        return {"start_unix_nano": self._unix(row["start"]), "end_unix_nano": self._unix(row["end"])}

    def _unix(self, time: np.int64) -> int:
        return int(time) + self.batch.clock_offset if time else 0

    def _kernel(self, row: np.void) -> Json:
        number = int(row["kernel"])
        return values.kernel_json(self.batch.interner.frames[number]) if number else ""
