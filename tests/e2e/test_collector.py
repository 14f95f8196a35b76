"""Through the real OpenTelemetry Collector: what the agent sends is what the backend has, on gRPC and on HTTP.

The Collector is built once from collector-config/builder.yaml with its own builder (Go, some three minutes) and kept in
the user's cache folder.
"""

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.programs import Program, free_port, otelprof, wait_for

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "collector-config" / "builder.yaml"
BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.165.0"
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
PERIOD = 10_101_010

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def go() -> str:
    """Path of the Go tool, or skip."""
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if not found:
        pytest.skip("missing: Go, to build the Collector with")
    return found


@pytest.fixture(scope="session")
def collector() -> Path:
    """The Collector's binary."""
    manifest = yaml.safe_load(MANIFEST.read_text())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otelprof"
    folder = cache / f"collector-{manifest['dist']['version']}"
    binary = folder / manifest["dist"]["name"]
    if not binary.exists():
        manifest["dist"]["output_path"] = str(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "builder.yaml").write_text(yaml.safe_dump(manifest))
        tool = go()
        env = {**os.environ, "PATH": f"{os.environ['PATH']}:{Path(tool).parent}", "CGO_ENABLED": "0"}
        build = [tool, "run", BUILDER, "--config", str(folder / "builder.yaml")]
        subprocess.run(build, env=env, check=True, capture_output=True, timeout=580, cwd=folder)
    return binary


def session(path: Path, samples: int) -> None:
    """A recorded session: two processes, stacks of three frames, `samples` samples."""
    now = time.time_ns() - 5 * 10**9
    lines = [
        {
            "kind": "sample",
            "pid": 100 + number % 2,
            "tid": 100 + number % 2,
            "time_unix_nano": now + number * 10_101_010 % 10**9,
            "count": 1,
            "stack": [
                {"name": n, "kind": "cpython", "file": "app.py", "line": 1 + number % 7} for n in ("main", "serve", "work")
            ],
        }
        for number in range(samples)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Program]:
    """A backend with an in-memory store."""
    http, grpc = free_port(), free_port()
    listen = ["--listen", f"127.0.0.1:{http}", "--grpc-listen", f"127.0.0.1:{grpc}", "--store", "memory"]
    with Program([otelprof(), "backend", *listen], tmp_path, "backend") as program:
        program.http, program.grpc = http, grpc
        wait_for(lambda: program.get(f"http://127.0.0.1:{http}/readyz") == 200, 30, program)
        yield program


def collector_config(grpc_in: int, http_in: int, exporter: dict[str, object]) -> dict[str, object]:
    """Profiles in by OTLP on both ports, out by `exporter`."""
    protocols = {"grpc": {"endpoint": f"127.0.0.1:{grpc_in}"}, "http": {"endpoint": f"127.0.0.1:{http_in}"}}
    pipeline = {"receivers": ["otlp"], "exporters": list(exporter)}
    return {
        "receivers": {"otlp": {"protocols": protocols}},
        "exporters": exporter,
        "service": {"pipelines": {"profiles": pipeline}, "telemetry": {"metrics": {"level": "none"}}},
    }


def total(http: int) -> int:
    """Sum of all CPU samples that the backend has."""
    now = int(time.time() * 1000)
    body = {"profileTypeID": CPU, "labelSelector": "{}", "start": now - 3_600_000, "end": now + 60_000}
    request = urllib.request.Request(
        f"http://127.0.0.1:{http}/querier.v1.QuerierService/SelectMergeStacktraces",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return int(json.load(answer).get("flamegraph", {}).get("total", 0)) // PERIOD


def services(http: int) -> set[str]:
    """Values of the label service_name."""
    now = int(time.time() * 1000)
    body = json.dumps({"name": "service_name", "start": now - 3_600_000, "end": now + 60_000}).encode()
    url = f"http://127.0.0.1:{http}/querier.v1.QuerierService/LabelValues"
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=10) as answer:
        return set(json.load(answer).get("names", []))


@pytest.mark.parametrize(("way_in", "way_out"), [("otlp_grpc", "otlp_grpc"), ("otlp_http", "otlp_http")])
def test_what_the_agent_sends_is_what_the_backend_has(
    collector: Path, backend: Program, tmp_path: Path, way_in: str, way_out: str
) -> None:
    samples = 1000
    session(tmp_path / "session.jsonl", samples)
    grpc_in, http_in = free_port(), free_port()
    tls = {"tls": {"insecure": True}}
    out = {
        "otlp_grpc": {"endpoint": f"127.0.0.1:{backend.grpc}", **tls},
        "otlp_http": {"endpoint": f"http://127.0.0.1:{backend.http}"},
    }
    config = tmp_path / "collector.yaml"
    config.write_text(yaml.safe_dump(collector_config(grpc_in, http_in, {way_out: out[way_out]})))
    run = [str(collector), "--config", str(config), "--feature-gates=+service.profilesSupport"]
    agent_out = {
        "otlp_grpc": {"endpoint": f"127.0.0.1:{grpc_in}", **tls},
        "otlp_http": {"endpoint": f"http://127.0.0.1:{http_in}"},
    }
    agent = {
        "receivers": {"replay": {"path": str(tmp_path / "session.jsonl")}},
        "processors": {"resource_detection": {"detectors": ["env", "process"]}},
        "exporters": {way_in: agent_out[way_in]},
        "service": {
            "telemetry": {"metrics": {"address": "127.0.0.1:0"}},
            "pipelines": {"profiles": {"receivers": ["replay"], "processors": ["resource_detection"], "exporters": [way_in]}},
        },
    }
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(agent))
    with Program(run, tmp_path, "collector") as middle:
        wait_for(lambda: "Everything is ready" in middle.log(), 60, middle)
        with Program([otelprof(), "run", "--config", str(tmp_path / "agent.yaml")], tmp_path, "agent") as program:
            assert program.wait(60) == 0, program.log()
            assert f"samples={samples}" in program.log().splitlines()[-1]
        wait_for(lambda: total(backend.http) == samples, 20, middle)
    assert total(backend.http) == samples
    assert services(backend.http), "the resource's service.name came through the Collector"
