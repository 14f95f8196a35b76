"""Runs the benchmarks and prints a table: what, the figure, what it stands beside, their ratio."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable

from benchmarks.figures import Figure

NAMES = ("sampler", "probe", "agent", "short_lived", "data", "spans")


def table(figures: Iterable[Figure]) -> str:
    """The figures as Markdown."""
    head = ["| what | figure | beside | ratio |", "|---|---|---|---|"]
    return "\n".join(head + [f"| {one.what} | {one.figure} | {one.beside} | {one.ratio} |" for one in figures])


def main() -> int:
    """Run those that are named, or all."""
    wanted = sys.argv[1:] or NAMES
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    figures: list[Figure] = []
    for name in wanted:
        print(f"benchmark {name} …", file=sys.stderr, flush=True)
        figures += importlib.import_module(f"benchmarks.{name}").measure()
    print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
