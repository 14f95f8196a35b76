"""OTLP's JSON of a serialised request, as one line.

It is protobuf's own JSON mapping but for ids of traces, spans and profiles, which are hex (OTLP specification, "JSON
Protobuf Encoding"; the Collector writes `profileId` in hex too). 64-bit numbers are strings.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otelprof.component import Signal
from otelprof.otlp.encode import Encoded


def to_json(request: Encoded) -> str:
    """The request as one line of JSON, without the end of the line."""
    kind = ExportProfilesServiceRequest if request.signal is Signal.PROFILES else ExportTraceServiceRequest
    document = json_format.MessageToDict(kind.FromString(request.data))
    _hex(document.get("dictionary", {}).get("linkTable", ()), "traceId", "spanId")
    _hex(_inner(document, "resourceProfiles", "scopeProfiles", "profiles"), "profileId")
    spans = _inner(document, "resourceSpans", "scopeSpans", "spans")
    _hex(spans, "traceId", "spanId", "parentSpanId")
    _hex((link for span in spans for link in span.get("links", ())), "traceId", "spanId")
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _inner(document: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    """All objects under these names, level by level."""
    level = [document]
    for name in names:
        level = [inner for node in level for inner in node.get(name, ())]
    return level


def _hex(rows: Iterable[dict[str, Any]], *names: str) -> None:
    for row in rows:
        row.update({name: base64.b64decode(row[name]).hex() for name in names if name in row})
