"""The HTTP port: OTLP/HTTP, the Pyroscope-compatible API, the page with its own API, health and metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from otelprof.backend import api as api_v1
from otelprof.backend import connect, exchange, pyroscope
from otelprof.backend.context import Backend
from otelprof.backend.guard import PAGES, Guard
from otelprof.backend.store import StoreFailed
from otelprof.counters import Counters
from otelprof.errors import MalformedInput, OtelprofError, TooLarge
from otelprof.otlp.server import PROFILES_PATHS, TRACES_PATH, Busy, Export, WrongType, http_export, read_body

UI = Path(__file__).parent / "ui"
_GZIP_LEVEL = 1


def application(backend: Backend) -> Guard:
    """The whole HTTP port as an ASGI application."""
    api = _Api(backend)
    routes = [
        *(Route(path, api.page) for path in PAGES),
        Mount("/static", _Static(directory=UI, check_dir=False)),
        *(Route(path, api.otlp(backend.receiver.profiles), methods=["POST"]) for path in PROFILES_PATHS),
        Route(TRACES_PATH, api.otlp(backend.receiver.traces), methods=["POST"]),
        *(Route(service + "{method}", api.connect(methods), methods=["POST"]) for service, methods in connect.SERVICES.items()),
        *pyroscope.routes(backend),
        *api_v1.routes(backend),
        Route("/ingest", api.ingest, methods=["POST"]),
        Route("/healthz", api.health),
        Route("/readyz", api.readiness),
        Route("/metrics", api.metrics),
    ]
    handlers: Any = {OtelprofError: _refused, 404: _not_there, 405: _not_so}
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


async def _not_so(request: Request, error: Exception) -> Response:
    answer = _error(405, "unimplemented", f"{request.url.path[:200]} isn't asked by {request.method}")
    allowed = (getattr(error, "headers", None) or {}).get("Allow", "")
    answer.headers["allow"] = ", ".join(sorted(allowed.split(", ")))
    return answer


class _Static(StaticFiles):
    """The page's files. A browser asks each time whether one has changed, so that a new version is seen at once."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """The file, or 304 where the browser has it."""
        answer = super().file_response(*args, **kwargs)
        answer.headers.update(_NO_CACHE)
        return answer


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

    def connect(self, methods: Sequence[str]) -> Callable[[Request], Any]:
        """The handler of Connect unary calls of one service."""

        async def handle(request: Request) -> Response:
            method = request.path_params["method"]
            if method not in methods:
                return _error(501, "unimplemented", f"{method[:100]} isn't served here")
            kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
            if kind not in (connect.JSON, connect.PROTO):
                raise WrongType(f"content type {kind[:60]!r}; send {connect.PROTO} or {connect.JSON}")
            data = await read_body(request.stream(), request.headers.get("content-encoding", ""))
            answer = await self._backend.ask(connect.call, self._backend.querier, method, data, kind == connect.JSON)
            return Response(answer, headers={"content-type": kind})

        return handle

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
