"""The backend's own API: what it answers, that its OpenAPI document says so, and what it refuses."""

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from otelprof.backend.endpoints import ENDPOINTS
from tests.e2e.backend_program import PROTOBUF, TRACES, Backend
from tests.unit.otlp_requests import CPU, PERIOD, Builder
from tests.unit.test_backend_traces import FIRST, SECOND, requests, samples

pytestmark = pytest.mark.e2e
NOW = int(time.time())
EARLY, LATE = NOW - 600, NOW - 60


@pytest.fixture(scope="module", params=["memory", "chdb"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """A backend with requests of `web`, and with `shop`, which does other work late than early."""
    with Backend(tmp_path_factory.mktemp("api"), store=request.param) as program:
        program.send(samples())
        program.post(TRACES, requests(), content_type=PROTOBUF)
        for second, stacks in ((EARLY, {"main;work": 6, "main;idle": 4}), (LATE, {"main;work": 6, "main;slow;work": 14})):
            builder = Builder("shop", start=second * 10**9)
            for stack, count in stacks.items():
                builder.sample(*stack.split(";"), values=(count,))
            program.send(builder.data())
        yield program
        assert "Traceback" not in program.log()


def get(backend: Backend, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of a request."""
    parts = urlsplit(backend.url)
    link = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        link.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = link.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        link.close()


def ask(backend: Backend, path: str, **parameters: Any) -> Any:
    """The JSON of a call that has to be answered; it must have the form that the document gives it."""
    status, body, headers = get(backend, f"/api/v1/{path}?{urlencode(parameters, doseq=True)}")
    assert (status, headers["content-type"]) == (200, "application/json"), body
    answer = json.loads(body)
    schemas = json.loads(get(backend, "/api/v1/openapi.json")[1])["components"]["schemas"]
    named = next(one.answer for one in ENDPOINTS if one.path == f"/api/v1/{path}")
    holds(answer, schemas[named])
    return answer


def holds(value: Any, schema: dict[str, Any]) -> None:
    """Fails when a value isn't what a schema of the document describes."""
    kinds = {"object": dict, "array": list, "string": str, "integer": int}
    if "anyOf" in schema:
        schema = next(one for one in schema["anyOf"] if set(one["required"]) == set(value))
    assert isinstance(value, kinds[schema["type"]]), (value, schema)
    if "properties" in schema:
        assert set(value) == set(schema["properties"]) or set(schema["required"]) <= set(value)
        assert set(value) <= set(schema["properties"]) | {"total", "left_total", "right_total"}
        for name in set(value) & set(schema["properties"]):
            holds(value[name], schema["properties"][name])
    for item in value if schema["type"] == "array" else ():
        holds(item, schema["items"])


SHOP = {"type": CPU, "query": '{service_name="shop"}'}
SIDES = {"left_until": (EARLY + 1) * 1000, "right_from": LATE * 1000}


def test_a_difference_has_both_sides_of_each_bar(backend: Backend) -> None:
    found = ask(backend, "diff", **SHOP, **SIDES)
    assert (found["left_total"], found["right_total"]) == (10 * PERIOD, 20 * PERIOD)
    bars = [tuple(level[i : i + 7]) for level in found["levels"] for i in range(0, len(level), 7)]
    by_name: dict[str, list[tuple[int, int]]] = {}
    for bar in bars:
        by_name.setdefault(found["names"][bar[6]], []).append((bar[1] // PERIOD, bar[4] // PERIOD))
    assert by_name == {"total": [(10, 20)], "main": [(10, 20)], "idle": [(4, 0)], "slow": [(0, 14)], "work": [(6, 6), (0, 14)]}


def test_the_table_of_functions(backend: Backend) -> None:
    found = ask(backend, "top", **SHOP)["functions"]
    assert [(one["name"], one["self"] // PERIOD, one["total"] // PERIOD) for one in found] == [
        ("work", 26, 26),
        ("idle", 4, 4),
        ("main", 0, 30),
        ("slow", 0, 14),
    ]
    assert (found[0]["file"], found[0]["kind"]) == ("app.py:1", "python")
    assert [one["name"] for one in ask(backend, "top", **SHOP, order="total", limit=1)["functions"]] == ["main"]
    changed = ask(backend, "top", **SHOP, **SIDES)
    assert {one["name"] for one in changed["functions"][:2]} == {"work", "idle"}
    assert (changed["left_total"], changed["right_total"]) == (10 * PERIOD, 20 * PERIOD)


def test_callers_and_callees(backend: Backend) -> None:
    found = ask(backend, "sandwich", **SHOP, function="work")
    assert (found["self"], found["total"]) == (26 * PERIOD, 26 * PERIOD)
    assert found["callers"]["names"][1:] == ["main", "slow", "work"]
    assert [len(level) // 4 for level in found["callers"]["levels"]] == [1, 1, 2, 1]
    assert found["callees"]["levels"][1:] == [[0, 26 * PERIOD, 26 * PERIOD, 1]]
    assert ask(backend, "sandwich", **SHOP, function="elsewhere")["total"] == 0


def test_requests_and_one_of_them(backend: Backend) -> None:
    found = ask(backend, "traces", query='{service_name="web"}', order="launches")["traces"]
    assert [(one["trace"], one["launches"], one["cpu_ns"]) for one in found] == [
        (FIRST.hex(), 7, 5 * PERIOD),
        (SECOND.hex(), 0, 9 * PERIOD),
    ]
    spans = ask(backend, "spans", trace=FIRST.hex())["spans"]
    assert [(one["name"], one["cpu_ns"], one["duration_ns"]) for one in spans] == [
        ("GET /", 3 * PERIOD, 5 * 10**6),
        ("SELECT", 2 * PERIOD, 2 * 10**6),
        ("gemm", 0, 10**6),
    ]
    graph = ask(backend, "flamegraph", type=CPU, trace=FIRST.hex(), span="0a" * 8)
    assert graph["total"] == 3 * PERIOD
    assert ask(backend, "spans", trace="ee" * 16)["spans"] == []


def test_a_trace_opens_in_perfetto(backend: Backend) -> None:
    status, body, headers = get(backend, f"/api/v1/export?format=perfetto&trace={FIRST.hex()}")
    assert (status, headers["content-disposition"]) == (200, 'attachment; filename="trace.json"')
    events = json.loads(body)["traceEvents"]
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    assert set(spans) == {"GET /", "SELECT", "gemm"}
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert threads[spans["gemm"]["tid"]] == "GPU ? stream 7"
    assert spans["GET /"]["tid"] == spans["SELECT"]["tid"]
    assert (spans["SELECT"]["dur"], spans["GET /"]["args"]["launches"]) == (2000, 7)
    alone = json.loads(get(backend, "/api/v1/export?format=perfetto&from=now-1h")[1])["traceEvents"]
    assert [event["name"] for event in alone if event["ph"] == "X"] == ["gemm"]


def test_the_document_has_every_route_and_only_those(backend: Backend) -> None:
    document = json.loads(get(backend, "/api/v1/openapi.json")[1])
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == {one.path for one in ENDPOINTS}
    for path, methods in document["paths"].items():
        needed = {p["name"]: "pprof" if p["name"] == "format" else CPU for p in methods["get"]["parameters"] if p["required"]}
        needed |= {"trace": FIRST.hex()} if path.endswith("/spans") else {}
        if not path.endswith("/live"):
            more = f"&type={CPU}" if path.endswith("/export") else ""
            assert get(backend, f"{path}?{urlencode(needed)}{more}")[0] == 200, path
        for status in ("400", "503"):
            assert status in methods["get"]["responses"]
        for missing in needed:
            rest = {name: value for name, value in needed.items() if name != missing}
            assert get(backend, f"{path}?{urlencode(rest)}")[0] == 400, (path, missing)
    assert get(backend, "/api/v1/nothing")[0] == 404


REFUSED = [
    "flamegraph",
    f"flamegraph?type={CPU}&from=yesterday",
    f"flamegraph?type={CPU}&max_nodes=1.5",
    f"flamegraph?type={CPU}&query=%7Ba",
    f"flamegraph?type={CPU}&query=%7Ba=~%22(%22%7D",
    f"flamegraph?type={CPU}&trace=zz",
    f"flamegraph?type={CPU}&max_nodes=" + "9" * 40,
    f"top?type={CPU}&order=name",
    f"sandwich?type={CPU}",
    "traces?order=colour",
    "spans?trace=12",
    "export?format=exe",
    "export?format=pprof&type=cpu",
]


@pytest.mark.parametrize("path", REFUSED)
def test_what_can_not_be_answered_is_400_with_the_reason(backend: Backend, path: str) -> None:
    status, body, _ = get(backend, f"/api/v1/{path}")
    assert (status, json.loads(body)["code"]) == (400, "invalid_argument"), body
    assert json.loads(body)["message"]


ODD = ["from=-5", "until=-1", "from=9000000000000000000", "until=9223372036854775807", "max_nodes=-3", "max_nodes=999999999999"]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("path", ["flamegraph", "diff", "top", "sandwich?function=work", "traces", "export?format=pprof"])
def test_odd_numbers_are_answered(backend: Backend, path: str, odd: str) -> None:
    mark = "&" if "?" in path else "?"
    status, body, _ = get(backend, f"/api/v1/{path}{mark}type={CPU}&{odd}")
    assert status == 200, body


def test_another_method_is_405_and_says_which_is_right(backend: Backend) -> None:
    status, _, headers = get(backend, "/api/v1/types", "DELETE")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_files_of_the_page_are_asked_for_again_and_answered_briefly(backend: Backend) -> None:
    status, _, headers = get(backend, "/static/main.js")
    assert (status, headers["cache-control"]) == (200, "no-cache")
    assert get(backend, "/static/main.js", if_none_match=headers["etag"])[0] == 304


def test_with_tokens_the_page_is_open_and_the_data_are_not(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("secret\n")
    with Backend(tmp_path, "--token-file", str(tmp_path / "tokens"), store="memory") as program:
        for path, status in (
            ("/", 200),
            ("/explore", 200),
            ("/static/main.js", 200),
            ("/api/v1/types", 401),
            ("/metrics", 401),
        ):
            assert get(program, path)[0] == status, path
        _, body, headers = get(program, "/api/v1/types")
        assert (json.loads(body)["code"], headers["www-authenticate"]) == ("unauthenticated", "Bearer")
        assert get(program, "/api/v1/types", authorization="Bearer secret")[0] == 200
        assert get(program, "/api/v1/types", authorization="Bearer other")[0] == 401
