"""The sender's promises, with a transport whose answers the test chooses: retries, halves, bounds, all counted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

import pytest

from otelprof.batch import Batch
from otelprof.component import Build, Signal
from otelprof.counters import EXPORT_FAILED, EXPORT_REJECTED, EXPORT_SENT, QUEUE_BYTES
from otelprof.exporters.answers import Answer, Verdict, retry_after
from otelprof.exporters.queue import ByteQueue
from otelprof.exporters.retry import LONGEST_WAIT, Backoff, Policy, Retry
from otelprof.exporters.sender import Sender
from otelprof.otlp.encode import Encoded, Options
from otelprof.testing import RecordingHost, sample_batch

OK = Answer(Verdict.ACCEPTED)
AWAY = Answer(Verdict.RETRY, "unavailable", "unavailable: nobody listens there")
FAST = Retry(initial_interval=0.01, max_interval=0.02)  # type: ignore[arg-type]


class Script:
    """A transport that answers from a list, then always with its last entry."""

    endpoint = "test:1"

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.sent: list[Encoded] = []
        self.closed = threading.Event()
        self.hold: threading.Event | None = None

    def open(self) -> None:
        pass

    def send(self, request: Encoded, seconds: float) -> Answer:
        self.sent.append(request)
        if self.hold is not None:
            self.hold.wait(30)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def close(self) -> None:
        self.closed.set()


class Running:
    """A started sender with its host."""

    def __init__(self, script: Script, policy: Policy | None = None) -> None:
        self.script, self.host = script, RecordingHost()
        self.sender = Sender(Build("otlp_test", None), script, Options(), policy or Policy(retry=FAST))
        self.sender.start(self.host)

    def count(self, metric: object, *labels: str) -> float:
        return self.host.counters.get(metric, *(("otlp_test", *labels) if labels else ()))  # type: ignore[arg-type]

    def stop(self, seconds: float = 5.0) -> None:
        self.sender.shutdown(time.monotonic() + seconds)


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition didn't come true in time"
        time.sleep(0.005)


def wide_batch(stacks: int = 10) -> Batch:
    return sample_batch({f"main;f{number}": number + 1 for number in range(stacks)})


def total(requests: Iterable[Encoded]) -> int:
    return sum(request.samples for request in requests)


def test_a_batch_is_sent_and_its_profiles_are_counted() -> None:
    run = Running(Script(OK))
    run.sender.consume(wide_batch())
    run.stop()
    assert total(run.script.sent) == 10
    assert run.count(EXPORT_SENT) == 1
    assert run.count(EXPORT_FAILED) == 0
    assert run.script.closed.is_set()


def test_what_fails_for_now_is_sent_again_as_the_same_bytes() -> None:
    run = Running(Script(AWAY, AWAY, OK))
    run.sender.consume(wide_batch())
    until(lambda: run.count(EXPORT_SENT) == 1)
    run.stop()
    assert len(run.script.sent) == 3
    assert len({request.data for request in run.script.sent}) == 1


def test_what_is_refused_is_never_sent_again_and_is_counted() -> None:
    run = Running(Script(Answer(Verdict.REFUSED, "invalid_argument", "bad"), OK))
    run.sender.consume(wide_batch())
    run.sender.consume(wide_batch())
    until(lambda: run.count(EXPORT_SENT) == 1)
    run.stop()
    assert len(run.script.sent) == 2
    assert run.count(EXPORT_FAILED, "invalid_argument") == 1


def test_too_large_a_request_comes_again_in_two_halves_with_all_its_samples() -> None:
    run = Running(Script(Answer(Verdict.TOO_LARGE, "resource_exhausted", "too large"), OK))
    run.sender.consume(wide_batch(11))
    until(lambda: run.count(EXPORT_SENT) == 2)
    run.stop()
    whole, *parts = run.script.sent
    assert [part.samples for part in parts] == [5, 6]
    assert whole.samples == 11


def test_halves_that_are_too_large_as_well_are_given_up() -> None:
    """The whole is never sent again, and neither are the halves."""
    run = Running(Script(Answer(Verdict.TOO_LARGE, "resource_exhausted", "quota")))
    run.sender.consume(wide_batch())
    until(lambda: run.count(EXPORT_FAILED) == 2)
    run.stop()
    assert len(run.script.sent) == len({request.data for request in run.script.sent}) == 3


def test_a_partial_success_counts_what_was_rejected() -> None:
    run = Running(Script(Answer(Verdict.ACCEPTED, rejected=1, cause="refused a part: no")))
    run.sender.consume(wide_batch())
    run.stop()
    assert run.count(EXPORT_REJECTED) == 1
    assert run.count(EXPORT_SENT) == 0


def test_retries_end_after_their_time() -> None:
    run = Running(Script(AWAY), Policy(retry=Retry(initial_interval=0.01, max_elapsed_time=0.05)))  # type: ignore[arg-type]
    run.sender.consume(wide_batch())
    until(lambda: run.count(EXPORT_FAILED, "unavailable") == 1)
    run.stop()


def test_a_server_that_asks_to_wait_is_left_alone_even_by_the_next_request() -> None:
    """The first request is given up since it may not wait that long; the second isn't sent before the time."""
    policy = Policy(retry=Retry(max_elapsed_time=1.0))  # type: ignore[arg-type]
    run = Running(Script(Answer(Verdict.RETRY, "http 429", "HTTP 429", wait=30.0)), policy)
    run.sender.consume(wide_batch())
    until(lambda: run.count(EXPORT_FAILED, "http 429") == 1)
    run.sender.consume(wide_batch())
    run.stop()
    assert len(run.script.sent) == 1
    assert run.count(EXPORT_FAILED, "stopped") == 1


