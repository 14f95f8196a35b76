"""Spans as a trace that https://ui.perfetto.dev and chrome://tracing open.

Chrome's JSON trace format: complete events (`X`) with microseconds, names of processes and threads as metadata (`M`):
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A service is a process; each stream of a GPU
is a thread of it, and so is each lane that spans of requests need so that they nest or don't overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from otelprof.backend.traces import Span
from otelprof.otlp import semconv

MAX_LANES = 256  # of a service; what needs more stands in the last


@dataclass(slots=True)
class _Service:
    """The threads of one service: streams by name, and lanes with the ends of the spans that are open in them."""

    number: int
    streams: dict[str, int] = field(default_factory=dict)
    lanes: list[list[int]] = field(default_factory=list)

    def thread(self, span: Span) -> int:
        """The thread that a span is shown in; spans come by their start."""
        if stream := _stream(span):
            return self.streams.setdefault(stream, 1000 + len(self.streams))
        end = span.start + span.duration
        for number, open_ends in enumerate(self.lanes):
            while open_ends and open_ends[-1] <= span.start:
                open_ends.pop()
            if not open_ends or end <= open_ends[-1] or number == MAX_LANES - 1:
                open_ends.append(end)
                return number + 1
        self.lanes.append([end])
        return len(self.lanes)


def _stream(span: Span) -> str:
    """The GPU and stream that a span ran on; "" for what ran on the CPU (a launch names the stream, too)."""
    stream = span.attributes.get(semconv.CUDA_STREAM)
    if stream is None or span.name.startswith("launch "):
        return ""
    return f"GPU {span.attributes.get(semconv.CUDA_DEVICE, '?')} stream {stream}"


def written(spans: Sequence[Span]) -> bytes:
    """The spans that have times, as one JSON document."""
    services: dict[str, _Service] = {}
    events = []
    for span in sorted((one for one in spans if one.start), key=lambda one: (one.start, -one.duration)):
        service = services.setdefault(span.service, _Service(len(services) + 1))
        events.append(_event(span, service.number, service.thread(span)))
    named = [event for name, service in services.items() for event in _names(name, service)]
    return json.dumps({"traceEvents": [*named, *events], "displayTimeUnit": "ns"}, ensure_ascii=False).encode(
        "utf-8", "replace"
    )


def _event(span: Span, process: int, thread: int) -> dict[str, Any]:
    high, low = span.trace
    costs = {name: value for name, value in span.weights.items() if value}
    return {
        "ph": "X",
        "name": span.name,
        "cat": "gpu" if _stream(span) else "span",
        "ts": span.start / 1000,
        "dur": span.duration / 1000,
        "pid": process,
        "tid": thread,
        "args": {**span.attributes, **costs, "trace_id": f"{high:016x}{low:016x}", "span_id": f"{span.span:016x}"},
    }


def _names(name: str, service: _Service) -> Iterable[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": service.number, "args": {"name": name}}
    lanes = {f"requests {number}": number for number in range(1, len(service.lanes) + 1)}
    for thread, number in {**lanes, **service.streams}.items():
        yield {"ph": "M", "name": "thread_name", "pid": service.number, "tid": number, "args": {"name": thread}}
