"""The HTTP port: OTLP/HTTP, the Pyroscope-compatible API, the page with its own API, health and metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from otelprof.backend import connect, exchange
from otelprof.backend.flame import FlameGraph
from otelprof.backend.guard import PAGES, Guard, Tokens
from otelprof.backend.live import Live
from otelprof.backend.query import Querier, Question
from otelprof.backend.series import Range
from otelprof.backend.store import StoreFailed
from otelprof.counters import Counters
from otelprof.errors import MalformedInput, OtelprofError, TooLarge
from otelprof.otlp.server import PROFILES_PATHS, TRACES_PATH, Busy, Export, Receiver, WrongType, http_export, read_body

UI = Path(__file__).parent / "ui"
QUERY_THREADS = 4
MAX_QUERIES = 64  # waiting and running
_GZIP_LEVEL = 1

_T = TypeVar("_T")


@dataclass
class Backend:
    """What the handlers work with."""

    querier: Querier
    receiver: Receiver
    live: Live
    counters: Counters
    tokens: Tokens
    local_only: bool = False  # names other than localhost are refused
    ready: bool = False
    queries: int = 0
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(QUERY_THREADS, "query"))

    async def ask(self, question: Callable[..., _T], *arguments: Any) -> _T:
        """Run a query in a thread; Busy when too many wait."""
        if self.queries >= MAX_QUERIES:
            raise Busy("too many queries at once; try again in a second")
        self.queries += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, question, *arguments)
        finally:
            self.queries -= 1


def application(backend: Backend) -> Guard:
    """The whole HTTP port as an ASGI application."""
    api = _Api(backend)
    routes = [
        *(Route(path, api.page) for path in PAGES),
        Mount("/static", StaticFiles(directory=UI, check_dir=False)),
        *(Route(path, api.otlp(backend.receiver.profiles), methods=["POST"]) for path in PROFILES_PATHS),
        Route(TRACES_PATH, api.otlp(backend.receiver.traces), methods=["POST"]),
        Route(connect.SERVICE + "{method}", api.connect, methods=["POST"]),
        Route("/api/v1/flamegraph", api.flamegraph),
        Route("/api/v1/types", api.types),
        Route("/api/v1/live", api.events),
        Route("/api/v1/export", api.export),
        Route("/ingest", api.ingest, methods=["POST"]),
        Route("/healthz", api.health),
        Route("/readyz", api.readiness),
        Route("/metrics", api.metrics),
    ]
    handlers: Any = {OtelprofError: _refused, 404: _not_there, 405: _not_there}
    app = Starlette(
        routes=routes,
        exception_handlers=handlers,
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=_GZIP_LEVEL)],
    )
    return Guard(app, backend.tokens, backend.local_only)


_ERRORS: tuple[tuple[type[OtelprofError], int, str], ...] = (
    (TooLarge, 413, "resource_exhausted"),
    (MalformedInput, 400, "invalid_argument"),
    (WrongType, 415, "invalid_argument"),
    (Busy, 503, "unavailable"),
    (StoreFailed, 503, "unavailable"),
)


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"code": code, "message": message[:800]}, status)


async def _refused(_request: Request, error: Exception) -> Response:
    status, code = next(((status, code) for kind, status, code in _ERRORS if isinstance(error, kind)), (500, "internal"))
    return _error(status, code, str(error))


async def _not_there(request: Request, _error_: Exception) -> Response:
    return _error(404, "not_found", f"{request.method} {request.url.path[:200]} isn't served here")


class _Api:
    """The handlers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def otlp(self, export: Export) -> Callable[[Request], Any]:
        """The handler of one OTLP signal."""

        async def handle(request: Request) -> Response:
            reply = await http_export(export, request.headers, request.stream())
            return Response(reply.body, reply.status, dict(reply.headers))

        return handle

    async def connect(self, request: Request) -> Response:
        """One Connect unary call."""
        method = request.path_params["method"]
        if method not in connect.METHODS:
            return _error(501, "unimplemented", f"{method[:100]} isn't served here")
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind not in (connect.JSON, connect.PROTO):
            raise WrongType(f"content type {kind[:60]!r}; send {connect.PROTO} or {connect.JSON}")
        data = await read_body(request.stream(), request.headers.get("content-encoding", ""))
        answer = await self._backend.ask(connect.call, self._backend.querier, method, data, kind == connect.JSON)
        return Response(answer, headers={"content-type": kind})

    async def flamegraph(self, request: Request) -> Response:
        """The flame graph for the page."""
        question = _question(request)
        nodes = _integer(request, "max_nodes", 8192)
        graph = await self._backend.ask(self._backend.querier.flame, question, nodes)
        return Response(await self._backend.ask(_graph_json, graph, question), media_type="application/json")

    async def types(self, _request: Request) -> Response:
        """All profile types with their times and services."""
        return JSONResponse({"types": _types(self._backend.querier)})

    async def events(self, _request: Request) -> Response:
        """Server-sent events about new data."""
        return StreamingResponse(self._backend.live.events(), media_type="text/event-stream", headers=_NO_STORE)

    async def export(self, request: Request) -> Response:
        """A download in another format."""
        form = request.query_params.get("format", "")
        made = await self._backend.ask(exchange.export, self._backend.querier, _question(request), form)
        name = f'attachment; filename="{made.file_name}"'
        return Response(made.data, media_type=made.media_type, headers={"content-disposition": name})

    async def ingest(self, request: Request) -> Response:
        """Pyroscope's upload; single bad lines are named, the good ones stored."""
        data = await read_body(request.stream(), request.headers.get("content-encoding", ""))
        made = await self._backend.ask(exchange.ingest, dict(request.query_params), data)
        refused = [await self._backend.receiver.profiles(one) for one in made.requests]
        words = [*made.bad_lines, *(one.partial_success.error_message for one in refused if one.HasField("partial_success"))]
        return JSONResponse({"message": "; ".join(words)[:800]} if words else {})

    async def page(self, request: Request) -> Response:
        """One of the pages."""
        return FileResponse(UI / PAGES[request.url.path], headers=_NO_CACHE)

    async def health(self, _request: Request) -> Response:
        """200 while the process answers."""
        return PlainTextResponse("ok\n")

    async def readiness(self, _request: Request) -> Response:
        """200 once it is usable."""
        return PlainTextResponse("ready\n") if self._backend.ready else PlainTextResponse("not yet\n", 503)

    async def metrics(self, _request: Request) -> Response:
        """Prometheus' text format."""
        return PlainTextResponse(metrics_text(self._backend.counters), media_type="text/plain; version=0.0.4")


