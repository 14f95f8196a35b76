"""Messages written by the column are what protobuf itself would write."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.profiles.v1development import profiles_pb2 as pb

from otelprof.otlp import wire
from otelprof.otlp.wire import Ragged

U64 = st.integers(0, 2**64 - 1) | st.integers(0, 300)
I64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 300)
I32 = st.integers(0, 2**31 - 1) | st.integers(0, 300)
LISTS = st.lists(I32, max_size=5)


def lists_of(rows: list[list[int]]) -> Ragged:
    return Ragged(np.array([n for row in rows for n in row], np.int64), np.array([len(row) for row in rows], np.int64))


@given(st.lists(st.tuples(I32, LISTS, I32, I64), max_size=20))
def test_samples_are_read_back_as_they_were_written(rows: list[tuple[int, list[int], int, int]]) -> None:
    """All kinds of fields that a Sample has: integers, packed lists, negative numbers, zero left out."""
    stack, attributes, link, value = ([row[n] for row in rows] for n in range(4))
    data = wire.message(
        2,
        wire.integer(1, np.array(stack, np.int64)),
        wire.packed(2, lists_of(attributes)),
        wire.integer(3, np.array(link, np.int64)),
        wire.message(4, wire.varints(np.array(value, np.int64))),
    ).bytes()
    samples = pb.Profile.FromString(data).samples
    assert [(s.stack_index, list(s.attribute_indices), s.link_index, list(s.values)) for s in samples] == [
        (a, b, c, [d]) for a, b, c, d in rows
    ]


@given(st.lists(st.tuples(U64, I32), max_size=20))
def test_the_bytes_are_those_of_protobuf(rows: list[tuple[int, int]]) -> None:
    """A location with a line inside, byte for byte."""
    address, line = np.array([a for a, _ in rows], np.uint64), np.array([b for _, b in rows], np.int64)
    ours = wire.message(2, wire.integer(2, address), wire.message(3, wire.integer(2, line))).bytes()
    theirs = pb.ProfilesDictionary(location_table=[pb.Location(address=a, lines=[pb.Line(line=b)]) for a, b in rows])
    assert ours == theirs.SerializeToString()


@given(st.lists(st.integers(0, 2**63 - 1), max_size=10))
def test_fixed_numbers_and_absent_rows(values: list[int]) -> None:
    """Times are eight bytes each, zero too; blanked rows leave nothing."""
    column = wire.fixed64(3, np.array(values, np.int64))
    for number, value in enumerate(values):
        assert pb.Profile.FromString(column.bytes(number, number + 1)).time_unix_nano == value
    none = wire.blanked(column, np.zeros(len(values), np.bool_))
    assert none.bytes() == b""
    assert len(none) == len(values)


@given(st.lists(st.binary(max_size=6), max_size=12), st.data())
def test_rows_are_taken_and_sliced_like_lists(rows: list[bytes], data: st.DataObject) -> None:
    """`take`, `bytes` and `grouped` do what a list of byte strings would."""
    ragged = Ragged.of(rows)
    wanted = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8)) if rows else []
    assert ragged.take(np.array(wanted, np.int64)).bytes() == b"".join(rows[n] for n in wanted)
    first = data.draw(st.integers(0, len(rows)))
    assert ragged.bytes(first) == b"".join(rows[first:])
    pair = ragged.grouped(np.array([first, len(rows) - first]))
    assert (pair.bytes(0, 1), pair.bytes(1, 2)) == (b"".join(rows[:first]), b"".join(rows[first:]))


@given(st.integers(0, 2**64 - 1))
def test_one_varint_is_the_column_of_one(value: int) -> None:
    """The scalar and the column writer agree."""
    assert wire.varint(value) == wire.varints(np.array([value], np.uint64)).bytes()
