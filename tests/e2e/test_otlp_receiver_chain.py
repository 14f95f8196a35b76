"""An agent that takes other agents' profiles: what the first sends is what the backend behind the second has."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.e2e.collector import Backend, Collector, agent, run_agent, session
from tests.e2e.programs import Program, otelprof, wait_for

INSECURE = {"insecure": True}

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@contextmanager
def relay(work: Path, backend: Backend) -> Iterator[tuple[Program, dict[str, int]]]:
    """An otelprof that takes OTLP on ports of its choice and sends to the backend."""
    anywhere = {"endpoint": "127.0.0.1:0"}
    values = {
        "receivers": {"otlp": {"protocols": {"grpc": anywhere, "http": anywhere}}},
        "processors": {"resource_detection": {"detectors": ["env", "process"]}},
        "exporters": {"otlp_grpc": {"endpoint": f"127.0.0.1:{backend.grpc}", "tls": INSECURE}},
        "service": {
            "telemetry": {"metrics": {"address": "127.0.0.1:0"}},
            "pipelines": {
                "profiles": {"receivers": ["otlp"], "processors": ["resource_detection"], "exporters": ["otlp_grpc"]}
            },
        },
    }
    (work / "relay.yaml").write_text(yaml.safe_dump(values))
    with Program([otelprof(), "run", "--config", str(work / "relay.yaml")], work, "relay") as program:
        wait_for(lambda: "ready" in program.log(), 30, program)
        found = re.findall(r"otlp: listening on (\w+)://127\.0\.0\.1:(\d+)", program.log())
        yield program, {protocol: int(port) for protocol, port in found}


def is_whole(backend: Backend) -> None:
    assert backend.samples() == 1000
    assert backend.services() == {"shop-100", "shop-101"}
    assert backend.samples('{service_name="shop-100"}') == 500
    assert backend.samples(spanSelector=["00000000000000aa"]) == 500


SPANS = [("0" * 30 + "01", "00000000000000aa"), ("0" * 30 + "02", "00000000000000bb")]


@pytest.mark.parametrize("way", ["otlp_grpc", "otlp_http"])
def test_from_agent_to_agent_counts_services_and_links_stay(way: str, memory_backend: Backend, tmp_path: Path) -> None:
    session(tmp_path / "session.jsonl", 1000, SPANS)
    with relay(tmp_path, memory_backend) as (program, ports):
        exporter = {"otlp_grpc": {"endpoint": f"127.0.0.1:{ports['grpc']}", "tls": INSECURE}}
        if way == "otlp_http":
            exporter = {way: {"endpoint": f"http://127.0.0.1:{ports['http']}"}}
        assert "samples=1000 " in run_agent(tmp_path, agent(tmp_path, exporter))
        wait_for(lambda: memory_backend.samples() >= 1000, 20, program)
        is_whole(memory_backend)
        assert program.stop() == 0
        assert re.search(r"samples=1000 launches=0 lost=0 sent=\d+ unsent=0", program.log().splitlines()[-1])


@pytest.mark.usefixtures("collector_binary")
@pytest.mark.parametrize("way", ["otlp_grpc", "otlp_http"])
def test_behind_a_collector_its_references_are_resolved(way: str, memory_backend: Backend, tmp_path: Path) -> None:
    session(tmp_path / "session.jsonl", 1000, SPANS)
    with relay(tmp_path, memory_backend) as (program, ports):
        out = {"otlp_grpc": {"endpoint": f"127.0.0.1:{ports['grpc']}", "tls": INSECURE}}
        if way == "otlp_http":
            out = {way: {"endpoint": f"http://127.0.0.1:{ports['http']}"}}
        protocols = {"grpc": {"endpoint": "127.0.0.1:${env:OTLP_GRPC}"}}
        pipelines = {"profiles": {"receivers": ["otlp"], "exporters": list(out)}}
        values = {"receivers": {"otlp": {"protocols": protocols}}, "exporters": out, "service": {"pipelines": pipelines}}
        (tmp_path / "middle.yaml").write_text(yaml.safe_dump(values))
        with Collector(tmp_path, [tmp_path / "middle.yaml"], {}) as middle:
            exporter = {"otlp_grpc": {"endpoint": f"127.0.0.1:{middle.grpc}", "tls": INSECURE}}
            run_agent(tmp_path, agent(tmp_path, exporter))
            wait_for(lambda: memory_backend.samples() >= 1000, 20, program, middle)
        is_whole(memory_backend)
