"""Each rule of the conformance check finds its breach in a request that conforms otherwise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest as Request
from opentelemetry.proto.profiles.v1development import profiles_pb2 as pb

from otelprof.batch import SAMPLES, Batch, Frame, FrameKind, Interner, Mapping, Resource, Thread
from otelprof.errors import MalformedInput
from otelprof.otlp import semconv
from otelprof.otlp.check import check
from otelprof.otlp.encode import encode_profiles


def good() -> Request:
    """Two samples with all that a request can have."""
    interner = Interner()
    table = np.zeros(2, SAMPLES)
    table["value"], table["type"] = 1, interner.types.id(semconv.CPU)
    frame = Frame("f", FrameKind.NATIVE, mapping=Mapping("/x.so", "ab", 1, 2))
    table["stack"] = [interner.stack([frame]), interner.stack([frame, Frame("g", FrameKind.CPYTHON)])]
    table["resource"] = interner.resources.id(Resource((("process.pid", 1), ("service.name", "s"))))
    table["thread"] = interner.threads.id(Thread(1, "t"))
    table["link"] = interner.link(b"t" * 16, b"s" * 8)
    return Request.FromString(encode_profiles(Batch(interner, 1000, 2000, table))[0].data)


def profile(request: Request) -> pb.Profile:
    return request.resource_profiles[0].scope_profiles[0].profiles[0]


def test_what_we_encode_has_no_violation() -> None:
    assert check(good()) == []


def test_the_zero_attribute_may_have_the_collector_s_empty_value() -> None:
    request = good()
    request.dictionary.attribute_table[0].value.SetInParent()
    assert check(request) == []


def test_what_is_no_request_is_malformed() -> None:
    with pytest.raises(MalformedInput, match="not an OTLP profiles request"):
        check(b"\xff\xff")


def edit(expression: str) -> Callable[[Request], None]:
    """A change, written as statements on `r` (the request), `d` (its dictionary) and `p` (its profile)."""

    def change(request: Request) -> None:
        exec(expression, {"r": request, "d": request.dictionary, "p": profile(request), "pb": pb})

    return change


BREACHES = [
    ("profcheck/zero", "del d.link_table[:]"),
    ("profcheck/zero", "d.string_table[0] = 'x'"),
    ("profcheck/zero", "d.link_table[0].trace_id = bytes(16)"),
    ("profcheck/index", "p.samples[0].stack_index = 99"),
    ("profcheck/index", "d.location_table[1].lines[0].function_index = -1"),
    ("profcheck/presence", "del r.resource_profiles[:]"),
    ("profcheck/presence", "del r.resource_profiles[0].scope_profiles[0].profiles[:]"),
    ("profcheck/duplicate", "d.string_table.append(d.string_table[1])"),
    ("profcheck/orphan", "d.string_table.append('not used')"),
    ("profcheck/mapping", "d.mapping_table[1].memory_limit = 1"),
    ("profcheck/line", "d.location_table[1].lines[0].line = -1"),
    ("profcheck/line", "d.function_table[1].start_line = -1"),
    ("profcheck/function", "d.function_table[1].CopyFrom(pb.Function(start_line=3))"),
    ("profcheck/keys", "p.samples[0].attribute_indices.append(p.samples[0].attribute_indices[0])"),
    ("profcheck/link", "d.link_table[1].span_id = b'short'"),
    ("profcheck/shape", "del p.samples[0].values[:]"),
    ("profcheck/shape", "p.samples[0].timestamps_unix_nano.extend([p.time_unix_nano] * 2)"),
    ("profcheck/window", "p.samples[0].timestamps_unix_nano.append(p.time_unix_nano + p.duration_nano)"),
    ("profcheck/identity", "p.samples.add().CopyFrom(p.samples[0])"),
    ("parca/resource", "r.resource_profiles[0].ClearField('resource')"),
    ("parca/scope", "r.resource_profiles[0].scope_profiles[0].scope.name = ''"),
    ("parca/keys", "r.resource_profiles[0].resource.attributes[0].key = ''"),
    ("parca/value", "r.resource_profiles[0].resource.attributes[0].value.string_value_strindex = 1"),
    ("parca/value", "d.attribute_table[1].ClearField('value')"),
    ("parca/period_type", "p.ClearField('period_type')"),
    ("parca/sample_type", "p.ClearField('sample_type')"),
    ("parca/samples", "del p.samples[:]"),
    ("parca/profile_id", "p.profile_id = bytes(16)"),
    ("pyroscope/values", "p.samples[0].values.append(2)"),
    ("pyroscope/name", "p.period = 0"),
    ("pyroscope/name", "d.string_table[p.sample_type.type_strindex] = 'a-b'"),
    ("pyroscope/depth", "d.stack_table[1].location_indices.extend([1] * 1000)"),
    ("pyroscope/samples", "[p.samples.add(stack_index=1, values=[1]) for _ in range(16_000)]"),
    ("pyroscope/labels", "[r.resource_profiles[0].resource.attributes.add(key=str(n)) for n in range(40)]"),
    ("pyroscope/label", "r.resource_profiles[0].resource.attributes[1].value.string_value = 'x' * 3000"),
    ("pyroscope/symbol", "del d.location_table[1].lines[:]"),
    ("pyroscope/stack", "p.samples[0].stack_index = 0"),
    ("pyroscope/time", "p.duration_nano = 0"),
]


@pytest.mark.parametrize(("rule", "change"), BREACHES)
def test_a_breach_is_found(rule: str, change: str) -> None:
    request = good()
    edit(change)(request)
    assert rule in {violation.rule for violation in check(request.SerializeToString())}