def test_a_server_without_the_service_is_asked_rarely_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run = Running(Script(Answer(Verdict.UNSUPPORTED, "unimplemented", "it has no ProfilesService")))
    for _ in range(5):
        run.sender.consume(wide_batch())
    until(lambda: run.count(QUEUE_BYTES) > 0)
    run.stop()
    assert len(run.script.sent) == 1
    assert [record.getMessage() for record in caplog.records] == ["otlp_test: test:1: it has no ProfilesService"]
    assert run.count(EXPORT_FAILED) == 5


def test_one_line_a_cause_and_one_when_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run = Running(Script(AWAY, AWAY, AWAY, OK))
    run.sender.consume(wide_batch())
    until(lambda: run.count(EXPORT_SENT) == 1)
    run.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "otlp_test: test:1: unavailable: nobody listens there",
        "otlp_test: test:1: works again",
    ]


def test_the_end_comes_at_its_deadline_though_the_server_never_answers() -> None:
    """A black hole: shutdown returns by the deadline and counts what is under way, what waits, and what isn't encoded yet."""
    script = Script(OK)
    script.hold = threading.Event()
    run = Running(script)
    for _ in range(4):
        run.sender.consume(wide_batch())
    until(lambda: script.sent)
    start = time.monotonic()
    run.stop(0.3)
    assert time.monotonic() - start < 5
    assert run.count(EXPORT_FAILED, "stopped") == 4
    script.hold.set()
    for thread in run.sender._threads:
        thread.join(5)
    assert run.count(EXPORT_SENT) == 0, "an answer after the end isn't counted a second time"


def test_a_full_queue_drops_the_oldest_and_counts_it() -> None:
    script = Script(OK)
    script.hold = threading.Event()
    run = Running(script, Policy(retry=FAST, queue_size=1200))
    run.sender.consume(wide_batch())
    until(lambda: script.sent)  # under way, and no more in the queue
    for number in range(6):
        run.sender.consume(wide_batch(10 + number))
    until(lambda: run.count(EXPORT_FAILED, "queue full") >= 3)
    script.hold.set()
    run.stop()
    assert run.count(EXPORT_SENT) + run.count(EXPORT_FAILED) == 7
    assert run.script.sent[-1].samples == 15, "the newest is kept"


def test_batches_after_the_end_are_counted() -> None:
    run = Running(Script(OK))
    run.stop()
    run.sender.consume(wide_batch())
    run.stop()
    assert run.count(EXPORT_FAILED, "stopped") == 1


def test_shutdown_is_safe_without_start() -> None:
    Sender(Build("x", None), Script(OK), Options(), Policy()).shutdown(time.monotonic())


def test_an_exporter_of_traces_only_sends_no_profiles() -> None:
    script = Script(OK)
    sender = Sender(Build("x", None, None, frozenset({Signal.TRACES})), script, Options(), Policy())
    sender.start(RecordingHost())
    sender.consume(wide_batch())
    sender.shutdown(time.monotonic() + 5)
    assert script.sent == []


def test_the_queue_is_bounded_by_bytes() -> None:
    queue = ByteQueue(10)
    first, second = Encoded(Signal.PROFILES, b"123456", 1), Encoded(Signal.PROFILES, b"12345", 1)
    assert queue.put(first) == []
    assert queue.put(second) == [first]
    assert (queue.bytes, len(queue)) == (5, 1)
    assert queue.put(Encoded(Signal.PROFILES, b"x" * 11, 1))[-1].data == b"x" * 11, "what can never fit is dropped itself"


def test_waits_grow_vary_and_end_at_the_longest() -> None:
    backoff = Backoff(Retry(initial_interval=1.0, randomization_factor=0.0, multiplier=2.0, max_interval=3.0))  # type: ignore[arg-type]
    assert [backoff.wait(None) for _ in range(4)] == [1.0, 2.0, 3.0, 3.0]
    assert (backoff.wait(7.0), backoff.wait(99999999.0)) == (7.0, LONGEST_WAIT)
    backoff.reset()
    assert backoff.wait(None) == 1.0
    spread = Backoff(Retry())
    assert 0.5 <= spread.wait(None) <= 1.5


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("3", 3.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, expected: float | None) -> None:
    assert retry_after(value, lambda: 10.0) == expected
