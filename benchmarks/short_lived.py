"""How many samples of processes that die at once have names, by life time: forked children and programs of their own.

Each process burns in one function for its life time and says how much CPU time it spent there, so the samples that should
show the function are known: that time, 99 times a second.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import Figure
from tests.e2e.programs import Program, otelprof, wait_for

HERTZ = 99
LIVES = (5, 20, 50, 200)  # milliseconds
BURN = """
import os, sys, time
def burn_{kind}_{life}(end):
    t = 0
    while time.monotonic() < end:
        for i in range(1000): t += i & 3
def main():
    begun = time.process_time()
    burn_{kind}_{life}(time.monotonic() + {life} / 1000)
    os.write({pipe}, b"%d\\n" % int(1e9 * (time.process_time() - begun)))
"""
STARTER = """
import json, os, subprocess, sys
kind, life, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
reading, writing = os.pipe()
code = BURN.format(kind=kind, life=life, pipe=writing)
space = {}
exec(compile(code, "burn.py", "exec"), space)
processes, spent, said = 0, 0, os.fdopen(reading)
while spent < seconds * 1e9:
    if kind == "forked":
        child = os.fork()
        if not child:
            space["main"]()
            os._exit(0)
        os.waitpid(child, 0)
    else:
        subprocess.run([sys.executable, "-S", "-E", "-c", code + "main()"], pass_fds=[writing])
    spent += int(said.readline())
    processes += 1
print(json.dumps([processes, spent]), flush=True)
"""


def run(kind: str, life: int, seconds: float) -> tuple[int, float]:
    """Start such processes one after the other until they have spent that much CPU time: (how many, seconds spent)."""
    program = f"BURN = {BURN!r}\n{STARTER}"
    command = [sys.executable, "-c", program, kind, str(life), str(seconds)]
    processes, spent = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return processes, spent / 1e9


def named(folded: str, kind: str, life: int) -> int:
    """Samples whose stack shows the function."""
    pattern = re.compile(rf"\bburn_{kind}_{life}\b")
    return sum(int(line.rpartition(" ")[2]) for line in folded.splitlines() if pattern.search(line))


def measure(seconds: float = 5.0) -> list[Figure]:
    """Both kinds at each life time, in one recording of the whole node."""
    with tempfile.TemporaryDirectory() as name:
        output = Path(name, "out.folded")
        command = [otelprof(), "record", "--format", "folded", "-o", str(output)]
        with Program(command, Path(name), "record") as recorder:
            wait_for(lambda: "recording" in recorder.log(), 60, recorder)
            truth = {(kind, life): run(kind, life, seconds) for kind in ("forked", "started") for life in LIVES}
            recorder.stop(30)
        text = output.read_text()
    return [
        Figure(
            f"samples with names, {kind} processes that live {life} ms",
            f"{(seen := named(text, kind, life))} in {processes} processes",
            f"{HERTZ * spent:.0f} (their CPU time)",
            f"{seen / (HERTZ * spent):.2f}",
        )
        for (kind, life), (processes, spent) in truth.items()
    ]
