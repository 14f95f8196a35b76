"""`make matrix`: every case on every interpreter of the machine, as a table in docs/support.md."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.matrix.cases import CASES, Case, observe
from tests.unit.python_programs import Interpreter, recognise, running, said, supported

PAGE = Path(__file__).resolve().parents[2] / "docs" / "support.md"
SIDE_BY_SIDE = 4  # interpreters at the same time: fewer leave each more samples
BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"


def build_of(one: Interpreter) -> str:
    """How it was built, as the profiler says."""
    with running(one, "print(1, flush=True); input()") as child:
        said(child)
        return " ".join(recognise(child.pid).build)


def verdicts(case: Case, interpreters: Sequence[Interpreter]) -> dict[Interpreter, str]:
    """Empty where all is right, else what is wrong; a second try alone where the first failed: the machine may be busy."""
    found: dict[Interpreter, str] = {}
    able = [one for one in interpreters if case.runs_on(one)]
    group = 1 if case.whole_tree else SIDE_BY_SIDE
    for start in range(0, len(able), group):
        for one, fault in _tried(case, able[start : start + group]).items():
            found[one] = fault and _tried(case, [one])[one]
            print(f"{case.name} on {one}: {found[one] or 'ok'}", file=sys.stderr, flush=True)
    return found


def _tried(case: Case, some: Sequence[Interpreter]) -> dict[Interpreter, str]:
    try:
        return {one: "; ".join(case.judge(seen)) for one, seen in observe(case, some).items()}
    except RuntimeError as error:
        return dict.fromkeys(some, str(error))


def page(builds: dict[Interpreter, str], found: dict[str, dict[Interpreter, str]]) -> str:
    """When and where it was measured, the matrix, what failed."""
    date = datetime.now(UTC).date().isoformat()
    return f"Measured {date}, Linux {platform.release()}, {platform.machine()}.\n\n{table(builds, found)}{faults(found)}"


def table(builds: dict[Interpreter, str], found: dict[str, dict[Interpreter, str]]) -> str:
    """The matrix as Markdown: an interpreter a line, a case a column."""
    head = ["CPython", "build", *found]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for one, build in builds.items():
        cells = [_cell(answers, one) for answers in found.values()]
        lines.append(f"| {'.'.join(map(str, one.version))} | {build} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(answers: dict[Interpreter, str], one: Interpreter) -> str:
    return "–" if one not in answers else "fails" if answers[one] else "yes"


def faults(found: dict[str, dict[Interpreter, str]]) -> str:
    """What failed, one line each."""
    lines = [
        f"- {case} on {'.'.join(map(str, one.version))}: {fault}"
        for case, answers in found.items()
        for one, fault in answers.items()
        if fault
    ]
    return "\n".join(["", "What failed:", "", *lines]) if lines else ""


def write(text: str) -> None:
    """Put the text between the marks of the page."""
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> int:
    """All cases, or those that are named; a run of all is written down, after each case."""
    if os.geteuid():
        print("the matrix needs root: BPF programs are attached", file=sys.stderr)
        return 1
    wanted = [case for case in CASES if not sys.argv[1:] or case.name in sys.argv[1:]]
    interpreters = supported()
    found: dict[str, dict[Interpreter, str]] = {}
    builds = {one: build_of(one) for one in interpreters}
    for case in wanted:
        found[case.name] = verdicts(case, interpreters)
        if len(wanted) == len(CASES):
            write(page(builds, found))
    print(page(builds, found))
    return int(any(fault for answers in found.values() for fault in answers.values()))


if __name__ == "__main__":
    sys.exit(main())
