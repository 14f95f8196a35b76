"""Requests and their spans: what each of them cost in CPU time, launches, GPU time and waiting.

A request is a trace. Samples carry the span that they were taken in, so a trace has weights even where no tracing backend
sends its spans here, and spans have times even where nothing of them was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from otelprof.backend.query import MAX_TIME, trace_numbers
from otelprof.backend.series import Range, SeriesIndex
from otelprof.backend.store import WEIGHTS, Selection, SpanSearch, Store
from otelprof.errors import MalformedInput
from otelprof.otlp.decoded import Spans, Table

MAX_TRACES, MAX_SPANS = 1000, 20_000
DURATION = "duration"
ORDERS = (*WEIGHTS, DURATION)

Trace = tuple[int, int]


@dataclass(slots=True)
class Span:
    """A span with the weights of its own samples; `name` is "" and `start` 0 where only samples tell of it."""

    trace: Trace
    span: int
    parent: int = 0
    service: str = ""
    name: str = ""
    start: int = 0  # Unix nanoseconds
    duration: int = 0  # nanoseconds
    attributes: dict[str, str] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WEIGHTS, 0))


@dataclass(slots=True)
class Request:
    """A trace with the weights of all its samples; `root` is its root span, or the earliest that is known."""

    trace: Trace
    root: Span
    spans: int = 0
    weights: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WEIGHTS, 0))


class Traces:
    """Answers about traces. Its methods block and may run in any thread."""

    def __init__(self, store: Store, index: SeriesIndex) -> None:
        self._store, self._index = store, index

    def requests(self, selector: str, within: Range, order: str, limit: int) -> list[Request]:
        """The `limit` largest traces with samples (`duration`: with spans) in a range, of the services of a selector."""
        if order not in ORDERS:
            raise MalformedInput(f"order is one of {', '.join(ORDERS)}, not {order[:40]!r}")
        limit = min(max(limit, 1), MAX_TRACES)
        if order == DURATION:
            return self._longest(selector, within, limit)
        weighed = self._store.linked(self._selection(selector, within), False, order, limit)
        return self._with_spans(weighed, [(hi, lo) for hi, lo in weighed[["trace_hi", "trace_lo"]].tolist()])

    def _longest(self, selector: str, within: Range, limit: int) -> list[Request]:
        found = self._index.any_of([selector], within) if selector.strip("{} ") else None
        services = None if found is None else tuple(sorted({seen.series.service for seen, _ in found}))
        start, end = _times(within)
        roots = self._store.spans(SpanSearch(start, end, limit, services=services, kind="root"))
        traces = [(hi, lo) for hi, lo in roots.rows[["trace_hi", "trace_lo"]].tolist()]
        if not traces:
            return []
        chosen = Selection("", 0, MAX_TIME, traces=tuple(traces))
        return self._with_spans(self._store.linked(chosen, False, next(iter(WEIGHTS)), limit), traces)

    def _with_spans(self, weighed: Table, traces: Sequence[Trace]) -> list[Request]:
        requests = {trace: Request(trace, Span(trace, 0)) for trace in traces}
        for row in _weights(weighed):
            requests[row.trace].weights = row.weights
        roots, counts = self._store.roots(list(requests))
        for span, count in zip(_spans(roots), counts, strict=True):
            requests[span.trace].root, requests[span.trace].spans = span, count
        return list(requests.values())

    def trace(self, text: str) -> list[Span]:
        """The spans of a trace (32 hex digits) by their start, each with its own weights; none when nothing is known."""
        trace = trace_numbers(text)
        found = {span.span: span for span in _spans(self._store.spans(SpanSearch(0, MAX_TIME, MAX_SPANS, (trace,))))}
        chosen = Selection("", 0, MAX_TIME, traces=(trace,))
        for row in _weights(self._store.linked(chosen, True, next(iter(WEIGHTS)), MAX_SPANS)):
            found.setdefault(row.span, row).weights = row.weights
        return list(found.values())

    def on_gpu(self, selector: str, within: Range) -> list[Span]:
        """What ran on GPUs in a range and was told as spans, by its start."""
        found = self._index.any_of([selector], within) if selector.strip("{} ") else None
        services = None if found is None else tuple(sorted({seen.series.service for seen, _ in found}))
        start, end = _times(within)
        return _spans(self._store.spans(SpanSearch(start, end, MAX_SPANS, services=services, kind="gpu")))

    def _selection(self, selector: str, within: Range) -> Selection:
        start, end = _times(within)
        return Selection("", start, end, self._index.keys_of(selector, within))


def _times(within: Range) -> tuple[int, int]:
    """The range for the store, which knows no open end."""
    return min(max(within.start, 0), MAX_TIME), min(within.end, MAX_TIME) if within.end > 0 else MAX_TIME


def _weights(rows: Table) -> list[Span]:
    """Rows of LINKED as spans that have nothing but weights."""
    return [Span((hi, lo), span, weights=dict(zip(WEIGHTS, weights, strict=True))) for hi, lo, span, *weights in rows.tolist()]


def _spans(spans: Spans) -> list[Span]:
    """The rows of stored spans."""
    columns = zip(spans.rows.tolist(), spans.names, spans.services, spans.attributes, strict=True)
    return [
        Span((hi, lo), span, parent, service, name, start, duration, attributes)
        for (hi, lo, span, parent, start, duration), name, service, attributes in columns
    ]
