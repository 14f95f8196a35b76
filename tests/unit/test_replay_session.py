"""A session as JSON Lines: what is written is read back the same, what others write is understood, what is wrong is named."""

import json
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelprof.batch import (
    GPU_ACTIVITY,
    LAUNCHES,
    SAMPLES,
    SPANS,
    Batch,
    CallKind,
    Frame,
    FrameKind,
    Interner,
    Link,
    Mapping,
    ProfileType,
    Resource,
    Table,
    Thread,
    rows,
)
from otelprof.errors import MalformedInput
from otelprof.formats.session import LINE_LIMIT, ROWS_LIMIT, SessionWriter, Shift, read_session
from otelprof.otlp import semconv

TABLES = {
    "resource": "resources", "thread": "threads", "link": "links", "type": "types", "attributes": "attributes",
    "kernel": "frames", "entry": "strings", "name": "strings",
}  # fmt: skip
TIMES = {"time", "start", "end"}


def resolved(batches: Iterable[Batch], table: str) -> list[dict]:
    """All rows of a table with the values that their ids stand for, times as Unix time."""
    return [_row(batch, row) for batch in batches for row in getattr(batch, table)]


def _row(batch: Batch, row: np.void) -> dict:
    found: dict = {}
    for field in row.dtype.names:
        value = row[field]
        if field == "stack":
            found[field] = batch.interner.frames_of(int(value))
        elif field in TABLES:
            found[field] = getattr(batch.interner, TABLES[field])[int(value)]
        elif field in TIMES:
            found[field] = int(value) + batch.clock_offset if value else 0
        else:
            found[field] = value.tolist()
    return found


def replay(text: bytes, shift: Shift | None = None) -> list[Batch]:
    return list(read_session(text.splitlines(keepends=True), "session.jsonl", shift))


def lines(*records: dict) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


# --- what is written is read back ------------------------------------------------------------------------------

