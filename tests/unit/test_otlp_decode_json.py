"""OTLP's JSON: hex ids, both forms of 64-bit numbers, unknown fields; nothing but MalformedInput for the rest."""

import json
import time
from typing import Any

import pytest

from otelprof.errors import MalformedInput
from otelprof.otlp.decode import decode_profiles
from otelprof.otlp.decode_spans import decode_spans
from tests.unit.otlp_requests import PERIOD

TRACE, SPAN = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174"


def document(**sample: Any) -> dict[str, Any]:
    """A request of one sample."""
    profile = {
        "profileId": "000102030405060708090a0b0c0d0e0f",
        "timeUnixNano": str(time.time_ns()),
        "sampleType": {"typeStrindex": 1, "unitStrindex": 2},
        "periodType": {"typeStrindex": 3, "unitStrindex": 4},
        "period": str(PERIOD),
        "samples": [{"stackIndex": 1, "values": ["7"], "linkIndex": 1, **sample}],
    }
    attributes = [{"key": "service.name", "value": {"stringValue": "json"}}]
    return {
        "resourceProfiles": [{"resource": {"attributes": attributes}, "scopeProfiles": [{"profiles": [profile]}]}],
        "dictionary": {
            "stringTable": ["", "samples", "count", "cpu", "nanoseconds", "main"],
            "functionTable": [{}, {"nameStrindex": 5}],
            "locationTable": [{}, {"lines": [{"functionIndex": 1, "line": "3"}]}],
            "stackTable": [{}, {"locationIndices": [1]}],
            "linkTable": [{}, {"traceId": TRACE, "spanId": SPAN}],
        },
    }


@pytest.mark.parametrize("values", [["7"], [7]])
def test_ids_are_hex_and_numbers_come_as_strings_or_numbers(values: list[Any]) -> None:
    data = {**document(values=values), "futureField": {"a": [1]}}
    (row,) = decode_profiles(json.dumps(data).encode(), is_json=True).samples
    assert f"{int(row['trace_hi']):016x}{int(row['trace_lo']):016x}" == TRACE
    assert f"{int(row['span']):016x}" == SPAN
    assert f"{int(row['profile_hi']):016x}{int(row['profile_lo']):016x}" == "000102030405060708090a0b0c0d0e0f"
    assert row["value"] == 7 * PERIOD


BAD = [
    b"",
    b"[]",
    b"7",
    b'{"resourceProfiles": NaN}',
    b'{"resourceProfiles":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"resourceProfiles":' + b'{"a":' * 80 + b"1" + b"}" * 80 + b"}",
    b'{"dictionary": {"linkTable": [{"traceId": "no hex"}]}}',
    b'{"dictionary": {"stringTable": [7]}}',
    b'{"dictionary": {"stringTable": ["\\ud800"]}}',
    b"\xff\xfe{}",
    b'{"resourceProfiles": [{"scopeProfiles": [{"profiles": [{"period": "many"}]}]}]}',
]


@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
def test_what_is_no_request_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedInput) as caught:
        decode_profiles(data, is_json=True)
    assert "\n" not in str(caught.value)


def spans(**more: Any) -> bytes:
    """A traces request of one span."""
    span = {"traceId": TRACE, "spanId": SPAN, "name": "GET /", "startTimeUnixNano": "1000", "endTimeUnixNano": "1500", **more}
    span["attributes"] = [{"key": "n", "value": {"intValue": "5"}}, {"key": "s", "value": {"stringValue": "x"}}]
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "web"}}]}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}).encode()


def test_spans_become_columns() -> None:
    found = decode_spans(spans(parentSpanId="0000000000000001"), is_json=True)
    (row,) = found.rows
    assert f"{int(row['trace_hi']):016x}{int(row['trace_lo']):016x}" == TRACE
    assert (int(row["parent"]), int(row["start"]), int(row["duration"])) == (1, 1000, 500)
    assert (found.names, found.services, found.attributes) == (["GET /"], ["web"], [{"n": "5", "s": "x"}])


@pytest.mark.parametrize("change", [{"traceId": "00"}, {"endTimeUnixNano": "1"}, {"startTimeUnixNano": "0"}])
def test_spans_that_can_not_be_are_counted(change: dict[str, Any]) -> None:
    found = decode_spans(spans(**change), is_json=True)
    assert (len(found.rows), found.refused) == (0, 1)
