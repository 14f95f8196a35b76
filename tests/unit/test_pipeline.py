"""The graph: one instance per id, exporters first to start, receivers first to stop, errors contained."""

import threading
import time
from dataclasses import dataclass, replace

import pytest

from otelprof.batch import Batch
from otelprof.component import Factory, Kind, Signal, Stability
from otelprof.config import Registry, load_values
from otelprof.counters import COMPONENT_ERRORS, Counters
from otelprof.errors import OtelprofError
from otelprof.pipeline import Pipeline
from otelprof.testing import RecordingConsumer, RecordingHost, sample_batch


@dataclass(frozen=True)
class NoSettings:
    """Nothing to set."""


class Part(RecordingConsumer):
    """A component that writes down what happens to it."""

    def __init__(self, build, diary):
        super().__init__()
        self.build, self.diary = build, diary
        self.stuck = threading.Event()

    def start(self, host):
        self.diary.append(f"start {self.build.id}")

    def consume(self, batch):
        super().consume(batch)
        if self.build.consumer is not None:
            self.build.consumer.consume(batch)

    def shutdown(self, deadline):
        self.diary.append(f"stop {self.build.id}")


class Stuck(Part):
    def shutdown(self, deadline):
        self.stuck.wait(30)


class Failing(Part):
    def start(self, host):
        raise OtelprofError("no such device")


class Rude(Part):
    def shutdown(self, deadline):
        raise ValueError("rude")


def without_rows(batch: Batch) -> Batch:
    """A processor without state."""
    return replace(batch, samples=batch.samples[:0])


@pytest.fixture
def make():
    diary, made = [], {}

    def factory(kind, name, cls):
        def create(build):
            assert build.id not in made, "one id, one instance"
            made[build.id] = cls(build, diary)
            return made[build.id]

        return Factory(name, kind, Stability.ALPHA, NoSettings, create)

    registry = Registry(
        [
            factory(Kind.RECEIVER, "source", Part),
            factory(Kind.PROCESSOR, "change", Part),
            Factory("drop", Kind.PROCESSOR, Stability.ALPHA, NoSettings, lambda _: without_rows),
            factory(Kind.EXPORTER, "sink", Part),
            factory(Kind.EXPORTER, "stuck", Stuck),
            factory(Kind.EXPORTER, "failing", Failing),
            factory(Kind.EXPORTER, "rude", Rude),
            factory(Kind.EXTENSION, "extra", Part),
        ]
    )

    def build(extensions=(), **pipelines):
        sections = {kind.value: {} for kind in Kind}
        for lists in pipelines.values():
            for section, names in lists.items():
                sections[section].update(dict.fromkeys(names))
        sections["extensions"] = dict.fromkeys(extensions)
        named = {name.replace("_", "/"): lists for name, lists in pipelines.items()}
        values = {**sections, "service": {"extensions": list(extensions), "pipelines": named}}
        counters = Counters()
        return Pipeline(load_values(values, registry), counters), made, diary, counters

    return build


def lists(receivers="source", processors="", exporters="sink"):
    return {"receivers": receivers.split(), "processors": processors.split(), "exporters": exporters.split()}


def test_exporters_start_first_and_receivers_stop_first(make):
    pipeline, _, diary, _ = make(extensions=["extra"], profiles=lists(processors="change change/2"))
    pipeline.start(RecordingHost())
    pipeline.shutdown(time.monotonic() + 5)

    assert diary == [
        *("start extra", "start sink", "start change/2", "start change", "start source"),
        *("stop source", "stop change", "stop change/2", "stop sink", "stop extra"),
    ]


def test_a_batch_passes_each_instance_once_in_two_pipelines(make):
    pipeline, made, _, _ = make(profiles=lists(processors="change"), traces=lists(processors="change", exporters="sink sink/2"))
    pipeline.start(RecordingHost())
    batch = sample_batch({"main;work": 3})
    made["source"].consume(batch)

    assert made["change"].batches == made["sink"].batches == made["sink/2"].batches == [batch]
    assert made["sink"].build.signals == {Signal.PROFILES, Signal.TRACES}
    assert made["sink/2"].build.signals == {Signal.TRACES}


def test_a_receiver_feeds_every_route_that_names_it(make):
    pipeline, made, _, _ = make(profiles_1=lists(exporters="sink/1"), profiles_2=lists(processors="drop", exporters="sink/2"))
    pipeline.start(RecordingHost())
    made["source"].consume(sample_batch({"main": 1}))

    assert len(made["sink/1"].batches[0].samples) == 1
    assert len(made["sink/2"].batches[0].samples) == 0


def test_an_error_in_consume_is_contained_counted_and_said_once(make, caplog):
    pipeline, made, _, counters = make(profiles=lists(processors="change", exporters="sink sink/2"))
    pipeline.start(RecordingHost())
    made["sink"].error = RuntimeError("no space")
    for _ in range(3):
        made["source"].consume(sample_batch({"main": 1}))

    assert len(made["sink/2"].batches) == 3
    assert counters.get(COMPONENT_ERRORS, "sink") == 3
    assert [record.getMessage() for record in caplog.records] == [
        "sink failed on a batch, which is lost: RuntimeError: no space (said once)"
    ]


def test_a_consumer_is_never_entered_by_two_threads_at_once(make):
    pipeline, made, _, _ = make(profiles=lists(receivers="source source/2"))
    pipeline.start(RecordingHost())
    inside, overlaps, both = [], [], threading.Barrier(2)

    def consume(batch):
        inside.append(1)
        overlaps.append(len(inside) > 1)
        time.sleep(0)
        inside.pop()

    made["sink"].consume = consume

    def feed(name):
        both.wait()
        for _ in range(300):
            made[name].consume(sample_batch({"main": 1}))

    threads = [threading.Thread(target=feed, args=(name,)) for name in ("source", "source/2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(overlaps) == 600
    assert not any(overlaps)


def test_one_that_does_not_stop_is_left_behind_and_the_others_stop(make, caplog):
    pipeline, made, diary, _ = make(profiles=lists(exporters="stuck sink"), traces=lists(exporters="rude"))
    pipeline.start(RecordingHost())
    pipeline.shutdown(time.monotonic() + 0.5)
    made["stuck"].stuck.set()

    assert diary[-2:] == ["stop source", "stop sink"]
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "stuck didn't stop in time" in said
    assert "rude failed while it stopped: ValueError: rude" in said


def test_only_what_was_started_is_stopped_after_a_failed_start(make):
    pipeline, _, diary, _ = make(profiles=lists(exporters="sink failing sink/2"))
    with pytest.raises(OtelprofError, match="no such device"):
        pipeline.start(RecordingHost())
    pipeline.shutdown(time.monotonic() + 5)

    assert diary == ["start sink", "stop sink", "stop failing"]


def test_shutdown_without_start_does_nothing(make):
    pipeline, _, diary, _ = make(profiles=lists())
    pipeline.shutdown(time.monotonic() + 5)
    pipeline.shutdown(time.monotonic() + 5)

    assert diary == []
