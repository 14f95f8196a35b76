"""Messages that are read by the column have what protobuf reads of them, however they are shaped."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.profiles.v1development.profiles_pb2 import (
    Function,
    Line,
    Location,
    Profile,
    ProfilesDictionary,
    Sample,
    Stack,
)

from otelprof.otlp.reader import MAX_STEPS, fields, tables, unpacked
from otelprof.otlp.wire import Ragged, varints

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.sampled_from([0, 1, 127, 128, 2**63 - 1, -(2**63), -1]) | st.integers(-(2**63), 2**63 - 1)
UINT64 = st.sampled_from([0, 2**64 - 1, 2**63]) | st.integers(0, 2**64 - 1)
LINES = st.builds(Line, function_index=INT32, line=INT64, column=INT64)
LOCATIONS = st.builds(
    Location,
    mapping_index=INT32,
    address=UINT64,
    lines=st.lists(LINES, max_size=5) | st.lists(LINES, min_size=MAX_STEPS, max_size=MAX_STEPS + 3),
    attribute_indices=st.lists(INT32, max_size=4),
)
FUNCTIONS = st.builds(Function, name_strindex=INT32, system_name_strindex=INT32, filename_strindex=INT32, start_line=INT64)
STACKS = st.builds(Stack, location_indices=st.lists(INT32, max_size=200))


@given(st.lists(LOCATIONS, max_size=8), st.lists(FUNCTIONS, max_size=8), st.lists(STACKS, max_size=8))
@settings(deadline=None)
def test_tables_of_a_dictionary(locations: list[Location], functions: list[Function], stacks: list[Stack]) -> None:
    message = ProfilesDictionary(location_table=locations, function_table=functions, stack_table=stacks)
    found = {number: fields(table) for number, table in tables(message.SerializeToString()).items()}
    assert set(found) == {number for number, table in ((2, locations), (3, functions), (7, stacks)) if table}
    if locations:
        table = found[2]
        assert table.integers(1).tolist() == [one.mapping_index for one in locations]
        assert table.integers(2).view(np.uint64).tolist() == [one.address for one in locations]
        messages, counts = table.submessages(3)
        assert counts.tolist() == [len(one.lines) for one in locations]
        lines = fields(messages)
        read = zip(lines.integers(1).tolist(), lines.integers(2).tolist(), lines.integers(3).tolist(), strict=True)
        assert list(read) == [(line.function_index, line.line, line.column) for one in locations for line in one.lines]
        assert rows(table.packed(4)) == [list(one.attribute_indices) for one in locations]
    if functions:
        assert found[3].integers(4).tolist() == [one.start_line for one in functions]
        assert found[3].integers(2).tolist() == [one.system_name_strindex for one in functions]
    if stacks:
        assert rows(found[7].packed(1)) == [list(one.location_indices) for one in stacks]


def rows(lists: Ragged) -> list[list[int]]:
    """Each row as a list."""
    return [lists.data[start:end].tolist() for start, end in zip(lists.starts.tolist(), lists.ends.tolist(), strict=True)]


@given(st.lists(st.lists(INT64, max_size=6), max_size=6))
@settings(deadline=None)
def test_packed_integers_are_what_the_writer_wrote(lists: list[list[int]]) -> None:
    flat = np.array([value for one in lists for value in one], np.int64)
    written = varints(flat).grouped(np.array([len(one) for one in lists], np.int64))
    assert rows(unpacked(written)) == lists


def test_a_message_with_a_million_fields_takes_no_other_with_it() -> None:
    long = Location(lines=[Line(function_index=i) for i in range(100_000)], attribute_indices=[7])
    message = ProfilesDictionary(location_table=[Location(mapping_index=3), long, Location(mapping_index=4)])
    table = fields(tables(message.SerializeToString())[2])
    messages, counts = table.submessages(3)
    assert counts.tolist() == [0, 100_000, 0]
    assert fields(messages).integers(1).tolist() == list(range(100_000))
    assert rows(table.packed(4)) == [[], [7], []]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_fixed_numbers_are_passed_by(count: int) -> None:
    samples = [Sample(stack_index=5, timestamps_unix_nano=[1, 2], values=[9])] * count
    profile = Profile(samples=samples, time_unix_nano=77)
    found = fields(tables(ProfilesDictionary(stack_table=[Stack()]).SerializeToString())[7])
    assert len(found.messages) == 1
    whole = profile.SerializeToString()
    one = fields(type(found.messages)(np.frombuffer(whole, np.uint8), np.array([0]), np.array([len(whole)])))
    assert (one.number == 2).sum() == count
    assert (one.number == 3).sum() == 1
