"""What the sending exporters share: a thread that encodes, a bounded queue of encoded bytes, a thread that sends.

A batch waits a moment for the encoder (at most `_MAX_BATCHES`), then only its bytes wait. When the queue is full the oldest
bytes go: what happened last is what people look at. With a storage the queue is on disk, and what can't be sent before the end
stays there for the next start. Requests go out one after the other, so that a receiver that is away
gets one at a time; each is tried again as OTLP says, then given up and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from otelprof.batch import Batch
from otelprof.component import Build, Host, Signal
from otelprof.counters import (
    EXPORT_FAILED,
    EXPORT_FAILED_SPANS,
    EXPORT_REJECTED,
    EXPORT_SENT,
    EXPORT_SENT_SPANS,
    QUEUE_BYTES,
    Counters,
)
from otelprof.errors import OtelprofError
from otelprof.exporters.answers import Answer, Transport, Verdict
from otelprof.exporters.causes import Causes
from otelprof.exporters.disk_queue import DiskQueue
from otelprof.exporters.queue import ByteQueue, Queue
from otelprof.exporters.retry import Backoff, Policy
from otelprof.otlp.encode import Encoded, Options, encode_profiles, encode_spans
from otelprof.otlp.split import halves

log = logging.getLogger(__name__)

_MAX_BATCHES = 16
_LAST_TRIES = 3.0  # seconds at the end in which what failed is still tried again


class Storage(Protocol):
    """What `sending_queue.storage` names: an extension with a folder for each exporter."""

    fsync: bool

    def folder(self, owner: str) -> Path:
        """The folder of the component with this id."""


@dataclass
class _State:
    """What the two threads share, under the lock of `changed`; the queue under its own, since a disk may be slow.

    Whoever needs both takes the queue's first. `consume` never waits for the disk.
    """

    queue: Queue
    queue_lock: threading.Lock = field(default_factory=threading.Lock)
    batches: deque[Batch] = field(default_factory=deque)
    changed: threading.Condition = field(default_factory=threading.Condition)
    encoding: bool = False
    current: list[Encoded] = field(default_factory=list)  # under way
    stop_at: float | None = None  # CLOCK_MONOTONIC seconds
    last_try_at: float | None = None  # what failed isn't tried again after this
    closed: bool = False


class Sender:
    """An exporter over a Transport; see the module's text."""

    def __init__(self, build: Build, transport: Transport, options: Options, policy: Policy) -> None:
        self._id, self._signals = build.id, build.signals
        self._transport, self._options, self._policy = transport, options, policy
        self._backoff = Backoff(policy.retry)
        self._causes = Causes(build.id, transport.endpoint)
        self._state = _State(ByteQueue(policy.queue_size))
        self._counters = Counters()
        self._threads: list[threading.Thread] = []

    def start(self, host: Host) -> None:
        """Read certificates and start the threads; the connection is made by the first request."""
        self._counters = host.counters
        self._transport.open()
        if self._policy.storage:
            self._state.queue = self._stored_queue(host)
            self._count_queue()
        for name, body in (("encode", self._encode_all), ("send", self._send_all)):
            thread = threading.Thread(target=body, name=f"{self._id} {name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _stored_queue(self, host: Host) -> DiskQueue:
        storage = host.extension(self._policy.storage)
        if storage is None or not hasattr(storage, "folder"):
            raise OtelprofError(f"sending_queue.storage: {self._policy.storage} isn't a file_storage among service.extensions")
        found = cast(Storage, storage)
        queue = DiskQueue(found.folder(self._id), self._policy.queue_size, found.fsync)
        if len(queue):
            log.info("%s: %d requests of an earlier run are sent first", self._id, len(queue))
        return queue

    def consume(self, batch: Batch) -> None:
        """Hand the batch to the encoder's thread."""
        if batch.is_empty:
            return None
        state = self._state
        with state.changed:
            if state.closed or state.stop_at is not None:
                return self._lose_batch(batch, "stopped")
            if len(state.batches) >= _MAX_BATCHES:
                self._lose_batch(state.batches.popleft(), "encoder behind")
            state.batches.append(batch)
            state.changed.notify_all()
        return None

    def shutdown(self, deadline: float) -> None:
        """Send what waits, and count what couldn't be sent by `deadline`."""
        state = self._state
        with state.changed:
            first, state.stop_at = state.stop_at is None, deadline
            state.last_try_at = min(deadline, time.monotonic() + _LAST_TRIES)
            state.changed.notify_all()
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))
        if first:
            self._give_up_rest()
            self._transport.close()

    # ---- encoding

    def _encode_all(self) -> None:
        state = self._state
        while True:
            with state.changed:
                state.changed.wait_for(lambda: state.batches or state.stop_at is not None)
                if not state.batches:
                    return
                batch, state.encoding = state.batches.popleft(), True
            for request in self._encoded(batch):
                self._enqueue(request)
            with state.changed:
                state.encoding = False
                state.changed.notify_all()

    def _encoded(self, batch: Batch) -> list[Encoded]:
        found: list[Encoded] = []
        try:
            if Signal.PROFILES in self._signals:
                found += encode_profiles(batch, self._options)
            if Signal.TRACES in self._signals:
                found += encode_spans(batch, self._options)
        except Exception as error:  # a bug of ours must not end the exports
            log.error("%s: a batch can't be encoded, please report this: %s: %s", self._id, type(error).__name__, error)  # noqa: TRY400
            log.debug("where it failed", exc_info=error)
            self._lose_batch(batch, "encoding")
        return found

    def _enqueue(self, request: Encoded) -> None:
        with self._state.queue_lock:
            if self._state.closed:
                return self._lose(request, "stopped")
            for dropped in self._state.queue.put(request):
                self._causes.say("the queue is full, so the oldest data is dropped", failing=False)
                self._lose(dropped, "queue full")
            self._count_queue()
        with self._state.changed:
            self._state.changed.notify_all()
        return None

    def _count_queue(self) -> None:
        queue = self._state.queue
        self._counters.set(QUEUE_BYTES, queue.bytes, self._id)
        while queue.lost:
            self._causes.say("a request that was kept on disk is damaged or beyond queue_size, and is dropped", failing=False)
            self._lose(queue.lost.pop(), "storage")

    # ---- sending

    def _send_all(self) -> None:
        going = True
        while going and (request := self._next()) is not None:
            going = self._deliver(request)
            with self._state.queue_lock, self._state.changed:
                if not self._state.current and not self._state.closed:
                    self._state.queue.done()

    def _next(self) -> Encoded | None:
        """The next request, or None when all is sent at the end."""
        state = self._state
        while True:
            with state.changed:
                state.changed.wait_for(lambda: state.closed or len(state.queue) or self._is_over())
            with state.queue_lock, state.changed:
                if state.closed or not len(state.queue):
                    return None
                request = state.queue.take()
                self._count_queue()
                if request is not None:
                    state.current.append(request)
                    return request

    def _is_over(self) -> bool:
        state = self._state
        return state.stop_at is not None and not state.batches and not state.encoding

    def _deliver(self, request: Encoded, may_halve: bool = True) -> bool:
        """Send a request until it is taken or given up; false when nothing more should be sent.

        One that is too large is sent once more, as two halves.
        """
        start = time.monotonic()
        while not self._state.closed:
            answer = self._try(request)
            parts = halves(request) if answer.verdict is Verdict.TOO_LARGE and may_halve else []
            if parts:
                return self._deliver_parts(request, parts)
            wait = self._wait_after(answer)
            again = answer.verdict is Verdict.RETRY and self._may_retry(start, wait)
            if not again:
                self._settle(request, answer)
            if not self._pause(wait):
                if not self._state.queue.keeps_current():
                    self._settle(request, answer)
                return False
            if not again:
                return True
        return False

    def _deliver_parts(self, request: Encoded, parts: list[Encoded]) -> bool:
        with self._state.changed:
            if request not in self._state.current:
                return False
            self._state.current[:] = parts
        return all(self._deliver(part, may_halve=False) for part in parts)

    def _try(self, request: Encoded) -> Answer:
        """One try; what goes wrong is said."""
        stop_at = self._state.stop_at
        seconds = min(self._policy.timeout, stop_at - time.monotonic()) if stop_at is not None else self._policy.timeout
        answer = self._transport.send(request, seconds) if seconds > 0 else Answer(Verdict.RETRY, "stopped")
        if self._state.closed:
            return answer
        if answer.verdict is Verdict.ACCEPTED:
            self._backoff.reset()
            self._causes.works()
        if answer.cause:
            self._causes.say(answer.cause, failing=answer.verdict is not Verdict.ACCEPTED)
        return answer

    def _wait_after(self, answer: Answer) -> float:
        """Seconds before anything is sent again."""
        if answer.verdict in (Verdict.ACCEPTED, Verdict.REFUSED):
            return 0.0
        return self._backoff.probe() if answer.verdict is Verdict.UNSUPPORTED else self._backoff.wait(answer.wait)

    def _may_retry(self, start: float, wait: float) -> bool:
        """Whether a request whose first try was at `start` is still tried after `wait` seconds."""
        retry = self._policy.retry
        return retry.enabled and (not retry.max_elapsed_time or time.monotonic() + wait - start <= retry.max_elapsed_time)

    def _pause(self, seconds: float) -> bool:
        """Wait; false as soon as the end makes that too long."""
        state, until = self._state, time.monotonic() + seconds
        with state.changed:
            while (left := until - time.monotonic()) > 0:
                if state.closed or (state.last_try_at is not None and until > state.last_try_at):
                    return False
                state.changed.wait(left)
        return True

    def _settle(self, request: Encoded, answer: Answer) -> None:
        """Count what became of a request, unless the end has counted it."""
        state = self._state
        with state.changed:
            if request not in state.current:
                return
            state.current.remove(request)
            if answer.verdict is not Verdict.ACCEPTED:
                self._lose(request, answer.reason)
                return
            rejected = min(answer.rejected, request.items)
            is_profiles = request.signal is Signal.PROFILES
            self._counters.add(EXPORT_SENT if is_profiles else EXPORT_SENT_SPANS, request.items - rejected, self._id)
            if rejected and is_profiles:
                self._counters.add(EXPORT_REJECTED, rejected, self._id)
            elif rejected:
                self._counters.add(EXPORT_FAILED_SPANS, rejected, self._id, "rejected")

    def _lose(self, request: Encoded, reason: str) -> None:
        metric = EXPORT_FAILED if request.signal is Signal.PROFILES else EXPORT_FAILED_SPANS
        self._counters.add(metric, request.items, self._id, reason)

    def _lose_batch(self, batch: Batch, reason: str) -> None:
        """Count a batch that was never encoded."""
        if Signal.PROFILES in self._signals and len(batch.samples):
            kinds = np.unique(batch.samples[["resource", "type"]])
            self._counters.add(EXPORT_FAILED, len(kinds), self._id, reason)
        if Signal.TRACES in self._signals and len(batch.spans):
            self._counters.add(EXPORT_FAILED_SPANS, len(batch.spans), self._id, reason)

    def _give_up_rest(self) -> None:
        """Count all that is left as not sent."""
        state = self._state
        with state.queue_lock, state.changed:
            state.closed = True
            if state.queue.kept:
                log.info("%s: %d requests stay on disk for the next start", self._id, state.queue.kept)
            left = [] if state.queue.keeps_current() else state.current
            for request in (*left, *state.queue.close()):
                self._lose(request, "stopped")
            state.current.clear()
            while state.batches:
                self._lose_batch(state.batches.popleft(), "stopped")
            self._counters.set(QUEUE_BYTES, 0, self._id)
            state.changed.notify_all()
