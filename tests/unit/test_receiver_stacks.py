"""The table of stacks: chunks in any order of arrival, ids to stacks, bounds, generations."""

import numpy as np
import pytest

from otelprof.batch import Frame, FrameKind, mark
from otelprof.ebpf.layout import wire
from otelprof.receivers.ebpf.stacks import STOPPED, TRUNCATED, UNKNOWN, StackTable, Walked


def frame(address: int) -> Frame:
    """The frame that `decode` below makes of an address."""
    return Frame(f"f{address}", FrameKind.CPYTHON)


class Decoder:
    """Frames by address, None for address 0; counts the records that it was asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, process: int, records: np.ndarray) -> list[Frame | None]:
        self.asked += len(records)
        return [frame(int(address)) if address else None for address in records["address"]]


def chunk(number: int, parent: int, *addresses: int, process: int = 7) -> np.ndarray:
    """One struct stack_chunk; addresses leaf first, as the kernel has them."""
    record = np.zeros(1, wire().dtype("stack_chunk"))
    record["id"], record["parent"], record["process"] = number, parent, process
    record["kind"], record["count"] = wire()["STACK_PYTHON"], len(addresses)
    record["frames"]["address"][0, : len(addresses)] = addresses
    return record


@pytest.fixture
def table() -> StackTable:
    """An empty table."""
    return StackTable(Decoder(), lambda ids: None)


def names(table: StackTable, number: int) -> list[str]:
    """Names of a stack, root first."""
    return [one.name for one in table.interner.frames_of(number)]


def test_a_stack_is_its_chunks_from_the_root(table: StackTable) -> None:
    table.add(np.concatenate([chunk(20, 10, 5, 4), chunk(10, 0, 3, 2, 1)]))

    assert names(table, table.stack(20)) == ["f1", "f2", "f3", "f4", "f5"]
    assert names(table, table.stack(10)) == ["f1", "f2", "f3"]


def test_frames_that_are_none_are_left_out(table: StackTable) -> None:
    table.add(chunk(10, 0, 3, 0, 1))

    assert names(table, table.stack(10)) == ["f1", "f3"]


def test_what_is_missing_is_marked_at_the_root(table: StackTable) -> None:
    table.add(chunk(20, 10, 5, 4))

    assert names(table, table.stack(20)) == ["[unknown]", "f4", "f5"]
    assert names(table, table.stack(99)) == ["[unknown]"]
    table.add(chunk(10, 0, 1))
    assert names(table, table.stack(20, TRUNCATED)) == ["[truncated]", "f1", "f4", "f5"]


def test_a_chunk_that_never_came_isnt_remembered_as_unknown(table: StackTable) -> None:
    before = table.stack(10)
    table.add(chunk(10, 0, 1))

    assert names(table, before) == ["[unknown]"]
    assert names(table, table.stack(10)) == ["f1"]


def test_chunks_that_form_a_ring_end(table: StackTable) -> None:
    table.add(np.concatenate([chunk(10, 20, 1), chunk(20, 10, 2)]))

    assert len(names(table, table.stack(10))) <= 64


def test_each_chunk_is_decoded_once() -> None:
    decoder = Decoder()
    table = StackTable(decoder, lambda ids: None)
    table.add(chunk(10, 0, 3, 2, 1))
    for _ in range(100):
        table.stack(10)

    assert decoder.asked == 3


def test_a_full_table_is_dropped_and_asked_for_again() -> None:
    forgotten: list[int] = []
    table = StackTable(Decoder(), forgotten.extend)
    table.LIMIT = 2
    table.add(chunk(1, 0, 1))
    table.add(chunk(2, 0, 2))
    table.add(chunk(3, 0, 3))

    assert sorted(forgotten) == [1, 2]
    assert len(table) == 1
    assert names(table, table.stack(1)) == ["[unknown]"]
    assert names(table, table.stack(3)) == ["f3"]


def test_what_belongs_to_an_ended_process_goes_with_it(table: StackTable) -> None:
    table.add(np.concatenate([chunk(1, 0, 1, process=7), chunk(2, 0, 2, process=8)]))
    table.stack(1)
    table.ended({7})

    assert len(table) == 1
    assert names(table, table.stack(1)) == ["[unknown]"]
    assert names(table, table.stack(2)) == ["f2"]


def test_a_new_generation_begins_when_the_interner_is_full(table: StackTable) -> None:
    table.add(chunk(1, 0, 1))
    first, old = table.stack(1), table.interner
    old.LIMIT = 1
    table.new_generation_if_full()

    assert table.interner is not old
    assert [one.name for one in old.frames_of(first)] == ["f1"]
    assert names(table, table.stack(1)) == ["f1"]


def test_marks_are_frames_of_their_kind() -> None:
    assert mark("unknown") == UNKNOWN
    assert UNKNOWN.kind is FrameKind.MARK


def native_chunk(number: int, parent: int, *frames: tuple[int, int]) -> np.ndarray:
    """A native chunk; frames leaf first, each (address, how many Python frames stand there)."""
    record = chunk(number, parent, *(address for address, _ in frames))
    record["kind"] = wire()["STACK_NATIVE"]
    record["frames"]["check"][0, : len(frames)] = [count for _, count in frames]
    return record


@pytest.fixture
def mixed() -> StackTable:
    """Python frames 5 … 1 (leaf first) in chunk 10; native ones by their address."""
    table = StackTable(Decoder(), lambda ids: None, lambda process, records: [frame(int(a)) for a in records["address"]])
    table.add(chunk(10, 0, 5, 4, 3, 2, 1))
    return table


def test_python_frames_take_the_places_of_their_evaluation_calls(mixed: StackTable) -> None:
    mixed.add(np.concatenate([native_chunk(30, 20, (90, 0), (91, 2), (92, 0)), native_chunk(20, 0, (93, 3), (94, 0))]))

    number = mixed.whole(Walked(10, None, 30))
    assert names(mixed, number) == ["f94", "f1", "f2", "f3", "f92", "f4", "f5", "f90"]


def test_a_native_walk_that_stopped_keeps_all_python_frames(mixed: StackTable) -> None:
    """Those that have no place stand below the mark of what is missing."""
    mixed.add(native_chunk(30, 0, (90, 0), (91, 2), (92, 0)))

    number = mixed.whole(Walked(10, TRUNCATED, 30, STOPPED))
    assert names(mixed, number) == ["[truncated]", "f1", "f2", "f3", "[unwinding stopped]", "f92", "f4", "f5", "f90"]


def test_frames_that_are_none_keep_their_places(mixed: StackTable) -> None:
    mixed.add(np.concatenate([chunk(11, 0, 5, 0, 3), native_chunk(30, 0, (90, 2), (91, 0), (92, 1))]))

    assert names(mixed, mixed.whole(Walked(11, None, 30))) == ["f3", "f91", "f5"]


def test_a_native_stack_alone_is_whole(mixed: StackTable) -> None:
    mixed.add(native_chunk(30, 0, (90, 0), (91, 0)))

    assert names(mixed, mixed.whole(Walked(0, None, 30))) == ["f91", "f90"]


def test_more_places_than_python_frames_lose_nothing(mixed: StackTable) -> None:
    mixed.add(native_chunk(30, 0, (90, 4), (91, 9), (92, 3)))

    assert names(mixed, mixed.whole(Walked(10, None, 30))) == ["f1", "f2", "f3", "f4", "f5"]
