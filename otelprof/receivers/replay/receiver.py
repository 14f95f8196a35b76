"""Reads a recorded session and hands on its batches, as fast as they are taken.

Times stay as they are in the file. With `loop` the session goes on for ever: a further pass has later times and other
correlation ids, so that nothing in it looks like a repetition, and runs no faster than the time that it stands for.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from otelprof.batch import Batch, CallKind, ProfileType
from otelprof.component import Build, Consumer, Host
from otelprof.counters import LAUNCHES_SEEN, SAMPLES_SEEN, Counters
from otelprof.errors import OtelprofError
from otelprof.formats.session import LINE_LIMIT, Shift, read_session
from otelprof.otlp import semconv
from otelprof.receivers.replay.config import Settings

_SHORTEST_PASS = 100_000_000  # nanoseconds, so that a session of one moment doesn't keep a CPU busy
_STRIDE = 0x9E3779B1  # odd, so that correlation ids of a few passes don't meet


class Replay:
    """See the module's text."""

    def __init__(self, build: Build) -> None:
        self._id = build.id
        self._settings: Settings = build.settings
        self._next = cast(Consumer, build.consumer)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, host: Host) -> None:
        """Open the file and begin to read it; OtelprofError when it can't be opened."""
        file = _open(self._settings.path)
        self._thread = threading.Thread(target=self._run, args=(file, host), name=self._id, daemon=True)
        self._thread.start()
        host.ready(self._id)

    def shutdown(self, deadline: float) -> None:
        """Stop reading."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, file: BinaryIO, host: Host) -> None:
        try:
            with file:
                self._replay(file, host.counters)
        except OtelprofError as error:
            host.fail(error)
        except OSError as error:
            host.fail(OtelprofError(f"{self._settings.path}: can't be read: {error.strerror or error}"))
        else:
            host.finished(self._id)

    def _replay(self, file: BinaryIO, counters: Counters) -> None:
        """All passes: one, or with `loop` as many as there is time for."""
        shift, began = Shift(), time.monotonic()
        while (span := self._pass(file, shift, counters)) is not None and self._settings.loop:
            span = max(span, _SHORTEST_PASS)
            began += span / 1e9
            if self._stopping.wait(max(0.0, began - time.monotonic())):
                return
            shift = Shift(shift.nanoseconds + span, shift.correlation + _STRIDE)
            file.seek(0)

    def _pass(self, file: BinaryIO, shift: Shift, counters: Counters) -> int | None:
        """Hand on the file once; the time that it spans in nanoseconds, None when the agent stops."""
        first, last = 0, 0
        for batch in read_session(_lines(file), str(self._settings.path), shift):
            if self._stopping.is_set():
                return None
            first, last = min(first or batch.start, batch.start), max(last, batch.end)
            _count(batch, counters)
            self._next.consume(batch)
        return last - first


def _open(path: Path) -> BinaryIO:
    """The file, without waiting for anybody to write to a pipe of that name."""
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    except OSError as error:
        raise OtelprofError(f"{path}: can't be opened: {error.strerror}; give the path of a recorded session") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OtelprofError(f"{path}: can't be opened: it is no regular file; give the path of a recorded session")
    return file


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines, cut where they are longer than any line may be."""
    while line := file.readline(LINE_LIMIT + 1):
        yield line


def _count(batch: Batch, counters: Counters) -> None:
    types = batch.interner.types
    on_cpu = [number for number in range(1, len(types)) if cast(ProfileType, types[number]).type == semconv.CPU.type]
    counters.add(SAMPLES_SEEN, int(batch.samples["value"][np.isin(batch.samples["type"], on_cpu)].sum()))
    kind = batch.launches["kind"]
    counters.add(LAUNCHES_SEEN, int(np.count_nonzero((kind == CallKind.KERNEL) | (kind == CallKind.GRAPH))))
