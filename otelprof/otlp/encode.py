"""From a Batch to serialised OTLP requests: the two functions that exporters and `record` call."""

from __future__ import annotations

from otelprof.otlp.profiles import encode_profiles
from otelprof.otlp.request import MAX_BYTES, Dialect, Encoded, Options
from otelprof.otlp.spans import encode_spans

__all__ = ["MAX_BYTES", "Dialect", "Encoded", "Options", "encode_profiles", "encode_spans"]
