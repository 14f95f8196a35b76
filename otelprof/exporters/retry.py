"""When a request that failed is sent again, and how long one try may take."""

from __future__ import annotations

import random
from dataclasses import dataclass

from otelprof.config.settings import setting
from otelprof.config.units import Duration

LONGEST_WAIT = 120.0
"""Seconds that a server's own wish to wait is followed."""

_PROBE_FIRST, _PROBE_LONGEST = 10.0, 60.0  # seconds between tries of a server that lacks the service


@dataclass(frozen=True, slots=True)
class Retry:
    """When a request that failed is sent again."""

    enabled: bool = setting(True, "whether it is sent again at all")
    initial_interval: Duration = setting(Duration(1.0), "wait after the first failure", minimum=0.01, maximum=3600)
    randomization_factor: float = setting(0.5, "share of a wait by which it varies", minimum=0, maximum=1)
    multiplier: float = setting(1.5, "how much longer each wait is than the one before", minimum=1, maximum=100)
    max_interval: Duration = setting(Duration(30.0), "longest wait", minimum=0.01, maximum=3600)
    max_elapsed_time: Duration = setting(Duration(300.0), "a request is given up after so long; 0: never", minimum=0)


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient a sender is: seconds of one try, retries, bytes that wait, the id of the extension that keeps them."""

    timeout: float = 10.0
    retry: Retry = Retry()
    queue_size: int = 32 << 20
    storage: str = ""


class Backoff:
    """Waits that grow from failure to failure and vary, so that many agents don't come back at one moment."""

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self.reset()

    def reset(self) -> None:
        """Start over after a success."""
        self._interval = float(self._retry.initial_interval)
        self._probe = _PROBE_FIRST

    def wait(self, asked: float | None) -> float:
        """Seconds until the next try: what the server asked for (within LONGEST_WAIT), else the next of our own."""
        if asked is not None:
            return min(asked, LONGEST_WAIT)
        spread = self._retry.randomization_factor
        interval, self._interval = self._interval, min(self._interval * self._retry.multiplier, self._retry.max_interval)
        return interval * random.uniform(1 - spread, 1 + spread)  # noqa: S311  # no secret

    def probe(self) -> float:
        """Seconds until a server that lacks the service is asked again."""
        interval, self._probe = self._probe, min(self._probe * 2, _PROBE_LONGEST)
        return interval
