"""OTLP's JSON: what is written is read back as the same request."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otelprof.batch import SPANS, Batch
from otelprof.formats.otlp_json import to_json
from otelprof.otlp.encode import encode_profiles, encode_spans
from otelprof.otlp.json_mapping import parse_json
from otelprof.testing import sample_batch


def linked() -> Batch:
    batch = sample_batch({"main;work": 3, "é\n": 1})
    samples = batch.samples.copy()
    samples["link"] = batch.interner.link(bytes(range(16)), b"\xfb" * 8)
    spans = np.zeros(2, SPANS)
    spans["trace_id"], spans["span_id"], spans["parent"][1] = 0xFB, 0xFC, 0xFD
    spans["link"] = samples["link"][0]
    return replace(batch, samples=samples, spans=spans)


def test_profiles_come_back_with_their_links_and_ids() -> None:
    (request,) = encode_profiles(linked())
    line = to_json(request)
    assert "\n" not in line
    assert "000102030405060708090a0b0c0d0e0f" in line
    assert parse_json(line.encode(), ExportProfilesServiceRequest()) == ExportProfilesServiceRequest.FromString(request.data)


def test_spans_come_back_with_their_parents_and_links() -> None:
    (request,) = encode_spans(linked())
    assert parse_json(to_json(request).encode(), ExportTraceServiceRequest()) == ExportTraceServiceRequest.FromString(
        request.data
    )
