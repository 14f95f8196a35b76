"""Ring records to rows: every column, equal rows made once, losses as rows."""

import numpy as np
import pytest

from otelprof.batch import Frame, FrameKind, Resource, mark
from otelprof.counters import LAUNCHES_LOST, SAMPLES_LOST, Counters
from otelprof.ebpf.layout import wire
from otelprof.otlp import semconv
from otelprof.receivers.ebpf.losses import Losses
from otelprof.receivers.ebpf.rows import Rows, columns, distinct
from otelprof.receivers.ebpf.stacks import NO_PYTHON, StackTable

TRACE = bytes(range(1, 17))
SPAN = bytes(range(21, 29))


class Places:
    """Resources by (process, PID); counts how often it was asked."""

    def __init__(self, table: StackTable) -> None:
        self._table = table
        self.asked = 0

    def resource(self, process: int, pid: int) -> int:
        self.asked += 1
        return self._table.interner.resources.id(Resource((("process.pid", pid),)))

    def leaf(self, process: int, instruction: int) -> int:
        return self._table.interner.stack((Frame(f"native+{instruction:#x}", FrameKind.NATIVE),))

    def without_python(self, process: int, state: int) -> Frame:
        return NO_PYTHON


@pytest.fixture
def table() -> StackTable:
    """One known stack, id 10, of one frame `work`."""
    table = StackTable(lambda process, records: [Frame("work", FrameKind.CPYTHON)] * len(records), lambda ids: None)
    chunk = np.zeros(1, wire().dtype("stack_chunk"))
    chunk["id"], chunk["count"], chunk["process"] = 10, 1, 7
    table.add(chunk)
    return table


def samples(count: int) -> np.ndarray:
    """Records of one thread in the known stack."""
    records = np.zeros(count, wire().dtype("sample"))
    origin = records["origin"]
    origin["time"] = np.arange(count) + 1000
    origin["process"], origin["pid"], origin["tid"], origin["python"] = 7, 70, 71, 10
    origin["python_state"] = wire()["PYTHON_COMPLETE"]
    origin["comm"] = b"worker-1"
    return records


def stack_names(table: StackTable, number: int) -> list[str]:
    """Names of a stack, root first."""
    return [one.name for one in table.interner.frames_of(int(number))]


def test_each_sample_is_a_row_with_its_time_place_thread_and_stack(table: StackTable) -> None:
    rows = Rows(table, Places(table)).samples(samples(3), semconv.cpu(99))
    interner = table.interner

    assert rows["time"].tolist() == [1000, 1001, 1002]
    assert rows["value"].tolist() == [1, 1, 1]
    assert interner.types[int(rows["type"][0])] == semconv.CPU
    assert interner.resources[int(rows["resource"][2])].get("process.pid") == 70
    assert (interner.threads[int(rows["thread"][1])].id, interner.threads[int(rows["thread"][1])].name) == (71, "worker-1")
    assert stack_names(table, rows["stack"][0]) == ["work"]
    assert rows["link"].tolist() == [0, 0, 0]


def test_python_is_asked_once_for_equal_rows(table: StackTable) -> None:
    places = Places(table)
    Rows(table, places).samples(samples(10_000), semconv.cpu(99))

    assert places.asked == 1


def test_what_a_walk_lacks_is_marked(table: StackTable) -> None:
    records = samples(4)
    states = ("PYTHON_TRUNCATED", "PYTHON_UNREADABLE", "PYTHON_NO_THREAD_STATE", "PYTHON_NOT_TARGET")
    records["origin"]["python_state"] = [wire()[state] for state in states]
    records["origin"]["python"][2:] = 0
    records["instruction"] = 0x1234
    rows = Rows(table, Places(table)).samples(records, semconv.cpu(99))

    assert [stack_names(table, number) for number in rows["stack"]] == [
        ["[truncated]", "work"],
        ["[unwinding stopped]", "work"],
        ["[no Python frames]"],
        ["native+0x1234"],
    ]


def test_a_thread_name_that_isnt_utf8_is_made_so(table: StackTable) -> None:
    records = samples(1)
    records["origin"]["comm"] = "größe".encode("latin-1")
    rows = Rows(table, Places(table)).samples(records, semconv.cpu(99))

    assert table.interner.threads[int(rows["thread"][0])].name == "gr\ufffd\ufffde"


def test_distinct_puts_ids_back_in_order() -> None:
    keys = np.array([(3, 1), (1, 1), (3, 1), (2, 9)], [("a", "u4"), ("b", "u8")])
    made: list[tuple[int, int]] = []

    def make(key: np.void) -> int:
        made.append((int(key["a"]), int(key["b"])))
        return int(key["a"]) * 10

    assert distinct(keys, make).tolist() == [30, 10, 30, 20]
    assert sorted(made) == [(1, 1), (2, 9), (3, 1)]
    assert distinct(keys[:0], make).tolist() == []


def test_columns_are_packed_copies() -> None:
    packed = columns(samples(2)["origin"], "pid", "tid")

    assert packed.dtype.itemsize == 8
    assert packed["tid"].tolist() == [71, 71]


def losses(*entries: tuple[int, int, str, str, int]) -> np.ndarray:
    """The map `losses` as the session gives it: (process, pid, kind, entry, count)."""
    loss = wire().dtype("loss")
    table = np.zeros(len(entries), [*((name, loss[name]) for name in loss.names or ()), ("count", "u8")])
    for row, (process, pid, kind, entry, count) in zip(table, entries, strict=True):
        row["process"], row["pid"], row["kind"], row["count"] = process, pid, wire()[kind], count
        row["reason"], row["entry"] = wire()["LOST_RING_FULL"], wire()[entry] if entry else 0
    return table


def test_losses_become_rows_of_what_is_new(table: StackTable) -> None:
    counters = Counters()
    seen = Losses(Rows(table, Places(table)), counters)
    seen.take(losses((7, 70, "LOST_SAMPLE", "", 5), (7, 70, "LOST_CALL", "CUDA_LAUNCH_KERNEL", 3)), {})
    seen.take(losses((7, 70, "LOST_SAMPLE", "", 8), (7, 70, "LOST_CALL", "CUDA_LAUNCH_KERNEL", 3)), {})
    rows = seen.rows(semconv.cpu(99), 123)

    found = {(table.interner.types[int(row["type"])].type, int(row["value"])) for row in rows}  # type: ignore[union-attr]
    assert found == {("samples", 8), ("gpu_kernel_launches", 3)}
    assert {tuple(stack_names(table, row["stack"])) for row in rows} == {(mark("lost: ring full").name,)}
    assert (counters.get(SAMPLES_LOST, "ring full"), counters.get(LAUNCHES_LOST, "ring full")) == (8, 3)
    assert len(seen.rows(semconv.cpu(99), 124)) == 0


def test_lost_waits_and_copies_are_no_launches(table: StackTable) -> None:
    counters = Counters()
    seen = Losses(Rows(table, Places(table)), counters)
    seen.take(losses((7, 70, "LOST_CALL", "CUDA_STREAM_SYNCHRONIZE", 4)), {})

    assert len(seen.rows(semconv.cpu(99), 1)) == 0
    assert counters.get(LAUNCHES_LOST) == 0
