"""Settings of the exporter `debug`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from otelprof.config.settings import setting


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is said."""

    verbosity: Literal["basic", "detailed"] = setting("basic", "one line a batch, or its largest stacks and spans too")
