"""Batches become requests that every known reader takes, and nothing is lost or invented on the way."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otelprof.batch import (
    SAMPLES,
    SPANS,
    Batch,
    Frame,
    FrameKind,
    Interner,
    Link,
    Mapping,
    Resource,
    Thread,
    mark,
    rows,
)
from otelprof.component import Signal
from otelprof.otlp import request, semconv
from otelprof.otlp.check import check
from otelprof.otlp.dictionary import dictionary_of
from otelprof.otlp.encode import MAX_BYTES, Dialect, Encoded, Options, encode_profiles, encode_spans

TEXT = st.text(st.characters(codec=None), max_size=12)  # with lone surrogates and control characters
MAPPINGS = st.builds(
    Mapping,
    TEXT,
    st.sampled_from(["", "ab12"]),
    st.integers(0, 9000),
    st.integers(0, 9000),
    htlhash=st.sampled_from(["", "cd"]),
)
FRAMES = st.builds(
    Frame,
    TEXT,
    st.sampled_from(FrameKind),
    TEXT,
    st.integers(-1, 1 << 24),
    st.integers(-1, 99),
    TEXT,
    st.none() | MAPPINGS,
    st.integers(0, 2**64 - 1),
)
LINKS = st.none() | st.builds(Link, st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8))
VALUES = TEXT | st.integers(-(2**70), 2**70) | st.booleans() | st.floats(allow_nan=False)
ATTRIBUTES = st.lists(st.tuples(TEXT | st.just("thread.name"), VALUES), max_size=3).map(tuple)
TYPES = (semconv.CPU, semconv.GPU_KERNEL_TIME, semconv.GPU_KERNEL_LAUNCHES)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Any batch of samples."""
    interner = Interner()
    for kind in TYPES:
        interner.types.id(kind)
    stacks = [interner.stack(frames) for frames in draw(st.lists(st.lists(FRAMES, max_size=5), min_size=1, max_size=5))]
    threads = interner.threads.ids(draw(st.lists(st.builds(Thread, st.integers(0, 9), TEXT), min_size=1, max_size=3)))
    links = interner.links.ids(draw(st.lists(LINKS, min_size=1, max_size=3)))
    resources = interner.resources.ids(draw(st.lists(st.builds(Resource, ATTRIBUTES), min_size=1, max_size=3)))
    attributes = interner.attributes.ids(draw(st.lists(ATTRIBUTES, min_size=1, max_size=3)))
    pick = st.tuples(
        st.just(0),
        st.integers(-(2**40), 2**40),
        st.integers(1, len(TYPES)),
        *(st.sampled_from(ids) for ids in (resources, stacks, threads, links, attributes)),
    )
    return Batch(interner, 1000, 2000, rows(SAMPLES, draw(st.lists(pick, max_size=20))))


def simple(count: int = 3, **cells: int) -> Batch:
    """A batch of CPU samples of one process, one thread and two stacks."""
    interner = Interner()
    frames = [Frame("main", FrameKind.CPYTHON, "app.py", 7, 1), Frame("gemm", FrameKind.CUDA)]
    table = np.zeros(count, SAMPLES)
    table["value"], table["type"] = 1, interner.types.id(semconv.CPU)
    table["resource"] = interner.resources.id(Resource((("process.pid", 41), ("service.name", "shop"))))
    table["stack"] = [interner.stack(frames[: 1 + row % 2]) for row in range(count)]
    table["thread"] = interner.threads.id(Thread(42, "worker"))
    for name, value in cells.items():
        table[name] = value
    return Batch(interner, 10**9, 2 * 10**9, table, clock_offset=10**18)


def parsed(found: list[Encoded]) -> list[ExportProfilesServiceRequest]:
    return [ExportProfilesServiceRequest.FromString(one.data) for one in found]


def totals(requests: list[ExportProfilesServiceRequest]) -> Counter[str]:
    """Sum of the values by sample type."""
    found: Counter[str] = Counter()
    for message in requests:
        strings = message.dictionary.string_table
        for profile in (p for r in message.resource_profiles for s in r.scope_profiles for p in s.profiles):
            found[strings[profile.sample_type.type_strindex]] += sum(sample.values[0] for sample in profile.samples)
    return found


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)
@given(batches(), st.builds(Options, st.sampled_from(Dialect), st.booleans()))
def test_whatever_is_in_a_batch_the_request_conforms_and_its_totals_are_the_batch_s(batch: Batch, options: Options) -> None:
    found = encode_profiles(batch, options)
    assert [violation for one in found for violation in check(one.data)] == []
    expected: Counter[str] = Counter()
    for row in batch.samples:
        expected[TYPES[row["type"] - 1].type] += int(row["value"])
    assert totals(parsed(found)) == expected
    assert all(one.signal is Signal.PROFILES and one.samples <= len(batch.samples) for one in found)


def test_a_batch_without_samples_makes_no_request() -> None:
    assert encode_profiles(simple(0)) == []


