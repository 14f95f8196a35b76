"""perf_event_open(2): the events that our programs hang on, and the ring of events that tell of mappings.

Structure and numbers: include/uapi/linux/perf_event.h; PERF_ATTR_SIZE_VER5, which every kernel since 4.1 takes.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path

from otelprof.ebpf.refusals import refused
from otelprof.errors import Unsupported

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_ATTR = struct.Struct("<IIQQQQQIIQQQQIiQIHH")
_CLOEXEC = 8  # PERF_FLAG_FD_CLOEXEC
SOFTWARE = 1  # PERF_TYPE_SOFTWARE
CPU_CLOCK, DUMMY = 0, 9  # PERF_COUNT_SW_*
_IOC_PERIOD = 0x40082404  # PERF_EVENT_IOC_PERIOD
_UPROBE_TYPE = Path("/sys/bus/event_source/devices/uprobe/type")


@dataclass(frozen=True, slots=True)
class Attr:
    """The fields of struct perf_event_attr that are used; flags are bit numbers of its bit-field."""

    type: int
    config: int = 0
    period: int = 0
    flags: tuple[int, ...] = ()
    config1: int = 0
    config2: int = 0

    def pack(self) -> bytes:
        """As the kernel reads it."""
        bits = sum(1 << flag for flag in self.flags)
        head = (self.type, _ATTR.size, self.config, self.period, 0, 0, bits, 0, 0, self.config1, self.config2)
        return _ATTR.pack(*head, *(0,) * 8)


EXCLUDE_IDLE, MMAP, MMAP2 = 7, 8, 23  # flags


def open_event(attr: Attr, pid: int, cpu: int) -> int:
    """A descriptor; Unsupported when the kernel refuses, OSError ESRCH or ENOENT when the process or file is gone."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise Unsupported(f"machine {platform.machine()} isn't supported: x86_64 and aarch64 are")
    buffer = ctypes.create_string_buffer(attr.pack(), _ATTR.size)
    libc = ctypes.CDLL(None, use_errno=True)
    fd: int = libc.syscall(number, buffer, pid, cpu, -1, _CLOEXEC)
    if fd < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return fd


def set_period(fd: int, period: int) -> None:
    """Another period from now on, nanoseconds for CPU_CLOCK; the running one is cut short without a tick."""
    fcntl.ioctl(fd, _IOC_PERIOD, struct.pack("<Q", period))


def online_cpus(text: str | None = None) -> list[int]:
    """The CPUs that are online, from the kernel's list such as `0-3,8`."""
    text = Path("/sys/devices/system/cpu/online").read_text() if text is None else text
    parts = [part.split("-") for part in text.strip().split(",")]
    return [cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)]


def open_uprobe(path: str, offset: int, pid: int) -> int:
    """An event at each run of the instruction at a file offset, in all processes (pid -1) or one.

    The kernel resolves `path` now, so /proc/self/fd/N and /proc/PID/root/… do as well.
    """
    try:
        kind = int(_UPROBE_TYPE.read_text())
    except OSError:
        raise Unsupported(f"the kernel has no uprobes ({_UPROBE_TYPE} is missing): CONFIG_UPROBE_EVENTS=y is needed") from None
    name = ctypes.create_string_buffer(os.fsencode(path))
    attr = Attr(kind, config1=ctypes.addressof(name), config2=offset)
    return open_event(attr, pid, 0 if pid < 0 else -1)


def open_cpu_clock(cpu: int, period: int) -> int:
    """An event each `period` nanoseconds of one CPU, not while it idles."""
    try:
        return open_event(Attr(SOFTWARE, CPU_CLOCK, period, (EXCLUDE_IDLE,)), -1, cpu)
    except OSError as error:
        raise refused("perf_event_open", error) from error
