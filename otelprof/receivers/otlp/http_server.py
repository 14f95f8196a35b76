"""OTLP over HTTP/1.1 on a thread for each connection, by the standard library; rules and limits are otlp/server.py's.

Connections, their silence and the length of a body are bounded, so that nobody can use the port against the agent.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from otelprof.otlp.server import MAX_WIRE, PROFILES_PATHS, HttpReply

MAX_CONNECTIONS = 64
_SILENCE = 30.0  # seconds that a connection may be silent
_PART = 64 << 10
_CHUNK_LINE = 1024

Answer = Callable[[Mapping[str, str], list[bytes]], HttpReply]
"""Answers a POST: headers with lower-case names, the body in parts (more than MAX_WIRE bytes when it is too large)."""


class HttpServer(ThreadingHTTPServer):
    """Listens at once; serves from `serve_forever` on."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], answer: Answer, tls: ssl.SSLContext | None) -> None:
        self.answer, self._tls = answer, tls
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, object]:
        """A connection; its handshake happens on its own thread."""
        connection, address = super().get_request()
        connection.settimeout(_SILENCE)
        if self._tls is None:
            return connection, address
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Start a thread for a connection, or close it when there are too many."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A sender that went away or spoke no TLS is nobody's error here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE
    server: HttpServer
    server_version, sys_version = "otelprof", ""

    def do_POST(self) -> None:
        if self.path.partition("?")[0] not in PROFILES_PATHS:
            self.close_connection = True
            self._send(HttpReply(404, f"profiles are taken at {PROFILES_PATHS[0]}\n".encode(), {"content-type": "text/plain"}))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            body = list(self._body(headers))
        except ValueError:
            self.close_connection = True
            self._send(HttpReply(400, b"the body's length can't be read\n", {"content-type": "text/plain"}))
            return
        reply = self.server.answer(headers, body)
        self.close_connection = self.close_connection or reply.status == 413
        self._send(reply)

    def _send(self, reply: HttpReply) -> None:
        self.send_response(reply.status)
        for name, value in {**reply.headers, "content-length": str(len(reply.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def _body(self, headers: Mapping[str, str]) -> Iterator[bytes]:
        """The body in parts; reading ends soon after MAX_WIRE. ValueError when its length can't be told."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            yield from self._chunks()
        else:
            yield from self._parts(min(int(headers.get("content-length", "")), MAX_WIRE + 1))

    def _chunks(self) -> Iterator[bytes]:
        left = MAX_WIRE
        while left >= 0:
            size = int(self.rfile.readline(_CHUNK_LINE).partition(b";")[0], 16)
            yield from self._parts(min(size, MAX_WIRE + 1))
            self.rfile.readline(_CHUNK_LINE)
            left -= size
            if size == 0:
                return

    def _parts(self, size: int) -> Iterator[bytes]:
        if size < 0:
            raise ValueError(size)
        while size:
            part = self.rfile.read(min(size, _PART))
            if not part:
                raise ValueError("the body ends too early")
            size -= len(part)
            yield part

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Requests aren't logged."""
