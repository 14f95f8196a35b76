"""Hangs programs on their events: the clock of each CPU, raw tracepoints, uprobes.

Every attachment is a BPF link of this process and nothing is pinned: it ends with the process, even by kill -9.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Iterable

from otelprof.ebpf.libbpf import PerfEventOptions, libbpf
from otelprof.ebpf.perf_event import online_cpus, open_cpu_clock, open_uprobe, set_period
from otelprof.ebpf.refusals import refused

SECOND = 1_000_000_000


class Link:
    """One attachment; `close` takes it away."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    def close(self) -> None:
        """Detach; safe twice."""
        if self._handle is not None:
            libbpf().call("bpf_link__destroy", self._handle)
            self._handle = None


def _attach_event(program: int, fd: int, cookie: int = 0) -> Link:
    """A link that owns the descriptor of the event."""
    options = PerfEventOptions(ctypes.sizeof(PerfEventOptions), cookie)
    try:
        return Link(libbpf().call("bpf_program__attach_perf_event_opts", program, fd, ctypes.byref(options)))
    except OSError as error:
        raise refused("bpf(BPF_LINK_CREATE)", error) from error


def attach_tracepoint(program: int, name: str) -> Link:
    """Run the program at a raw tracepoint of the kernel. Needs no tracefs."""
    try:
        return Link(libbpf().call("bpf_program__attach_raw_tracepoint", program, name.encode()))
    except OSError as error:
        raise refused(f"bpf(BPF_RAW_TRACEPOINT_OPEN, {name})", error) from error


def attach_uprobe(program: int, path: str, offset: int, cookie: int = 0, pid: int = -1) -> Link:
    """Run the program before the instruction at `offset` of a file; `cookie` is for bpf_get_attach_cookie().

    OSError when the file or process is gone, Unsupported when the kernel refuses for another reason.
    """
    return _attach_event(program, open_uprobe(path, offset, pid), cookie)


class Sampler:
    """A clock on each CPU, `hz` ticks a second in the mean, whose period changes all the time.

    A program that itself works `hz` times a second would be met always at the same point of its work by an even clock.
    So each CPU gets another period now and then (`dither`), 5 to 15 % beside the mean, by which the clock drifts through such
    a program's work 5 to 15 times a second. A new period starts from now, so the part of the old one that has run is lost:
    half a period on average, which the next period makes good.
    """

    NEAREST, FARTHEST = 0.05, 0.15  # distance from the mean period, as a share of it
    EVERY = 0.5  # seconds that a period lasts at least

    def __init__(self, program: int, hz: float, cpus: Iterable[int] | None = None) -> None:
        self._hz = hz
        self._random = random.Random()  # noqa: S311 - nobody gains by guessing it
        self._clocks = [_Clock(program, cpu, self._period(1.0)) for cpu in (online_cpus() if cpus is None else cpus)]
        self._next = time.monotonic() + self.EVERY

    def dither(self) -> None:
        """Give each CPU another period, when the present one has lasted long enough; cheap otherwise."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self.EVERY
            for clock in self._clocks:
                clock.rearm(now, self._hz, self._sway())

    def close(self) -> None:
        """Stop the clocks."""
        for clock in self._clocks:
            clock.close()
        self._clocks.clear()

    def _sway(self) -> float:
        return self._random.choice((-1, 1)) * self._random.uniform(self.NEAREST, self.FARTHEST)

    def _period(self, expected: float) -> int:
        return round(SECOND / self._hz / expected * (1 + self._sway()))


class _Clock:
    """The clock of one CPU, and how many ticks it owes."""

    MOST_OWED = 0.1  # the most by which a period may be changed to make good, as a share

    def __init__(self, program: int, cpu: int, period: int) -> None:
        self._fd = open_cpu_clock(cpu, period)
        self._link = _attach_event(program, self._fd)
        self._period = period
        self._started = time.monotonic()
        self._owed = 0.0

    def rearm(self, now: float, hz: float, sway: float) -> None:
        """Another period from now on: the mean, off by the share `sway`, and by what makes good the ticks owed."""
        elapsed = now - self._started
        self._owed += elapsed * hz - elapsed * SECOND // self._period
        share = max(-self.MOST_OWED, min(self.MOST_OWED, self._owed / (hz * elapsed)))
        self._period = round(SECOND / hz * (1 + sway) / (1 + share))
        set_period(self._fd, self._period)
        self._started = now

    def close(self) -> None:
        self._link.close()
