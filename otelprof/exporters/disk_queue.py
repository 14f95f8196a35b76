"""A sender's queue on disk: what waits survives the end of the process, kill -9 included.

Each request is a file of its own in the folder, written beside and renamed, so that it is there whole or not at all; it goes
when the request has been settled. A request that was under way when the process died is sent again, with the same profile ids,
which receivers know by. With `fsync` it also survives the machine's end; without, the last seconds before that may be missing.
The folder is bounded like the queue in memory: the oldest go. When the disk is full, requests wait in memory instead.

File, little-endian: MAGIC, version u8, signal u8 (1 profiles, 2 traces), items u32, samples u32, length u64, CRC-32 of the data
u32, the data.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import struct
import zlib
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from otelprof.component import Signal
from otelprof.errors import OtelprofError
from otelprof.otlp.encode import Encoded

log = logging.getLogger(__name__)

MAGIC = b"OTPQ"
_VERSION = 1
_HEAD = struct.Struct("<4sBBIIQI")
_SIGNALS = {1: Signal.PROFILES, 2: Signal.TRACES}
_NUMBERS = {signal: number for number, signal in _SIGNALS.items()}
_NAME = re.compile(r"(\d{20})\.request")
MAX_REQUESTS = 65_536
"""Files of one queue, so that small requests can't use up a file system's inodes."""


@dataclass(eq=False, slots=True)
class _Entry:
    """One request that waits: in the file `number`, or in memory when the disk didn't take it."""

    number: int
    size: int
    signal: Signal
    items: int
    samples: int
    data: bytes | None = None

    def encoded(self, data: bytes = b"") -> Encoded:
        return Encoded(self.signal, data, self.items, self.samples)


class DiskQueue:
    """Encoded requests in order, bounded by their bytes; see the module's text. Its user serialises the calls."""

    def __init__(self, folder: Path, limit: int, fsync: bool = False) -> None:
        self._folder, self._limit, self._fsync = folder, limit, fsync
        self._entries: deque[_Entry] = deque()
        self._under_way: _Entry | None = None
        self._bytes = 0
        self._next = 1
        self._said = False
        self.lost: list[Encoded] = []
        """Requests of damaged files, or beyond the limit at the start, without their data; whoever counts losses empties it."""
        self._lock = self._open()
        self._load()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """Bytes that wait."""
        return self._bytes

    @property
    def kept(self) -> int:
        """Requests that stay on disk for the next start."""
        return sum(entry.data is None for entry in (*self._entries, *([self._under_way] if self._under_way else [])))

    def put(self, request: Encoded) -> list[Encoded]:
        """Add a request; those that had to go for it (without their data)."""
        entry = _Entry(self._next, len(request.data) + _HEAD.size, request.signal, request.items, request.samples)
        self._next += 1
        dropped = self._make_room(entry.size)
        if entry.size > self._limit:
            return [*dropped, entry.encoded()]
        try:
            _write(self._path(entry.number), _packed(request), self._fsync)
        except OSError as error:
            entry.data = request.data
            self._say_full(error)
        self._entries.append(entry)
        self._bytes += entry.size
        return dropped

    def take(self) -> Encoded | None:
        """The oldest request, which stays on disk until `done`; None when its file is damaged, and then it is in `lost`."""
        entry = self._entries.popleft()
        self._bytes -= entry.size
        data = entry.data if entry.data is not None else _read(self._path(entry.number), entry.size)
        if data is None:
            self.lost.append(entry.encoded())
            self._remove(entry)
            return None
        self._under_way = entry
        return entry.encoded(data)

    def done(self) -> None:
        """The request that was taken last is settled."""
        if self._under_way is not None:
            self._remove(self._under_way)
            self._under_way = None

    def keeps_current(self) -> bool:
        """True when the request under way stays for the next start."""
        return self._under_way is not None and self._under_way.data is None

    def close(self) -> list[Encoded]:
        """Leave the folder to the next start; the requests that were in memory only and are lost."""
        lost = [entry.encoded() for entry in self._entries if entry.data is not None]
        self._entries.clear()
        self._bytes = 0
        os.close(self._lock)
        return lost

    # ---- files

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:020}.request"

    def _open(self) -> int:
        """Make the folder and take it for this process alone."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OtelprofError(
                f"sending_queue.storage: {self._folder} can't be used: {error.strerror}; name another directory"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise OtelprofError(
                f"sending_queue.storage: {self._folder} is in use by another agent; give each a directory of its own"
            ) from None
        return lock

    def _load(self) -> None:
        """What an earlier process left, oldest first; beginnings of files go."""
        numbers = []
        for path in self._folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match:
                numbers.append(int(match[1]))
            elif path.suffix == ".part":
                path.unlink(missing_ok=True)
        for number in sorted(numbers):
            self._next = number + 1
            entry = self._head(number)
            if entry is None:
                self._path(number).unlink(missing_ok=True)
                self.lost.append(Encoded(Signal.PROFILES, b"", 1))
            else:
                self._entries.append(entry)
                self._bytes += entry.size
        self.lost += self._make_room(0)

    def _head(self, number: int) -> _Entry | None:
        """The entry of a file, or None when it isn't whole."""
        with contextlib.suppress(OSError), self._path(number).open("rb") as file:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return None
            magic, version, signal, items, samples, length, _ = _HEAD.unpack(head)
            whole = os.fstat(file.fileno()).st_size == _HEAD.size + length
            if magic == MAGIC and version == _VERSION and signal in _SIGNALS and whole:
                return _Entry(number, _HEAD.size + length, _SIGNALS[signal], items, samples)
        return None

    def _remove(self, entry: _Entry) -> None:
        if entry.data is None:
            with contextlib.suppress(OSError):
                self._path(entry.number).unlink(missing_ok=True)

    def _make_room(self, size: int) -> list[Encoded]:
        """Drop the oldest until `size` more bytes fit."""
        dropped = []
        while self._entries and (self._bytes + size > self._limit or len(self._entries) >= MAX_REQUESTS):
            entry = self._entries.popleft()
            self._bytes -= entry.size
            self._remove(entry)
            dropped.append(entry.encoded())
        return dropped

    def _say_full(self, error: OSError) -> None:
        if not self._said:
            self._said = True
            log.warning("%s can't be written (%s): what waits is kept in memory meanwhile", self._folder, error.strerror)


def _packed(request: Encoded) -> bytes:
    """The content of a request's file."""
    facts = (_NUMBERS[request.signal], request.items, request.samples, len(request.data), zlib.crc32(request.data))
    return _HEAD.pack(MAGIC, _VERSION, *facts) + request.data


def _write(path: Path, content: bytes, fsync: bool) -> None:
    """Make a file, whole or not at all."""
    part = path.with_suffix(".part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            if fsync:
                os.fsync(file.fileno())
        part.rename(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    if fsync:
        _sync(path.parent)


def _sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _read(path: Path, size: int) -> bytes | None:
    """The data in a request's file; None when it isn't what was written."""
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    data = whole[_HEAD.size :]
    return data if len(whole) == size and zlib.crc32(data) == _HEAD.unpack_from(whole)[6] else None
