"""The real OpenTelemetry Collector for tests, and what stands around it: an application with spans, a place for traces.

It is built once from collector-config/builder.yaml by its own builder (Go, one to four minutes) and kept in the user's cache
folder under a name that changes with the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tests.e2e.programs import Program, fetch, free_port, otelprof, wait_for

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "collector-config"
MANIFEST = SHIPPED / "builder.yaml"
BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.165.0"
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
PERIOD = 10_101_010


def go() -> str:
    """Path of the Go tool, or skip."""
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if not found:
        pytest.skip("missing: Go, to build the Collector with")
    return found


def binary() -> Path:
    """The Collector's binary, built when it isn't there."""
    manifest = yaml.safe_load(MANIFEST.read_text())
    mark = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otelprof"
    folder = cache / f"collector-{manifest['dist']['version']}-{mark}"
    made = folder / manifest["dist"]["name"]
    if not made.exists():
        manifest["dist"]["output_path"] = str(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "builder.yaml").write_text(yaml.safe_dump(manifest))
        tool = go()
        env = {**os.environ, "PATH": f"{os.environ['PATH']}:{Path(tool).parent}", "CGO_ENABLED": "0"}
        build = [tool, "run", BUILDER, "--config", str(folder / "builder.yaml")]
        done = subprocess.run(build, env=env, capture_output=True, text=True, timeout=580, cwd=folder)
        assert done.returncode == 0, done.stderr[-2000:]
    return made


class Backend(Program):
    """otelprof's backend with an in-memory store."""

    def __init__(self, work: Path) -> None:
        self.http, self.grpc = free_port(), free_port()
        listen = ["--listen", f"127.0.0.1:{self.http}", "--grpc-listen", f"127.0.0.1:{self.grpc}", "--store", "memory"]
        super().__init__([otelprof(), "backend", *listen], work, "backend")
        wait_for(lambda: self.get(f"http://127.0.0.1:{self.http}/readyz") == 200, 30, self)

    def ask(self, method: str, **question: object) -> dict[str, Any]:
        """The answer of the Connect API, for the last hour."""
        now = int(time.time() * 1000)
        body = json.dumps({"start": now - 3_600_000, "end": now + 60_000, **question}).encode()
        url = f"http://127.0.0.1:{self.http}/querier.v1.QuerierService/{method}"
        with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=10) as got:
            return json.load(got)

    def samples(self, selector: str = "{}", **more: object) -> int:
        """All CPU samples that it has under a selector."""
        found = self.ask("SelectMergeStacktraces", profileTypeID=CPU, labelSelector=selector, **more)
        return int(found.get("flamegraph", {}).get("total", 0)) // PERIOD

    def services(self) -> set[str]:
        """Values of the label service_name."""
        return set(self.ask("LabelValues", name="service_name").get("names", []))

    def spans(self) -> int:
        """Spans that it stored."""
        return metric(f"http://127.0.0.1:{self.http}/metrics", "otelprof_backend_accepted_spans_total")


def metric(url: str, name: str) -> int:
    """A counter without labels of a page for Prometheus."""
    lines = fetch(url)[1].decode().splitlines()
    return next((int(float(line.split()[1])) for line in lines if line.startswith(f"{name} ")), 0)


