"""What the agent itself takes while it profiles the example service: CPU and memory; and how soon its data are there."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

from benchmarks.figures import Figure, cpu_seconds, resident
from tests.e2e.programs import Program, fetch, free_port, otelprof, wait_for

LAUNCH = Path(__file__).resolve().parents[1] / "examples" / "inference_server" / "launch.py"
SECONDS = 20.0
KERNEL = "cudnn_flash_attn_kernel"
TYPE = "gpu:gpu_kernel_launches:count:gpu:count"


def driver() -> str:
    """The driver that the example will use."""
    command = [sys.executable, str(LAUNCH), "--device", "stand-in", "--library"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def config(grpc: int, metrics: int, library: str) -> dict[str, object]:
    """Everything, each second, to the backend: what `otelprof up` runs."""
    route = {"receivers": ["ebpf"], "processors": ["resource_detection", "cuda_stitch"], "exporters": ["otlp_grpc"]}
    return {
        "receivers": {"ebpf": {"report_interval": "1s", "cuda": {"libraries": [library]}}},
        "processors": {"resource_detection": {}, "cuda_stitch": {}},
        "exporters": {"otlp_grpc": {"endpoint": f"127.0.0.1:{grpc}", "tls": {"insecure": True}}},
        "service": {
            "telemetry": {"metrics": {"address": f"127.0.0.1:{metrics}"}},
            "pipelines": {"profiles": route, "traces": route},
        },
    }


def has_kernel(http: int) -> bool:
    """True once the backend answers with the kernel under its Python stack."""
    now = int(time.time() * 1000)
    query = urllib.parse.urlencode({"type": TYPE, "query": "{}", "from": now - 60_000, "until": now + 10_000})
    status, body = fetch(f"http://127.0.0.1:{http}/api/v1/flamegraph?{query}")
    return status == 200 and f"[cuda] {KERNEL}" in json.loads(body)["names"]


def measure() -> list[Figure]:
    """Start the backend and the example, then the agent; look for twenty seconds."""
    library = driver()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        http, grpc, metrics = free_port(), free_port(), free_port()
        listen = ["--listen", f"127.0.0.1:{http}", "--grpc-listen", f"127.0.0.1:{grpc}", "--store", "memory"]
        with Program([otelprof(), "backend", *listen], work, "backend") as backend:
            wait_for(lambda: fetch(f"http://127.0.0.1:{http}/readyz")[0] == 200, 60, backend)
            (work / "agent.yaml").write_text(json.dumps(config(grpc, metrics, library)))
            start = time.monotonic()
            with Program([otelprof(), "run", "--config", str(work / "agent.yaml")], work, "agent") as agent:
                wait_for(lambda: fetch(f"http://127.0.0.1:{metrics}/readyz")[0] == 200, 60, agent)
                ready = time.monotonic() - start
                with Program([sys.executable, str(LAUNCH), "--device", "stand-in"], work, "demo") as demo:
                    wait_for(lambda: has_kernel(http), 60, agent, demo)
                    shown = time.monotonic() - start
                    return [
                        Figure("agent start to attached and first scan done", f"{ready:.2f} s"),
                        Figure("agent start to the example's kernel in the backend's answer", f"{shown:.2f} s"),
                        *cost(agent, json.loads(demo.text().splitlines()[0])),
                    ]


def cost(agent: Program, demo: dict[str, int]) -> list[Figure]:
    """CPU of the agent beside the engine's that it watches; resident memory."""
    pids = (agent.pid, demo["engine_pid"])
    before = [cpu_seconds(pid) for pid in pids]
    begun = time.monotonic()
    time.sleep(SECONDS)
    took = time.monotonic() - begun
    own, watched = ((cpu_seconds(pid) - then) / took for pid, then in zip(pids, before, strict=True))
    return [
        Figure(
            "agent, 99 Hz, with the example", f"{100 * own:.2f} % of a core", f"{100 * watched:.1f} % (the engine)",
            f"{own / watched:.3f}",
        ),
        Figure("agent, resident", f"{resident(agent.pid):.0f} MiB"),
    ]  # fmt: skip
