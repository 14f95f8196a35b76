"""What a probed launch costs the caller: no probe, an empty probe at the same site, ours; in turn, in one process.

The library is a stand-in for the driver; its entry points have the real driver's bytes. Two callers: C code that does
nothing but launch (no Python stack to walk), and Python code 33 frames deep that launches through ctypes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import Figure
from otelprof.ebpf.attach import attach_uprobe
from otelprof.ebpf.layout import wire
from otelprof.ebpf.libbpf import libbpf
from otelprof.ebpf.session import Session, SessionSettings
from otelprof.processes.memory import Memory
from otelprof.symbols.elf import Elf, FileSource
from otelprof.targets.cuda import Site, probe_sites
from otelprof.targets.python import Recogniser

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 7
CALLS = 20_000
CALLER = """
typedef int launch_function(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                            void **);
void burst(launch_function *launch, void *function, int count) {
    for (int i = 0; i < count; i++)
        launch(function, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0);
}
"""
LAUNCHER = """
import ctypes, sys, time
sys.path[:0] = [{root!r}]
from tests.unit.standin_driver import Driver
from pathlib import Path
driver = Driver(Path({folder!r})).start()
function = driver.kernel("kernel_of_the_benchmark", 0)
caller = ctypes.CDLL({caller!r})
launch = driver.library.cuLaunchKernel
arguments = [ctypes.c_void_p(function), *[ctypes.c_uint(1)] * 7, *[ctypes.c_void_p(0)] * 3]
def python(count):
    for _ in range(count): launch(*arguments)
def deep(count, depth):
    return deep(count, depth - 1) if depth else python(count)
print({folder!r}, flush=True)
for line in sys.stdin:
    what, count = line.split()
    begun = time.perf_counter()
    if what == "c": caller.burst(launch, ctypes.c_void_p(function), int(count))
    else: deep(int(count), 30)
    print((time.perf_counter() - begun) / int(count) * 1e9, flush=True)
"""


class Launcher:
    """A process that launches on request and says the nanoseconds of each call."""

    def __init__(self, folder: Path) -> None:
        source = folder / "caller.c"
        source.write_text(CALLER)
        caller = folder / "caller.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(caller), str(source)], check=True)
        code = LAUNCHER.format(root=str(ROOT), folder=str(folder), caller=str(caller))
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.process.stdout.readline()
        self.library = next(folder.rglob("libcuda.so.1"))

    def launch(self, what: str, count: int = CALLS) -> float:
        """Nanoseconds a call, from `c` or `python`."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{what} {count}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self) -> None:
        """Let it end."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(10)


def launch_site(library: Path) -> Site:
    """The probe's place in cuLaunchKernel."""
    file = os.open(library, os.O_RDONLY)
    return next(site for site in probe_sites(Elf(FileSource(file))) if site.symbol == "cuLaunchKernel")


def empty_program(folder: Path) -> int:
    """Compile and load the empty program; libbpf's handle of it."""
    output = folder / "empty.o"
    command = ["clang", "-target", "bpf", "-mcpu=v3", "-g", "-O2", f"-I{ROOT / 'bpf'}", "-D__TARGET_ARCH_x86"]
    subprocess.run([*command, "-c", str(ROOT / "benchmarks" / "empty.bpf.c"), "-o", str(output)], check=True)
    data = output.read_bytes()
    handle = libbpf().call("bpf_object__open_mem", data, len(data), None)
    libbpf().call("bpf_object__load", handle)
    return int(libbpf().call("bpf_object__next_program", handle, None))


def with_empty(launcher: Launcher, program: int, what: str, offset: int) -> float:
    """A call with an empty probe at the site."""
    link = attach_uprobe(program, str(launcher.library), offset)
    try:
        launcher.launch(what, 100)
        return launcher.launch(what)
    finally:
        link.close()


def with_ours(launcher: Launcher, what: str, site: Site) -> float:
    """A call with our probe at the site, its records drained as the agent does."""
    pid = launcher.process.pid
    session = Session.open(SessionSettings(node=False, calls=1 << 24))
    try:
        found = Recogniser().recognise(pid, Memory(pid)).target
        assert found
        target = wire().record("target", {"process": 1, "flags": wire()["TARGET_PYTHON"]})
        target["python"] = found.layout.to_record(wire().dtype("python_layout"))
        session.set_target(pid, target)
        session.attach_cuda(str(launcher.library), [(site.offset, wire()[site.entry])])
        launcher.launch(what, 100)
        cost = launcher.launch(what)
        drained = session.drain()
        assert len(drained.calls) == CALLS + 100, (len(drained.calls), drained.losses)
        return cost
    finally:
        session.close()


def measure() -> list[Figure]:
    """Both callers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        launcher = Launcher(folder)
        try:
            site, program = launch_site(launcher.library), empty_program(folder)
            return [figure for what in ("c", "python") for figure in _measure(launcher, program, what, site)]
        finally:
            launcher.end()


def _measure(launcher: Launcher, program: int, what: str, site: Site) -> list[Figure]:
    ways: dict[str, Callable[[], float]] = {
        "none": lambda: launcher.launch(what),
        "empty": lambda: with_empty(launcher, program, what, site.offset),
        "ours": lambda: with_ours(launcher, what, site),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            found[name].append(way())
            time.sleep(0.05)
    none, empty, ours = (statistics.median(found[name]) for name in ways)
    who = "C code" if what == "c" else "Python, 33 frames deep"
    added = statistics.median(b / a for a, b in zip(found["empty"], found["ours"], strict=True))
    return [
        Figure(
            f"a launch from {who}, empty probe at +{site.why}",
            f"{empty:.0f} ns",
            f"{none:.0f} ns unprobed",
            f"{empty / none:.2f}",
        ),
        Figure(f"a launch from {who}, our probe", f"{ours:.0f} ns", f"{empty:.0f} ns (empty probe)", f"{added:.2f}"),
    ]
