"""pprof: Go's own tool reads what we write, and we read it and what others write."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelprof.batch import SAMPLES, Batch, Frame, FrameKind, Interner, Link, Mapping, Resource, Thread
from otelprof.errors import MalformedInput, TooLarge
from otelprof.formats import pprof
from otelprof.formats.pprof_schema import Profile
from otelprof.otlp import semconv

PYTHON = Frame("main", FrameKind.CPYTHON, "app.py", 12, 10)
NATIVE = Frame("at::matmul", FrameKind.NATIVE, mapping=Mapping("/lib/torch.so", "ab" * 20, 4096, 8192), address=5000)
CUDA = Frame("gemm", FrameKind.CUDA, system_name="gemm_kernel(float*)")


def batch() -> Batch:
    """CPU samples and launches of one stack in a span, and CPU samples of another stack."""
    interner = Interner()
    table = np.zeros(3, SAMPLES)
    table["value"] = [5, 7, 2]
    table["type"] = [interner.types.id(kind) for kind in (semconv.CPU, semconv.GPU_KERNEL_LAUNCHES, semconv.CPU)]
    table["stack"] = [interner.stack([PYTHON, NATIVE, CUDA])] * 2 + [interner.stack([PYTHON])]
    table["thread"] = interner.threads.id(Thread(42, "worker"))
    table["resource"] = interner.resources.id(Resource((("process.pid", 41), ("service.name", "shop"))))
    table["link"][:2] = interner.links.id(Link(b"t" * 16, b"s" * 8))
    return Batch(interner, 1_000, 2_000, table, clock_offset=10**18)


def go_tool() -> str:
    """The go command; the tests that need it are skipped without."""
    found = shutil.which("go", path=os.environ.get("PATH", "") + ":/usr/local/go/bin")
    if found is None:
        pytest.skip("the go command is not installed")
    return found


def tool(path: Path, *options: str) -> str:
    environment = {**os.environ, "PPROF_TMPDIR": str(path.parent), "GOTOOLCHAIN": "local", "GOPROXY": "off"}
    done = subprocess.run([go_tool(), "tool", "pprof", *options, str(path)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)  # the go command compiles its tools at first use
def test_go_s_tool_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "profile.pb.gz"
    path.write_bytes(pprof.write(batch()))
    raw = tool(path, "-raw")
    assert "samples/count cpu/nanoseconds[dflt] gpu_kernel_launches/count" in raw
    assert "Period: 10101010" in raw
    top = tool(path, "-top", "-sample_index=samples", "-unit=count")
    assert "5" in next(line for line in top.splitlines() if "[cuda] gemm" in line)
    for text in ("thread:[worker]", "process_id:[41]", "service:[shop]", f"span_id:[{(b's' * 8).hex()}]", "/lib/torch.so"):
        assert text in raw


def test_a_profile_comes_back_with_its_types_frames_and_labels() -> None:
    found = pprof.read(pprof.write(batch()), Resource((("service.name", "read"),)))
    interner = found.interner
    rows = {
        (interner.types[row["type"]], interner.frames_of(int(row["stack"])), int(row["value"])): row for row in found.samples
    }
    native = Frame("at::matmul", FrameKind.NATIVE, "", mapping=NATIVE.mapping, address=5000)
    deep = (PYTHON, native, CUDA)
    assert set(rows) == {(semconv.CPU, deep, 5), (semconv.GPU_KERNEL_LAUNCHES, deep, 7), (semconv.CPU, (PYTHON,), 2)}
    row = rows[semconv.CPU, deep, 5]
    assert interner.threads[row["thread"]] == Thread(42, "worker")
    assert dict(interner.attributes[row["attributes"]])["span_id"] == (b"s" * 8).hex()
    assert (found.start, found.end) == (10**18 + 1_000, 10**18 + 2_000)


def test_values_of_one_stack_are_one_sample() -> None:
    profile = Profile.FromString(gzip.decompress(pprof.write(batch())))
    assert sorted(list(sample.value) for sample in profile.sample) == [[2, 20202020, 0], [5, 50505050, 7]]


def foreign() -> bytes:
    """As another profiler writes it: not compressed, one inlined function, no thread, only cpu/nanoseconds."""
    profile = Profile(string_table=["", "cpu", "nanoseconds", "outer", "inner", "a.c"], period=100, time_nanos=77)
    profile.sample_type.add(type=1, unit=2)
    profile.period_type.type, profile.period_type.unit = 1, 2
    for number, name in ((1, 3), (2, 4)):
        profile.function.add(id=number, name=name, filename=5)
    profile.mapping.add(id=1)
    location = profile.location.add(id=1, mapping_id=1, address=9)
    location.line.add(function_id=2, line=20)
    location.line.add(function_id=1, line=10)
    profile.location.add(id=2, mapping_id=1, address=10)
    profile.sample.add(location_id=[2, 1], value=[300])
    return bytes(profile.SerializeToString())


def test_inlined_functions_are_frames_and_addresses_without_symbols_too() -> None:
    found = pprof.read(foreign())
    frames = found.interner.frames_of(int(found.samples[0]["stack"]))
    assert [(frame.name, frame.line) for frame in frames] == [("outer", 10), ("inner", 20), ("+0xa", 0)]
    kind = found.interner.types[found.samples[0]["type"]]
    assert (kind.type, kind.period_type, kind.period, found.start) == ("cpu", "cpu", 100, 77)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("p.sample[0].location_id[0] = 99", "points to 99"),
        ("p.location[0].line[0].function_id = 98", "points to 98"),
        ("p.location[0].mapping_id = 97", "points to 97"),
        ("p.function[0].name = 500", "points to"),
        ("p.function[0].name = -1", "points to -1"),
        ("p.sample[0].value.append(1)", "another number of values"),
    ],
)
def test_profiles_that_aren_t_sound_are_refused(expression: str, words: str) -> None:
    profile = Profile.FromString(foreign())
    exec(expression, {"p": profile})
    with pytest.raises(MalformedInput, match=words):
        pprof.read(profile.SerializeToString())


@given(st.binary(max_size=60))
def test_bytes_that_are_no_profile_are_refused_or_empty(data: bytes) -> None:
    for form in (data, b"\x1f\x8b" + data, gzip.compress(data)):
        with contextlib.suppress(MalformedInput):
            assert len(pprof.read(form).samples) == 0


def test_a_gzip_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pprof, "MAX_INFLATED", 1 << 20)
    with pytest.raises(TooLarge):
        pprof.read(gzip.compress(bytes(1 << 21)))


def test_a_cut_file_is_refused() -> None:
    with pytest.raises(MalformedInput, match="ends early"):
        pprof.read(pprof.write(batch())[:-20])
