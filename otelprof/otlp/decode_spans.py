"""OTLP traces requests to columns: the spans that profiles point to, and our own kernel spans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesDictionary

from otelprof.otlp.decode import parse
from otelprof.otlp.decoded import SPANS, Spans
from otelprof.otlp.tables import Dictionary

MAX_ATTRIBUTES = 64
MAX_TEXT = 2048
_INT64_MAX = 2**63 - 1
_INLINE = Dictionary(ProfilesDictionary())  # traces have no tables: their attributes are inline


def decode_spans(data: bytes, is_json: bool = False) -> Spans:
    """A traces request as columns; spans without sound ids and times are dropped and counted."""
    request = parse(data, is_json, ExportTraceServiceRequest())
    pairs = list(_spans(request))
    good = [(service, span) for service, span in pairs if _sound(span)]
    rows = np.zeros(len(good), SPANS)
    ids = b"".join(span.trace_id + span.span_id + (span.parent_span_id or bytes(8)) for _, span in good)
    halves = np.frombuffer(ids, ">u8").astype(np.uint64).reshape(-1, 4)
    rows["trace_hi"], rows["trace_lo"], rows["span"], rows["parent"] = halves.T
    rows["start"] = [span.start_time_unix_nano for _, span in good]
    rows["duration"] = [span.end_time_unix_nano - span.start_time_unix_nano for _, span in good]
    names = [span.name[:MAX_TEXT] for _, span in good]
    return Spans(rows, names, [service for service, _ in good], [_texts(s) for _, s in good], len(pairs) - len(good))


def _spans(request: ExportTraceServiceRequest) -> Iterator[tuple[str, Any]]:
    for resource in request.resource_spans:
        service = _texts(resource.resource).get("service.name", "unknown_service")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield service, span


def _sound(span: Any) -> bool:
    ids = len(span.trace_id) == 16 and len(span.span_id) == 8 and len(span.parent_span_id) in (0, 8)
    return ids and 0 < span.start_time_unix_nano <= span.end_time_unix_nano <= _INT64_MAX


def _texts(holder: Any) -> dict[str, str]:
    """The attributes of a span or resource that are strings or integers."""
    pairs = ((a.key[:MAX_TEXT], _INLINE.text(a.value)) for a in holder.attributes[:MAX_ATTRIBUTES])
    return {key: text[:MAX_TEXT] for key, text in pairs if key and text is not None}
