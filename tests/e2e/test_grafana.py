"""Grafana's calls against the backend, as its Pyroscope data source and Profiles Drilldown make them, and the files for it.

Calls, headers and what is done with answers: grafana/grafana pkg/tsdb/grafana-pyroscope-datasource (connect-go, protobuf) and
grafana/explore-profiles (JSON through Grafana's proxy).
"""

import gzip
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
import yaml

from otelprof.backend.messages import new
from otelprof.formats.pprof_schema import Profile
from tests.e2e.backend_program import Backend
from tests.unit.otlp_requests import CPU, PERIOD, Builder

pytestmark = pytest.mark.e2e
EXAMPLES = Path(__file__).parents[2] / "examples" / "grafana"
SPAN, TRACE = b"\x0a" * 8, b"\x01" * 16
SECOND = int(time.time()) - 120
START, END = (SECOND - 600) * 1000, (SECOND + 60) * 1000
LAUNCHES = "gpu:gpu_kernel_launches:count:gpu:count"
WEB = '{service_name="web"}'


@pytest.fixture(scope="module", params=["memory", "chdb"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """A backend with CPU time and launches of `web` in two pods."""
    with Backend(tmp_path_factory.mktemp("grafana"), store=request.param) as program:
        for pod in ("a", "b"):
            builder = Builder("web", start=SECOND * 10**9)
            builder.label("k8s.pod.name", pod)
            builder.sample("main", "handle", values=(3,), link_index=builder.link(TRACE, SPAN))
            builder.sample("main", "idle", values=(5,))
            builder.profile(("gpu_kernel_launches", "count"), ("gpu", "count", 1))
            builder.sample("main", "handle", values=(40,))
            program.send(builder.data())
        yield program
        assert "Traceback" not in program.log()


def call(backend: Backend, method: str, answer: Any = None, service: str = "querier.v1.QuerierService", **fields: Any) -> Any:
    """One call as connect-go makes it: unary, protobuf, gzip accepted."""
    request = new(fields.pop("message", f"{method}Request"), **fields)
    headers = {"content_type": "application/proto", "connect_protocol_version": "1", "accept_encoding": "gzip"}
    headers |= {"connect_timeout_ms": "30000", "user_agent": "connect-go/1.18.1 (go1.24)"}
    status, body, got = backend.post(f"/{service}/{method}", request.SerializeToString(), **headers)
    assert (status, got["content-type"]) == (200, "application/proto"), body
    message = answer if answer is not None else new(f"{method}Response")
    message.ParseFromString(gzip.decompress(body) if got.get("content-encoding") == "gzip" else body)
    return message


def get(backend: Backend, path: str, **parameters: Any) -> tuple[int, Any]:
    """Status and JSON of a GET through Grafana's proxy."""
    parts = urlsplit(backend.url)
    link = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        link.request("GET", f"{path}?{urlencode(parameters)}")
        answer = link.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        link.close()


def frame(levels: Any, names: Any) -> list[tuple[int, int, int, str]]:
    """(depth, value, self, label) as the data source makes them; fails where a bar isn't inside one of the level above."""
    above, rows = [(0, 2**63)], []
    for depth, level in enumerate(levels):
        here, at = [], 0
        for i in range(0, len(level.values), 4):
            gap, total, own, name = level.values[i : i + 4]
            begin = at + gap
            at = begin + total
            assert any(first <= begin and at <= last for first, last in above)
            here.append((begin, at))
            rows.append((depth, total, own, names[name]))
        above = here
    return rows


def test_save_and_test_and_the_pickers(backend: Backend) -> None:
    types = call(backend, "ProfileTypes", start=START, end=END).profile_types
    assert {(one.ID, f"{one.name} - {one.sample_type}") for one in types} == {
        (CPU, "process_cpu - cpu"),
        (LAUNCHES, "gpu - gpu_kernel_launches"),
    }
    assert {one.ID for one in call(backend, "ProfileTypes").profile_types} == {CPU, LAUNCHES}
    names = call(backend, "LabelNames", matchers=[WEB], start=START, end=END).names
    assert {"service_name", "k8s_pod_name"} <= {name for name in names if not name.startswith("__")}
    values = call(backend, "LabelValues", name="k8s_pod_name", matchers=[WEB], start=START, end=END).names
    assert list(values) == ["a", "b"]


def test_a_graph_panel_by_label(backend: Backend) -> None:
    fields = {"profile_typeID": CPU, "label_selector": WEB, "start": START, "end": END}
    found = call(backend, "SelectSeries", **fields, step=15.0, group_by=["k8s_pod_name"])
    lines = {one.labels[0].value: [(point.timestamp, point.value) for point in one.points] for one in found.series}
    expected = [(SECOND // 15 * 15_000, 8.0 * PERIOD)]
    assert lines == {"a": expected, "b": expected}
    assert len(call(backend, "SelectSeries", **fields, step=15.0, group_by=["k8s_pod_name"], limit=1).series) == 1


def test_a_flame_graph_panel(backend: Backend) -> None:
    fields = {"profile_typeID": CPU, "label_selector": WEB, "start": START, "end": END, "max_nodes": 16_384}
    graph = call(backend, "SelectMergeStacktraces", **fields).flamegraph
    assert frame(graph.levels, graph.names) == [
        (0, 16 * PERIOD, 0, "total"),
        (1, 16 * PERIOD, 0, "main"),
        (2, 6 * PERIOD, 6 * PERIOD, "handle"),
        (2, 10 * PERIOD, 10 * PERIOD, "idle"),
    ]
    assert (graph.total, graph.max_self) == (16 * PERIOD, 10 * PERIOD)
    fields["label_selector"] = '{service_name="nobody"}'
    assert not call(backend, "SelectMergeStacktraces", **fields).HasField("flamegraph")


def test_from_a_span_to_its_flame_graph(backend: Backend) -> None:
    chosen = {"profile_typeID": CPU, "label_selector": WEB, "start": START, "end": END, "span_selector": [SPAN.hex()]}
    for method in ("SelectMergeSpanProfile", "SelectMergeStacktraces"):
        graph = call(backend, method, **chosen).flamegraph
        assert [row[3] for row in frame(graph.levels, graph.names)] == ["total", "main", "handle"]
        assert graph.total == 6 * PERIOD


def test_drilldown_lists_services_with_their_types(backend: Backend) -> None:
    body = {"matchers": [], "labelNames": ["service_name", "__profile_type__"], "start": START, "end": str(END)}
    found = backend.ask("Series", **body)["labelsSet"]
    sets = [{pair["name"]: pair["value"] for pair in one["labels"]} for one in found]
    assert {(one["service_name"], one["__profile_type__"]) for one in sets} == {("web", CPU), ("web", LAUNCHES)}


def test_a_profile_for_download_is_pprof(backend: Backend) -> None:
    profile = call(backend, "SelectMergeProfile", Profile(), profile_typeID=CPU, label_selector=WEB, start=START, end=END)
    names = {one.id: profile.string_table[one.name] for one in profile.function}
    place = {one.id: names[one.line[0].function_id] for one in profile.location}
    stacks = {tuple(place[i] for i in reversed(sample.location_id)): list(sample.value) for sample in profile.sample}
    assert stacks == {("main", "handle"): [6 * PERIOD], ("main", "idle"): [10 * PERIOD]}
    kind = profile.sample_type[0]
    assert (profile.string_table[kind.type], profile.string_table[kind.unit]) == ("cpu", "nanoseconds")
    as_json = backend.ask("SelectMergeProfile", profile_typeID=CPU, labelSelector=WEB, start=START, end=END)
    assert len(as_json["sample"]) == 2


def test_a_difference(backend: Backend) -> None:
    sides = [f'{{k8s_pod_name="{pod}"}}' for pod in ("a", "c")]
    left, right = (
        new("SelectMergeStacktracesRequest", profile_typeID=CPU, label_selector=side, start=START, end=END) for side in sides
    )
    graph = call(backend, "Diff", left=left, right=right).flamegraph
    assert (graph.leftTicks, graph.rightTicks, graph.total) == (8 * PERIOD, 0, 8 * PERIOD)
    assert [list(level.values[:6]) for level in graph.levels[:2]] == [[0, 8 * PERIOD, 0, 0, 0, 0]] * 2
    assert not call(backend, "Diff", left=right, right=right).flamegraph.levels
    assert not call(backend, "Diff").flamegraph.levels


def test_stacks_below_one_call_site(backend: Backend) -> None:
    site = new("StackTraceSelector", call_site=[new("Location", name="main"), new("Location", name="idle")])
    fields = {"profile_typeID": CPU, "label_selector": WEB, "start": START, "end": END, "stack_trace_selector": site}
    assert call(backend, "SelectMergeStacktraces", **fields).flamegraph.total == 10 * PERIOD
    (line,) = call(backend, "SelectSeries", **fields, step=15.0).series
    assert sum(point.value for point in line.points) == 10 * PERIOD


def test_small_calls(backend: Backend) -> None:
    stats = call(backend, "GetProfileStats")
    assert (stats.data_ingested, stats.oldest_profile_time, stats.newest_profile_time) == (True, SECOND * 1000, SECOND * 1000)
    query = f'{{__profile_type__="{CPU}", service_name="web"}}'
    assert call(backend, "AnalyzeQuery", query=query, start=START, end=END).query_impact.total_queried_series == 2
    settings = call(backend, "Get", service="settings.v1.SettingsService")
    assert not settings.settings
    flags = call(backend, "GetFeatureFlags", service="capabilities.v1.FeatureFlagsService")
    assert not flags.feature_flags


def test_what_is_not_served_is_said_in_connect_s_way(backend: Backend) -> None:
    for path in ("/querier.v1.QuerierService/SelectHeatmap", "/settings.v1.SettingsService/Set"):
        status, body, headers = backend.post(path, b"", content_type="application/proto")
        assert (status, json.loads(body)["code"], headers["content-type"]) == (501, "unimplemented", "application/json")
    assert backend.post("/vcs.v1.VCSService/GithubApp", b"", content_type="application/proto")[0] == 404


def test_render_and_its_difference(backend: Backend) -> None:
    times = {"from": START // 1000, "until": END}
    status, found = get(backend, "/pyroscope/render", query=f"{CPU}{WEB}", format="json", maxNodes=100, **times)
    assert status == 200
    assert found["flamebearer"]["names"] == ["total", "handle", "idle", "main"]
    assert (found["flamebearer"]["numTicks"], found["metadata"]["units"]) == (16 * PERIOD, "samples")
    line = found["timeline"]
    assert line["samples"][(SECOND - line["startTime"]) // line["durationDelta"]] == sum(line["samples"]) == 16 * PERIOD
    sides = {"leftQuery": f'{CPU}{{k8s_pod_name="a"}}', "rightQuery": f"{CPU}{WEB}"}
    sides |= {f"{side}{name}": value for side in ("left", "right") for name, value in (("From", START), ("Until", END))}
    status, found = get(backend, "/pyroscope/render-diff", **sides)
    assert (status, found["leftTicks"], found["rightTicks"]) == (200, 8 * PERIOD, 16 * PERIOD)
    assert found["metadata"]["format"] == "double"
    assert get(backend, "/pyroscope/label-values", label="k8s_pod_name") == (200, ["a", "b"])
    for path, parameters in (("render", {"query": "cpu"}), ("render", {"query": f"{CPU}{{"}), ("label-values", {})):
        assert get(backend, f"/pyroscope/{path}", **parameters)[0] == 400


BIG = 2**63 - 1
ODD = [
    {"start": -1, "end": -1},
    {"start": BIG, "end": BIG},
    {"start": -BIG, "end": BIG},
    {"max_nodes": -1},
    {"max_nodes": BIG},
    {"label_selector": ""},
    {},
]


@pytest.mark.parametrize("odd", ODD, ids=str)
@pytest.mark.parametrize("method", ["SelectMergeStacktraces", "SelectMergeSpanProfile", "SelectMergeProfile"])
def test_odd_arguments_are_answered(backend: Backend, method: str, odd: dict[str, Any]) -> None:
    answer = Profile() if method == "SelectMergeProfile" else None
    call(backend, method, answer, **({"profile_typeID": CPU} | odd))


@pytest.mark.parametrize("step", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_step_that_is_none_is_refused(backend: Backend, step: float) -> None:
    request = new("SelectSeriesRequest", profile_typeID=CPU, step=step)
    path = "/querier.v1.QuerierService/SelectSeries"
    assert backend.post(path, request.SerializeToString(), content_type="application/proto")[0] == 400
    assert call(backend, "SelectSeries", profile_typeID=CPU, start=-5, end=BIG, step=1e9).series


def test_the_provisioning_files_point_to_what_there_is() -> None:
    sources = yaml.safe_load((EXAMPLES / "provisioning/datasources/otelprof.yaml").read_text())
    by_type = {one["type"]: one for one in sources["datasources"]}
    ours, tempo = by_type["grafana-pyroscope-datasource"], by_type["tempo"]
    link = tempo["jsonData"]["tracesToProfiles"]
    assert (sources["apiVersion"], ours["access"], link["datasourceUid"], link["profileTypeId"]) == (
        1,
        "proxy",
        ours["uid"],
        CPU,
    )
    folder = yaml.safe_load((EXAMPLES / "provisioning/dashboards/otelprof.yaml").read_text())
    assert folder["providers"][0]["options"]["path"] in (EXAMPLES / "README.md").read_text()


def test_the_dashboard_asks_what_the_backend_answers(backend: Backend) -> None:
    dashboard = json.loads((EXAMPLES / "dashboards/otelprof.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert {target["datasource"]["uid"] for target in targets} == {"otelprof"}
    service = dashboard["templating"]["list"][0]["current"]["value"]
    for target in targets:
        selector = target["labelSelector"].replace("$service", service)
        fields = {"profile_typeID": target["profileTypeId"], "label_selector": selector, "start": START, "end": END}
        if target["queryType"] == "metrics":
            call(backend, "SelectSeries", **fields, step=15.0, group_by=target["groupBy"])
        else:
            assert call(backend, "SelectMergeStacktraces", **fields).flamegraph.total > 0
