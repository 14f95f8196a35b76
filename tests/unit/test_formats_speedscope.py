"""speedscope: the document has the form of its schema, and both of its kinds of profiles are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelprof.batch import Frame, FrameKind
from otelprof.errors import MalformedInput
from otelprof.formats import speedscope
from otelprof.otlp import semconv
from otelprof.testing import sample_batch


def test_a_document_holds_frames_once_and_samples_root_first() -> None:
    document = json.loads(
        speedscope.write(sample_batch({"main;work": 3, "main": 1}, pid=7, attributes={"service.name": "shop"}))
    )
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert [frame["name"] for frame in document["shared"]["frames"]] == ["main", "work"]
    (profile,) = document["profiles"]
    assert profile == {
        "type": "sampled",
        "name": "samples shop 7",
        "unit": "none",
        "startValue": 0,
        "endValue": 4,
        "samples": [[0, 1], [0]],
        "weights": [3, 1],
    }


@given(st.dictionaries(st.text("abc;", min_size=1, max_size=8).filter(lambda t: all(t.split(";"))), st.integers(1, 1 << 50)))
def test_what_was_written_is_read_back(stacks: dict[str, int]) -> None:
    found = speedscope.read(speedscope.write(sample_batch(stacks)))
    read = {
        ";".join(frame.name for frame in found.interner.frames_of(int(row["stack"]))): int(row["value"])
        for row in found.samples
    }
    assert read == stacks


def document(profile: dict[str, Any]) -> bytes:
    frames = [{"name": "main", "file": "a.py", "line": 3}, {"name": "[cuda] gemm"}, {"name": "[unnamed]"}]
    return json.dumps({"shared": {"frames": frames}, "profiles": [profile]}).encode()


def test_frames_keep_kind_file_and_line() -> None:
    found = speedscope.read(document({"type": "sampled", "samples": [[0, 1, 2]], "weights": [2]}), start=5, end=9)
    assert found.interner.frames_of(int(found.samples[0]["stack"])) == (
        Frame("main", FrameKind.CPYTHON, "a.py", 3),
        Frame("gemm", FrameKind.CUDA),
        Frame("", FrameKind.NATIVE),
    )
    assert (found.interner.types[found.samples[0]["type"]], found.start, found.end) == (semconv.CPU, 5, 9)


def test_events_become_the_time_between_them() -> None:
    events = [("O", 0, 0), ("O", 1, 1.5), ("C", 1, 2), ("C", 0, 4)]
    profile = {"type": "evented", "unit": "milliseconds", "startValue": 0, "events": []}
    profile["events"] = [{"type": kind, "frame": frame, "at": at} for kind, frame, at in events]
    found = speedscope.read(document(profile))
    values = [(len(found.interner.frames_of(int(row["stack"]))), int(row["value"])) for row in found.samples]
    assert values == [(1, 1_500_000), (2, 500_000), (1, 2_000_000)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        document({"type": "sampled", "samples": [[9]], "weights": [1]}),
        document({"type": "sampled", "samples": [[-1]], "weights": [1]}),
        document({"type": "sampled", "samples": [["a"]], "weights": [1]}),
        document({"type": "sampled", "samples": [[0]], "weights": []}),
        document({"type": "sampled", "samples": [[0]], "weights": [1e400]}),
        document({"type": "other"}),
        document({"type": "evented", "startValue": 0, "events": [{"type": "C", "frame": 0, "at": 1}]}),
    ],
)
def test_other_documents_are_refused_on_one_line(data: bytes) -> None:
    with pytest.raises(MalformedInput, match=r"^not a speedscope file: ") as caught:
        speedscope.read(data)
    assert "\n" not in str(caught.value)
