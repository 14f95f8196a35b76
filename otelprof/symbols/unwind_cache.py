"""Unwind tables on disk, so that an agent that starts again, or a second one, needn't make them anew.

A file of the cache is named by what the table was made from: the build id, and a hash of the call frame information itself,
since a build id may lie. It is a result as the parsing process writes it with a hash behind it, which is checked when it is
read. Files appear whole, by renaming, so several agents may share a folder; the oldest go when they become too many.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from otelprof.errors import OtelprofError
from otelprof.symbols.cfi import SECTION_LIMIT
from otelprof.symbols.elf import Elf, FileSource
from otelprof.symbols.unwind_parser import Parsed, read_result

log = logging.getLogger(__name__)

BYTES_LIMIT = 256 << 20
"""Bytes of all files."""
_VERSION = b"1"  # of rules and rows: another one makes all tables anew
_DIGEST = 32
_STEP = 1 << 20


class UnwindCache:
    """See the module's text. Without a folder it holds nothing; what can't be read or written is as if it weren't there."""

    def __init__(self, folder: Path | None, limit: int = BYTES_LIMIT) -> None:
        self._folder, self._limit = folder, limit

    def key(self, file: int) -> str | None:
        """The name for an open file; None when it can't be told, or nothing is kept."""
        if self._folder is None:
            return None
        source = FileSource(os.dup(file))
        try:
            return _key(Elf(source))
        except OtelprofError:
            return None
        finally:
            source.close()

    def get(self, key: str) -> Parsed | None:
        """The table that was kept under this name; None when there is none, or it isn't whole."""
        if self._folder is None:
            return None
        try:
            file = os.open(self._folder / key, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        size = os.fstat(file).st_size - _DIGEST
        found = None
        if size > 0 and os.pread(file, _DIGEST, size) == _hash(file, 0, size):
            found = read_result(file)
        if found is None or found.rules is None:
            os.close(file)
            return None
        with suppress(OSError):
            os.utime(file)
        return found

    def put(self, key: str, table: Parsed) -> None:
        """Keep a table."""
        if self._folder is None or table.rules is None:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self._folder, key, table.file)
            self._make_room(self._folder)
        except OSError as error:
            log.info("unwind tables can't be kept in %s: %s", self._folder, error.strerror)
            self._folder = None

    def _write(self, folder: Path, key: str, file: int) -> None:
        size = os.fstat(file).st_size
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as new:
            try:
                for at in range(0, size, _STEP):
                    new.write(os.pread(file, min(_STEP, size - at), at))
                new.write(_hash(file, 0, size))
                new.close()
                Path(new.name).replace(folder / key)
            except OSError:
                Path(new.name).unlink(missing_ok=True)
                raise

    def _make_room(self, folder: Path) -> None:
        """Take away what was used longest ago."""
        found = []
        for entry in os.scandir(folder):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._limit:
                return
            with suppress(OSError):
                Path(path).unlink()
            total -= size


def _key(elf: Elf) -> str | None:
    for name in (".eh_frame", ".debug_frame"):
        section = elf.section(name)
        if section is not None and 0 < int(section["size"]) <= SECTION_LIMIT:
            content = hashlib.blake2b(_VERSION + name.encode() + section.tobytes(), digest_size=16)
            for at in range(0, int(section["size"]), _STEP):
                content.update(elf.source.read(int(section["offset"]) + at, min(_STEP, int(section["size"]) - at)))
            return f"{elf.build_id or 'none'}-{content.hexdigest()}"
    return None


def _hash(file: int, start: int, size: int) -> bytes:
    """The hash of a part of a file."""
    found = hashlib.blake2b(digest_size=_DIGEST)
    for at in range(start, start + size, _STEP):
        found.update(os.pread(file, min(_STEP, start + size - at), at))
    return found.digest()
