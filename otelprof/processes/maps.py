"""Mappings of a process: /proc/PID/maps as sorted tables, and opening the exact file behind a mapping.

Files are opened through /proc/PID/map_files (the very inode that is mapped, also when it was deleted or lives in another
mount namespace) or, without the right for that, through /proc/PID/root; never by a path of our own namespace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from otelprof.errors import TargetError
from otelprof.processes.proc_files import read_file

REGION_LIMIT = 65_536
"""Mappings kept of a process (the kernel's own default limit is 65,530, vm.max_map_count)."""
_BYTES_LIMIT = 1 << 24
_LINE = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) (\S{4}) ([0-9a-f]+) ([0-9a-f]+:[0-9a-f]+) (\d+) *(.*)")
_OCTAL = re.compile(r"\\012")
_DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class Region:
    """One mapping: [start, end) in bytes, offset into the file, device and inode as the kernel names them."""

    start: int
    end: int
    permissions: str
    offset: int
    device: str
    inode: int
    path: str

    @property
    def executable(self) -> bool:
        """True when its pages may be run."""
        return "x" in self.permissions

    @property
    def is_file(self) -> bool:
        """True when a file is mapped (a name in brackets is none, neither is anonymous shared memory)."""
        return self.inode != 0 and self.path.startswith("/")

    @property
    def file_key(self) -> tuple[str, int]:
        """Device and inode: the same for all mappings of one file."""
        return self.device, self.inode


@dataclass(frozen=True)
class Maps:
    """All mappings of a process at one moment, by address."""

    regions: tuple[Region, ...] = ()
    starts: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))

    def find(self, address: int) -> Region | None:
        """The mapping that holds `address`."""
        at = int(np.searchsorted(self.starts, np.uint64(address), "right")) - 1
        return self.regions[at] if at >= 0 and address < self.regions[at].end else None

    @cached_property
    def files(self) -> dict[tuple[str, int], list[Region]]:
        """The mappings of each file, in order of address."""
        found: dict[tuple[str, int], list[Region]] = {}
        for region in self.regions:
            if region.is_file:
                found.setdefault(region.file_key, []).append(region)
        return found


def read_maps(pid: int) -> Maps:
    """The mappings of `pid`; TargetError when it ended or can't be looked into. A kernel thread or zombie has none."""
    regions = tuple(_regions(read_file(pid, "maps", _BYTES_LIMIT)))
    return Maps(regions, np.array([region.start for region in regions], np.uint64))


def open_region(pid: int, region: Region) -> int:
    """A file descriptor of the file that is mapped at `region`; TargetError when there is no way to it."""
    for path in _ways(pid, region):
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError):
            continue
        if os.fstat(file).st_ino == region.inode:
            return file
        os.close(file)
    raise TargetError(f"process {pid}: the file mapped at {region.start:#x} can't be opened; it may have ended")


FileIdentity = tuple[int, int, int, int, int]


def region_identity(pid: int, region: Region) -> FileIdentity | None:
    """Device, inode, size, times of change: a file written anew under an old inode is another file. None: no way to it."""
    for path in _ways(pid, region):
        try:
            status = Path(path).stat()
        except (OSError, ValueError):
            continue
        if status.st_ino == region.inode:
            return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return None


def _ways(pid: int, region: Region) -> tuple[str, str]:
    return f"/proc/{pid}/map_files/{region.start:x}-{region.end:x}", f"/proc/{pid}/root{region.path}"


def _regions(text: bytes) -> Iterator[Region]:
    for line in text.split(b"\n")[:REGION_LIMIT]:
        match = _LINE.fullmatch(line)
        if match:
            start, end, permissions, offset, device, inode, path = match.groups()
            yield Region(
                int(start, 16), int(end, 16), permissions.decode("ascii", "replace"), int(offset, 16),
                device.decode(), int(inode), _path(path),
            )  # fmt: skip


def _path(raw: bytes) -> str:
    """The path of a line: the kernel writes a newline in octal and marks removed files."""
    return _OCTAL.sub("\n", os.fsdecode(raw).removesuffix(_DELETED))
