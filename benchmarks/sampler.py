"""What sampling costs the program that is sampled: the same work with and without a sampler, in turn."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from benchmarks.figures import Figure, paired, spread
from otelprof.ebpf.layout import wire
from otelprof.ebpf.session import Session, SessionSettings
from otelprof.processes.memory import Memory
from otelprof.targets.python import Recogniser

ROUNDS = 12
WORK = """
import sys, time
def leaf(n):
    t = 0
    for i in range(n): t += i & 3
    return t
def deep(n, depth):
    return deep(n, depth - 1) if depth else leaf(n)
print('ready', flush=True)
for line in sys.stdin:
    a = time.process_time()
    for _ in range(int(line)): deep(2000, 30)
    print(time.process_time() - a, flush=True)
"""
AMOUNT = 4_000


class Worker:
    """A Python program that does an amount of work on request, 30 frames deep, and says how much CPU time it took."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()
        os.sched_setaffinity(self.process.pid, {max(os.sched_getaffinity(0))})

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()

    def work(self) -> float:
        """CPU seconds of one amount."""
        assert self.process.stdin
        self.process.stdin.write(f"{AMOUNT}\n")
        self.process.stdin.flush()
        return float(self._line())

    def end(self) -> None:
        """Let it end."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(10)


def sampled(worker: Worker, hertz: int) -> float:
    """CPU seconds of one amount while a sampler runs; opening and attaching aren't counted."""
    session = Session.open(SessionSettings(node=False))
    try:
        pid = worker.process.pid
        found = Recogniser().recognise(pid, Memory(pid)).target
        assert found
        python = found.layout.to_record(wire().dtype("python_layout"))
        target = wire().record("target", {"process": 1, "flags": wire()["TARGET_PYTHON"]})
        target["python"] = python
        session.set_target(pid, target)
        session.attach_sampler(hertz)
        time.sleep(0.2)
        return worker.work()
    finally:
        session.close()


def run_nanoseconds(worker: Worker) -> float:
    """Nanoseconds of the sampler's program for each run, by the kernel's own account."""
    with open("/proc/sys/kernel/bpf_stats_enabled", "r+") as switch:
        before = switch.read().strip()
        switch.write("1")
        try:
            session = Session.open(SessionSettings(node=False))
            pid = worker.process.pid
            found = Recogniser().recognise(pid, Memory(pid)).target
            assert found
            target = wire().record("target", {"process": 1, "flags": wire()["TARGET_PYTHON"]})
            target["python"] = found.layout.to_record(wire().dtype("python_layout"))
            session.set_target(pid, target)
            session.attach_sampler(999)
            worker.work()
            seen = session.drain().counts["COUNT_SAMPLES_SEEN"]
            seconds = session.statistics()["sample_cpu"].run_seconds
            session.close()
        finally:
            switch.seek(0)
            switch.write(before)
    return seconds / max(seen, 1) * 1e9


def measure() -> list[Figure]:
    """Slow-down at 99 and 999 Hz, and the program's own time for a stack of 30 frames."""
    worker = Worker()
    worker.work()
    try:
        figures = []
        for hertz in (99, 999):
            alone, beside, ratios = paired(worker.work, lambda: sampled(worker, hertz), ROUNDS)  # noqa: B023 used at once
            text = f"{beside:.3f} s CPU"
            figures.append(Figure(f"a Python program sampled at {hertz} Hz", text, f"{alone:.3f} s alone", spread(ratios)))
        _, _, noise = paired(worker.work, worker.work, ROUNDS)
        figures.append(Figure("the same, both times alone (the noise)", "", "", spread(noise)))
        cost = statistics.median(run_nanoseconds(worker) for _ in range(3))
        figures.append(Figure("one sample of a stack of 33 frames, in the kernel", f"{cost / 1000:.1f} µs"))
        return figures
    finally:
        worker.end()
