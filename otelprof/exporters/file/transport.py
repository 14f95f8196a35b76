"""Requests into files: lines of JSON with rotation by size, or one numbered file for each serialised request."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import IO

from otelprof.errors import OtelprofError
from otelprof.exporters.answers import Answer, Verdict
from otelprof.exporters.file.config import Settings
from otelprof.formats.otlp_json import to_json
from otelprof.otlp.encode import Encoded


class FileTransport:
    """Takes requests as a server would; a full disk is a server that is busy."""

    def __init__(self, settings: Settings) -> None:
        self.endpoint = str(settings.path)
        self._writer = Lines(settings) if settings.format == "otlp_json" else Numbered(settings)

    def open(self) -> None:
        """Make sure that the file can be written."""
        try:
            self._writer.open()
        except OSError as error:
            raise OtelprofError(f"path: {self.endpoint} can't be written: {error.strerror}; name another file") from None

    def send(self, request: Encoded, seconds: float) -> Answer:
        """Write one request."""
        try:
            self._writer.write(request)
        except OSError as error:
            return Answer(Verdict.RETRY, "disk", f"can't be written: {error.strerror}")
        return Answer(Verdict.ACCEPTED)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class Lines:
    """JSON documents, one a line; a full file becomes FILE.1, what was FILE.1 becomes FILE.2, and so on."""

    def __init__(self, settings: Settings) -> None:
        self._path, self._rotation = settings.path, settings.rotation
        self._file: IO[bytes] | None = None

    def open(self) -> None:
        """Open the file to go on at its end, behind a whole line."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab", buffering=0)
        self._size = self._file.tell()

    def write(self, request: Encoded) -> None:
        """Write one line, all of it or nothing."""
        if self._size >= self._rotation.max_size:
            self.close()
            self._rotate()
        if self._file is None:
            self.open()
        assert self._file is not None  # noqa: S101  # just opened
        line = to_json(request).encode() + b"\n"
        if self._file.write(line) != len(line):
            self._file.truncate(self._size)
            raise OSError(28, "no space left on the device")
        self._size += len(line)

    def _rotate(self) -> None:
        names = [self._path, *(Path(f"{self._path}.{number}") for number in range(1, self._rotation.max_backups + 1))]
        names[-1].unlink(missing_ok=True)
        for older, newer in zip(names[::-1], names[-2::-1], strict=False):
            with contextlib.suppress(FileNotFoundError):
                newer.rename(older)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None


class Numbered:
    """Each request a file: `out.pb` becomes `out-000001.pb` and so on; the oldest go."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.path
        self._most = settings.rotation.max_backups + 1
        self._last = 0

    def open(self) -> None:
        """Go on after the last number that is there."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        probe = self._named(0)
        probe.touch()
        probe.unlink()
        self._last = max((self._number(path) for path in self._path.parent.iterdir()), default=0)

    def write(self, request: Encoded) -> None:
        """Write one file, under another name until it is whole."""
        part = self._path.with_name(f".{self._path.name}.part")
        part.write_bytes(request.data)
        part.rename(self._named(self._last + 1))
        self._last += 1
        self._named(self._last - self._most).unlink(missing_ok=True)

    def _named(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.stem}-{number:06}{self._path.suffix}")

    def _number(self, path: Path) -> int:
        pattern = rf"{re.escape(self._path.stem)}-(\d{{6,}}){re.escape(self._path.suffix)}"
        match = re.fullmatch(pattern, path.name)
        return int(match[1]) if match else 0

    def close(self) -> None:
        """Nothing stays open."""
