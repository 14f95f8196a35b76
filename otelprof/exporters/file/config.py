"""Settings of the exporter `file`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from otelprof.config.settings import setting
from otelprof.config.units import ByteSize


@dataclass(frozen=True, slots=True)
class Rotation:
    """How much is kept."""

    max_size: ByteSize = setting(ByteSize(100 << 20), "bytes after which a new file begins", minimum=1024)
    max_backups: int = setting(10, "older files that are kept", minimum=0, maximum=100_000)


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and in which form."""

    path: Path = setting(
        Path("otelprof.jsonl"),
        "the file; with otlp_proto each request is a file of its own, numbered before the suffix (out-000001.pb)",
    )
    format: Literal["otlp_json", "otlp_proto"] = setting("otlp_json", "JSON documents, one a line, or serialised requests")
    rotation: Rotation = setting(Rotation(), "how much is kept")
