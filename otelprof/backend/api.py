"""The answers of /api/v1: what the page and `otelprof query` ask. The table of paths and parameters is endpoints.py."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from otelprof.backend import exchange
from otelprof.backend.context import Backend
from otelprof.backend.endpoints import ENDPOINTS, JSON, Endpoint, has_sides, question
from otelprof.backend.flame import FlameGraph
from otelprof.backend.functions import Function
from otelprof.backend.openapi import document, weights_shown
from otelprof.backend.perfetto import written
from otelprof.backend.query import Querier, Side
from otelprof.backend.series import Range
from otelprof.backend.traces import Request as TracedRequest
from otelprof.backend.traces import Span

Given: TypeAlias = Mapping[str, Any]
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

_NO_STORE = {"cache-control": "no-store"}


def routes(backend: Backend) -> list[Route]:
    """A route for each endpoint of the table."""
    return [Route(one.path, _handler(backend, one), methods=["GET"]) for one in ENDPOINTS]


def _handler(backend: Backend, endpoint: Endpoint) -> Handler:
    """Reads the parameters in the event loop and answers in a query's thread; `live` is a stream and stays in the loop."""
    answer = ANSWERS.get(endpoint.name)

    async def handle(request: Request) -> Response:
        sent = request.query_params
        given = endpoint.read({name: sent.getlist(name) for name in sent})
        if answer is None:
            return StreamingResponse(backend.live.events(), media_type="text/event-stream", headers=_NO_STORE)
        return await backend.ask(answer, backend, given)

    return handle


def json_response(value: Any) -> Response:
    """JSON without blanks; what isn't text in the names of frames is replaced."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return Response(text.encode("utf-8", "replace"), media_type=JSON)


def _unit(given: Given) -> str:
    parts = str(given["type"]).split(":")
    return parts[2] if len(parts) > 2 else ""


def graph(made: FlameGraph, unit: str) -> dict[str, Any]:
    """A flame graph as the page takes it."""
    return {
        "names": [name.text for name in made.names],
        "kinds": [name.kind for name in made.names],
        "files": made.places,
        "levels": [level.tolist() for level in made.levels],
        "total": made.total,
        "max_self": made.max_self,
        "other": made.other,
        "unit": unit,
    }


def _flamegraph(backend: Backend, given: Given) -> Response:
    made = backend.querier.flame(question(given), given["max_nodes"])
    return json_response({**graph(made, _unit(given)), "until": given["until"]})


def _diff(backend: Backend, given: Given) -> Response:
    made = backend.querier.diff(Side(question(given, "left")), Side(question(given, "right")), given["max_nodes"])
    left, right = made.totals
    return json_response({**graph(made, _unit(given)), "left_total": left, "right_total": right})


def _top(backend: Backend, given: Given) -> Response:
    if not has_sides(given):
        found = backend.querier.top(question(given), given["limit"], given["order"] == "total")
        rows = [{**_function(one), "self": one.own[0], "total": one.total[0]} for one in found.functions]
        return json_response({"functions": rows, "total": found.totals[0], "unit": _unit(given)})
    found = backend.querier.changed(Side(question(given, "left")), Side(question(given, "right")), given["limit"])
    rows = [{**_function(one), **_both(one)} for one in found.functions]
    left, right = found.totals
    return json_response({"functions": rows, "left_total": left, "right_total": right, "unit": _unit(given)})


def _function(one: Function) -> dict[str, Any]:
    return {"name": one.name.text, "kind": one.name.kind, "file": one.place}


def _both(one: Function) -> dict[str, int]:
    """The values of both sides; none on a side that the function isn't on."""
    sides = zip(("left", "right"), one.own, one.total, strict=True)
    return {f"{side}_{what}": value for side, own, total in sides for what, value in (("self", own), ("total", total))}


def _sandwich(backend: Backend, given: Given) -> Response:
    found = backend.querier.sandwich(question(given), given["function"], given["max_nodes"])
    unit = _unit(given)
    return json_response(
        {
            "function": given["function"],
            "self": found.own,
            "total": found.total,
            "callers": graph(found.callers, unit),
            "callees": graph(found.callees, unit),
            "unit": unit,
        }
    )


def _requests(backend: Backend, given: Given) -> Response:
    within = Range(given["from"], given["until"])
    found = backend.traces.requests(given["query"], within, given["order"], given["limit"])
    return json_response({"traces": [_request(one) for one in found]})


def _request(one: TracedRequest) -> dict[str, Any]:
    high, low = one.trace
    return {"trace": f"{high:016x}{low:016x}", "spans": one.spans, **_placed(one.root), **weights_shown(one.weights)}


def _placed(span: Span) -> dict[str, Any]:
    return {"service": span.service, "name": span.name, "start_us": span.start // 1000, "duration_ns": span.duration}


def _spans(backend: Backend, given: Given) -> Response:
    rows = [
        {
            "span": f"{one.span:016x}",
            "parent": f"{one.parent:016x}" if one.parent else "",
            "attributes": one.attributes,
            **_placed(one),
            **weights_shown(one.weights),
        }
        for one in backend.traces.trace(given["trace"])
    ]
    return json_response({"trace": given["trace"].lower(), "spans": rows})


def _export(backend: Backend, given: Given) -> Response:
    if given["format"] == "perfetto":
        made = _perfetto(backend, given)
    else:
        made = exchange.export(backend.querier, question(given), given["format"])
    headers = {"content-disposition": f'attachment; filename="{made.file_name}"'}
    return Response(made.data, media_type=made.media_type, headers=headers)


def _perfetto(backend: Backend, given: Given) -> exchange.Download:
    """The spans of the traces that are named, else what ran on GPUs in the range."""
    spans = [span for text in given["trace"][:20] for span in backend.traces.trace(text)]
    if not given["trace"]:
        spans = backend.traces.on_gpu(given["query"], Range(given["from"], given["until"]))
    return exchange.Download(written(spans), JSON, "trace.json" if given["trace"] else "gpu.json")


def types(querier: Querier) -> list[dict[str, Any]]:
    """All profile types, each with its first and last sample and its services."""
    found: dict[str, dict[str, Any]] = {}
    for seen, _ in querier.index.matching((), Range()):
        kind = seen.series.type
        one = found.setdefault(kind, {"id": kind, "unit": kind.split(":")[2], "first": 2**62, "last": 0, "services": set()})
        one["first"], one["last"] = min(one["first"], seen.first), max(one["last"], seen.last)
        one["services"].add(seen.series.service)
    return [{**one, "services": sorted(one["services"])} for _, one in sorted(found.items())]


ANSWERS: dict[str, Callable[[Backend, Given], Response]] = {
    "flamegraph": _flamegraph,
    "diff": _diff,
    "top": _top,
    "sandwich": _sandwich,
    "types": lambda backend, _: json_response({"types": types(backend.querier)}),
    "requests": _requests,
    "spans": _spans,
    "export": _export,
    "openapi": lambda _backend, _given: json_response(document()),
}
