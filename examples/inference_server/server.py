"""The front: takes completions over HTTP and hands them to the engine, which runs in a process of its own.

    POST /v1/completions   {"prompt": "...", "max_tokens": 16}
    GET  /ledger           what the engine has asked of the GPU so far
    GET  /healthz

Started by launch.py, which chooses the device. Prints one JSON line when it is ready and one when it is done.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import queue
import select
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import engine
from load import Load

MAX_BODY = 64 * 1024
MAX_TOKENS = 32
MAX_WAITING = 16  # so that the engine is done with them within STOP_SECONDS
ANSWER_SECONDS = 30.0
STOP_SECONDS = 1.5
START_SECONDS = 120.0


class EngineGone(RuntimeError):
    """The engine has ended."""


class EngineClient:
    """The front's end of the pipe: many handlers ask, one thread hands out the answers."""

    def __init__(self, options: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, options.operators, options.dispatcher, options.batch)
        self.process = context.Process(target=engine.engine_main, args=arguments, name="engine", daemon=True)
        self.process.start()
        theirs.close()
        self._numbers = itertools.count(1)
        self._waiting: dict[Any, queue.SimpleQueue[Any]] = {}
        self._lock = threading.Lock()
        self.gone = threading.Event()
        self._on_end: Any = None

    def wait_until_ready(self) -> dict[str, Any]:
        """What the engine says of itself. Raises EngineGone when it can't start."""
        try:
            if not self._pipe.poll(START_SECONDS):
                raise EngineGone("the engine didn't start in time")
            word, about = self._pipe.recv()
        except EOFError:
            raise EngineGone("the engine ended while it started") from None
        if word == "failed":
            raise EngineGone(about)
        return dict(about)

    def start_reading(self, on_end: Any) -> None:
        """Hand out answers from now on; `on_end` is called when the engine is gone."""
        self._on_end = on_end
        threading.Thread(target=self._read, name="engine-answers", daemon=True).start()

    def complete(self, prompt: str, max_tokens: int) -> engine.Answer | None:
        """The engine's answer to one prompt; None when it is busy or gone."""
        request = engine.Request(next(self._numbers), prompt, max_tokens)
        answer = self._ask(request.number, request, ANSWER_SECONDS)
        return answer if isinstance(answer, engine.Answer) else None

    def ledger(self) -> dict[str, Any] | None:
        """The engine's ledger; None when it is busy or gone."""
        ledger: dict[str, Any] | None = self._ask(engine.LEDGER_WANTED, engine.LEDGER_WANTED, ANSWER_SECONDS)
        return ledger

    def stop(self) -> dict[str, Any] | None:
        """Let the engine finish its batch and end; its last ledger, or None when it had to be ended."""
        ledger: dict[str, Any] | None = self._ask(engine.STOP, engine.STOP, STOP_SECONDS)
        self.process.join(0.2 if ledger is None else STOP_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return ledger

    def _ask(self, key: Any, message: Any, seconds: float) -> Any:
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._lock:
            if self.gone.is_set() or len(self._waiting) >= MAX_WAITING or key in self._waiting:
                return None
            self._waiting[key] = answer
            try:
                self._pipe.send(message)
            except OSError:
                self.gone.set()
        try:
            return None if self.gone.is_set() else answer.get(timeout=seconds)
        except queue.Empty:
            return None
        finally:
            with self._lock:
                self._waiting.pop(key, None)

    def _read(self) -> None:
        try:
            while True:
                word, content = self._pipe.recv()
                self._hand_out(content.number if word == "answer" else word, content)
        except (EOFError, OSError):
            self.gone.set()
            with self._lock:
                waiting = list(self._waiting.values())
            for answer in waiting:
                answer.put(None)
            self._on_end()

    def _hand_out(self, key: Any, content: Any) -> None:
        with self._lock:
            answer = self._waiting.get(key)
        if answer is not None:
            answer.put(content)


class Handler(BaseHTTPRequestHandler):
    """One client's connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60
    server: Front

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self._reply(200, {"status": "ok"})
        elif self.path == "/ledger":
            ledger = self.server.engine.ledger()
            self._reply(503 if ledger is None else 200, ledger or {"error": "busy"})
        else:
            self._reply(404, {"error": "not found"})

    def do_POST(self) -> None:
        if self.path != "/v1/completions":
            self._refuse(404, "not found")
            return
        try:
            length = int(self.headers.get("Content-Length", ""))
            body = json.loads(self.rfile.read(length)) if 0 <= length <= MAX_BODY else {}
            prompt, max_tokens = str(body["prompt"]), int(body.get("max_tokens", 16))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._refuse(400, f'wanted: {{"prompt": "...", "max_tokens": 1 to {MAX_TOKENS}}}, at most {MAX_BODY} bytes')
            return
        self._complete(prompt, max(1, min(max_tokens, MAX_TOKENS)))

    def _complete(self, prompt: str, max_tokens: int) -> None:
        answer = self.server.engine.complete(prompt, max_tokens)
        if answer is None:
            self._reply(503, {"error": "busy"})
        else:
            self._reply(500 if answer.error else 200, answer._asdict())

    def _refuse(self, status: int, why: str) -> None:
        self.close_connection = True  # the body may be unread
        self._reply(status, {"error": why})

    def _reply(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Requests aren't logged."""


class Front(ThreadingHTTPServer):
    """The HTTP server with its engine."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, client: EngineClient) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.engine = client

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away isn't an error of the server."""
        if not isinstance(sys.exc_info()[1], (OSError, TimeoutError)):
            super().handle_error(request, client_address)


class Ending:
    """The end of the service: a signal, the end of the duration, or the engine's own end."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def come(self, *_signal: Any) -> None:
        """It is time; safe in signal handlers and threads."""
        with contextlib.suppress(BlockingIOError):  # full: it has been said often enough
            os.write(self._write, b".")

    def wait(self, seconds: float | None) -> None:
        """Until it has come."""
        select.select([self._read], [], [], seconds)


def start_engine(options: argparse.Namespace) -> EngineClient:
    """Start the engine with the signals ignored, so that Ctrl-C reaches it through the front only."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return EngineClient(options)


def say(event: str, content: dict[str, Any]) -> None:
    """One line of JSON on stdout."""
    print(json.dumps({"event": event, **content}), flush=True)


def serve(options: argparse.Namespace) -> int:
    """Run the service to its end; the exit code."""
    ending = Ending()
    client = start_engine(options)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ending.come)
    try:
        front = Front(options.port, client)
        about = client.wait_until_ready()
    except (EngineGone, OSError) as problem:
        client.process.kill()
        where = f"127.0.0.1:{options.port}: " if isinstance(problem, OSError) else ""
        print(f"inference_server: {where}{getattr(problem, 'strerror', None) or problem}", file=sys.stderr)
        return 1
    client.start_reading(on_end=ending.come)
    threading.Thread(target=front.serve_forever, name="http-front", daemon=True).start()
    say("ready", {"pid": os.getpid(), "engine_pid": client.process.pid, "port": front.server_port, **about})
    return run_to_end(options, front, ending)


def run_to_end(options: argparse.Namespace, front: Front, ending: Ending) -> int:
    """Serve (and make load) until the end comes, then say what was done."""
    load = Load(front.server_port, options.rate, options.tokens) if options.rate > 0 else None
    if load:
        load.start()
    ending.wait(options.duration)
    if load:
        load.stop()
    ledger = front.engine.stop()
    if ledger is None:
        print("inference_server: the engine ended without its ledger", file=sys.stderr)
        return 1
    say("done", {"pid": os.getpid(), "engine_pid": front.engine.process.pid, **ledger})
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line that launch.py writes."""
    parser = argparse.ArgumentParser(description="An inference server to profile; start it with launch.py.")
    parser.add_argument("--operators", required=True)
    parser.add_argument("--dispatcher", required=True)
    parser.add_argument("--duration", type=float)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(serve(parse()))
