"""The receiver `replay`: from a file to batches, to the end of the agent or its error, once or in a loop."""

import json
import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from otelprof.batch import Batch
from otelprof.component import Build, Host, Kind
from otelprof.config.settings import convert_class
from otelprof.counters import LAUNCHES_SEEN, SAMPLES_SEEN, Counters
from otelprof.errors import OtelprofError
from otelprof.processors.cuda_stitch.config import Settings as StitchSettings
from otelprof.processors.cuda_stitch.processor import CudaStitch
from otelprof.receivers.replay.config import Settings
from otelprof.receivers.replay.factory import FACTORY

SECOND = 10**9
NOW = 1_700_000_000 * SECOND


class Agent:
    """The agent as a receiver sees it; `over` is set when it would end."""

    state_dir = None

    def __init__(self) -> None:
        self.counters = Counters()
        self.over = threading.Event()
        self.was_ready = False
        self.error: OtelprofError | None = None

    def ready(self, component: str) -> None:
        self.was_ready = True

    def finished(self, component: str) -> None:
        self.over.set()

    def fail(self, error: OtelprofError) -> None:
        self.error = error
        self.over.set()


class Sink:
    """Keeps batches; tells when there are enough."""

    def __init__(self, enough: int = 1) -> None:
        self.batches: list[Batch] = []
        self.enough = enough
        self.reached = threading.Event()

    def consume(self, batch: Batch) -> None:
        self.batches.append(batch)
        if len(self.batches) >= self.enough:
            self.reached.set()

    def totals(self) -> Counter:
        """Totals by (type, names of the stack)."""
        found: Counter = Counter()
        for batch in self.batches:
            for row in batch.samples:
                names = tuple(frame.name for frame in batch.interner.frames_of(row["stack"]))
                found[batch.interner.types[row["type"]].type, names] += int(row["value"])
        return found


def session(folder: Path, *records: dict) -> Path:
    path = folder / "session.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def sample(seconds: float) -> dict:
    return {
        "kind": "sample",
        "pid": 1,
        "tid": 1,
        "time_unix_nano": NOW + int(seconds * SECOND),
        "stack": ["main", "f"],
        "count": 2,
    }


def run(path: Path, sink: object, **chosen: object) -> tuple[object, Agent]:
    agent = Agent()
    receiver = FACTORY.create(Build("replay", Settings(path=path, **chosen), sink))
    receiver.start(agent)
    return receiver, agent


