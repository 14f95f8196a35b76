"""Spans of a batch as an OTLP traces request, written by the column.

Layout: opentelemetry-proto v1.10.0, opentelemetry/proto/trace/v1/trace.proto.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from otelprof.batch import Attributes, Batch
from otelprof.component import Signal
from otelprof.otlp import semconv, wire
from otelprof.otlp.dictionary import KEY_LIMIT, Columns, any_value, link_columns
from otelprof.otlp.profiles import resource_message, scope_message
from otelprof.otlp.request import Encoded, Options, split_to_size
from otelprof.otlp.wire import Array, Ragged
from otelprof.text import clean, utf8

INTERNAL = 1  # SpanKind
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


def encode_spans(batch: Batch, options: Options | None = None) -> list[Encoded]:
    """The spans of `batch` as requests that each keep the limits; none when there are no spans."""
    spans = batch.spans[np.argsort(batch.spans["resource"], kind="stable")]
    if not len(spans):
        return []
    return split_to_size(len(spans), lambda first, stop: _request(batch, spans[first:stop], options or Options()))


def _request(batch: Batch, spans: Array, options: Options) -> Encoded:
    messages = wire.message(2, *_columns(batch, spans))
    ids, starts = np.unique(spans["resource"], return_index=True)
    stops = [*starts[1:].tolist(), len(spans)]
    parts = []
    for number, first, stop in zip(ids.tolist(), starts.tolist(), stops, strict=True):
        schema = wire.field(3, semconv.SCHEMA_URL.encode())
        scope = wire.field(1, scope_message()) + messages.bytes(first, stop) + schema
        resource = resource_message(batch.interner.resources[number], options)
        parts.append(wire.field(1, wire.field(1, resource) + wire.field(2, scope) + schema))
    return Encoded(Signal.TRACES, b"".join(parts), len(spans))


def _columns(batch: Batch, spans: Array) -> Columns:
    """The fields of each span."""
    count, interner = len(spans), batch.interner
    parent = np.asarray(spans["parent"].any(axis=1))
    return (
        wire.message(1, Ragged.fixed(spans["trace_id"])),
        wire.message(2, Ragged.fixed(spans["span_id"])),
        wire.blanked(wire.message(4, Ragged.fixed(spans["parent"])), parent),
        wire.message(5, _of_values(spans["name"], lambda number: utf8(interner.strings[number]))),
        wire.integer(6, np.full(count, INTERNAL)),
        wire.fixed64(7, spans["start"] + batch.clock_offset),
        wire.fixed64(8, np.maximum(spans["end"], spans["start"]) + batch.clock_offset),
        _of_values(spans["attributes"], lambda number: _key_values(interner.attributes[number])),
        _profile_ids(spans["parent"], parent),
        _of_values(spans["link"], lambda number: _link(batch, number)),
    )


def _of_values(ids: Array, encode: Callable[[int], bytes]) -> Ragged:
    """What each id stands for, encoded once for each value."""
    values, kind = np.unique(ids, return_inverse=True)
    return Ragged.of(encode(number) for number in values.tolist()).take(kind)


def _key_values(attributes: Attributes) -> bytes:
    """Field 9 for each attribute."""
    pairs = (KeyValue(key=clean(key, KEY_LIMIT), value=any_value(value)) for key, value in attributes if key)
    return b"".join(wire.field(9, pair.SerializeToString()) for pair in pairs)


def _link(batch: Batch, number: int) -> bytes:
    """Field 13: one further span."""
    link = batch.interner.links[number]
    return wire.message(13, *link_columns([link])).bytes() if link else b""


def _profile_ids(parents: Array, present: Array) -> Ragged:
    """The attribute by which Grafana opens a profile from a span.

    Samples are linked to the application's span, and that is our span's parent; without one there is no profile.
    """
    digits = np.stack([_HEX[parents >> 4], _HEX[parents & 15]], axis=2).reshape(len(parents), 16)
    value = wire.message(2, wire.message(1, Ragged.fixed(digits)))  # KeyValue.value, AnyValue.string_value
    key = wire.constant(wire.field(1, semconv.PYROSCOPE_PROFILE_ID.encode()), len(parents))
    pair = wire.message(9, key, value)
    return wire.blanked(pair, present)
