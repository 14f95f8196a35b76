"""Which file it is, as uprobes see it: the inode that holds the pages.

Two containers of one image see the same lower file through overlays of their own: other devices, one inode underneath. A
probe set through both would fire twice, so on overlayfs the device doesn't count. (On btrfs it does: snapshots have equal
inode numbers and are files of their own.)
"""

from __future__ import annotations

import ctypes
import os

Identity = tuple[int, int, int]
"""Device and inode; on overlayfs 0, inode and size in bytes. Times don't count: `touch` makes no other file."""

_OVERLAYFS = 0x794C7630  # OVERLAYFS_SUPER_MAGIC, linux/magic.h
_STATFS_BYTES = 256  # struct statfs is 120 bytes on x86-64; its first word is f_type

_libc = ctypes.CDLL(None, use_errno=True)


def identity(file: int) -> Identity:
    """The identity of an open file."""
    found = os.fstat(file)
    return (0, found.st_ino, found.st_size) if _on_overlay(file) else (found.st_dev, found.st_ino, 0)


def _on_overlay(file: int) -> bool:
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    failed = _libc.fstatfs(file, buffer)
    return not failed and ctypes.c_long.from_buffer(buffer).value == _OVERLAYFS
