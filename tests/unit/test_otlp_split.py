"""Halves of a request hold all of it, and each conforms by itself."""

from __future__ import annotations

import numpy as np
import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otelprof.batch import SAMPLES, SPANS, Batch, Frame, FrameKind, Interner, Mapping, Resource, Thread
from otelprof.otlp import semconv
from otelprof.otlp.check import check
from otelprof.otlp.encode import Encoded, encode_profiles, encode_spans
from otelprof.otlp.split import halves


def batch(resources: int, stacks: int) -> Batch:
    """Each resource has one sample of each stack."""
    interner = Interner()
    table = np.zeros(resources * stacks, SAMPLES)
    table["value"], table["type"] = np.arange(len(table)), interner.types.id(semconv.CPU)
    table["thread"] = interner.threads.id(Thread(1, "t"))
    table["link"] = interner.link(b"t" * 16, b"s" * 8)
    for number in range(stacks):
        native = Frame(f"f{number}", FrameKind.NATIVE, f"{number}.c", mapping=Mapping(f"{number}.so", "ab", 1, 2))
        table["stack"][number::stacks] = interner.stack([Frame("main", FrameKind.CPYTHON, "m.py", 3), native])
    for number in range(resources):
        table["resource"][number * stacks :] = interner.resources.id(Resource((("service.name", f"s{number}"),)))
    return Batch(interner, 1000, 2000, table)


def readable(requests: list[Encoded]) -> set[tuple[object, ...]]:
    """Each sample with its service, names and value."""
    found: set[tuple[object, ...]] = set()
    for request in requests:
        message = ExportProfilesServiceRequest.FromString(request.data)
        tables, strings = message.dictionary, message.dictionary.string_table
        for group in message.resource_profiles:
            service = group.resource.attributes[0].value.string_value
            for sample in (sample for p in group.scope_profiles[0].profiles for sample in p.samples):
                places = [tables.location_table[index] for index in tables.stack_table[sample.stack_index].location_indices]
                names = [strings[tables.function_table[place.lines[0].function_index].name_strindex] for place in places]
                files = [strings[tables.mapping_table[place.mapping_index].filename_strindex] for place in places]
                link = tables.link_table[sample.link_index].span_id
                found.add((service, *names, *files, link, sample.values[0]))
    return found


@pytest.mark.parametrize(("resources", "stacks"), [(5, 2), (1, 7), (1, 2), (2, 1)])
def test_halves_hold_all_samples_and_conform(resources: int, stacks: int) -> None:
    (whole,) = encode_profiles(batch(resources, stacks))
    parts = halves(whole)
    assert len(parts) == 2
    assert readable(parts) == readable([whole])
    assert sum(part.samples for part in parts) == whole.samples
    assert [violation for part in parts for violation in check(part.data)] == []


def test_parts_of_one_profile_have_ids_of_their_own() -> None:
    (whole,) = encode_profiles(batch(1, 4))
    ids = [
        ExportProfilesServiceRequest.FromString(one.data).resource_profiles[0].scope_profiles[0].profiles[0].profile_id
        for one in (whole, *halves(whole))
    ]
    assert len(set(ids)) == 3


def test_one_sample_can_t_be_halved() -> None:
    (whole,) = encode_profiles(batch(1, 1))
    assert halves(whole) == []


def test_spans_are_halved_too() -> None:
    interner = Interner()
    spans = np.zeros(5, SPANS)
    spans["trace_id"], spans["span_id"][:, 0] = 1, np.arange(1, 6)
    spans["resource"] = [interner.resources.id(Resource((("service.name", f"s{n // 3}"),))) for n in range(5)]
    parts = halves(encode_spans(Batch(interner, 0, 1, spans=spans))[0])
    messages = [ExportTraceServiceRequest.FromString(part.data) for part in parts]
    found = [span.span_id[0] for message in messages for group in message.resource_spans for span in group.scope_spans[0].spans]
    assert (found, [part.items for part in parts]) == ([1, 2, 3, 4, 5], [2, 3])