class Tempo:
    """Where people's traces go: keeps every span."""

    def __init__(self) -> None:
        self.spans: dict[str, dict[str, str]] = {}  # attributes that are texts, by span id in hex
        self._lock = threading.Lock()
        handler = grpc.unary_unary_rpc_method_handler(self._export)
        service = "opentelemetry.proto.collector.trace.v1.TraceService"
        self._server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def _export(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        request = ExportTraceServiceRequest.FromString(data)
        spans = [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]
        with self._lock:
            for span in spans:
                self.spans[span.span_id.hex()] = {pair.key: pair.value.string_value for pair in span.attributes}
        return b""

    def stop(self) -> None:
        """Stop serving."""
        self._server.stop(0).wait()


class Collector(Program):
    """The Collector with some configuration files; its OTLP ports are `grpc` and `http`."""

    def __init__(self, work: Path, configs: Sequence[Path], env: Mapping[str, str], gates: str = "") -> None:
        self.grpc, self.http = free_port(), free_port()
        argv = [str(binary()), "--set=service.telemetry.metrics.level=none"]
        argv += [f"--config={path}" for path in configs]
        argv += [f"--feature-gates=+service.profilesSupport{gates}"]
        ports = {"OTLP_GRPC": str(self.grpc), "OTLP_HTTP": str(self.http)}
        super().__init__(argv, work, "collector", {**env, **ports})
        wait_for(lambda: "Everything is ready" in self.log(), 60, self)


def application(port: int, count: int, cert: Path | None = None, token: str = "") -> list[tuple[str, str]]:
    """An application's `count` spans, sent by the OpenTelemetry SDK; their trace and span ids in hex."""
    credentials = grpc.ssl_channel_credentials(cert.read_bytes()) if cert else None
    exporter = OTLPSpanExporter(
        endpoint=f"{'https' if cert else 'http'}://localhost:{port}",
        insecure=cert is None,
        credentials=credentials,
        headers={"authorization": f"Bearer {token}"} if token else None,
    )
    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=100))
    tracer = provider.get_tracer("test")
    ids = []
    for number in range(count):
        with tracer.start_as_current_span(f"request {number}") as span:
            context = span.get_span_context()
            ids.append((f"{context.trace_id:032x}", f"{context.span_id:016x}"))
    provider.shutdown()
    return ids


def session(path: Path, samples: int, spans: Sequence[tuple[str, str]] = ()) -> None:
    """A recorded session: two processes, stacks of three frames; the samples lie in these spans, each of which has a child."""
    now = time.time_ns() - 5 * 10**9
    lines: list[dict[str, object]] = [
        {"kind": "process", "pid": pid, "attributes": {"process.pid": pid, "service.name": f"shop-{pid}"}} for pid in (100, 101)
    ]
    for number in range(samples):
        frames = [{"name": n, "kind": "cpython", "file": "app.py", "line": 1 + number % 7} for n in ("main", "serve", "work")]
        when, pid = now + number * PERIOD % 10**9, 100 + number % 2
        line = {"kind": "sample", "pid": pid, "tid": pid, "time_unix_nano": when, "count": 1, "stack": frames}
        if spans:
            line["trace_id"], line["span_id"] = spans[number % len(spans)]
        lines.append(line)
    for number, (trace, parent) in enumerate(spans):
        ids = {"trace_id": trace, "span_id": f"{number + 1:016x}", "parent_span_id": parent}
        times = {"start_unix_nano": now, "end_unix_nano": now + 1000}
        lines.append({"kind": "span", "pid": 100, "name": "launch k", **ids, **times})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def agent(work: Path, exporter: Mapping[str, object], signals: Sequence[str] = ("profiles",)) -> Path:
    """The configuration of an agent that sends session.jsonl in `work`."""
    (kind,) = exporter
    pipeline = {"receivers": ["replay"], "processors": ["resource_detection"], "exporters": [kind]}
    values = {
        "receivers": {"replay": {"path": str(work / "session.jsonl")}},
        "processors": {"resource_detection": {"detectors": ["env", "process"]}},
        "exporters": dict(exporter),
        "service": {
            "telemetry": {"metrics": {"address": "127.0.0.1:0"}},
            "pipelines": dict.fromkeys(signals, pipeline),
        },
    }
    path = work / "agent.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def run_agent(work: Path, config: Path) -> str:
    """Run an agent to the end of its session; its last line."""
    with Program([otelprof(), "run", "--config", str(config)], work, "agent") as program:
        assert program.wait(60) == 0, program.log()
        return program.log().splitlines()[-1]
