"""A request as a batch: what an exporter makes of it is what came, but for what the module's text names."""

import time

import numpy as np
import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest

from otelprof.batch import SAMPLES, Batch, Frame, FrameKind, Interner, Link, Mapping, ProfileType, Resource, Thread
from otelprof.errors import MalformedInput
from otelprof.formats.otlp_json import to_json
from otelprof.otlp import semconv
from otelprof.otlp.check import check
from otelprof.otlp.decode import decode_profiles
from otelprof.otlp.encode import encode_profiles
from otelprof.otlp.tables import MAX_DEPTH
from otelprof.otlp.to_batch import Requests
from tests.unit.otlp_requests import Builder, simple


def rich():
    """Samples of two processes with all that a batch can hold."""
    interner = Interner()
    now = time.time_ns()
    native = Mapping("/lib/libc.so.6", "abcd", 0x1000, 0x9000, 0x1000, "ff" * 16)
    stacks = [
        interner.stack([Frame("main", FrameKind.CPYTHON, "app.py", 3, 1), Frame("work", FrameKind.CPYTHON, "app.py", 9, 7)]),
        interner.stack(
            [
                Frame("main", FrameKind.CPYTHON, "app.py", 3, 1),
                Frame("f()", FrameKind.NATIVE, "", 0, 0, "_Z1fv", native, 0x2000),
            ]
        ),
        interner.stack([Frame("gemm", FrameKind.CUDA, system_name="void gemm<int>")]),
    ]
    resources = [interner.resources.id(Resource((("process.pid", pid), ("service.name", f"s{pid}")))) for pid in (1, 2)]
    links = [0, interner.link(b"t" * 16, b"s" * 8)]
    types = [interner.types.id(kind) for kind in (semconv.CPU, semconv.GPU_KERNEL_TIME)]
    table = np.zeros(12, SAMPLES)
    for number, row in enumerate(table):
        row["time"], row["value"], row["type"] = now, number + 1, types[number % 2]
        row["resource"], row["stack"], row["link"] = resources[number // 6], stacks[number % 3], links[number % 2]
        row["thread"] = interner.threads.id(Thread(number % 4, f"t{number % 4}"))
        row["attributes"] = interner.attributes.id((("cuda.device", number % 2),))
    return Batch(interner, now, now + 10**9, table, clock_offset=0)


def content(data):
    """The samples of a request by all that tells them apart, as a store sees them."""
    profiles = decode_profiles(data)
    series = {one.key: (one.type, one.labels) for one in profiles.series}
    rows = profiles.samples
    return sorted((series[row["series"]], row["stack"], row["span"], row["value"], row["count"], row["time"]) for row in rows)


def attributes(data):
    request = ExportProfilesServiceRequest.FromString(data)
    return [sorted(map(str, group.resource.attributes)) for group in request.resource_profiles]


def test_what_goes_out_again_is_what_came_in():
    (sent,) = encode_profiles(rich())
    received = Requests().received(sent.data)
    (again,) = encode_profiles(received.batch)
    assert (again.items, again.samples) == (sent.items, sent.samples)
    assert content(again.data) == content(sent.data)
    assert attributes(again.data) == attributes(sent.data)
    assert check(again.data) == []
    assert received.refused.samples == {}


def test_json_is_the_same():
    (sent,) = encode_profiles(rich())
    (again,) = encode_profiles(Requests().received(to_json(sent).encode(), is_json=True).batch)
    assert content(again.data) == content(sent.data)


def test_frames_threads_types_and_links_keep_their_form():
    (sent,) = encode_profiles(rich())
    batch = Requests().received(sent.data).batch
    interner = batch.interner
    frames = {frame.name: frame for number in set(batch.samples["stack"].tolist()) for frame in interner.frames_of(number)}
    assert frames["f()"].system_name == "_Z1fv"
    assert frames["f()"].mapping == Mapping("/lib/libc.so.6", "abcd", 0x1000, 0x9000, 0x1000, "ff" * 16)
    assert (frames["work"].file, frames["work"].line, frames["work"].start_line) == ("app.py", 9, 7)
    assert {frame.kind for frame in frames.values()} == {FrameKind.CPYTHON, FrameKind.NATIVE, FrameKind.CUDA}
    assert {interner.threads[number] for number in batch.samples["thread"]} == {Thread(n, f"t{n}") for n in range(4)}
    assert {interner.types[number] for number in batch.samples["type"]} == {semconv.CPU, semconv.GPU_KERNEL_TIME}
    assert {interner.links[number] for number in batch.samples["link"]} == {None, Link(b"t" * 16, b"s" * 8)}
    assert {interner.attributes[number] for number in batch.samples["attributes"]} == {(("cuda.device", n),) for n in (0, 1)}


def test_references_as_the_collector_writes_them_are_resolved():
    builder = simple()
    attribute = builder.resource.resource.attributes[0]
    attribute.key_strindex, attribute.key = builder.text(attribute.key), ""
    attribute.value.string_value_strindex = builder.text("shop")
    batch = Requests().received(builder.data()).batch
    assert {batch.interner.resources[number] for number in batch.samples["resource"]} == {Resource((("service.name", "shop"),))}


def test_times_alone_count_one_each_and_values_stay_with_their_times():
    builder = Builder()
    start = builder.start
    builder.sample("main", "work", values=(), timestamps_unix_nano=[start, start + 5])
    builder.sample("main", values=(3, 4), timestamps_unix_nano=[start + 1, start + 2])
    rows = Requests().received(builder.data()).batch.samples
    assert sorted(zip((rows["time"] - start).tolist(), rows["value"].tolist(), strict=True)) == [(0, 1), (1, 3), (2, 4), (5, 1)]


def test_bad_samples_are_counted_and_the_good_ones_taken():
    builder = simple()
    builder.sample("main").stack_index = 999
    builder.sample("main").link_index = -1
    builder.sample("main").attribute_indices.append(77)
    builder.sample("main", values=())
    builder.sample("main", values=(1, 2), timestamps_unix_nano=[1])
    received = Requests().received(builder.data())
    assert int(received.batch.samples["value"].sum()) == 10
    assert received.refused.samples == {"index": 3, "no_value": 1, "lengths_differ": 1}
    assert received.refused.profiles == 0


def test_a_profile_without_a_type_is_refused_whole():
    builder = Builder()
    builder.sample("main")
    builder.current.ClearField("sample_type")
    received = Requests().received(builder.data())
    assert (received.refused.samples, received.refused.profiles) == ({"bad_type": 1}, 1)


def test_a_frame_without_a_name_is_named_after_its_file():
    builder = Builder()
    mapping = builder.tables.mapping_table.add(
        memory_start=0x1000, memory_limit=0x2000, filename_strindex=builder.text("/x/liby.so")
    )
    builder.sample("")
    builder.tables.location_table[-1].mapping_index = 1
    builder.tables.location_table[-1].address = 0x1234
    batch = Requests().received(builder.data()).batch
    assert mapping.memory_start == 0x1000
    assert [frame.name for frame in batch.interner.frames_of(int(batch.samples["stack"][0]))] == ["liby.so+0x234"]


def test_a_stack_that_is_too_deep_is_cut_at_its_root_with_the_mark():
    builder = Builder()
    place = builder.location("f")
    builder.tables.stack_table.add().location_indices.extend([place] * (MAX_DEPTH + 100))
    builder.current.samples.add(stack_index=len(builder.tables.stack_table) - 1, values=[1])
    batch = Requests().received(builder.data()).batch
    frames = batch.interner.frames_of(int(batch.samples["stack"][0]))
    assert (len(frames), frames[0].name, frames[1].name) == (MAX_DEPTH + 1, "[truncated]", "f")


def test_an_empty_request_is_an_empty_batch_and_nonsense_an_error():
    assert Requests().received(b"").batch.is_empty
    with pytest.raises(MalformedInput):
        Requests().received(b"\xff\xff")


def test_requests_share_an_interner_until_it_is_full(monkeypatch):
    requests = Requests()
    first = requests.received(simple().data()).batch.interner
    assert requests.received(simple().data()).batch.interner is first
    monkeypatch.setattr(Interner, "LIMIT", 1)
    assert requests.received(simple().data()).batch.interner is not first


def test_a_period_without_a_type_stays_none():
    builder = Builder()
    builder.profile(("off_cpu", "nanoseconds"), ("", "", 0))
    builder.sample("main")
    batch = Requests().received(builder.data()).batch
    assert batch.interner.types[int(batch.samples["type"][0])] == ProfileType("off_cpu", "nanoseconds", "", "", 0)