def test_the_agent_ends_at_the_end_of_the_file_with_all_counted(tmp_path: Path) -> None:
    sink = Sink()
    launch = {"kind": "launch", "pid": 1, "time_unix_nano": NOW, "stack": ["main"], "kernel": "k"}
    receiver, agent = run(session(tmp_path, sample(0), sample(0.5), launch), sink)
    assert agent.over.wait(10)
    assert agent.error is None
    assert agent.was_ready
    assert agent.counters.get(SAMPLES_SEEN) == 4
    assert agent.counters.get(LAUNCHES_SEEN) == 1
    assert [row["time"] for batch in sink.batches for row in batch.samples] == [NOW, NOW + SECOND // 2]
    receiver.shutdown(time.monotonic() + 5)


def test_a_bad_line_ends_the_agent_with_its_number_and_what_came_before_is_kept(tmp_path: Path) -> None:
    sink = Sink()
    path = session(tmp_path, sample(0), sample(10))
    with path.open("a") as file:
        file.write("{no json\n")
    _, agent = run(path, sink)
    assert agent.over.wait(10)
    assert str(agent.error) == f'{path}: line 3: not a JSON object with a "kind"'
    assert sum(len(batch.samples) for batch in sink.batches) == 1


@pytest.mark.parametrize("name", ["missing.jsonl", ".", "pipe", "/dev/zero"])
def test_a_file_that_cannot_be_opened_is_said_at_the_start(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OtelprofError, match="can't be opened"):
        run(tmp_path / name, Sink())


def test_an_empty_file_is_the_end(tmp_path: Path) -> None:
    sink = Sink()
    _, agent = run(session(tmp_path), sink)
    assert agent.over.wait(10)
    assert agent.error is None
    assert sink.batches == []


def test_a_loop_goes_on_in_time_until_it_is_stopped(tmp_path: Path) -> None:
    sink = Sink(enough=3)
    receiver, agent = run(session(tmp_path, sample(0), sample(0.01)), sink, loop=True)
    assert sink.reached.wait(20)
    receiver.shutdown(time.monotonic() + 5)
    assert agent.over.wait(5)
    times = [int(row["time"]) for batch in sink.batches for row in batch.samples]
    assert times == sorted(times)
    assert len(set(times)) == len(times)


def test_a_loop_over_one_moment_does_not_run_wild(tmp_path: Path) -> None:
    sink = Sink(enough=3)
    began = time.monotonic()
    receiver, _ = run(session(tmp_path, sample(0)), sink, loop=True)
    assert sink.reached.wait(20)
    assert time.monotonic() - began >= 0.2
    receiver.shutdown(time.monotonic() + 5)


def test_shutdown_is_safe_without_start_and_twice(tmp_path: Path) -> None:
    receiver = FACTORY.create(Build("replay", Settings(path=tmp_path / "s"), Sink()))
    receiver.shutdown(time.monotonic() + 1)
    receiver.shutdown(time.monotonic() + 1)


def test_the_path_is_needed() -> None:
    mistakes: list[tuple[str, str]] = []
    convert_class(Settings, {}, "receivers.replay", lambda path, what: mistakes.append((path, what)))
    assert mistakes == [("receivers.replay.path", "the file of a recorded session is needed")]
    assert FACTORY.kind is Kind.RECEIVER


def test_a_session_with_launches_and_activity_becomes_a_gpu_profile(tmp_path: Path) -> None:
    """Bad times, a wrapped id, a repeated record, activity before its launch and without one: receiver and stitcher."""
    stack = [{"name": name, "kind": "cpython", "file": "app.py", "line": 1} for name in ("<module>", "forward", "attention")]
    launch = {"kind": "launch", "pid": 42, "tid": 42, "stack": stack, "kernel": "k", "device": 0, "stream": 7}
    launches = [{**launch, "correlation_id": id, "time_unix_nano": NOW + id % 7} for id in (1, 2, 3, 2**32 - 1, 0)]
    kernel = {"kind": "kernel", "pid": 42, "name": "k", "device": 0, "stream": 7}
    times = [(1, 10, 110), (1, 10, 110), (2, 50, 20), (2**32 - 1, 200, 300), (0, 300, 400), (9, 400, 450)]
    ran = [{**kernel, "correlation_id": id, "start_unix_nano": NOW + a, "end_unix_nano": NOW + b} for id, a, b in times]
    nothing = {**kernel, "correlation_id": 3, "start_unix_nano": 0, "end_unix_nano": 0}
    sink, host = Sink(), Agent()
    stitch = CudaStitch(Build("cuda_stitch", StitchSettings(spans="none"), sink))
    stitch.start(host)
    receiver, agent = run(session(tmp_path, *launches[:3], *ran, nothing, *launches[3:]), stitch)
    assert agent.over.wait(10)
    receiver.shutdown(time.monotonic() + 5)
    stitch.shutdown(time.monotonic() + 5)
    assert sink.totals() == {
        ("gpu_kernel_launches", ("<module>", "forward", "attention", "k")): 5,
        ("gpu_kernel_time", ("<module>", "forward", "attention", "k")): 300,
        ("gpu_kernel_time", ("[no launch stack]", "k")): 50,
    }


def test_the_host_protocol_is_met() -> None:
    host: Host = Agent()
    assert host.state_dir is None
