"""From an unmodified program's spans to the backend: each sample and launch is found again by the span it happened in."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.e2e.backend_program import Backend
from tests.e2e.programs import Program, fetch, free_port, otelprof, wait_for
from tests.unit.standin_driver import built

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to attach BPF programs"),
]
PROGRAM = str(Path(__file__).parent / "span_program.py")
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
LAUNCHES = "gpu:gpu_kernel_launches:count:gpu:count"
PERIOD = 10_101_010


class Spoken:
    """The program, a line at a time."""

    def __init__(self, folder):
        command = [sys.executable, PROGRAM, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.heard() == "ready"

    def heard(self):
        return json.loads(self.process.stdout.readline())

    def say(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def agent(work, backend, **ebpf):
    """An agent that sends profiles to the backend and writes spans to a file; its address."""
    address = f"127.0.0.1:{free_port()}"
    route = {"receivers": ["ebpf"], "processors": ["resource_detection", "cuda_stitch"]}
    config = {
        "receivers": {"ebpf": {"report_interval": "1s", "cuda": {"libraries": [str(built())]}, **ebpf}},
        "processors": {"resource_detection": {}, "cuda_stitch": {"spans": "linked"}},
        "exporters": {
            "otlp_grpc": {"endpoint": backend.target, "tls": {"insecure": True}},
            "file": {"path": str(work / "spans.jsonl"), "format": "otlp_json"},
        },
        "service": {
            "telemetry": {"metrics": {"address": address}},
            "pipelines": {"profiles": {**route, "exporters": ["otlp_grpc"]}, "traces": {**route, "exporters": ["file"]}},
        },
    }
    (work / "agent.yaml").write_text(yaml.safe_dump(config))
    command = [otelprof(), "run", "--config", str(work / "agent.yaml")]
    return Program(command, work, "agent", {"STATE_DIRECTORY": str(work / "state")}), f"http://{address}"


def metric(address, name):
    """Sum over all labels of one of the agent's counters."""
    lines = fetch(f"{address}/metrics")[1].decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def of_span(backend, kind, span):
    """What Grafana asks for when it goes from a span to its profile."""
    answer = backend.ask("SelectMergeSpanProfile", profileTypeID=kind, labelSelector="{}", spanSelector=[span])
    return int(answer.get("flamegraph", {}).get("total", 0))


def launch_spans(path):
    """(name, trace id, parent) of the spans in the agent's file."""
    lines = path.read_text().splitlines() if path.exists() else []
    requests = [json.loads(line) for line in lines]
    scopes = [scope for one in requests for group in one.get("resourceSpans", []) for scope in group["scopeSpans"]]
    return [(span["name"], span["traceId"], span.get("parentSpanId", "")) for scope in scopes for span in scope["spans"]]


def test_samples_and_launches_are_found_by_span_and_trace_and_launches_are_children(tmp_path):
    with Backend(tmp_path, store="memory") as backend, Spoken(tmp_path) as program:
        running, address = agent(tmp_path, backend, targets={"pids": [program.process.pid]})
        with running:
            wait_for(lambda: fetch(f"{address}/readyz")[0] == 200, 30, running)
            program.say()
            assert program.heard() == "imported"
            wait_for(lambda: metric(address, "otelprof_span_processes") >= 1, 30, running)
            program.say()
            spans = program.heard()
            wait_for(lambda: metric(address, "otelprof_launches_seen_total") >= 65, 30, running)
            assert running.stop(40) == 0, running.log()
        for trace, span, launches in spans:
            assert backend.total(LAUNCHES, spanSelector=[span]) == launches
            assert backend.total(LAUNCHES, traceIdSelector=[trace]) == launches
            assert of_span(backend, LAUNCHES, span) == launches
            assert of_span(backend, CPU, span) >= 20 * PERIOD
        assert backend.total(CPU, spanSelector=["12" * 8]) == 0
        assert backend.total(LAUNCHES, spanSelector=[span for _, span, _ in spans]) == 60

    found = launch_spans(tmp_path / "spans.jsonl")
    assert {name.split()[0] for name, *_ in found} == {"launch"}
    assert Counter((trace, parent) for _, trace, parent in found) == {(trace, span): n for trace, span, n in spans}


@pytest.mark.parametrize(("listed", "said"), [(["obi"], True), (["opentelemetry_python"], False)])
def test_the_setting_says_what_is_read(tmp_path, listed, said):
    with Backend(tmp_path, store="memory") as backend:
        running, address = agent(tmp_path, backend, trace_context=listed)
        with running:
            wait_for(lambda: fetch(f"{address}/readyz")[0] == 200, 30, running)
            assert ("doesn't read obi yet" in running.log()) == said
            assert running.stop(40) == 0, running.log()


def test_a_recording_has_links(tmp_path):
    """record -- CMD: the program imports OpenTelemetry while it is being recorded."""
    code = (
        "import json, time\nfrom opentelemetry import trace\nfrom opentelemetry.sdk.trace import TracerProvider\n"
        "trace.set_tracer_provider(TracerProvider())\n"
        "with trace.get_tracer('t').start_as_current_span('s') as span:\n"
        "    ids = span.get_span_context()\n"
        "    print(json.dumps([f'{ids.trace_id:032x}', f'{ids.span_id:016x}']), flush=True)\n"
        "    end = time.monotonic() + 2.5\n    while time.monotonic() < end: pass\n"
    )
    out = tmp_path / "out.json"
    command = [otelprof(), "record", "--format", "otlp-json", "-o", str(out), "--", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    trace, span = json.loads(done.stdout.splitlines()[0])
    requests = [json.loads(line) for line in out.read_text().splitlines()]
    links = [link for request in requests for link in request["dictionary"]["linkTable"] if link]

    assert {"traceId": trace, "spanId": span} in links
    assert all(link == {"traceId": trace, "spanId": span} for link in links)
