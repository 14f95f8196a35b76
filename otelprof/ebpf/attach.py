"""Hangs programs on their events: the clock of each CPU, raw tracepoints, uprobes.

Every attachment is a BPF link of this process and nothing is pinned: it ends with the process, even by kill -9.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from otelprof.ebpf.libbpf import PerfEventOptions, libbpf
from otelprof.ebpf.perf_event import online_cpus, open_cpu_clock, open_uprobe, set_period
from otelprof.ebpf.refusals import refused

SECOND = 1_000_000_000
AT_ONCE = 16  # threads that wait for the kernel at a time
T = TypeVar("T")


class Link:
    """One attachment; `close` takes it away."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    def close(self) -> None:
        """Detach; safe twice."""
        if self._handle is not None:
            libbpf().call("bpf_link__destroy", self._handle)
            self._handle = None


def attach_all(attach: Callable[[T], Link], places: Iterable[T]) -> list[Link]:
    """Links of all `places`, or none and the first error. At once: the kernel waits for all CPUs at each, 0.1 s and more."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun = [pool.submit(attach, place) for place in places]
    failed = [future.exception() for future in begun if future.exception()]
    links = [future.result() for future in begun if not future.exception()]
    if failed and failed[0]:
        close_all(links)
        raise failed[0]
    return links


def close_all(links: Iterable[Link]) -> None:
    """Detach several at once, for the same reason."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda link: link.close(), links))


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
    a program's work 5 to 15 times a second.
    """

    EVERY = 0.5  # seconds that a period lasts at least

    def __init__(self, program: int, hz: float, cpus: Iterable[int] | None = None) -> None:
        self._clocks = [Clock(program, cpu, hz) for cpu in (online_cpus() if cpus is None else cpus)]
        self._next = time.monotonic() + self.EVERY

    def dither(self) -> None:
        """Give each CPU another period, when the present one has lasted long enough; cheap otherwise."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self.EVERY
            for clock in self._clocks:
                clock.rearm(now)

    def close(self) -> None:
        """Stop the clocks."""
        for clock in self._clocks:
            clock.close()
        self._clocks.clear()


class Clock:
    """The clock of one CPU, and how many ticks it owes.

    It is slower than the mean when it has ticked too often and faster when too seldom, so it keeps the mean by itself. A new
    period starts from now: the part of the old one that has run is lost, which is among what is made good.
    """

    NEAREST, FARTHEST = 0.05, 0.15  # distance from the mean period, as a share of it

    def __init__(self, program: int, cpu: int, hz: float) -> None:
        self._hz = hz
        self._random = random.Random()  # noqa: S311 - nobody gains by guessing it
        self._owed = self._random.uniform(-1, 1)
        self.period = self._next_period()
        self._fd = open_cpu_clock(cpu, self.period)
        self._link = _attach_event(program, self._fd)
        self._started = time.monotonic()

    def rearm(self, now: float) -> None:
        """Another period from `now` (CLOCK_MONOTONIC, seconds) on."""
        elapsed = now - self._started
        self._owed += elapsed * self._hz - elapsed * SECOND // self.period
        self._started = now
        self.period = self._next_period()
        set_period(self._fd, self.period)

    def close(self) -> None:
        """Stop."""
        self._link.close()

    def _next_period(self) -> int:
        away = self._random.uniform(self.NEAREST, self.FARTHEST)
        return round(SECOND / self._hz * (1 - away if self._owed > 0 else 1 + away))
