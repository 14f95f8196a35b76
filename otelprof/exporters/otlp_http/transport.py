"""OTLP over HTTP, by urllib3.

Status codes that may be tried again: opentelemetry-proto v1.10.0 docs/specification.md, "Retryable Response Codes".
"""

from __future__ import annotations

import contextlib
import gzip
import ipaddress
import ssl
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status

from otelprof import __version__
from otelprof.component import Signal
from otelprof.errors import OtelprofError
from otelprof.exporters.answers import NO_ANSWER, Answer, Verdict, accepted, connection_cause, retry_after, words_of
from otelprof.exporters.settings import Tls
from otelprof.otlp.encode import Encoded

PROTOBUF = "application/x-protobuf"
_VERDICTS = {
    Verdict.RETRY: (429, 502, 503, 504),
    Verdict.TOO_LARGE: (413,),
    Verdict.UNSUPPORTED: (404, 405, 501),
    Verdict.REFUSED: (400, 422),
}
MAX_ANSWER = 64 << 10
"""Bytes of an answer that are read."""


class HttpSettings(Protocol):
    """What the transport asks of an exporter's settings."""

    @property
    def endpoint(self) -> str:
        """The endpoint as the user wrote it."""

    @property
    def tls(self) -> Tls:
        """How the connection is secured."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of each request."""

    @property
    def compression(self) -> str:
        """`gzip` or `none`."""

    def url(self, signal: Signal) -> str:
        """Where a signal goes."""


class HttpTransport:
    """One connection to one server, through the proxy that the environment names. Redirects aren't followed."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self.endpoint = settings.endpoint
        self._headers = {"Content-Type": PROTOBUF, "User-Agent": f"otelprof/{__version__}", **settings.headers}
        if settings.compression == "gzip":
            self._headers["Content-Encoding"] = "gzip"
        self._pool: urllib3.PoolManager | None = None

    def open(self) -> None:
        """Read the certificates; the connection is made by the first request."""
        more: dict[str, Any] = {"num_pools": 1, "maxsize": 1, "retries": False, "ssl_context": self._context()}
        proxy = proxy_of(self._settings.url(Signal.PROFILES))
        self._pool = urllib3.PoolManager(**more) if proxy is None else _proxied(proxy, more)

    def _context(self) -> ssl.SSLContext:
        tls = self._settings.tls
        try:
            context = ssl.create_default_context(cafile=tls.ca_file)
            if tls.cert_file:
                context.load_cert_chain(tls.cert_file, tls.key_file)
        except (OSError, ssl.SSLError) as error:
            raise OtelprofError(f"tls: ca_file, cert_file or key_file can't be used: {error}") from None
        return context

    def send(self, request: Encoded, seconds: float) -> Answer:
        """One POST."""
        assert self._pool is not None  # noqa: S101  # open() comes first
        body = gzip.compress(request.data, 1) if self._settings.compression == "gzip" else request.data
        try:
            response = self._pool.request(
                "POST",
                self._settings.url(request.signal),
                body=body,
                headers=self._headers,
                redirect=False,
                preload_content=False,
                timeout=urllib3.Timeout(total=seconds),
            )
            content = response.read(MAX_ANSWER)
            response.drain_conn() if response.length_remaining in (None, 0) else response.close()
        except urllib3.exceptions.HTTPError as error:
            return failure(error)
        return answer_of(response, content, request.signal)

    def close(self) -> None:
        """Forget the connection."""
        if self._pool is not None:
            self._pool.clear()


def proxy_of(url: str) -> str | None:
    """The proxy for a URL by HTTPS_PROXY, HTTP_PROXY and NO_PROXY; none for this machine, as Go's programs do it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return None
    if host == "localhost" or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme)


def _proxied(proxy: str, more: dict[str, Any]) -> urllib3.ProxyManager:
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    headers = urllib3.make_headers(proxy_basic_auth=user) if user else None
    try:
        return urllib3.ProxyManager(parts.geturl(), proxy_headers=headers, **more)
    except urllib3.exceptions.HTTPError as error:
        raise OtelprofError(f"the proxy of HTTPS_PROXY or HTTP_PROXY can't be used: {error}; name http://host:port") from None


def failure(error: urllib3.exceptions.HTTPError) -> Answer:
    """What a request without an answer means."""
    refused = isinstance(error, urllib3.exceptions.NewConnectionError)  # which is a timeout to urllib3
    if isinstance(error, urllib3.exceptions.TimeoutError) and not refused:
        return Answer(Verdict.RETRY, "timeout", NO_ANSWER)
    return Answer(Verdict.RETRY, "unavailable", f"unavailable: {connection_cause(str(error))}")


def answer_of(response: urllib3.BaseHTTPResponse, body: bytes, signal: Signal) -> Answer:
    """What a status code means."""
    status = response.status
    if 200 <= status < 300:
        return accepted(signal, body)
    verdict = next((verdict for verdict, codes in _VERDICTS.items() if status in codes), Verdict.DENIED)
    wait = retry_after(response.headers.get("Retry-After")) if verdict is Verdict.RETRY else None
    return Answer(verdict, f"http {status}", f"HTTP {status}{_advice(response, signal)}{_words(response, body)}", wait)


def _advice(response: urllib3.BaseHTTPResponse, signal: Signal) -> str:
    """What to do about a status, where we know it."""
    status = response.status
    if status in _VERDICTS[Verdict.UNSUPPORTED]:
        return _missing(signal)
    if 300 <= status < 400:
        return f", it redirects to {words_of(response.headers.get('Location', ''))}: set that as endpoint"
    return {413: ", the request is too large for it", 415: ", set compression: none"}.get(status, "")


def _missing(signal: Signal) -> str:
    if signal is Signal.TRACES:
        return ", it takes no traces at this path"
    return (
        ", it takes no profiles at this path (ProfilesService): a Collector needs a profiles pipeline and "
        "--feature-gates=+service.profilesSupport"
    )


def _words(response: urllib3.BaseHTTPResponse, body: bytes) -> str:
    """`: ` and what the server says in a google.rpc.Status or as text; nothing for a page."""
    kind = response.headers.get("Content-Type", "")
    text = body.decode(errors="replace") if kind.startswith(("text/plain", "application/json")) else ""
    if kind.startswith(PROTOBUF):
        try:
            text = Status.FromString(body).message
        except DecodeError:
            text = ""
    return f": {words_of(text)}" if text else ""
