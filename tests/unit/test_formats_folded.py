"""Folded text: what is documented stands in it, and nothing in names can break it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelprof.batch import SAMPLES, Batch, Frame, FrameKind, Interner, Resource, mark, rows
from otelprof.errors import MalformedInput
from otelprof.formats import folded
from otelprof.otlp import semconv

NAMES = st.text(st.characters(codec=None), max_size=10) | st.text("\\;([]) \n\r\t\x00:x1", max_size=10)
FRAMES = st.one_of(
    st.builds(Frame, NAMES, st.just(FrameKind.CPYTHON), NAMES, st.integers(0, 1 << 24)),
    st.builds(Frame, NAMES, st.sampled_from([FrameKind.NATIVE, FrameKind.KERNEL, FrameKind.CUDA])),
    st.sampled_from([mark("truncated"), mark("lost: ring full")]),
)
STACKS = st.lists(st.tuples(st.lists(FRAMES, min_size=1, max_size=5), st.integers(1, 1 << 40)), max_size=6)


def batch(stacks: list[tuple[list[Frame], int]], kind: object = semconv.CPU) -> Batch:
    interner = Interner()
    resource = interner.resources.id(Resource(()))
    values = [(0, count, interner.types.id(kind), resource, interner.stack(frames), 0, 0, 0) for frames, count in stacks]  # type: ignore[arg-type]
    return Batch(interner, 0, 1, rows(SAMPLES, values))


def counted(found: Batch) -> Counter[tuple[Frame, ...]]:
    counts: Counter[tuple[Frame, ...]] = Counter()
    for row in found.samples:
        counts[found.interner.frames_of(int(row["stack"]))] += int(row["value"])
    return counts


def whole(text: str) -> str:
    """Without lone surrogates, which no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@given(STACKS)
def test_with_lines_every_frame_comes_back(stacks: list[tuple[list[Frame], int]]) -> None:
    expected: Counter[tuple[Frame, ...]] = Counter()
    for frames, count in stacks:
        expected[tuple(Frame(whole(f.name), f.kind, whole(f.file), f.line) for f in frames)] += count
    assert counted(folded.read(folded.write(batch(stacks), lines=True))) == expected


@given(STACKS)
def test_without_lines_the_names_come_back(stacks: list[tuple[list[Frame], int]]) -> None:
    names: Counter[tuple[str, ...]] = Counter()
    for frames, count in stacks:
        names[tuple(whole(frame.name) for frame in frames)] += count
    found: Counter[tuple[str, ...]] = Counter()
    for read, count in counted(folded.read(folded.write(batch(stacks)))).items():
        found[tuple(frame.name for frame in read)] += count
    assert found == names


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (Frame("f", FrameKind.CPYTHON, "a.py", 3), "f (a.py:3)"),
        (Frame("a;b\\c\n\x07", FrameKind.CPYTHON, "x(1).py", 0), r"a\;b\\c\n\x07 (x\x281).py:0)"),
        (Frame("<lambda>(x)", FrameKind.CPYTHON, "a.py", 1), r"<lambda>\x28x) (a.py:1)"),
        (Frame("", FrameKind.CPYTHON, "a.py", 1), "[unnamed] (a.py:1)"),
        (Frame("[odd", FrameKind.CPYTHON, "a.py", 1), r"\[odd (a.py:1)"),
        (Frame("f(int)", FrameKind.NATIVE, "f.cc", 9), "f(int)"),
        (Frame("f (x:1)", FrameKind.NATIVE), r"f \x28x:1)"),
        (Frame("gemm<float>", FrameKind.CUDA), "[cuda] gemm<float>"),
        (Frame("do_syscall_64", FrameKind.KERNEL), "[kernel] do_syscall_64"),
        (mark("truncated"), "[truncated]"),
    ],
)
def test_a_frame_is_written_as_documented(frame: Frame, text: str) -> None:
    assert folded.frame_text(frame, lines=True) == text


def test_only_the_wanted_type_stands_in_the_text() -> None:
    assert folded.write(batch([([Frame("f", FrameKind.CPYTHON)], 2)], semconv.OFF_CPU)) == b""
    assert folded.write(batch([([Frame("f", FrameKind.CPYTHON)], 2)], semconv.OFF_CPU), kind="off_cpu") == b"f 2\n"


def test_equal_stacks_are_one_line_and_a_stack_without_frames_is_unknown() -> None:
    frames = [Frame("f", FrameKind.CPYTHON)]
    assert folded.write(batch([(frames, 2), (frames, 3), ([], 1)])) == b"[unknown] 1\nf 5\n"


@pytest.mark.parametrize("line", [b"f", b"f x", b"f -1", b"f \xd9\xa3", b"f \xff 3", b" 3", b"f 99999999999999999999"])
def test_a_bad_line_is_named_by_its_number(line: bytes) -> None:
    with pytest.raises(MalformedInput, match=r"^line 3: "):
        folded.read(b"a;b 1\n\n" + line + b"\nc 1\n")
