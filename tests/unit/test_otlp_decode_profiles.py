"""OTLP profiles become columns: every index checked, every shape of a sample read, what is bad dropped and counted."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest

from otelprof.errors import MalformedInput, TooLarge
from otelprof.otlp import tables
from otelprof.otlp.decode import INT64_MAX, Window, decode_profiles
from otelprof.otlp.decoded import Profiles
from tests.unit.otlp_requests import CPU, PERIOD, PROFILE_ID, Builder, simple

ALWAYS = Window(back=10**10, ahead=10**9)


def stacks(profiles: Profiles) -> dict[tuple[str, ...], int]:
    """Values by names, root first."""
    name = dict(zip(profiles.frames.keys.tolist(), profiles.frames.names, strict=True))
    ends = np.cumsum(profiles.stacks.lengths)
    parts = np.split(profiles.stacks.frames, ends[:-1]) if len(ends) else []
    named = {key: tuple(name[f] for f in part.tolist()) for key, part in zip(profiles.stacks.keys.tolist(), parts, strict=True)}
    found: dict[tuple[str, ...], int] = {}
    for row in profiles.samples:
        found[named[int(row["stack"])]] = found.get(named[int(row["stack"])], 0) + int(row["value"])
    return found


def test_values_times_the_period_stand_under_their_stack_root_first() -> None:
    profiles = decode_profiles(simple().data())
    assert stacks(profiles) == {
        ("main", "work", "inner"): 6 * PERIOD,
        ("main", "work"): 3 * PERIOD,
        ("main", "idle"): PERIOD,
    }
    assert [(one.type, one.labels) for one in profiles.series] == [(CPU, (("service_name", "shop"),))]
    assert profiles.samples["count"].sum() == 10
    assert not profiles.refused.samples


def test_the_same_content_has_the_same_keys_whatever_its_place_in_the_dictionary() -> None:
    start = time.time_ns()
    one, other = simple(start=start), Builder(start=start, padding=("x", "y", "idle"))
    other.sample("main", "idle", values=(1,))
    other.sample("main", "work", values=(3,))
    other.sample("main", "work", "inner", values=(6,))
    a, b = decode_profiles(one.data()), decode_profiles(other.data())
    assert set(a.stacks.keys.tolist()) == set(b.stacks.keys.tolist())
    assert set(a.frames.keys.tolist()) == set(b.frames.keys.tolist())
    assert a.series == b.series
    assert set(a.samples["content"].tolist()) == set(b.samples["content"].tolist())


def test_another_value_is_another_content() -> None:
    start = time.time_ns()
    a, b = simple(start=start), simple(start=start)
    b.current.samples[0].values[0] += 1
    assert decode_profiles(a.data()).samples["content"][0] != decode_profiles(b.data()).samples["content"][0]


def test_keys_and_strings_that_are_references_are_resolved() -> None:
    builder = simple()
    attribute = builder.resource.resource.attributes[0]
    attribute.Clear()
    attribute.key_strindex = builder.text("service.name")
    attribute.value.string_value_strindex = builder.text("by-reference")
    builder.tables.attribute_table[0].value.SetInParent()  # as the Collector writes entry 0
    series = decode_profiles(builder.data()).series
    assert [one.service for one in series] == ["by-reference"]


def test_missing_zero_elements_do_no_harm() -> None:
    request = ExportProfilesServiceRequest()
    request.dictionary.string_table.extend(["", "samples", "count"])
    profile = request.resource_profiles.add().scope_profiles.add().profiles.add(time_unix_nano=time.time_ns())
    profile.sample_type.type_strindex, profile.sample_type.unit_strindex = 1, 2
    profile.samples.add(values=[4])
    profiles = decode_profiles(request.SerializeToString())
    assert stacks(profiles) == {("[unknown]",): 4}
    assert profiles.series[0].type == "samples:samples:count::"
    assert profiles.series[0].service == "unknown_service"


@pytest.mark.parametrize("index", [-1, 99, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("where", ["stack", "link", "attribute", "location", "function", "string", "mapping"])
def test_an_index_outside_its_table_costs_its_own_samples_only(where: str, index: int) -> None:
    builder = simple()
    sample, location = builder.sample("other", values=(9,)), builder.tables.location_table[-1]
    if where == "stack":
        sample.stack_index = index
    elif where == "link":
        sample.link_index = index
    elif where == "attribute":
        sample.attribute_indices.append(index)
    elif where == "location":
        builder.tables.stack_table[-1].location_indices[0] = index
    elif where == "function":
        location.lines[0].function_index = index
    elif where == "mapping":
        location.mapping_index = index
    else:
        builder.tables.function_table[-1].name_strindex = index
    profiles = decode_profiles(builder.data())
    assert sum(stacks(profiles).values()) == 10 * PERIOD
    assert profiles.refused.samples == {"index": 1}
    assert "1 samples dropped: an index points outside its table" in profiles.refused.text
    assert profiles.refused.profiles == 0


SHAPES = [
    ({"values": (7,)}, 7),
    ({"values": (), "timestamps_unix_nano": [1, 2, 3]}, 3),
    ({"values": (5, 6), "timestamps_unix_nano": [1, 2]}, 11),
    ({"values": (2, 3)}, 5),
]


@pytest.mark.parametrize(("fields", "total"), SHAPES)
def test_each_shape_of_a_sample_is_read(fields: dict[str, Any], total: int) -> None:
    builder = Builder()
    if "timestamps_unix_nano" in fields:
        fields = {**fields, "timestamps_unix_nano": [builder.start + t for t in fields["timestamps_unix_nano"]]}
    builder.sample("main", **fields)
    assert decode_profiles(builder.data()).samples["value"].sum() == total * PERIOD


def test_samples_of_one_second_are_one_row() -> None:
    start = time.time_ns() // 10**9 * 10**9 - 10**9
    builder = Builder(start=start)
    builder.sample("main", values=(), timestamps_unix_nano=[start + 10**7 * n for n in range(150)])
    rows = decode_profiles(builder.data()).samples
    assert sorted((int(row["time"]) - start // 10**6, int(row["count"])) for row in rows) == [(0, 100), (1000, 50)]


def test_values_and_timestamps_of_different_number_are_dropped() -> None:
    builder = simple()
    builder.sample("main", values=(1, 2), timestamps_unix_nano=[builder.start])
    builder.sample("main", values=())
    refused = decode_profiles(builder.data()).refused
    assert refused.samples == {"lengths_differ": 1, "no_value": 1}
    assert refused.profiles == 0


def test_times_outside_the_window_are_refused_and_a_profile_that_loses_all_counts() -> None:
    builder = simple(start=5)
    profiles = decode_profiles(builder.data())
    assert not len(profiles.samples)
    assert profiles.refused.samples == {"outside_window": 3}
    assert profiles.refused.profiles == 1
    assert len(decode_profiles(builder.data(), window=ALWAYS).samples) == 3


def test_values_saturate() -> None:
    builder = Builder()
    builder.sample("main", values=(INT64_MAX,))
    builder.sample("low", values=(-INT64_MAX - 1,))
    assert sorted(stacks(decode_profiles(builder.data())).values()) == [-INT64_MAX, INT64_MAX]


def test_ids_never_become_labels_and_sample_attributes_do() -> None:
    builder = Builder()
    builder.label("process.pid", 12)
    builder.label("host.name", "node-1")
    for number in range(50):
        attributes = [builder.attribute("thread.id", number), builder.attribute("cuda.stream", number)]
        builder.sample("main", attribute_indices=[*attributes, builder.attribute("thread.name", f"t{number % 2}")])
    series = decode_profiles(builder.data()).series
    common = (("host_name", "node-1"), ("service_name", "shop"))
    assert sorted(one.labels for one in series) == [(*common, ("thread_name", "t0")), (*common, ("thread_name", "t1"))]


def test_links_are_kept_as_halves() -> None:
    builder = Builder()
    builder.sample("main", link_index=builder.link(bytes(range(16)), bytes(range(8))))
    row = decode_profiles(builder.data()).samples[0]
    assert (int(row["trace_hi"]), int(row["trace_lo"])) == (0x0001020304050607, 0x08090A0B0C0D0E0F)
    assert int(row["span"]) == 0x0001020304050607
    assert (int(row["profile_hi"]) << 64 | int(row["profile_lo"])).to_bytes(16, "big") == PROFILE_ID


def test_types_have_the_ids_of_pyroscope() -> None:
    builder = Builder()
    builder.profile(("gpu_kernel_time", "nanoseconds"), ("gpu", "nanoseconds", 1))
    builder.sample("main", values=(5,))
    builder.profile(("a:b", "count"), ("gpu", "count", 1))
    builder.sample("main", values=(5,))
    profiles = decode_profiles(builder.data())
    assert [one.type for one in profiles.series] == ["gpu:gpu_kernel_time:nanoseconds:gpu:nanoseconds"]
    assert profiles.refused.samples == {"bad_type": 1}
    assert profiles.refused.profiles == 1


def test_a_frame_without_a_symbol_is_file_and_offset() -> None:
    builder = Builder()
    builder.tables.mapping_table.add(
        memory_start=0x7000, memory_limit=0x9000, file_offset=0x1000, filename_strindex=builder.text("/lib/libfoo.so.1")
    )
    bare = builder.location("", kind="native")
    builder.tables.location_table[bare].address = 0x7234
    builder.tables.location_table[bare].mapping_index = 1
    lone = builder.location("", kind="native")
    builder.tables.location_table[lone].address = 0xABC
    builder.tables.stack_table.add(location_indices=[lone, bare])
    builder.current.samples.add(stack_index=len(builder.tables.stack_table) - 1, values=[1])
    profiles = decode_profiles(builder.data())
    assert stacks(profiles) == {("libfoo.so.1+0x1234", "0xabc"): PERIOD}
    assert set(profiles.frames.kinds) == {"native"}


def test_inlined_lines_unfold_innermost_last() -> None:
    builder = Builder()
    location = builder.tables.location_table[builder.location("inlined", kind="native")]
    outer = builder.tables.location_table[builder.location("outer", kind="native")].lines[0]
    location.lines.append(outer)
    builder.tables.stack_table.add(location_indices=[len(builder.tables.location_table) - 2])
    builder.current.samples.add(stack_index=len(builder.tables.stack_table) - 1, values=[1])
    assert list(stacks(decode_profiles(builder.data()))) == [("outer", "inlined")]


def test_deep_stacks_keep_their_innermost_frames_and_a_mark() -> None:
    builder = Builder()
    leaf, root = builder.location("leaf"), builder.location("root")
    for extra in (0, 1):
        builder.tables.stack_table.add(location_indices=[leaf] * (tables.MAX_DEPTH - 1 + extra) + [root])
        builder.current.samples.add(stack_index=len(builder.tables.stack_table) - 1, values=[1])
    whole, cut = sorted(stacks(decode_profiles(builder.data())))[::-1]
    assert (len(whole), whole[0], whole[-1]) == (tables.MAX_DEPTH, "root", "leaf")
    assert (len(cut), cut[0], cut[1]) == (tables.MAX_DEPTH + 1, "[truncated]", "leaf")


def test_stacks_that_unfold_without_measure_are_refused() -> None:
    builder = Builder()
    location = builder.tables.location_table[builder.location("f")]
    location.lines.extend([location.lines[0]] * 10_000)
    builder.tables.stack_table.add(location_indices=[len(builder.tables.location_table) - 1] * 10_000)
    builder.current.samples.add(stack_index=1, values=[1])
    with pytest.raises(TooLarge, match="frames"):
        decode_profiles(builder.data())


def as_older_revision(value: int, link: int) -> bytes:
    """A request whose sample has the field numbers of opentelemetry-proto 1.9: values 2, attributes 3, link 4."""
    sample = bytes([0x08, 1, 0x12, 1, value, 0x1A, 1, 2]) + (bytes([0x20, link]) if link else b"")
    builder = Builder()
    builder.stack("main")
    marked = builder.current.samples.add(stack_index=77)
    data = builder.data()
    old = b"\x12" + bytes([len(marked.SerializeToString())]) + marked.SerializeToString()
    new = b"\x12" + bytes([len(sample)]) + sample
    request = ExportProfilesServiceRequest()
    request.ParseFromString(data)
    profile = request.resource_profiles[0].scope_profiles[0].profiles[0]
    inner = profile.SerializeToString().replace(old, new)
    profile.ParseFromString(inner)
    return request.SerializeToString()


@pytest.mark.parametrize("link", [0, 3])
def test_an_older_revision_is_refused_by_name_not_read_wrong(link: int) -> None:
    with pytest.raises(MalformedInput, match="older revision"):
        decode_profiles(as_older_revision(100, link))


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x0a\x05abc", simple().data()[:-3], b"\n\x04\n\x02\n\xff"])
def test_bytes_that_are_no_request_are_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(MalformedInput):
        decode_profiles(data)


def test_an_empty_request_is_nothing() -> None:
    assert not len(decode_profiles(b"").samples)


@given(st.binary(max_size=40), st.integers(0, 10_000))
@settings(max_examples=150, deadline=None)
def test_a_damaged_request_is_read_or_refused_but_never_fails(noise: bytes, at: int) -> None:
    data = bytearray(simple(start=1).data())
    data[at % len(data) : at % len(data) + len(noise)] = noise
    try:
        decode_profiles(bytes(data), window=ALWAYS)
    except MalformedInput:
        return
