"""`otelprof check --cuda`: each driver library of this node, where its probes go, and, when asked, what they cost."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from otelprof.ebpf.layout import wire
from otelprof.ebpf.session import Session, SessionSettings
from otelprof.errors import MalformedInput, OtelprofError, TargetError
from otelprof.processes.maps import open_region, read_maps
from otelprof.receivers.ebpf.config import DRIVER_PLACES
from otelprof.symbols.elf import Elf, FileSource
from otelprof.targets.cuda import Site, find_libcuda, is_libcuda, probe_sites
from otelprof.targets.cuda_entries import ENTRY_POINTS
from otelprof.targets.file_identity import Identity, identity
from otelprof.targets.python import Recogniser

_FILES_LIMIT = 64
_ROUNDS, _CALLS = 5, 20_000
_LOOP = """
import ctypes, sys, time
launch = ctypes.CDLL(sys.argv[1]).cuLaunchKernel
for line in sys.stdin:
    begin = time.thread_time_ns()
    for _ in range(int(line)):
        launch(None, 0, 0, 0, 0, 0, 0, 0, None, None, None)
    print((time.thread_time_ns() - begin) // int(line), flush=True)
"""


@dataclass(slots=True)
class Driver:
    """One driver library; costs are nanoseconds a call, 0 where they weren't measured."""

    path: str
    build_id: str
    sites: list[Site] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    empty_probe: int = 0
    our_probe: int = 0
    note: str = ""

    @property
    def seen(self) -> str:
        """All in one line, the cost first."""
        cost = f"an empty probe costs {self.empty_probe} ns, ours {self.our_probe} ns a launch; " if self.our_probe else ""
        places = Counter(site.why for site in self.sites)
        probes = ", ".join(f"{number} at {why}" for why, number in places.most_common())
        lacks = f", {len(self.missing)} entry points missing" if self.missing else ""
        return f"{cost}{self.note and f'{self.note}; '}{probes}{lacks}; {self.path} ({self.build_id or 'no build id'})"


def drivers(*, measure: bool) -> list[Driver]:
    """The driver libraries in the usual places and in processes, each once; `measure` calls one 200,000 times."""
    found: dict[Identity, Driver] = {}
    for name, file in _files():
        try:
            key = identity(file)
            if key not in found and len(found) < _FILES_LIMIT:
                driver = _driver(name, file)
                if driver is not None:
                    found[key] = driver
        finally:
            os.close(file)
    for driver in found.values() if measure else ():
        _measure(driver)
    return list(found.values())


def _files() -> Iterator[tuple[str, int]]:
    """Open files that may be driver libraries."""
    for path in DRIVER_PLACES:
        if Path(path).exists():
            yield path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            regions = find_libcuda(read_maps(int(entry.name)).regions)
            for region in regions.values():
                yield region.path, open_region(int(entry.name), region)
        except TargetError:
            continue


def _driver(path: str, file: int) -> Driver | None:
    try:
        elf = Elf(FileSource(os.dup(file)))
        if not is_libcuda(elf):
            return None
        sites = probe_sites(elf)
        build_id = elf.build_id
    except MalformedInput:
        return None
    there = {site.entry for site in sites}
    return Driver(path, build_id, sites, [point.name for point in ENTRY_POINTS if point.entry not in there])


def _measure(driver: Driver) -> None:
    """What a probe on cuLaunchKernel adds to a call; the calls fail at once, since nobody has called cuInit."""
    site = next((site for site in driver.sites if site.entry == "CUDA_LAUNCH_KERNEL"), None)
    if site is None or not Path(driver.path).exists():
        driver.note = "not measured: the file isn't here under this path"
        return
    child = subprocess.Popen(
        [sys.executable, "-c", _LOOP, driver.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    session = None
    try:
        session = Session.open(SessionSettings(node=False, calls=1 << 12))
        bare = _ask(child)
        driver.empty_probe = _probed(session, driver.path, (site.offset, "CUDA_EVENT_RECORD"), child) - bare
        session.set_target(child.pid, _target(child.pid))
        driver.our_probe = _probed(session, driver.path, (site.offset, site.entry), child) - bare
    except (OtelprofError, OSError, ValueError) as error:
        driver.note = f"not measured: {error}"
    finally:
        child.kill()
        child.communicate()
        if session is not None:
            session.close()


def _probed(session: Session, path: str, place: tuple[int, str], child: subprocess.Popen[str]) -> int:
    """Nanoseconds a call with one probe; that on event calls does nothing while nobody captures."""
    probes = session.attach_cuda(path, [(place[0], wire()[place[1]])])
    try:
        return _ask(child)
    finally:
        probes.close()
        session.drain()


def _ask(child: subprocess.Popen[str]) -> int:
    """The median of a few rounds, nanoseconds of CPU time a call: a busy machine costs no call more of it."""
    if child.stdin is None or child.stdout is None:
        raise OSError("the program that calls has no pipes")
    rounds = []
    for _ in range(_ROUNDS):
        child.stdin.write(f"{_CALLS}\n")
        child.stdin.flush()
        rounds.append(int(child.stdout.readline()))
    return round(statistics.median(rounds))


def _target(pid: int) -> np.void:
    """The calling program as a target with its Python stack, where it can be read."""
    found = Recogniser().recognise(pid).target
    record = np.zeros(1, wire().dtype("target"))
    record["process"] = 1
    if found is not None:
        record["flags"] = wire()["TARGET_PYTHON"]
        record["python"] = found.layout.to_record(wire().dtype("python_layout"))
    row: np.void = record[0]
    return row
