"""Pyroscope's older paths under /pyroscope: render, render-diff and label-values, which dashboards and scripts still ask.

Forms and parameters: grafana/pyroscope pkg/querier/http.go and pkg/og/structs/flamebearer at v1.13.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from otelprof.backend import exchange
from otelprof.backend.api import json_response
from otelprof.backend.context import Backend
from otelprof.backend.endpoints import MAX_TEXT
from otelprof.backend.flame import FlameGraph
from otelprof.backend.query import Querier, Question, Side
from otelprof.backend.series import Range
from otelprof.backend.times import milliseconds
from otelprof.errors import MalformedInput

MAX_TIMELINE = 500  # points
LEAST_STEP = 15  # seconds
_FILES = {"pprof": "pprof", "collapsed": "folded"}
_OBJECTS = frozenset({"inuse_objects", "alloc_objects", "goroutine", "samples"})

Given = Mapping[str, str]


def routes(backend: Backend) -> list[Route]:
    """The routes."""
    paths = {"/pyroscope/render": _render, "/pyroscope/render-diff": _render_diff, "/pyroscope/label-values": _label_values}
    return [Route(path, _handler(backend, answer), methods=["GET"]) for path, answer in paths.items()]


def _handler(backend: Backend, answer: Callable[[Querier, Given], Response]) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        given = {name: text[:MAX_TEXT] for name, text in request.query_params.items()}
        return await backend.ask(answer, backend.querier, given)

    return handle


def _render(querier: Querier, given: Given) -> Response:
    question = _question(given.get("query", ""), given.get("from", "now-1h"), given.get("until", "now"))
    form = given.get("format", "") or "json"
    if form in _FILES:
        made = exchange.export(querier, question, _FILES[form])
        return Response(made.data, media_type=made.media_type)
    if form != "json":
        raise MalformedInput(f"format is json, pprof or collapsed, not {form[:40]!r}")
    flame = querier.flame(question, _nodes(given))
    return json_response({**_flamebearer(flame, question, "single"), "timeline": _timeline(querier, question)})


def _render_diff(querier: Querier, given: Given) -> Response:
    left, right = (
        _question(
            given.get(f"{side}Query", "") or given.get("query", ""),
            given.get(f"{side}From", "") or given.get("from", "now-1h"),
            given.get(f"{side}Until", "") or given.get("until", "now"),
        )
        for side in ("left", "right")
    )
    if left.type != right.type:
        raise MalformedInput("both sides have to be of one profile type")
    flame = querier.diff(Side(left), Side(right), _nodes(given))
    ticks = dict(zip(("leftTicks", "rightTicks"), flame.totals, strict=True))
    return json_response({**_flamebearer(flame, left, "double"), **ticks, "timeline": None})


def _label_values(querier: Querier, given: Given) -> Response:
    if not given.get("label"):
        raise MalformedInput("label is missing: the name of a label")
    within = Range(milliseconds(given.get("from", "")), milliseconds(given.get("until", "")))
    return json_response(querier.index.values(given["label"], [given["query"]] if given.get("query") else [], within))


def _question(query: str, start: str, end: str) -> Question:
    """A query `TYPE{selector}` in a range."""
    kind, brace, rest = query.partition("{")
    if len(kind.strip().split(":")) != 5:
        raise MalformedInput(f"query is a profile type id and a selector, TYPE{{…}}, not {query[:100]!r}")
    return Question(kind.strip(), brace + rest, milliseconds(start), milliseconds(end))


def _nodes(given: Given) -> int:
    text = given.get("maxNodes", "") or given.get("max-nodes", "") or "0"
    if not (text.isascii() and text.removeprefix("-").isdecimal() and len(text) < 20):
        raise MalformedInput(f"maxNodes is a whole number, not {text[:40]!r}")
    return int(text)


def _flamebearer(flame: FlameGraph, question: Question, form: str) -> dict[str, Any]:
    levels = [level.tolist() for level in flame.levels]
    names = [name.text for name in flame.names]
    return {
        "version": 1,
        "flamebearer": {"names": names, "levels": levels, "numTicks": flame.total, "maxSelf": flame.max_self},
        "metadata": {"format": form, "spyName": "", **_units(question.type)},
        "groups": None,
        "heatmap": None,
    }


def _units(type_id: str) -> dict[str, Any]:
    """What Pyroscope's viewers need to show values: CPU time counts as samples of a billion a second."""
    _, name, unit, *_ = type_id.split(":")
    if name == "cpu":
        return {"sampleRate": 1_000_000_000, "units": "samples", "name": name}
    return {"sampleRate": 100, "units": "objects" if name in _OBJECTS else unit, "name": name}


def _timeline(querier: Querier, question: Question) -> dict[str, Any]:
    """Sums per step from the start on, zeros included."""
    seconds = (question.end - question.start) / 1000
    step = max(LEAST_STEP, math.ceil(seconds / MAX_TIMELINE))
    points = dict(next((line.points for line in querier.lines(Side(question), step)), []))
    first = question.start // 1000 // step * step
    samples = [points.get((first + number * step) * 1000, 0) for number in range(max(math.ceil(seconds / step), 0))]
    return {"startTime": first, "samples": samples, "durationDelta": step, "watermarks": None}
