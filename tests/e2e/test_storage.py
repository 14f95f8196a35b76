"""What waits on disk while the backend is away arrives after kill -9 of the agent: all of it, and nothing twice."""

from pathlib import Path

import pytest
import yaml

from otelprof.exporters.disk_queue import DiskQueue
from otelprof.otlp.decode import decode_profiles
from tests.e2e.collector import PERIOD, Backend, agent, run_agent, session
from tests.e2e.programs import Program, otelprof, wait_for

pytestmark = pytest.mark.e2e

HEAD = 26
"""Bytes before the data in a file of the queue (otelprof/exporters/disk_queue.py)."""


def stored(work: Path, port: int) -> Path:
    """The configuration of an agent with a queue on disk."""
    config = agent(work, {"otlp_grpc": {"endpoint": f"127.0.0.1:{port}", "tls": {"insecure": True}}})
    values = yaml.safe_load(config.read_text())
    values["extensions"] = {"file_storage": {"directory": str(work / "storage")}}
    values["exporters"]["otlp_grpc"] |= {
        "sending_queue": {"storage": "file_storage"},
        "retry_on_failure": {"max_elapsed_time": "0"},
    }
    values["service"]["extensions"] = ["file_storage"]
    config.write_text(yaml.safe_dump(values))
    return config


def waiting(folder: Path) -> int:
    """Samples in the files of a queue."""
    files = list(folder.glob("*.request")) if folder.exists() else []
    return sum(int(decode_profiles(file.read_bytes()[HEAD:]).samples["value"].sum()) // PERIOD for file in files)


def test_kill_9_while_the_backend_is_away_loses_nothing_and_stores_nothing_twice(tmp_path: Path) -> None:
    session(tmp_path / "session.jsonl", 1000)
    folder = tmp_path / "storage" / "exporter_otlp_grpc"
    with Program([otelprof(), "run", "--config", str(stored(tmp_path, 1))], tmp_path, "first") as first:
        wait_for(lambda: waiting(folder) == 1000, 60, first)
        first.process.kill()
        first.wait(10)
    kept = len(list(folder.glob("*.request")))
    (tmp_path / "session.jsonl").write_text("")
    with Backend(tmp_path) as backend:
        assert run_agent(tmp_path, stored(tmp_path, backend.grpc)).startswith("samples=0 ")
        assert backend.samples() == 1000
    assert f"{kept} requests of an earlier run are sent first" in (tmp_path / "agent.err").read_text()
    assert len(DiskQueue(folder, 1 << 20)) == 0


def test_an_agent_that_ends_says_what_stays_on_disk(tmp_path: Path) -> None:
    session(tmp_path / "session.jsonl", 10)
    assert run_agent(tmp_path, stored(tmp_path, 1)).endswith("sent=0 unsent=0")
    assert "1 requests stay on disk for the next start" in (tmp_path / "agent.err").read_text()
