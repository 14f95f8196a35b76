"""The cases of the matrix: a program each, on which interpreters it runs, and what its profile must show."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.unit.python_programs import Interpreter

PROGRAMS = Path(__file__).parent / "programs"
RECORDED = 3.0  # seconds
PATIENCE = 60.0  # seconds that a program runs at most; it is ended after the recording
RECORDINGS = 5
ENOUGH = 120  # samples of a process
CUT = "[truncated]"


@dataclass(frozen=True)
class Sample:
    """Equal samples of one process: names, root first, and for each Python frame (name, file, line)."""

    names: tuple[str, ...]
    frames: tuple[tuple[str, str, int], ...]
    count: int

    @property
    def simple(self) -> tuple[str, ...]:
        """The last part of each name: `step` of `Worker.step`."""
        return tuple(name.rpartition(".")[2] for name in self.names)


@dataclass(frozen=True)
class Seen:
    """What a profile shows of one run, and what the program said at its begin and end."""

    samples: tuple[Sample, ...]
    begin: Any
    end: Any

    def having(self, *names: str) -> Iterator[Sample]:
        """Those whose stack holds one of the names."""
        return (sample for sample in self.samples if set(names) & set(sample.simple))

    def count(self, *names: str) -> int:
        """How many they are."""
        return sum(sample.count for sample in self.having(*names))

    @property
    def total(self) -> int:
        """All samples."""
        return sum(sample.count for sample in self.samples)


Judge = Callable[[Seen], Iterable[str]]
"""What is wrong with a run: one text for each fault."""


@dataclass(frozen=True)
class Case:
    """One line of the matrix. `since`: the first minor version that can run it."""

    name: str
    what: str
    judge: Judge
    since: int = 8
    environment: dict[str, str] = field(default_factory=dict)
    program: str = ""
    whole_tree: bool = False
    """The children that it forks belong to it."""

    def runs_on(self, one: Interpreter) -> bool:
        """True when the interpreter can run the program."""
        return one.version[1] >= self.since


# --- running -----------------------------------------------------------------------------------------------------


class Run:
    """A case's program on an interpreter, started."""

    def __init__(self, case: Case, one: Interpreter) -> None:
        code = (PROGRAMS / f"{case.program or case.name}.py").read_text()
        command = [*one.command, "-c", code, str(PATIENCE)]
        env = {**_environment(), **case.environment}
        self.case, self.interpreter = case, one
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=env)
        assert self.process.stdout is not None
        self._output = self.process.stdout
        self.begin = self._line()

    def _line(self) -> Any:
        line = self._output.readline()
        if not line:
            raise RuntimeError(f"{self.interpreter} can't run {self.case.name}")
        return json.loads(line)

    def finish(self) -> Any:
        """End it; what it says then, if anything."""
        self.process.terminate()
        last = self._output.read().strip()
        return json.loads(last) if last else None

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self._output.close()


def _environment() -> dict[str, str]:
    return {"PATH": "/usr/sbin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8"}


@contextmanager
def started(case: Case, interpreters: Sequence[Interpreter]) -> Iterator[list[Run]]:
    """The program on each of them at the same time; all are ended."""
    with ExitStack() as stack:
        runs = []
        for one in interpreters:
            run = Run(case, one)
            stack.callback(run.close)
            runs.append(run)
        yield runs


def observe(case: Case, interpreters: Sequence[Interpreter]) -> dict[Interpreter, Seen]:
    """Run a case on several interpreters side by side, in one recording."""
    with started(case, interpreters) as runs:
        parents, samples = record_enough([run.process.pid for run in runs], case.whole_tree)
        answers = {}
        for run in runs:
            pid = run.process.pid
            family = {child for child in samples if child == pid or parents.get(child) == pid}
            found = tuple(sample for child in family for sample in samples[child])
            answers[run.interpreter] = Seen(found, run.begin, run.finish())
    return answers


