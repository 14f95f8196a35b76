"""Points in time as people and Grafana write them: `now`, `now-1h`, Unix seconds, milliseconds, micro- or nanoseconds."""

from __future__ import annotations

import re
import time

from otelprof.errors import MalformedInput

_RELATIVE = re.compile(r"now(?:-(\d{1,9})(ms|s|m|h|d|w))?")
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def nanoseconds(text: str) -> int:
    """Unix nanoseconds of a number, whose unit its length tells as it does for Pyroscope; "" is 0."""
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise MalformedInput(f"a time is `now`, `now-1h` or a Unix time, not {text[:40]!r}")
    number = int(text)
    for limit, factor in ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3)):
        if number < limit:
            return number * factor
    return number


def milliseconds(text: str) -> int:
    """Unix milliseconds of a point in time; "" is 0."""
    relative = _RELATIVE.fullmatch(text)
    if not relative:
        return nanoseconds(text) // 1_000_000
    back = int(relative[1]) * _MILLISECONDS[relative[2]] if relative[1] else 0
    return max(int(time.time() * 1000) - back, 0)