_NO_CACHE = {"cache-control": "no-cache"}
_NO_STORE = {"cache-control": "no-store"}


def _question(request: Request) -> Question:
    """What the page asks in its query string."""
    given = request.query_params
    start, end = _integer(request, "from", 0), _integer(request, "until", 0)
    traces, spans = given.getlist("trace"), given.getlist("span")
    return Question(given.get("type", ""), given.get("query", ""), start, end, traces, spans)


def _integer(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    try:
        return int(text[:20]) if text else default
    except ValueError:
        raise MalformedInput(f"{name} is a whole number, not {text[:40]!r}") from None


def _graph_json(graph: FlameGraph, question: Question) -> bytes:
    parts = question.type.split(":")
    return json.dumps(
        {
            "names": [name.text for name in graph.names],
            "kinds": [name.kind for name in graph.names],
            "files": graph.places,
            "levels": [level.tolist() for level in graph.levels],
            "total": graph.total,
            "max_self": graph.max_self,
            "other": graph.other,
            "unit": parts[2] if len(parts) > 2 else "",
            "until": question.end,
        },
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode("utf-8", "replace")


def _types(querier: Querier) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for seen, _ in querier.index.matching((), Range()):
        kind = seen.series.type
        one = found.setdefault(kind, {"id": kind, "unit": kind.split(":")[2], "first": 2**62, "last": 0, "services": set()})
        one["first"], one["last"] = min(one["first"], seen.first), max(one["last"], seen.last)
        one["services"].add(seen.series.service)
    return [{**one, "services": sorted(one["services"])} for _, one in sorted(found.items())]


def metrics_text(counted: Counters) -> str:
    """All counters in Prometheus' text format."""
    lines: list[str] = []
    described = ""
    for metric, labels, value in counted.read():
        if metric.name != described:
            described = metric.name
            lines += [f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind.value}"]
        pairs = ",".join(f"{name}={json.dumps(text)}" for name, text in zip(metric.labels, labels, strict=True))
        lines.append(f"{metric.name}{{{pairs}}} {value:.17g}" if pairs else f"{metric.name} {value:.17g}")
    return "\n".join([*lines, ""])
