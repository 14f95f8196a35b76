"""What otelprof/component.py promises, checked for every component type that is installed.

A new component is checked by being listed in pyproject.toml; only what it needs to start stands here.
"""

import dataclasses
import threading
import time
from pathlib import Path

import pytest

from otelprof.batch import Batch, Interner
from otelprof.component import Build, Kind, Signal
from otelprof.config import Registry, load_values
from otelprof.config.settings import INVALID, convert_class
from otelprof.counters import EXPORT_FAILED, EXPORT_SENT
from otelprof.errors import ConfigError, OtelprofError
from otelprof.pipeline import Stateless
from otelprof.testing import RecordingConsumer, RecordingHost, sample_batch

REGISTRY = Registry.installed()
FACTORIES = [factory for factory in REGISTRY.all() if factory.settings.__module__.startswith("otelprof.")]
NEEDS_KERNEL = {"ebpf"}
ENDLESS = {"ebpf", "otlp"}
"""Receivers whose data doesn't end."""
LOOPBACK = {"endpoint": "127.0.0.1:0"}
SETTINGS = {  # what a type needs beside its defaults to start in a test
    "otlp": {"protocols": {"grpc": LOOPBACK, "http": LOOPBACK}},
    "replay": {"path": "session.jsonl"},
    "otlp_grpc": {"endpoint": "127.0.0.1:1", "tls": {"insecure": True}},
    "otlp_http": {"endpoint": "http://127.0.0.1:1"},
    "pyroscope": {"endpoint": "http://127.0.0.1:1"},
}
SESSION = '{"kind": "sample", "pid": 1, "tid": 1, "time_unix_nano": 1, "stack": ["main"], "count": 3}\n'


def named(factory):
    return f"{factory.kind.value}.{factory.type}"