def record_enough(pids: Sequence[int], whole: bool) -> tuple[dict[int, int], dict[int, list[Sample]]]:
    """`record`, again and again on a busy machine until each process has enough samples, within bounds."""
    parents: dict[int, int] = {}
    samples: dict[int, list[Sample]] = {}
    for _ in range(RECORDINGS):
        strangers, found = record(pids, whole)
        parents |= strangers
        for pid, some in found.items():
            samples.setdefault(pid, []).extend(some)
        if whole or all(sum(sample.count for sample in samples.get(pid, ())) >= ENOUGH for pid in pids):
            break
    return parents, samples


def record(pids: Sequence[int], whole: bool = False) -> tuple[dict[int, int], dict[int, list[Sample]]]:
    """Record processes, or the whole node: the parents of those that weren't asked for, and samples by process."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "session")
        wanted = [] if whole else [option for pid in pids for option in ("--pid", str(pid))]
        options = ["--duration", str(RECORDED), "--format", "session", "-o", str(output), *wanted]
        command = [sys.executable, "-m", "otelprof", "record", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        rows = [json.loads(line) for line in output.read_text().splitlines()]
    found: dict[int, list[Sample]] = {}
    for row in rows:
        if row["kind"] == "sample":
            found.setdefault(row["pid"], []).append(_sample(row))
    strangers = {pid: pids[0] for pid in found if pid not in pids} if len(pids) == 1 else {}
    return strangers, found


def _sample(row: dict[str, Any]) -> Sample:
    frames = [frame if isinstance(frame, dict) else {"name": frame} for frame in row["stack"]]
    python = tuple((f["name"], f.get("file", ""), f.get("line", 0)) for f in frames if f.get("kind") == "cpython")
    return Sample(tuple(frame["name"] for frame in frames), python, row["count"])


# --- judging -----------------------------------------------------------------------------------------------------


def in_order(chain: Sequence[str], names: Sequence[str]) -> bool:
    """True when the names of the chain stand in that order, with any others between them."""
    rest = iter(names)
    return all(name in rest for name in chain)


def sound(seen: Seen, leaves: Sequence[str], *chain: str) -> Iterator[str]:
    """Faults that no profile may have: no samples, chains that are broken, empty names, lines that can't be."""
    below = list(seen.having(*leaves))
    total = sum(sample.count for sample in below)
    if total < 20:
        yield f"{total} samples of {' and '.join(leaves)} among {seen.total}"
        return
    broken = [sample for sample in below if not in_order(chain, sample.simple)]
    if sum(sample.count for sample in broken) > max(1, 0.005 * total):
        yield f"{broken[0].names[:8]} isn't below {' > '.join(chain)}"
    bad = [frame for sample in below for frame in sample.frames if not frame[0] or frame[2] < 0 or frame[1] == ""]
    yield from (f"a frame without name, file or line: {frame}" for frame in bad[:1])


def share(seen: Seen, name: str, others: Sequence[str], truth: float) -> Iterator[str]:
    """Faults of a share: four points off, or three standard errors where few samples can't tell."""
    part, total = seen.count(name), seen.count(*others)
    allowed = max(0.04, 3 * math.sqrt(truth * (1 - truth) / max(total, 1)))
    if not total or abs(part / total - truth) > allowed:
        yield f"{name} has {part} of {total} samples, {truth:.3f} is its share"


def _tree(seen: Seen) -> Iterator[str]:
    yield from sound(seen, ("heavy", "light"), "<module>", "main", "step")
    yield from share(seen, "heavy", ("heavy", "light"), seen.end["heavy"])
    for name in ("heavy", "light"):
        first = seen.begin[name]
        lines = {line for s in seen.having(name) for full, _, line in s.frames if full == name}
        yield from (f"{name} in line {line}" for line in sorted(lines) if not first <= line <= first + 4)


def _callbacks(seen: Seen) -> Iterator[str]:
    calls = ("by_key", "by_map", "by_reduce", "by_pattern", "__init__", "__lt__", "by_iteration", "by_pointer")
    yield from sound(seen, ("burn",), "<module>", "main", "round_trip")
    yield from (f"{name} was never seen" for name in calls if not seen.count(name))
    lonely = sum(sample.count for sample in seen.having("burn") if not set(calls) & set(sample.simple))
    if lonely:
        yield f"{lonely} samples of burn without the call-back"