words = st.text(max_size=8)
u32, u64, i64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**62)
scalars = words | st.integers(-(2**62), 2**62) | st.booleans() | st.floats(allow_nan=False)
attributes = st.dictionaries(words, scalars, max_size=3).map(lambda found: tuple(sorted(found.items())))
mappings = st.builds(Mapping, words, words, u64, u64, u64, words)
names = words | st.sampled_from(["[truncated]", "[cuda] k", "[kernel] do_idle", "[", "attention"])
frames = st.builds(Frame, names, st.sampled_from(FrameKind), words, u32, u32, words, st.none() | mappings, u64) | st.builds(
    Frame, names, st.sampled_from(FrameKind)
)
pids = st.integers(1, 3)
resources = (
    st.builds(lambda pid, more: Resource(tuple(sorted({**dict(more), "process.pid": pid}.items()))), pids, attributes)
    | st.builds(lambda pid: Resource((("process.pid", pid),)), pids)
    | st.builds(Resource, attributes)
)
threads = st.builds(Thread, u32, words)
links = st.none() | st.builds(Link, st.binary(min_size=16, max_size=16).filter(any), st.binary(min_size=8, max_size=8))
types = st.sampled_from([semconv.CPU, semconv.GPU_SYNC, semconv.cpu(49), None]) | st.builds(
    ProfileType, words.filter(bool), words, words, words, i64
)
kernels = st.just(Frame("", FrameKind.MARK)) | frames
shapes = st.tuples(u32, u32, u32)
correlations = st.integers(-1, 2**32 - 1)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Any batch, all four tables."""
    who, some = Interner(), st.integers(0, 3)

    def stack() -> int:
        return who.stack(draw(st.lists(frames, max_size=4)))

    def where() -> tuple[int, int, int, int]:
        return (
            who.resources.id(draw(resources)), stack(), who.threads.id(draw(threads)), who.links.id(draw(links)),
        )  # fmt: skip

    def sample() -> tuple:
        resource, frames_id, thread, link = where()
        kind, further = who.types.id(draw(types)), who.attributes.id(draw(attributes))
        return draw(i64), draw(i64), kind, resource, frames_id, thread, link, further

    def call() -> tuple:
        resource, frames_id, thread, link = where()
        entry, kernel = who.strings.id(draw(words)), who.frames.id(draw(kernels))
        return (
            draw(i64), draw(st.integers(-1, 2**40)), draw(u64), draw(correlations), draw(st.sampled_from(CallKind)),
            resource, frames_id, thread, link, entry, kernel, draw(st.integers(-1, 15)), draw(u64), draw(shapes), draw(shapes),
            draw(u32), draw(i64),
        )  # fmt: skip

    def activity() -> tuple:
        return (
            draw(i64), draw(i64), draw(st.sampled_from(CallKind)), who.resources.id(draw(resources)),
            draw(correlations), who.frames.id(draw(kernels)), draw(st.integers(-1, 15)), draw(u64), draw(u64), draw(i64),
        )  # fmt: skip

    def span() -> tuple:
        ids = [tuple(draw(st.binary(min_size=size, max_size=size))) for size in (16, 8, 8)]
        name, resource = who.strings.id(draw(words)), who.resources.id(draw(resources))
        return (*ids, draw(i64), draw(i64), name, resource, who.attributes.id(draw(attributes)), who.links.id(draw(links)))

    made = [[make() for _ in range(draw(some))] for make in (sample, call, activity, span)]
    tables: list[Table] = [
        rows(dtype, found) for dtype, found in zip((SAMPLES, LAUNCHES, GPU_ACTIVITY, SPANS), made, strict=True)
    ]
    return Batch(who, 0, 1, *tables, clock_offset=draw(st.integers(0, 2**61)))


@settings(max_examples=60, deadline=None)
@given(st.lists(batches(), max_size=3))
def test_what_is_written_is_read_back_the_same(recorded: list[Batch]) -> None:
    writer = SessionWriter()
    again = replay(b"".join(map(writer.write, recorded)))
    for table in ("samples", "launches", "activity", "spans"):
        assert resolved(again, table) == resolved(recorded, table)


def test_a_line_is_ascii_and_says_no_more_than_needed() -> None:
    who = Interner()
    stack = who.stack([Frame("main", FrameKind.CPYTHON), Frame("größe", FrameKind.CPYTHON, "app.py", 7)])
    sample = (5, 1, who.types.id(semconv.CPU), who.resources.id(Resource((("process.pid", 9),))), stack, 0, 0, 0)
    text = SessionWriter().write(Batch(who, 0, 9, samples=rows(SAMPLES, [sample]), clock_offset=1000))
    assert text.isascii()
    assert json.loads(text) == {
        "kind": "sample", "pid": 9, "time_unix_nano": 1005, "count": 1,
        "stack": ["main", {"name": "größe", "kind": "cpython", "file": "app.py", "line": 7}],
    }  # fmt: skip


def test_what_belongs_to_a_process_is_said_once_and_again_when_it_changes() -> None:
    who, writer = Interner(), SessionWriter()
    one, other = (Resource((("process.pid", 9), ("service.name", name))) for name in ("a", "b"))
    samples = [(5, 1, 0, who.resources.id(resource), 0, 0, 0, 0) for resource in (one, one, other)]
    text = writer.write(Batch(who, 0, 9, samples=rows(SAMPLES, samples)))
    assert [json.loads(line)["kind"] for line in text.splitlines()] == ["process", "sample", "sample", "process", "sample"]


# --- what others write -----------------------------------------------------------------------------------------


def test_a_stack_of_names_and_objects() -> None:
    stack = [
        "<module>",
        {"name": "f", "file": "app.py", "line": 3},
        "[kernel] do_idle",
        "[truncated]",
        {"name": "x", "kind": "jvm"},
    ]
    (batch,) = replay(lines({"kind": "sample", "pid": 7, "tid": 8, "time_unix_nano": 100, "stack": stack, "count": 3}))
    (row,) = resolved([batch], "samples")
    assert [(f.name, f.kind) for f in row["stack"]] == [
        ("<module>", FrameKind.CPYTHON), ("f", FrameKind.CPYTHON), ("do_idle", FrameKind.KERNEL),
        ("[truncated]", FrameKind.MARK), ("x", FrameKind.NATIVE),
    ]  # fmt: skip
    assert (row["time"], row["value"], row["type"], row["thread"]) == (100, 3, semconv.CPU, Thread(8, ""))
    assert row["resource"] == Resource((("process.pid", 7),))
    assert batch.clock_offset == 0


def test_unknown_kinds_and_fields_are_ignored() -> None:
    text = lines({"kind": "weather", "time_unix_nano": "rain"}, {"kind": "sample", "stack": ["f"], "mood": {"good": True}})
    assert len(resolved(replay(b"\n" + text), "samples")) == 1


def test_a_copy_is_a_call_or_what_the_gpu_did() -> None:
    call = {"kind": "memcpy", "pid": 1, "time_unix_nano": 5, "bytes": 64, "stack": ["f"]}
    done = {"kind": "memcpy", "pid": 1, "start_unix_nano": 5, "end_unix_nano": 9, "bytes": 64}
    found = replay(lines(call, done))
    assert [row["kind"] for row in resolved(found, "launches")] == [CallKind.MEMCPY]
    assert [row["kind"] for row in resolved(found, "activity")] == [CallKind.MEMCPY]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b'{"pid": 1}', 'with a "kind"'),
        (b'{"kind": 5}', 'with a "kind"'),
        (b"\xff\xfe", "not a JSON object"),
        (b"[" * 100_000, "not a JSON object"),
        (b'{"kind": "sample", "n": ' + b"1" * 5000 + b"}", "not a JSON object"),
        (b'{"kind": "sample", "count": 1.5}', "count"),
        (b'{"kind": "sample", "count": true}', "count"),
        (b'{"kind": "sample", "time_unix_nano": -1}', "time_unix_nano"),
        (b'{"kind": "sample", "time_unix_nano": 9223372036854775808}', "time_unix_nano"),
        (b'{"kind": "sample", "pid": 4294967296}', "pid"),
        (b'{"kind": "sample", "stack": "f"}', "stack"),
        (b'{"kind": "sample", "stack": [1]}', "frame"),
        (b'{"kind": "sample", "stack": [{"name": 1}]}', "name"),
        (b'{"kind": "sample", "trace_id": "xyz"}', "trace_id"),
        (b'{"kind": "sample", "attributes": {"a": [1]}}', "attributes"),
        (b'{"kind": "sample", "attributes": {"a": 9223372036854775808}}', "attributes"),
        (b'{"kind": "launch", "grid": [1, 2]}', "grid"),
        (b'{"kind": "kernel", "correlation_id": 4294967296}', "correlation_id"),
        (b'{"kind": "span", "span_id": "00"}', "span_id"),
        (b'{"kind": "process", "pid": 1, "attributes": 3}', "attributes"),
        (b'{"kind": "sample", "x": "' + b"a" * LINE_LIMIT + b'"}', "longer than"),
        (json.dumps({"kind": "sample", "stack": ["f"] * 8193}).encode(), "stack"),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_a_bad_line_is_named_by_its_number_in_one_line(line: bytes, why: str) -> None:
    with pytest.raises(MalformedInput) as caught:
        replay(lines({"kind": "sample"}) + line + b"\n")
    assert str(caught.value).startswith("session.jsonl: line 2: ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
KINDS = ["sample", "launch", "kernel", "span", "process", "memcpy"]
FIELDS = [
    "pid", "tid", "thread", "time_unix_nano", "start_unix_nano", "stack", "kernel", "name", "count", "grid", "resource",
    "attributes", "link", "trace_id", "type", "period", "stream", "device", "graph", "entry",
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(json_values, st.sampled_from(KINDS), st.sampled_from(FIELDS))
def test_any_value_anywhere_is_read_or_refused(value: object, kind: str, key: str) -> None:
    """No other error comes out, whatever stands in a field."""
    record = {"kind": kind, key: value}
    try:
        replay(json.dumps(record).encode())
    except MalformedInput as error:
        assert "line 1" in str(error)  # noqa: PT017 - both ends are right


def test_a_long_session_comes_in_bounded_batches() -> None:
    many = lines(*({"kind": "sample", "pid": 1, "time_unix_nano": 1000 + n, "stack": ["f"]} for n in range(ROWS_LIMIT + 5)))
    assert [len(batch.samples) for batch in replay(many)] == [ROWS_LIMIT, 5]


def test_a_batch_spans_a_second_at_most() -> None:
    second = 10**9
    found = replay(lines(*({"kind": "sample", "time_unix_nano": second * n // 2, "stack": ["f"]} for n in range(2, 12))))
    assert all(batch.end - batch.start <= second for batch in found)
    assert sum(len(batch.samples) for batch in found) == 10


def test_a_further_pass_has_later_times_and_other_ids() -> None:
    text = lines({"kind": "kernel", "name": "k", "correlation_id": 2**32 - 1, "start_unix_nano": 5, "end_unix_nano": 0})
    (row,) = resolved(replay(text, Shift(100, 3)), "activity")
    assert (row["start"], row["end"], row["correlation"]) == (105, 0, 2)