every = pytest.mark.parametrize("factory", FACTORIES, ids=named)
consuming = pytest.mark.parametrize(
    "factory", [one for one in FACTORIES if one.kind in (Kind.PROCESSOR, Kind.EXPORTER)], ids=named
)
startable = pytest.mark.parametrize("factory", [one for one in FACTORIES if one.type not in NEEDS_KERNEL], ids=named)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Whatever a component writes by default goes here."""
    monkeypatch.chdir(tmp_path)
    Path("session.jsonl").write_text(SESSION)
    return tmp_path


def settings(factory):
    mistakes = []
    made = convert_class(
        factory.settings, SETTINGS.get(factory.type), "x", lambda path, text: mistakes.append(f"{path}: {text}")
    )
    assert not mistakes
    assert made is not INVALID
    return made


def create(factory):
    """An instance as the pipeline makes it, and the consumer behind it."""
    consumer = RecordingConsumer()
    signals = factory.signals if factory.kind is Kind.EXPORTER else frozenset({Signal.PROFILES})
    build = Build(f"{factory.type}/test", settings(factory), None if factory.kind is Kind.EXPORTER else consumer, signals)
    made = factory.create(build)
    return (made if hasattr(made, "shutdown") else Stateless(made, consumer)), consumer


def open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def soon(seconds=2.0):
    return time.monotonic() + seconds


def test_every_entry_point_can_be_loaded():
    assert REGISTRY.broken == {}
    assert len(FACTORIES) >= 8


@every
def test_settings_are_frozen_have_defaults_and_say_what_they_mean(factory):
    def check(cls):
        assert dataclasses.is_dataclass(cls)
        assert cls.__dataclass_params__.frozen
        for field in dataclasses.fields(cls):
            assert field.metadata.get("meaning"), f"{cls.__name__}.{field.name}"
            assert field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
            if dataclasses.is_dataclass(field.default):
                check(type(field.default))

    check(factory.settings)
    assert settings(factory) == settings(factory)
    assert factory.summary


@every
def test_an_unknown_key_is_one_line_with_its_path(factory):
    section = {factory.type: {"no_such_key_at_all": 1}}
    with pytest.raises(ConfigError) as caught:
        load_values({factory.kind.value: section}, REGISTRY)

    path = f"{factory.kind.value}.{factory.type}.no_such_key_at_all: unknown key"
    assert len([line for line in caught.value.lines if path in line]) == 1


@every
def test_create_starts_nothing_and_opens_nothing(factory):
    create(factory)  # once before, since modules are loaded at first use
    threads, files = threading.active_count(), open_files()
    made, _ = create(factory)

    assert threading.active_count() == threads
    assert open_files() == files
    assert made is not None


@every
def test_shutdown_is_safe_without_start_and_twice(factory):
    made, consumer = create(factory)
    made.shutdown(soon())
    made.shutdown(soon())

    assert consumer.batches == []


@startable
def test_shutdown_after_start_is_safe_twice_and_leaves_no_thread_or_file(factory):
    made, _ = create(factory)
    made.start(RecordingHost())
    made.shutdown(soon())
    made.shutdown(soon())  # a first round, after which what is loaded at first use is there
    threads, files = set(threading.enumerate()), open_files()
    for _ in range(3):
        made, _ = create(factory)
        made.start(RecordingHost())
        made.shutdown(soon())

    assert [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon] == []
    assert open_files() <= files + 1


@consuming
def test_consume_never_raises_whatever_the_batch_holds(factory):
    made, _ = create(factory)
    host = RecordingHost()
    made.start(host)
    for batch in (
        Batch(Interner(), 0, 0),
        sample_batch({"main;work": 3, "": 1}),
        sample_batch({"\ud800\x00\n;" + "é" * 9000: 1}, attributes={"service.name": "\ud800"}),
        sample_batch({";".join("f" * 2000): 2**40}),
    ):
        made.consume(batch)
    made.shutdown(soon())

    assert host.errors == []


@pytest.mark.parametrize("factory", [one for one in FACTORIES if one.kind is Kind.PROCESSOR], ids=named)
def test_a_processor_has_handed_on_everything_when_shutdown_returns(factory):
    made, consumer = create(factory)
    made.start(RecordingHost())
    for count in range(1, 6):
        made.consume(sample_batch({"main;work": count}, pid=count))
    made.shutdown(soon())

    assert sum(int(batch.samples["value"].sum()) for batch in consumer.batches) == 15
    assert all(not batch.samples.flags.writeable for batch in consumer.batches)


@pytest.mark.parametrize("factory", [one for one in FACTORIES if one.kind is Kind.EXPORTER and one.type != "debug"], ids=named)
def test_an_exporter_has_sent_or_counted_everything_when_shutdown_returns(factory):
    made, _ = create(factory)
    host = RecordingHost()
    made.start(host)
    made.consume(sample_batch({"main;work": 3}))
    made.shutdown(soon())

    assert host.counters.get(EXPORT_SENT) + host.counters.get(EXPORT_FAILED) == 1


@pytest.mark.parametrize(
    "factory", [one for one in FACTORIES if one.kind is Kind.RECEIVER and one.type not in ENDLESS], ids=named
)
def test_a_receiver_says_when_it_is_ready_and_when_it_has_no_more(factory):
    made, consumer = create(factory)
    host = RecordingHost()
    made.start(host)
    assert host.wait_finished()
    made.shutdown(soon())

    assert host.ready_ids == host.finished_ids == [f"{factory.type}/test"]
    assert host.errors == []
    assert sum(int(batch.samples["value"].sum()) for batch in consumer.batches) == 3


def test_what_cannot_start_is_an_error_for_people(folder):
    Path("session.jsonl").unlink()
    made, _ = create(REGISTRY.find(Kind.RECEIVER, "replay"))
    host = RecordingHost()
    try:
        made.start(host)
    except OtelprofError as error:
        host.fail(error)
    assert host.wait_finished()
    made.shutdown(soon())

    assert len(host.errors) == 1
    assert "\n" not in str(host.errors[0])