def _generators(seen: Seen) -> Iterator[str]:
    yield from sound(seen, ("items", "inner"), "<module>", "main")
    yield from share(seen, "often", ("often", "seldom"), 10 / 11)
    foreign = [s for s in seen.having("inner") if not {"outer_left", "outer_right"} & set(s.simple)]
    mixed = [s for s in seen.samples if {"outer_left", "outer_right"} <= set(s.simple)]
    yield from (f"glued: {sample.names}" for sample in [*foreign, *mixed][:1])


def _released(seen: Seen) -> Iterator[str]:
    yield from sound(seen, ("counting",), "<module>", "main")
    if seen.count("hashing") < 0.25 * seen.total:
        yield f"{seen.count('hashing')} of {seen.total} samples are below hashing"


def _names(seen: Seen) -> Iterator[str]:
    shown = {name for sample in seen.samples for name, _, _ in sample.frames}
    for name in seen.begin:
        if name and not any(_same_name(name, one) for one in shown):
            yield f"{name[:20]!r} isn't shown as it is"


def _same_name(name: str, shown: str) -> bool:
    cut = len(name.encode()) > 4096 and shown.endswith("…") and name.startswith(shown[:-1]) and len(shown) > 1000
    return shown == name or cut


def _deep(seen: Seen) -> Iterator[str]:
    yield from sound(seen, ("bottom",), "bottom")
    whole, cut = list(seen.having("whole")), list(seen.having("cut"))
    if not whole or any(s.names.count("whole") != 301 or s.simple[:1] != ("<module>",) for s in whole if "bottom" in s.simple):
        yield f"300 frames aren't shown whole: {[len(s.names) for s in whole[:3]]}"
    if not any("bottom" in s.simple for s in cut) or any(s.names[0] != CUT for s in cut if s.names.count("cut") > 505):
        yield f"a cut stack begins with {[s.names[0] for s in cut[:3]]}"


def _interpreters(seen: Seen) -> Iterator[str]:
    three = [f"busy_in_{name}" for name in ("main", "left", "right")]
    for name in three:
        yield from sound(seen, (name,), name)
    glued = [s for s in seen.samples if len(set(three) & set(s.simple)) > 1]
    yield from (f"glued: {sample.names}" for sample in glued[:1])


def _threads(seen: Seen) -> Iterator[str]:
    yield from sound(seen, ("working",), "working")
    if seen.count("waiting") > 0.02 * seen.total:
        yield f"{seen.count('waiting')} samples of threads that wait"


def _forks(seen: Seen) -> Iterator[str]:
    yield from sound(seen, ("in_child",), "<module>", "main", "serve")
    unnamed = sum(sample.count for sample in seen.having("serve") if "[unknown]" in sample.names)
    if unnamed > 0.02 * seen.count("serve"):
        yield f"{unnamed} of {seen.count('serve')} samples have unknown frames"


BASIC = Case("tree", "chains, shares, names, files and lines of a known call tree", _tree)
CASES = (
    BASIC,
    Case("callbacks", "Python called from C in eight ways", _callbacks),
    Case("generators", "generators, coroutines and event loops", _generators),
    Case("released", "time in C code that gave the GIL away", _released),
    Case("names", "names that are long, not ASCII, or hold `;`, newlines and escapes", _names),
    Case("deep", "300 frames whole, 700 cut with a mark", _deep),
    Case(
        "interpreters", "subinterpreters", _interpreters, 12
    ),  # before that busy ones starve each other: one GIL, no hand-over
    Case("threads", "1,000 threads, one of them busy", _threads),
    Case("forks", "forked children that live for 30 ms", _forks, whole_tree=True),
    Case("jit", "the same call tree with the JIT switched on", _tree, 14, {"PYTHON_JIT": "1"}, "tree"),
)
"""All cases, the basic one first."""
