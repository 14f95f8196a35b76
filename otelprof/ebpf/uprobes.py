"""Uprobes: many of one program in one link where the kernel can do that (6.6 and newer), else one event each.

A link of many takes one descriptor, and taking it away waits for the CPUs once. Single events take two descriptors each,
and the kernel waits at each: 23 probes were gone after 0.05 s the one way and after 2 to 4 s the other (Linux 6.18).
Programs for the one way can't go the other, so it is chosen before they load.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from otelprof.ebpf.attach import Link, attach_uprobe
from otelprof.ebpf.libbpf import libbpf
from otelprof.errors import TargetError

UPROBE_MULTI = 48
"""BPF_TRACE_UPROBE_MULTI, include/uapi/linux/bpf.h."""
_KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")
_LINK_STRUCT = b"\0bpf_uprobe_multi_link\0"
_BPF, _BPF_LINK_CREATE = 321, 28  # system call on x86-64, enum bpf_cmd
# union bpf_attr, link_create: prog_fd, target_fd, attach_type, flags; uprobe_multi: path, offsets, ref_ctr_offsets, cookies,
# cnt, flags, pid
_ATTRIBUTES = struct.Struct("<4I4Q3I")

_libc = ctypes.CDLL(None, use_errno=True)


class DescriptorLink(Link):
    """A link that is a descriptor of ours."""

    def close(self) -> None:
        """Detach; safe twice."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


@cache
def can_attach_many() -> bool:
    """True when the kernel has links of many uprobes: then its BTF knows their structure."""
    try:
        return _LINK_STRUCT in _KERNEL_BTF.read_bytes()
    except OSError:
        return False


def attach_many(program: int, path: str, places: Sequence[tuple[int, int]]) -> Link:
    """Run the program, which was loaded for UPROBE_MULTI, at (offset, cookie) in a file: at all places or, with an error, none.

    TargetError when the file is gone or has no code there.
    """
    name = ctypes.create_string_buffer(os.fsencode(path))
    offsets, cookies = ((ctypes.c_uint64 * len(places))(*column) for column in zip(*places, strict=True))
    handle = int(libbpf().call("bpf_program__fd", program))
    addresses = (ctypes.addressof(name), ctypes.addressof(offsets), 0, ctypes.addressof(cookies))
    attributes = _ATTRIBUTES.pack(handle, 0, UPROBE_MULTI, 0, *addresses, len(places), 0, 0)
    found = _libc.syscall(_BPF, _BPF_LINK_CREATE, attributes, len(attributes))
    if found < 0:
        raise no_probe(path, places[0][0], OSError(ctypes.get_errno(), ""))
    return DescriptorLink(found)


def attach_one(program: int, path: str, place: tuple[int, int]) -> Link:
    """The same for one place, with a program that wasn't loaded for UPROBE_MULTI."""
    offset, cookie = place
    try:
        return attach_uprobe(program, path, offset, cookie)
    except OSError as error:
        raise no_probe(path, offset, error) from error


def no_probe(path: str, offset: int, error: OSError) -> TargetError:
    """The error for a place where no probe can be."""
    why = os.strerror(error.errno or 0)
    return TargetError(f"no probe at {path}+{offset:#x}: {why}; the process may have ended, or the file isn't code")
