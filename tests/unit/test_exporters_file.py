"""The exporters file and debug: what stands in files and in the log."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import numpy as np
import pytest

from otelprof.batch import SPANS, Batch
from otelprof.component import Build, Signal
from otelprof.counters import EXPORT_SENT, EXPORT_SENT_SPANS
from otelprof.errors import OtelprofError
from otelprof.exporters.debug.config import Settings as DebugSettings
from otelprof.exporters.debug.factory import FACTORY as DEBUG
from otelprof.exporters.file.config import Rotation, Settings
from otelprof.exporters.file.factory import FACTORY
from otelprof.exporters.file.transport import FileTransport
from otelprof.otlp.check import check
from otelprof.otlp.encode import encode_profiles
from otelprof.testing import RecordingHost, sample_batch

BOTH = frozenset({Signal.PROFILES, Signal.TRACES})


def with_span(batch: Batch) -> Batch:
    span = np.zeros(1, SPANS)
    span["trace_id"], span["span_id"], span["end"] = 0xAB, 0xCD, 7
    span["name"] = batch.interner.strings.id("launch gemm")
    return Batch(batch.interner, batch.start, batch.end, samples=batch.samples, spans=span)


def export(settings: Settings, batches: list[Batch]) -> RecordingHost:
    exporter, host = FACTORY.create(Build("file", settings, None, BOTH)), RecordingHost()
    exporter.start(host)
    for batch in batches:
        exporter.consume(batch)  # type: ignore[attr-defined]
    exporter.shutdown(time.monotonic() + 10)
    return host


def test_json_is_a_document_a_line_with_ids_in_hex(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.jsonl"
    host = export(Settings(path), [with_span(sample_batch({"main;work": 3}))])
    profiles, spans = (json.loads(line) for line in path.read_text().splitlines())
    profile = profiles["resourceProfiles"][0]["scopeProfiles"][0]["profiles"][0]
    assert bytes.fromhex(profile["profileId"])[6] >> 4 == 4, "a random UUID"
    assert profile["samples"][0]["values"] == ["3"]
    span = spans["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert (span["traceId"], span["spanId"], span["name"]) == ("ab" * 16, "cd" * 8, "launch gemm")
    assert (host.counters.get(EXPORT_SENT, "file"), host.counters.get(EXPORT_SENT_SPANS, "file")) == (1, 1)


def test_serialised_requests_are_a_file_each_and_go_on_after_a_restart(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "out.pb", "otlp_proto")
    export(settings, [sample_batch({"a": 1}), sample_batch({"b": 1})])
    export(settings, [sample_batch({"c": 1})])
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["out-000001.pb", "out-000002.pb", "out-000003.pb"]
    assert all(check(path.read_bytes()) == [] for path in tmp_path.iterdir())


def test_only_so_many_files_are_kept(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "out.pb", "otlp_proto", Rotation(max_backups=1))
    export(settings, [sample_batch({f"f{number}": 1}) for number in range(4)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-000003.pb", "out-000004.pb"]


def test_a_full_file_of_lines_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    transport = FileTransport(Settings(path, rotation=Rotation(max_size=1, max_backups=2)))  # type: ignore[arg-type]
    transport.open()
    for number in range(5):
        transport.send(encode_profiles(sample_batch({f"f{number}": 1}))[0], 1)
    transport.close()
    files = [path, Path(f"{path}.1"), Path(f"{path}.2")]
    assert sorted(tmp_path.iterdir()) == files
    assert [f"f{4 - number}" in file.read_text() for number, file in enumerate(files)] == [True] * 3


def test_a_path_that_can_t_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    exporter = FACTORY.create(Build("file", Settings(tmp_path / "file" / "out.jsonl")))
    with pytest.raises(OtelprofError, match=r"path: .* can't be written"):
        exporter.start(RecordingHost())
    exporter.shutdown(time.monotonic())


def test_debug_says_what_passes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    exporter, host = DEBUG.create(Build("debug", DebugSettings("detailed"), None, BOTH)), RecordingHost()
    exporter.start(host)
    exporter.consume(with_span(sample_batch({"main;work": 3}, pid=7)))  # type: ignore[attr-defined]
    exporter.shutdown(0)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "debug: profiles 1, samples 1, spans 1",
        "debug:   samples/count process 7 main: main;work 3",
        f"debug:   span launch gemm {'cd' * 8} of trace {'ab' * 16}: 7 ns",
    ]
    assert host.counters.get(EXPORT_SENT, "debug") == 1
