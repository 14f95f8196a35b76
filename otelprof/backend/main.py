"""Runs the backend as one process: HTTP for OTLP, queries and the page on one port, OTLP/gRPC on another."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import uvicorn

from otelprof import counters
from otelprof.backend.context import Backend
from otelprof.backend.guard import GrpcGuard, Tokens
from otelprof.backend.ingest import Ingest
from otelprof.backend.live import Live
from otelprof.backend.memory import MemoryStore
from otelprof.backend.options import BackendOptions
from otelprof.backend.query import Querier
from otelprof.backend.series import SeriesIndex
from otelprof.backend.store import Store
from otelprof.backend.web import application
from otelprof.config.telemetry import split_address
from otelprof.counters import Counters
from otelprof.errors import OtelprofError, UsageError
from otelprof.otlp.decode import Window
from otelprof.otlp.server import Receiver, grpc_server

DECODE_THREADS = 2
DRAIN = 2.0  # seconds for what is accepted to be stored at the end
DISK_PAUSE = 5.0  # seconds between two looks at the disk
GRACE = 1.0  # seconds for open requests at the end

_log = logging.getLogger(__name__)


def serve(options: BackendOptions) -> int:
    """Serve until SIGTERM or SIGINT; the exit status. Raises an OtelprofError when it can't start."""
    tokens = Tokens.read(options.token_file)
    _check(options, bool(tokens))
    with contextlib.ExitStack() as stack:
        http = stack.enter_context(_socket(options.listen, "--listen"))
        store = open_store(options)
        stack.callback(store.close)
        asyncio.run(_Server(options, tokens, store).run(http))
    return 0


def open_store(options: BackendOptions) -> Store:
    """The store that the options name."""
    if options.store == "memory":
        return MemoryStore()
    if options.store:
        raise UsageError(f"--store {options.store[:100]}: this version knows `memory`, or none for the embedded store")
    if importlib.util.find_spec("chdb") is None:
        return MemoryStore("in memory only, since chdb isn't installed: pip install 'otelprof[backend]'")
    from otelprof.backend.chdb_engine import ChdbEngine  # noqa: PLC0415  half a gigabyte that the store in memory spares
    from otelprof.backend.clickhouse import ClickHouseStore  # noqa: PLC0415

    return ClickHouseStore(ChdbEngine(options.data_dir), options.retention_days)


def _check(options: BackendOptions, has_tokens: bool) -> None:
    """Refuse what would be unsafe or can't be."""
    if bool(options.tls_cert) != bool(options.tls_key):
        raise UsageError("--tls-cert and --tls-key are given together")
    for flag, address in (("--listen", options.listen), ("--grpc-listen", options.grpc_listen)):
        host, _ = _split(address, flag)
        if not (_is_loopback(host) or has_tokens or options.insecure_no_auth):
            raise OtelprofError(f"{flag} {address}: others could read and write; give --token-file FILE or --insecure-no-auth")


def _split(address: str, flag: str) -> tuple[str, int]:
    try:
        return split_address(address)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _socket(address: str, flag: str) -> socket.socket:
    """A listening socket."""
    host, port = _split(address, flag)
    family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=not host, backlog=512)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(address, flag, error) from None


def _cannot_listen(address: str, flag: str, error: Exception) -> OtelprofError:
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno and error.errno > 0 else str(error)
    return OtelprofError(f"can't listen on {address}: {reason}; free it or choose another with {flag} (port 0 picks one)")


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Http(uvicorn.Server):
    """uvicorn without handlers of signals of its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `_Server`."""
        yield


@dataclass
class _Server:
    """Everything that runs."""

    options: BackendOptions
    tokens: Tokens
    store: Store

    async def run(self, http: socket.socket) -> None:
        """Serve until a signal comes."""
        options = self.options
        index, live, counted = SeriesIndex(), Live(), _counters()
        for seen in self.store.seen_series():
            index.add(seen)
        live.last = index.times()[1]
        ingest = Ingest(self.store, index, counted, live)
        decoders = ThreadPoolExecutor(DECODE_THREADS, "decode")
        receiver = Receiver(ingest, decoders, Window(options.window_back, options.window_ahead))
        local_only = not self.tokens and _is_loopback(_split(options.listen, "--listen")[0])
        backend = Backend(Querier(self.store, index), receiver, live, counted, self.tokens, local_only)
        rpc = grpc_server(receiver, (GrpcGuard(self.tokens),) if self.tokens else ())
        rpc_port = self._add_port(rpc)
        await rpc.start()
        web = self._web(backend)
        writer = asyncio.create_task(ingest.run())
        watch = asyncio.create_task(_watch_disk(self.store))
        serving = asyncio.create_task(web.serve([http]))
        await self._until_signal(backend, http, rpc_port, serving)
        live.end()
        web.should_exit = True
        await asyncio.gather(rpc.stop(GRACE), serving)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ingest.drain(), DRAIN)
        writer.cancel()
        watch.cancel()

    async def _until_signal(self, backend: Backend, http: socket.socket, rpc_port: int, serving: asyncio.Task[None]) -> None:
        """Say where it listens, become ready, and wait for the end."""
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end.set)
        serving.add_done_callback(lambda _: end.set())
        host, _ = _split(self.options.listen, "--listen")
        scheme = "https" if self.options.tls_cert else "http"
        _log.info("listening on %s://%s", scheme, _shown(host, http.getsockname()[1]))
        _log.info("listening on grpc://%s", _shown(_split(self.options.grpc_listen, "--grpc-listen")[0], rpc_port))
        _log.info("store: %s", self.store.title)
        if self.options.ready_fd is None:
            backend.ready = True
        else:
            loop.add_reader(self.options.ready_fd, self._told_ready, backend, self.options.ready_fd)
        await end.wait()

    @staticmethod
    def _told_ready(backend: Backend, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        backend.ready = bool(os.read(fd, 1))
        os.close(fd)

    def _add_port(self, rpc: Any) -> int:
        """Give the gRPC server its port; the number."""
        options = self.options
        _socket(options.grpc_listen, "--grpc-listen").close()  # whose error says why it can't be
        try:
            if options.tls_cert and options.tls_key:
                pair = (options.tls_key.read_bytes(), options.tls_cert.read_bytes())
                return int(rpc.add_secure_port(options.grpc_listen, grpc.ssl_server_credentials([pair])))
            return int(rpc.add_insecure_port(options.grpc_listen))
        except RuntimeError:
            raise _cannot_listen(options.grpc_listen, "--grpc-listen", RuntimeError("gRPC can't use it")) from None
        except OSError as error:
            raise OtelprofError(f"--tls-cert or --tls-key: {error.filename}: {error.strerror}") from None

    def _web(self, backend: Backend) -> _Http:
        options = self.options
        config = uvicorn.Config(
            application(backend),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
            ssl_certfile=options.tls_cert,
            ssl_keyfile=options.tls_key,
        )
        return _Http(config)


async def _watch_disk(store: Store) -> None:
    """Have the store drop its oldest day when the disk is nearly full, and say so."""
    while True:
        try:
            day = await asyncio.to_thread(store.make_room)
        except OtelprofError as error:
            _log.warning("the store can't make room: %s", error)
        else:
            if day:
                _log.warning("the disk is nearly full: dropped the samples and spans of %s", day)
        await asyncio.sleep(DISK_PAUSE)


def _counters() -> Counters:
    """Counters that show from the start."""
    counted = Counters()
    counted.add(counters.BACKEND_ACCEPTED, 0)
    return counted
