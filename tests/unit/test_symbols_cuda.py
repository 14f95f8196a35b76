"""Kernel names by process and handle: learnt from look-ups, inherited by children, bounded, marked where they are missing."""

import numpy as np
import pytest

from otelprof.batch import Frame, FrameKind, Table
from otelprof.counters import CUDA_NAMES_UNKNOWN, Counters
from otelprof.ebpf.layout import wire
from otelprof.symbols.cuda import KernelNames, kernel_frame

RETURN, NEXT_CALL = "NAME_AT_RETURN", "NAME_AT_NEXT_CALL"


def records(*found: dict) -> Table:
    """`struct cuda_name` records."""
    table = np.zeros(len(found), wire().dtype("cuda_name"))
    for row, record in zip(table, found, strict=True):
        name = record.get("name", b"")
        row["name"], row["length"] = name, len(name)
        row["process"], row["pid"] = record.get("process", 1), record.get("pid", 100)
        row["handle"], row["object"] = record["handle"], record.get("object", 0)
        row["source"] = wire()[record.get("source", RETURN)]
    return table


def names() -> tuple[KernelNames, Counters]:
    counters = Counters()
    return KernelNames(counters), counters


def test_a_handle_has_the_name_of_its_look_up_in_its_own_process_only() -> None:
    known, _ = names()
    known.add(records({"handle": 0x10, "name": b"gemm"}, {"handle": 0x10, "name": b"softmax", "process": 2}))
    assert known.frame(1, 100, 0x10) == Frame("gemm", FrameKind.CUDA)
    assert known.frame(2, 200, 0x10) == Frame("softmax", FrameKind.CUDA)


def test_a_function_shares_the_name_of_its_kernel_whichever_is_told_first() -> None:
    known, _ = names()
    known.add(records({"handle": 0x20, "object": 0x10}, {"handle": 0x10, "name": b"gemm"}))
    assert known.frame(1, 100, 0x20).name == "gemm"


def test_a_handle_that_nobody_saw_shows_its_address_and_counts_once() -> None:
    known, counters = names()
    assert known.frame(1, 100, 0xABC) == Frame("kernel@0xabc", FrameKind.CUDA)
    known.frame(1, 100, 0xABC)
    known.add(records({"handle": 0x20, "object": 0x99}))
    assert known.frame(1, 100, 0x20).name == "kernel@0x20"
    assert counters.get(CUDA_NAMES_UNKNOWN, "not_seen") == 1
    assert counters.get(CUDA_NAMES_UNKNOWN, "object_not_seen") == 1


def test_a_function_never_takes_its_name_from_itself() -> None:
    known, _ = names()
    known.add(records({"handle": 0x20, "object": 0x21}, {"handle": 0x21, "object": 0x20}))
    assert known.frame(1, 100, 0x20).name == "kernel@0x20"


def test_a_child_goes_on_with_its_parents_names_and_keeps_them() -> None:
    known, _ = names()
    known.add(records({"handle": 0x10, "name": b"gemm"}))
    known.inherit(1, 2)
    known.add(records({"handle": 0x11, "name": b"later"}))
    known.leave(1, 100)
    assert known.frame(2, 200, 0x10).name == "gemm"
    assert known.frame(2, 200, 0x11).name == "kernel@0x11"
    assert known.frame(1, 100, 0x10).name == "kernel@0x10"


def test_the_last_look_up_of_a_handle_counts_but_a_certain_name_stays() -> None:
    known, _ = names()
    known.add(records({"handle": 0x10, "name": b"old"}, {"handle": 0x10, "name": b"new"}))
    known.add(records({"handle": 0x10, "name": b"guess", "source": NEXT_CALL}))
    assert known.frame(1, 100, 0x10).name == "new"
    known.add(records({"handle": 0x11, "name": b"guess", "source": NEXT_CALL}, {"handle": 0x11, "name": b"sure"}))
    assert known.frame(1, 100, 0x11).name == "sure"


def test_a_program_that_looks_the_same_kernel_up_again_and_again_costs_one_name() -> None:
    known, _ = names()
    known.add(np.tile(records({"handle": 0x10, "name": b"old"}, {"handle": 0x11, "name": b"k"}), 20_000))
    known.add(records({"handle": 0x10, "name": b"older"}, {"handle": 0x10, "name": b"new"}, {"handle": 0x11, "name": b"k"}))
    known.add(records()[:0])
    assert (known.frame(1, 100, 0x10).name, known.frame(1, 100, 0x11).name) == ("new", "k")


def test_names_of_a_process_without_a_number_are_found_by_its_pid() -> None:
    known, _ = names()
    known.add(records({"handle": 0x10, "name": b"early", "process": 0, "pid": 100}))
    assert known.frame(0, 100, 0x10).name == "early"
    assert known.frame(7, 100, 0x10).name == "early"
    assert known.frame(7, 101, 0x10).name == "kernel@0x10"
    known.leave(7, 100)
    assert known.frame(7, 100, 0x10).name == "kernel@0x10"


def test_memory_is_bounded_by_the_handles_of_a_process() -> None:
    known = KernelNames(Counters(), limit=3)
    known.add(records(*({"handle": 0x10 + number, "name": b"k%d" % number} for number in range(5))))
    assert [known.frame(1, 100, 0x10 + number).name for number in range(5)] == ["kernel@0x10", "kernel@0x11", "k2", "k3", "k4"]


def test_a_mangled_name_is_shown_short_and_kept_whole() -> None:
    pytest.importorskip("pycxxfilt", reason="no demangler: pip install pycxxfilt")
    found = kernel_frame(b"_ZN2at6native4fillIfEEvPT_i")
    assert found.name == "at::native::fill<float>"
    assert found.system_name == "_ZN2at6native4fillIfEEvPT_i"


def test_a_cut_name_ends_in_an_ellipsis() -> None:
    known, _ = names()
    longest = records({"handle": 1, "name": b""}).dtype["name"].itemsize - 1
    known.add(records({"handle": 0x10, "name": b"k" * longest}))
    assert known.frame(1, 100, 0x10).name == "k" * longest + "…"


def test_bytes_that_are_no_text_become_one() -> None:
    assert kernel_frame(b"gemm\xff\xfe").name == "gemm��"
