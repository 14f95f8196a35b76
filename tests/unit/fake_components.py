"""Components in a distribution of its own, as a third party would ship them; for tests of whole commands.

`install` writes the distribution's metadata into a folder for PYTHONPATH.
"""

import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from otelprof.component import Factory, Kind, Stability
from otelprof.config import Duration, setting
from otelprof.counters import EXPORT_FAILED, EXPORT_SENT, SAMPLES_SEEN
from otelprof.errors import OtelprofError, Unsupported
from otelprof.testing import sample_batch


@dataclass(frozen=True)
class SourceSettings:
    batches: int = setting(0, "batches of one sample until it has no more; 0: never ends")
    every: Duration = setting(Duration(0.01), "time between two")
    refuses: bool = setting(False, "can't start")
    breaks: bool = setting(False, "fails after the first batch")
    dies: bool = setting(False, "has a bug")


class Source:
    """Makes samples of one stack."""

    def __init__(self, build):
        self.build, self.settings = build, build.settings
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.work, name="fake_source", daemon=True)

    def start(self, host):
        if self.settings.refuses:
            raise Unsupported("CAP_BPF is missing: run as root")
        self.host = host
        self.thread.start()

    def work(self):
        count = 0
        while not self.over.wait(self.settings.every):
            self.host.counters.add(SAMPLES_SEEN)
            self.build.consumer.consume(sample_batch({"main;work": 1}))
            count += 1
            self.host.ready(self.build.id)
            if self.settings.dies:
                raise IndexError("out of\nrange")
            if self.settings.breaks:
                self.host.fail(OtelprofError("the ring is gone: start again"))
            if count == self.settings.batches:
                self.host.finished(self.build.id)
                return

    def shutdown(self, deadline):
        self.over.set()
        if self.thread.is_alive():
            self.thread.join(max(0, deadline - time.monotonic()))


@dataclass(frozen=True)
class SinkSettings:
    fails: bool = setting(False, "nothing can be sent")
    hangs: bool = setting(False, "doesn't stop")
    raises: bool = setting(False, "has a bug")


class Sink:
    """Counts what it gets."""

    def __init__(self, build):
        self.build, self.settings = build, build.settings

    def start(self, host):
        self.counters = host.counters

    def consume(self, batch):
        if self.settings.raises:
            raise KeyError("bug\nin two lines")
        if self.settings.fails:
            self.counters.add(EXPORT_FAILED, 1, self.build.id, "unreachable")
        else:
            self.counters.add(EXPORT_SENT, 1, self.build.id)

    def shutdown(self, deadline):
        while self.settings.hangs:
            time.sleep(1)


SOURCE = Factory("fake_source", Kind.RECEIVER, Stability.DEVELOPMENT, SourceSettings, Source, "makes samples")
SINK = Factory("fake_sink", Kind.EXPORTER, Stability.DEVELOPMENT, SinkSettings, Sink, "counts samples")


def install(folder: Path) -> str:
    """Write the distribution into `folder`; the value for PYTHONPATH."""
    metadata = folder / "fake_components-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-components\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[otelprof.components]\nreceivers.fake_source = fake_components:SOURCE\nexporters.fake_sink = fake_components:SINK\n"
        "exporters.fake_gone = fake_nothing:SINK\n"
    )
    return f"{folder}:{Path(__file__).parent}"


def environment(folder: Path) -> dict[str, str]:
    """An environment in which the command finds these components."""
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": install(folder), "HOME": str(folder)}


COMMAND = [sys.executable, "-m", "otelprof"]
