"""Who may ask the backend: bearer tokens, pages of other origins, and the headers that keep our own page safe."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import grpc

from otelprof.errors import OtelprofError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_TOKENS = 1000
PAGES = {
    "/": "index.html",
    "/explore": "index.html",
    "/compare": "compare.html",
    "/traces": "traces.html",
}  # hold no data themselves
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/favicon.ico", *PAGES})
OPEN_FOLDER = "/static/"
POLICY = (
    b"default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]

_log = logging.getLogger(__name__)


class Tokens:
    """The accepted bearer tokens, kept as hashes. Without any, everybody may ask."""

    def __init__(self, tokens: list[str]) -> None:
        self._hashes = [_hash(token) for token in tokens]

    @classmethod
    def read(cls, path: Path | None) -> Tokens:
        """One token a line; blank lines and those that start with # don't count."""
        if path is None:
            return cls([])
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeError) as error:
            raise OtelprofError(f"--token-file {path}: {getattr(error, 'strerror', None) or error}") from None
        tokens = [line for line in lines if line and not line.startswith("#")]
        if not tokens or len(tokens) > MAX_TOKENS:
            raise OtelprofError(f"--token-file {path}: has {len(tokens)} tokens; write 1 to {MAX_TOKENS}, one a line")
        return cls(tokens)

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def allow(self, authorization: str) -> bool:
        """True for `Bearer TOKEN` with a known token, or when there are none; takes the same time for every wrong token."""
        kind, _, token = authorization.partition(" ")
        given = _hash(token.strip())
        known = [hmac.compare_digest(given, one) for one in self._hashes]
        return not self._hashes or (kind.lower() == "bearer" and any(known))


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class Guard:
    """Around the whole HTTP application: refuses, adds headers, and turns what escapes into one line and a 500."""

    def __init__(self, app: App, tokens: Tokens, local_only: bool = False) -> None:
        self.app, self.tokens, self.local_only = app, tokens, local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        refusal = self._refusal(scope)
        if refusal:
            await _answer(with_headers, *refusal)
            return
        try:
            await self.app(scope, receive, with_headers)
        except Exception as error:  # a fault of ours
            _log.error("%s failed: %s: %s", scope["path"], type(error).__name__, error)
            if not started:
                await _answer(with_headers, 500, "internal", "the backend failed; its log says how")

    def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if self.local_only and not is_local(headers.get(b"host", "")):
            return 403, "permission_denied", "without --token-file it answers under its address and `localhost` only"
        origin = headers.get(b"origin")
        if origin and scope["method"] != "GET" and origin.partition("://")[2] != headers.get(b"host"):
            return 403, "permission_denied", "pages of other origins may not ask"
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith(OPEN_FOLDER) or self.tokens.allow(headers.get(b"authorization", "")):
            return None
        return 401, "unauthenticated", "send the header `Authorization: Bearer TOKEN` with a token of --token-file"


def is_local(host: str) -> bool:
    """True for a Host header with an address or `localhost`; a page whose name was made to mean 127.0.0.1 has neither."""
    name = host.lower()
    if not name.endswith("]"):
        before, colon, port = name.rpartition(":")
        name = before if colon and port.isdecimal() else name
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return True


async def _answer(send: Send, status: int, code: str, message: str) -> None:
    headers = [(b"content-type", b"application/json")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"code": code, "message": message}).encode()})


class GrpcGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls without a known token."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._refuse = grpc.unary_unary_rpc_method_handler(_unauthenticated)

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Go on with the call, or answer UNAUTHENTICATED."""
        sent = dict(handler_call_details.invocation_metadata)
        if self._tokens.allow(str(sent.get("authorization", ""))):
            return await continuation(handler_call_details)
        return self._refuse


async def _unauthenticated(_request: bytes, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "send the metadata `authorization: Bearer TOKEN`")
    return b""
