"""What a benchmark gives, and the pairing that makes figures of a noisy machine comparable."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One row: the figure, what it is compared with, and their ratio, as text with units."""

    what: str
    figure: str
    beside: str = ""
    ratio: str = ""


def paired(first: Callable[[], float], second: Callable[[], float], rounds: int) -> tuple[float, float, list[float]]:
    """Medians of the two and the ratios second/first round by round; the order alternates, so that drift cancels."""
    pairs: list[tuple[float, float]] = []
    for number in range(rounds):
        if number % 2:
            b = second()
            a = first()
        else:
            a = first()
            b = second()
        pairs.append((a, b))
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        [b / a for a, b in pairs],
    )


def spread(ratios: list[float]) -> str:
    """Median and quartiles of ratios as a change in percent."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{100 * (middle - 1):+.2f} % (quartiles {100 * (low - 1):+.2f}, {100 * (high - 1):+.2f})"


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """Resident memory in MiB, and what of it is private."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024
