"""Settings of the processor `cuda_stitch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from otelprof.config.settings import setting
from otelprof.config.units import Duration


@dataclass(frozen=True, slots=True)
class Settings:
    """What becomes a span, and how long and how much may wait."""

    spans: Literal["all", "linked", "none"] = setting(
        "linked", "launches and kernels that become spans: all, those inside a span of the application (linked), or none"
    )
    spans_share: float = setting(1.0, "share of these spans that is made, whole traces at a time", minimum=0.0, maximum=1.0)
    window: Duration = setting(Duration(30.0), "how long a launch and its GPU activity wait for each other", minimum=0.1)
    waiting_limit: int = setting(
        500_000, "launches, and as many activity records, that are remembered at most", minimum=1, maximum=50_000_000
    )
