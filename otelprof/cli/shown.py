"""Numbers, times, bars and tables in a terminal; colours only where the output is one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import click

from otelprof.cli.messages import colours
from otelprof.text import printable

MAX_NAME = 120  # characters
_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_COUNTS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
_SPARKS = "▁▂▃▄▅▆▇█"
_BLOCKS = " ▏▎▍▌▋▊▉█"
_COLOURS = {"python": "yellow", "native": "blue", "kernel": "magenta", "cuda": "green", "mark": "bright_black"}


def value(number: float, unit: str) -> str:
    """A value with its unit, three digits or so."""
    units = {"nanoseconds": _TIMES, "bytes": _SIZES}.get(unit, _COUNTS)
    for size, name in units:
        if abs(number) >= size:
            gap = "" if units is _COUNTS else " "
            return f"{number / size:.2f}{gap}{name}"
    return f"{number:.0f}" if units is _COUNTS else f"{number:.0f} {units[-1][1]}"


def share(part: float, whole: float) -> str:
    """A part in percent."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def moment(milliseconds: float) -> str:
    """A time of the day with its date, local."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def bar(part: float, whole: float, width: int) -> str:
    """A bar of `width` cells at most, in eighths of a cell."""
    eighths = round(8 * width * part / whole) if whole else 0
    return ("█" * (eighths // 8) + _BLOCKS[eighths % 8]).strip()


def spark(values: Sequence[float]) -> str:
    """A line of little bars; the largest is full."""
    most = max(values, default=0) or 1
    return "".join(_SPARKS[min(int(number / most * (len(_SPARKS) - 1) + 0.5), len(_SPARKS) - 1)] for number in values)


def coloured(text: str, colour: str | None) -> str:
    """The text in a colour where standard output is a terminal that wants some."""
    return click.style(text, fg=colour) if colour and colours(sys.stdout) else text


def function(name: str, kind: str, place: str = "") -> str:
    """A function's name in the colour of its kind, and where it stands."""
    where = f" {printable(place, MAX_NAME)}" if place else ""
    return coloured(printable(name, MAX_NAME), _COLOURS.get(kind)) + coloured(where, "bright_black")


def change(points: float) -> str:
    """A change of a share in percentage points: more is red, less is green."""
    return coloured(f"{points:+.1f}", "red" if points >= 0.05 else "green" if points <= -0.05 else None)


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose last column is text and stands left; all others stand right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(click.unstyle(row[i])) for row in cells) for i in range(len(head) - 1)]
    lines = []
    for row in cells:
        padded = [" " * (width - len(click.unstyle(cell))) + cell for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*padded, row[-1]]).rstrip())
    return "\n".join(lines)
