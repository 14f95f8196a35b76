"""Settings that carry a unit: durations, sizes and shares, as people write them and back.

Grammars: durations as Go's time.ParseDuration, which the Collector uses (https://pkg.go.dev/time#ParseDuration); sizes with
decimal (kB, MB) and binary (KiB, MiB) units; shares in percent.
"""

from __future__ import annotations

import math
import re
from typing import NewType

Duration = NewType("Duration", float)
"""Seconds; written `5s`, `1m30s`, `100ms`."""

ByteSize = NewType("ByteSize", int)
"""Bytes; written `64MiB`, `500kB` or as a bare number."""

Percent = NewType("Percent", float)
"""A share from 0 to 1; written `1%`."""

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)")
_LONGEST = 292 * 365 * 86400.0  # Go's Duration ends near 292 years


def parse_duration(text: str) -> Duration:
    """Seconds of `1m30s`; ValueError for anything else, also for a number without a unit (but `0`)."""
    stripped = text.strip()
    if stripped == "0":
        return Duration(0.0)
    parts = _PART.findall(stripped) if len(stripped) <= 64 else []
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not parts or "".join(number + unit for number, unit in parts) != stripped or seconds > _LONGEST:
        raise ValueError("a duration such as 5s, 1m30s or 100ms is needed")
    return Duration(seconds)


def format_duration(seconds: float) -> str:
    """The shortest writing that parse_duration reads back: 5s, 100ms, 1m30s."""
    if seconds and seconds < 1:
        return f"{seconds * 1000:g}ms"
    minutes, rest = divmod(seconds, 60)
    return (f"{minutes:.0f}m" if minutes else "") + (f"{rest:g}s" if rest or not minutes else "")


def parse_size(text: str) -> ByteSize:
    """Bytes of `64MiB`; ValueError for anything else."""
    match = _SIZE.fullmatch(text.strip()) if len(text) <= 32 else None
    factor = _BYTES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError("a size such as 64MiB, 500kB or 1024 is needed")
    return ByteSize(int(float(match[1]) * factor))


def format_size(count: int) -> str:
    """The shortest writing that parse_size reads back, with binary units."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count and count % factor == 0:
            return f"{count // factor}{unit}"
    return str(count)


def parse_percent(text: str) -> Percent:
    """The share of `1%`, 0 to 1; ValueError for anything else."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = math.nan
    if not text.strip().endswith("%") or not 0 <= share <= 1:
        raise ValueError("a share from 0% to 100% is needed, such as 1%")
    return Percent(share)


def format_percent(share: float) -> str:
    """The writing that parse_percent reads back."""
    return f"{share * 100:g}%"
