"""Settings of the extension `file_storage`, with the Collector's keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from otelprof.config.settings import setting


@dataclass(frozen=True, slots=True)
class Settings:
    """Where, and how sure."""

    directory: Path = setting(
        Path("/var/lib/otelprof/file_storage"),
        "the directory; it is made when it isn't there, and each exporter has a folder in it",
    )
    fsync: bool = setting(
        False, "wait for the disk at each request, so that a machine that loses power loses nothing; the agent's end never does"
    )
