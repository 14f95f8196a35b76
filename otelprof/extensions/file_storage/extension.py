"""Names the directory; the queues in it belong to the exporters (otelprof/exporters/disk_queue.py)."""

from __future__ import annotations

import re
from pathlib import Path

from otelprof.component import Build, Host
from otelprof.extensions.file_storage.config import Settings


class FileStorage:
    """See the module's text."""

    def __init__(self, build: Build) -> None:
        settings: Settings = build.settings
        self.directory = settings.directory
        self.fsync = settings.fsync

    def folder(self, owner: str) -> Path:
        """The folder of the component with this id."""
        return self.directory / re.sub(r"[^A-Za-z0-9_.-]", "_", f"exporter_{owner}")

    def start(self, host: Host) -> None:
        """Nothing to get going: a folder is made by whoever uses it."""

    def shutdown(self, deadline: float) -> None:
        """Nothing to stop."""