def test_samples_of_one_identity_are_one_sample() -> None:
    """Three rows of two stacks: two samples, the leaf first, with time, period and frame types."""
    (message,) = parsed(encode_profiles(simple(3)))
    tables, strings = message.dictionary, message.dictionary.string_table
    (profile,) = message.resource_profiles[0].scope_profiles[0].profiles
    assert sorted(sample.values[0] for sample in profile.samples) == [1, 2]
    assert (profile.time_unix_nano, profile.duration_nano, profile.period) == (10**18 + 10**9, 10**9, 10101010)
    deep = max(tables.stack_table, key=lambda stack: len(stack.location_indices))
    places = [tables.location_table[index] for index in deep.location_indices]
    functions = [tables.function_table[place.lines[0].function_index] for place in places]
    assert [strings[function.name_strindex] for function in functions] == ["gemm", "main"]
    kinds = [tables.attribute_table[place.attribute_indices[0]].value.string_value for place in places]
    assert kinds == ["cuda", "cpython"]
    assert (places[1].lines[0].line, functions[1].start_line, strings[functions[1].filename_strindex]) == (7, 1, "app.py")


def test_the_scope_and_the_resource_say_who_it_is() -> None:
    (message,) = parsed(encode_profiles(simple()))
    (group,) = message.resource_profiles
    assert {pair.key: pair.value.string_value or pair.value.int_value for pair in group.resource.attributes} == {
        "process.pid": 41,
        "service.name": "shop",
    }
    assert group.scope_profiles[0].scope.name == "otelprof"


def sample_attributes(message: ExportProfilesServiceRequest) -> list[dict[str, object]]:
    tables = message.dictionary
    return [
        {
            tables.string_table[row.key_strindex]: row.value.string_value or row.value.int_value
            for row in (tables.attribute_table[index] for index in sample.attribute_indices)
        }
        for group in message.resource_profiles
        for sample in group.scope_profiles[0].profiles[0].samples
    ]


def test_samples_carry_their_thread() -> None:
    (message,) = parsed(encode_profiles(simple(1)))
    assert sample_attributes(message) == [{"thread.name": "worker", "thread.id": 42}]


def test_the_dialect_for_pyroscope_has_no_ids_and_merges_what_then_looks_the_same() -> None:
    """Two threads with one name, in two processes of one service, are one sample."""
    batch = simple(2)
    table = batch.samples.copy()
    table["stack"] = table["stack"][0]
    table["thread"][1] = batch.interner.threads.id(Thread(43, "worker"))
    table["resource"][1] = batch.interner.resources.id(Resource((("process.pid", 99), ("service.name", "shop"))))
    (message,) = parsed(encode_profiles(replace(batch, samples=table), Options(Dialect.PYROSCOPE)))
    (group,) = message.resource_profiles
    assert [pair.key for pair in group.resource.attributes] == ["service.name"]
    assert sample_attributes(message) == [{"thread.name": "worker"}]
    assert group.scope_profiles[0].profiles[0].samples[0].values == [2]


def test_the_service_can_stand_on_the_samples() -> None:
    (message,) = parsed(encode_profiles(simple(1), Options(service_name_on_samples=True)))
    assert sample_attributes(message)[0]["service.name"] == "shop"


def test_a_link_stands_in_the_link_table_and_half_a_link_is_none() -> None:
    batch = simple(2)
    table = batch.samples.copy()
    table["link"] = [batch.interner.link(b"t" * 16, b"s" * 8), batch.interner.link(b"t" * 16, bytes(8))]
    (message,) = parsed(encode_profiles(replace(batch, samples=table)))
    links = message.dictionary.link_table
    assert [(link.trace_id, link.span_id) for link in links] == [(b"", b""), (b"t" * 16, b"s" * 8)]


def test_a_sample_without_frames_shows_that_it_is_unknown() -> None:
    (message,) = parsed(encode_profiles(simple(1, stack=0)))
    assert "[unknown]" in message.dictionary.string_table


def test_requests_are_split_below_the_limit_and_lose_nothing() -> None:
    """6,000 stacks with long names are more than one request can hold; every half is a whole request."""
    batch = simple(6000)
    table = batch.samples.copy()
    table["stack"] = [batch.interner.stack([Frame(f"{n}" + "n" * 1000, FrameKind.CPYTHON)]) for n in range(6000)]
    found = encode_profiles(replace(batch, samples=table))
    assert len(found) > 1
    assert max(len(one.data) for one in found) <= MAX_BYTES
    assert totals(parsed(found)) == {"samples": 6000}
    assert [violation for one in found for violation in check(one.data)] == []
    ids = [p.profile_id for m in parsed(found) for r in m.resource_profiles for p in r.scope_profiles[0].profiles]
    assert len(set(ids)) == len(ids) == sum(one.items for one in found)


