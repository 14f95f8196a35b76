"""Where a recording goes: the last part of its pipeline, which writes one file in one format.

`session` and `otlp-json` keep each event's time and are written as batches come. The others add equal stacks up, in bounded
memory however long the recording runs, and are written at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from otelprof.batch import Batch, FrameKind
from otelprof.component import Build, Factory, Host, Kind, Stability
from otelprof.counters import EXPORT_FAILED, EXPORT_SENT
from otelprof.errors import OtelprofError
from otelprof.formats import folded, pprof, speedscope
from otelprof.formats.merge import Merged
from otelprof.formats.otlp_json import to_json
from otelprof.formats.session import SessionWriter
from otelprof.otlp import semconv
from otelprof.otlp.encode import Encoded, encode_profiles


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """Format, output (`-`: standard output), and whether folded text has lines."""

    form: str
    output: str
    lines: bool = False


class Writer(Protocol):
    """Turns batches into the bytes of files."""

    def write(self, batch: Batch) -> bytes:
        """Take a batch; what is to be written now."""

    def close(self) -> Iterator[bytes]:
        """What is to be written at the end; each further item belongs into a file of its own."""


class _Lines:
    """Written as they come."""

    def __init__(self, encode: Callable[[Batch], bytes]) -> None:
        self._encode = encode

    def write(self, batch: Batch) -> bytes:
        return self._encode(batch)

    def close(self) -> Iterator[bytes]:
        return iter(())


class _Sum:
    """Added up, and written at the end."""

    def __init__(self, encode: Callable[[Batch], Sequence[bytes]], keep_links: bool = False) -> None:
        self._encode = encode
        self._merged = Merged(keep_links)

    def write(self, batch: Batch) -> bytes:
        self._merged.add(batch)
        return b""

    def close(self) -> Iterator[bytes]:
        return iter(self._encode(self._merged.batch()))


def _requests(batch: Batch) -> list[Encoded]:
    return encode_profiles(batch)


def _otlp_json(batch: Batch) -> bytes:
    return b"".join(to_json(request).encode() + b"\n" for request in _requests(batch))


@dataclass(frozen=True, slots=True)
class Format:
    """One format: `raw` holds launches and GPU activity as they were seen, `binary` isn't for terminals."""

    make: Callable[[RecordingSettings], Writer]
    raw: bool = False
    binary: bool = False


FORMATS: dict[str, Format] = {
    "pprof": Format(lambda _: _Sum(lambda batch: [pprof.write(batch)]), binary=True),
    "folded": Format(lambda wanted: _Sum(lambda batch: [folded.write(batch, wanted.lines)])),
    "speedscope": Format(lambda _: _Sum(lambda batch: [speedscope.write(batch)])),
    "otlp": Format(lambda _: _Sum(lambda batch: [one.data for one in _requests(batch)], keep_links=True), binary=True),
    "otlp-json": Format(lambda _: _Lines(_otlp_json)),
    "session": Format(lambda _: _Lines(SessionWriter().write), raw=True),
}


class Recording:
    """The exporter of a recording; `error` is what made writing fail."""

    def __init__(self, settings: RecordingSettings) -> None:
        self.form, self.output = settings.form, settings.output
        self.rows = 0
        self.error: OtelprofError | None = None
        self._writer = FORMATS[settings.form].make(settings)
        self._python: set[object] = set()
        self._pids: set[object] = set()
        self._profiles: set[tuple[object, int]] = set()
        self._closed = False
        self._file = self._open()

    @property
    def processes(self) -> int:
        """Processes that were seen."""
        return len(self._pids)

    def start(self, host: Host) -> None:
        """Remember where to count."""
        self._counters = host.counters

    def consume(self, batch: Batch) -> None:
        """Take a batch."""
        if self.error is not None or self._closed:
            return
        self.rows += len(batch.samples) + len(batch.launches) + len(batch.activity)
        self._note(batch)
        self._put(self._file, self._writer.write(batch))

    def shutdown(self, deadline: float) -> None:
        """Write what is left; safe twice."""
        if self._closed:
            return
        self._closed = True
        if self.error is None and self.rows:
            for number, data in enumerate(self._writer.close()):
                self._put(self._file if number == 0 else self._further(number + 1), data)
        self._close()
        if self._profiles:
            metric, labels = (EXPORT_SENT, ("record",)) if self.error is None else (EXPORT_FAILED, ("record", "disk"))
            self._counters.add(metric, len(self._profiles), *labels)

    def notes(self, pids: Sequence[int]) -> list[str]:
        """One line for each wanted process in which no Python was seen."""
        return [
            f"process {pid}: no Python frames were seen: it isn't Python (yet), or isn't supported; native frames were recorded"
            for pid in pids
            if pid in self._pids and pid not in self._python
        ]

    def _note(self, batch: Batch) -> None:
        pairs = np.unique(batch.samples[["resource", "stack", "type"]])
        for resource, stack, kind in pairs.tolist():
            pid = batch.interner.resources[resource].get(semconv.PROCESS_PID)
            self._pids.add(pid)
            self._profiles.add((pid, kind))
            if pid not in self._python and any(frame.kind is FrameKind.CPYTHON for frame in batch.interner.frames_of(stack)):
                self._python.add(pid)

    def _open(self) -> BinaryIO:
        if self.output == "-":
            return sys.stdout.buffer
        return self._opened(Path(self.output))

    def _opened(self, path: Path) -> BinaryIO:
        try:
            return path.open("wb")
        except OSError as error:
            raise OtelprofError(f"{path}: can't be written: {error.strerror}; name another file with -o") from None

    def _further(self, number: int) -> BinaryIO:
        """The file for a further request, which the first one had no room for: `out.otlp` → `out-2.otlp`."""
        if self.output == "-":
            return self._file
        path = Path(self.output)
        self._close()
        self._file = self._opened(path.with_stem(f"{path.stem}-{number}"))
        return self._file

    def _put(self, file: BinaryIO, data: bytes) -> None:
        try:
            file.write(data)
            file.flush()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it was closed"
            self.error = OtelprofError(f"{self.output}: can't be written: {reason}; the recording isn't complete")

    def _close(self) -> None:
        if self._file is not sys.stdout.buffer:
            try:
                self._file.close()
            except OSError as error:
                self.error = self.error or OtelprofError(f"{self.output}: can't be written: {error.strerror}")


def sink_factory(recording: Recording) -> Factory:
    """The recording as a component type, for the one pipeline that it ends."""

    @dataclass(frozen=True)
    class NoSettings:
        """Everything stands in RecordingSettings."""

    def create(build: Build) -> Recording:
        return recording

    return Factory("record", Kind.EXPORTER, Stability.DEVELOPMENT, NoSettings, create)
