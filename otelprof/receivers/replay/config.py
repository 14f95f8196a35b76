"""Settings of the receiver `replay`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from otelprof.config.settings import setting
from otelprof.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Settings:
    """Which session, and whether once or for ever."""

    path: Path = setting(Path(), "the session's file, as `record --format session` writes it; needed")
    loop: bool = setting(
        False, "begin again at the end: each further pass is later by the time that the session spans, and waits for it"
    )

    def __post_init__(self) -> None:
        if self.path == Path():
            raise ConfigError(["path: the file of a recorded session is needed"])