def test_a_profile_has_fewer_samples_than_pyroscope_s_limit() -> None:
    batch = simple(20_000)
    table = batch.samples.copy()
    table["thread"] = [batch.interner.threads.id(Thread(n + 1, "t")) for n in range(20_000)]
    found = encode_profiles(replace(batch, samples=table))
    sizes = [len(p.samples) for m in parsed(found) for r in m.resource_profiles for p in r.scope_profiles[0].profiles]
    assert sum(sizes) == 20_000
    assert max(sizes) < 16_000
    assert [violation for one in found for violation in check(one.data)] == []


def test_one_sample_that_is_too_large_keeps_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack of 2,000 different frames with names of 4 KB can't be sent; its sample is."""
    batch = simple(1, value=5)
    frames = [Frame(f"{n}" + "n" * 5000, FrameKind.CPYTHON, system_name=f"s{n}" + "n" * 5000) for n in range(2000)]
    batch = replace(batch, samples=simple_stack(batch, frames))
    (one,) = encode_profiles(batch)
    (message,) = parsed([one])
    assert len(one.data) <= MAX_BYTES
    assert totals([message]) == {"samples": 5}
    assert "[truncated]" in message.dictionary.string_table


def simple_stack(batch: Batch, frames: list[Frame]) -> np.ndarray:
    table = batch.samples.copy()
    table["stack"] = batch.interner.stack(frames)
    return table


def test_long_names_are_cut_on_a_character_and_say_so() -> None:
    batch = simple(1)
    batch = replace(batch, samples=simple_stack(batch, [Frame("é" * 3000, FrameKind.NATIVE)]))
    (message,) = parsed(encode_profiles(batch))
    (name,) = [text for text in message.dictionary.string_table if text.startswith("é")]
    assert name.endswith("é…")
    assert len(name.encode()) <= 4096


def test_a_dictionary_ends_with_its_interner() -> None:
    """What is kept for an interner doesn't outlive it."""
    batch = simple()
    encode_profiles(batch)
    kept = weakref.ref(dictionary_of(batch.interner))
    del batch
    gc.collect()
    assert kept() is None


def spans(count: int, **cells: object) -> Batch:
    interner = Interner()
    table = np.zeros(count, SPANS)
    table["trace_id"], table["start"], table["end"] = 1, 5, 9
    table["span_id"][:, 7] = np.arange(count) % 256
    table["name"] = interner.strings.id("launch gemm")
    table["resource"] = interner.resources.id(Resource((("service.name", "shop"),)))
    for name, value in cells.items():
        table[name] = value
    return Batch(interner, 0, 10, spans=table, clock_offset=100)


def span_messages(found: list[Encoded]) -> list[object]:
    requests = [ExportTraceServiceRequest.FromString(one.data) for one in found]
    return [span for message in requests for group in message.resource_spans for span in group.scope_spans[0].spans]


def test_spans_have_ids_names_times_and_open_the_profile_of_their_parent() -> None:
    batch = spans(1, parent=0xAB)
    table = batch.spans.copy()
    table["attributes"] = batch.interner.attributes.id((("cuda.stream", 7),))
    table["link"] = batch.interner.link(b"t" * 16, b"s" * 8)
    found = encode_spans(replace(batch, spans=table))
    (span,) = span_messages(found)
    assert (span.trace_id, span.parent_span_id, span.name) == (b"\x01" * 16, b"\xab" * 8, "launch gemm")
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (105, 109)
    attributes = {pair.key: pair.value.string_value or pair.value.int_value for pair in span.attributes}
    assert attributes == {"cuda.stream": 7, "pyroscope.profile.id": "ab" * 8}
    assert [(link.trace_id, link.span_id) for link in span.links] == [(b"t" * 16, b"s" * 8)]
    assert (found[0].signal, found[0].items) == (Signal.TRACES, 1)


def test_a_root_span_has_neither_parent_nor_profile() -> None:
    (span,) = span_messages(encode_spans(spans(1)))
    assert (span.parent_span_id, list(span.attributes)) == (b"", [])


def test_spans_are_split_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "MAX_BYTES", 10_000)
    found = encode_spans(spans(500))
    assert max(len(one.data) for one in found) <= 10_000
    assert len(span_messages(found)) == sum(one.items for one in found) == 500


def test_marks_have_no_frame_type_and_native_frames_keep_address_and_build_id() -> None:
    batch = simple(1)
    native = Frame("f", FrameKind.NATIVE, mapping=Mapping("/lib/x.so", "ab" * 20, 4096, 8192), address=5000)
    batch = replace(batch, samples=simple_stack(batch, [mark("truncated"), native]))
    (message,) = parsed(encode_profiles(batch))
    tables = message.dictionary
    (stack,) = tables.stack_table[1:]
    leaf, root = (tables.location_table[index] for index in stack.location_indices)
    assert (leaf.address, root.address, list(root.attribute_indices), root.mapping_index) == (5000, 0, [], 0)
    mapping = tables.mapping_table[leaf.mapping_index]
    assert (mapping.memory_start, mapping.memory_limit, tables.string_table[mapping.filename_strindex]) == (
        4096,
        8192,
        "/lib/x.so",
    )
    assert tables.attribute_table[mapping.attribute_indices[0]].value.string_value == "ab" * 20
