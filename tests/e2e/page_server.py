"""A small backend for the tests of the page: its files under the real policy, answers that the test chooses, live news."""

from __future__ import annotations

import json
import queue
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

from otelprof.backend.guard import PAGES
from tests.e2e import page_profiles as profiles

UI = Path(__file__).parents[2] / "otelprof" / "backend" / "ui"
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html; charset=utf-8"}
SIDES = ("left", "right")
POLICY = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; object-src 'none'"


class PageServer:
    """A context manager; `flames` are answers by (type, service), `types` and `failure` may be changed while it runs."""

    def __init__(self) -> None:
        self.now = int(time.time() * 1000)
        self.flames = {
            (profiles.CPU, "inference-server"): profiles.cpu(),
            (profiles.LAUNCHES, "inference-server"): profiles.launches(),
            (profiles.CPU, "canary"): profiles.canary(),
            (profiles.CPU, "deep"): profiles.deep(),
            (profiles.CPU, "hostile"): profiles.hostile(),
            (profiles.CPU, "large"): profiles.large(),
        }
        self.failure: tuple[int, str] | None = None
        self.token = ""
        self.labels = {
            "service_name": ["deep", "hostile", "inference-server", "large"],
            "pod": ["gpu-a-0", "gpu-a-1", "gpu-b-0"],
        }
        self.requests: list[str] = []
        self._listeners: list[queue.Queue[int | None]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for listener in self._listeners:
            listener.put(None)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def push(self, last: int = 0) -> None:
        """Tell the pages that something was stored."""
        for listener in list(self._listeners):
            listener.put(last or int(time.time() * 1000))

    def types(self) -> list[dict[str, object]]:
        """What `/api/v1/types` lists."""
        services: dict[str, list[str]] = {}
        for type_id, service in self.flames:
            services.setdefault(type_id, []).append(service)
        return [
            {
                "id": type_id,
                "unit": type_id.split(":")[2],
                "first": self.now - 3_600_000,
                "last": self.now,
                "services": sorted(names),
            }
            for type_id, names in services.items()
        ]

    def flame(self, query: dict[str, str]) -> dict[str, object]:
        """The flame graph of a request: of a service, of the inference server for all, empty outside of the data's time."""
        service = query["query"].partition('service_name="')[2].partition('"')[0] or "inference-server"
        inside = int(query["from"]) <= self.now + 60_000 and int(query["until"]) >= self.now - 3_600_000
        found = self.flames.get((query["type"], service)) if inside else None
        return found or profiles.flame([])

    def diff(self, query: dict[str, str]) -> dict[str, object]:
        """The difference of two sides, each as `flame` answers for it."""
        sides = [
            {"type": query["type"], **{key: query[f"{side}_{key}"] for key in ("query", "from", "until")}} for side in SIDES
        ]
        return profiles.difference(*(self.flame(side) for side in sides), unit=query["type"].split(":")[2])

    def series(self, request: dict[str, object]) -> dict[str, object]:
        """A wave with a dip, one point a step, up to the end of the range or of the data."""
        step = int(float(str(request["step"])) * 1000)
        start, end = int(str(request["start"])), min(int(str(request["end"])), self.now + 60_000)
        size, points = 130 if ":count:" in str(request["profileTypeID"]) else 10**6, []
        for at in range(start // step * step, end, step):
            slow = 0.35 if (at // 60_000) % 5 == 3 else 1.0
            points.append({"timestamp": str(at), "value": step * size * slow * (0.7 + 0.3 * ((at // step * 7919) % 13) / 13)})
        return {"series": [{"labels": [], "points": points}]}

    def listen(self) -> queue.Queue[int | None]:
        """A queue of news for one stream."""
        news: queue.Queue[int | None] = queue.Queue()
        self._listeners.append(news)
        return news

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        return type("Handler", (_Handler,), {"page": self})


class _Handler(BaseHTTPRequestHandler):
    page: PageServer

    def do_GET(self) -> None:
        """Files, flame graphs, types, exports, news."""
        url = urlsplit(self.path)
        self.page.requests.append(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path in PAGES:
            self._file(PAGES[url.path])
        elif url.path.startswith("/static/"):
            self._file(url.path.removeprefix("/static/"))
        elif self._refused():
            pass
        elif url.path == "/api/v1/live":
            self._news()
        elif self.page.failure and url.path in ("/api/v1/flamegraph", "/api/v1/diff"):
            status, message = self.page.failure
            self._json({"code": "internal", "message": message}, status)
        elif url.path == "/api/v1/flamegraph":
            self._json(self.page.flame(query))
        elif url.path == "/api/v1/diff":
            self._json(self.page.diff(query))
        elif url.path == "/api/v1/traces":
            order = {"duration": "duration_ns", "launches": "launches"}.get(query["order"], query["order"] + "_ns")
            self._json({"traces": sorted(profiles.traces(self.page.now), key=lambda row: -int(str(row[order])))})
        elif url.path == "/api/v1/spans":
            self._json({"trace": query["trace"], "spans": profiles.spans(query["trace"], self.page.now)})
        elif url.path == "/api/v1/types":
            self._json({"types": self.page.types()})
        else:
            self._json({"code": "not_found", "message": f"no {url.path}"}, 404)

    def do_POST(self) -> None:
        """SelectSeries, LabelNames, LabelValues."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answers = {
            "SelectSeries": lambda: self.page.series(request),
            "LabelNames": lambda: {"names": sorted(self.page.labels)},
            "LabelValues": lambda: {"names": self.page.labels.get(request["name"], [])},
        }
        if not self._refused():
            self._json(answers[self.path.rpartition("/")[2]]())

    def _refused(self) -> bool:
        """True for a request without the token, which is answered here."""
        if not self.page.token or self.headers.get("Authorization") == f"Bearer {self.page.token}":
            return False
        self._json({"code": "unauthenticated", "message": "send a token"}, 401)
        return True

    def _file(self, name: str) -> None:
        path = UI / name
        if path.suffix in KINDS and path.is_file():
            self._send(200, path.read_bytes(), KINDS[path.suffix])
        else:
            self._json({"code": "not_found", "message": name}, 404)

    def _json(self, value: object, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-cache")
        self.end_headers()
        self.wfile.write(body)

    def _news(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b": hello\n\n")
        self.wfile.flush()
        news = self.page.listen()
        while (last := news.get()) is not None:
            try:
                self.wfile.write(f'event: data\ndata: {{"last": {last}}}\n\n'.encode())
                self.wfile.flush()
            except OSError:
                return

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: pytest shows failures."""
