"""The messages of the query API are on the wire what Pyroscope's are, and calls answer in both encodings."""

import json

import pytest

from otelprof.backend import connect
from otelprof.backend.memory import MemoryStore
from otelprof.backend.messages import new
from otelprof.backend.query import Querier
from otelprof.backend.series import SeriesIndex
from otelprof.backend.store import Block, Seen
from otelprof.errors import MalformedInput
from otelprof.otlp.decode import decode_profiles
from tests.unit.otlp_requests import CPU, PERIOD, simple


@pytest.fixture
def querier() -> Querier:
    """Over a store with three samples of `shop`."""
    store, index = MemoryStore(), SeriesIndex()
    profiles = decode_profiles(simple().data())
    store.insert(Block([profiles]))
    for series in profiles.series:
        index.add(Seen(series, int(profiles.samples["time"].min()), int(profiles.samples["time"].max())))
    return Querier(store, index)


def ask(querier: Querier, method: str, **request: object) -> dict[str, object]:
    """A call in JSON."""
    answer: dict[str, object] = json.loads(connect.call(querier, method, json.dumps(request).encode(), True))
    return answer


def test_fields_have_the_numbers_of_pyroscopes_files() -> None:
    request = new("SelectMergeStacktracesRequest", profile_typeID="a", start=1, max_nodes=3, span_selector=["s"])
    assert request.SerializeToString() == b"\x0a\x01a\x18\x01\x28\x03\x5a\x01s"
    graph = new("FlameGraph", names=["total"], total=5, max_self=2)
    graph.levels.add(values=[0, 5, 0, 0])
    assert graph.SerializeToString() == b"\x0a\x05total\x12\x06\x0a\x04\x00\x05\x00\x00\x18\x05\x20\x02"
    assert new("LabelPair", value="v").SerializeToString() == b"\x12\x01v"


@pytest.mark.parametrize("spelling", ["profileTypeID", "profile_typeID"])
def test_requests_may_use_either_spelling_and_replies_have_long_numbers_as_strings(querier: Querier, spelling: str) -> None:
    answer = ask(querier, "SelectMergeStacktraces", **{spelling: CPU, "labelSelector": "{}", "start": "0", "end": 2**62})
    assert answer["flamegraph"]["total"] == str(10 * PERIOD)  # type: ignore[index]


def test_both_encodings_say_the_same(querier: Querier) -> None:
    request = new("SelectMergeStacktracesRequest", profile_typeID=CPU)
    answer = new("SelectMergeStacktracesResponse")
    answer.ParseFromString(connect.call(querier, "SelectMergeStacktraces", request.SerializeToString(), False))
    in_json = ask(querier, "SelectMergeStacktraces", profileTypeID=CPU)["flamegraph"]
    assert [list(map(str, level.values)) for level in answer.flamegraph.levels] == [
        level["values"]  # type: ignore[index]
        for level in in_json["levels"]  # type: ignore[index,call-overload]
    ]


def test_an_empty_answer_has_no_flame_graph(querier: Querier) -> None:
    assert ask(querier, "SelectMergeStacktraces", profileTypeID=CPU, labelSelector='{service_name="other"}') == {}


def test_types_labels_and_series(querier: Querier) -> None:
    (kind,) = ask(querier, "ProfileTypes")["profileTypes"]  # type: ignore[misc]
    assert kind == {  # type: ignore[has-type]
        "ID": CPU,
        "name": "process_cpu",
        "sampleType": "cpu",
        "sampleUnit": "nanoseconds",
        "periodType": "cpu",
        "periodUnit": "nanoseconds",
    }
    assert "service_name" in ask(querier, "LabelNames")["names"]  # type: ignore[operator]
    assert ask(querier, "LabelValues", name="service.name") == {"names": ["shop"]}
    (labels,) = ask(querier, "Series", labelNames=["service_name", "__profile_type__"])["labelsSet"]  # type: ignore[misc]
    assert labels == {  # type: ignore[has-type]
        "labels": [{"name": "__profile_type__", "value": CPU}, {"name": "service_name", "value": "shop"}]
    }


def test_the_time_line_is_the_sum_per_step(querier: Querier) -> None:
    (line,) = ask(querier, "SelectSeries", profileTypeID=CPU, step=3600, groupBy=["service_name"])["series"]  # type: ignore[misc]
    assert line["labels"] == [{"name": "service_name", "value": "shop"}]  # type: ignore[has-type]
    assert sum(point["value"] for point in line["points"]) == 10 * PERIOD  # type: ignore[has-type]


def test_stacks_can_be_selected_by_how_they_begin(querier: Querier) -> None:
    site = {"callSite": [{"name": "main"}, {"name": "work"}]}
    answer = ask(querier, "SelectMergeStacktraces", profileTypeID=CPU, stackTraceSelector=site)
    assert answer["flamegraph"]["total"] == str(9 * PERIOD)  # type: ignore[index]


@pytest.mark.parametrize("data", [b"[]", b"{", b'{"start": "many"}', b'{"matchers": "x"}', b"[" * 50_000])
def test_what_is_no_request_is_malformed(querier: Querier, data: bytes) -> None:
    with pytest.raises(MalformedInput):
        connect.call(querier, "Series", data, True)
    with pytest.raises(MalformedInput):
        connect.call(querier, "Series", b"\xff\xff", False)


@pytest.mark.parametrize("request_", [{"traceIdSelector": ["xyz"]}, {"spanSelector": ["12"]}, {"labelSelector": "{"}])
def test_a_wrong_id_or_selector_is_malformed(querier: Querier, request_: dict[str, object]) -> None:
    with pytest.raises(MalformedInput):
        ask(querier, "SelectMergeStacktraces", profileTypeID=CPU, **request_)
