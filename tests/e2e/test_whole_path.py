"""The whole path on the demo: what the agent says of each launch is what the program itself has counted.

The ledger of the example is the truth: launches by kernel and Python call path, counted in the program.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.agent_program import LAUNCHES, Agent
from tests.e2e.programs import Program, wait_for

LAUNCH = Path(__file__).resolve().parents[2] / "examples" / "inference_server" / "launch.py"
ATTENTION = ("model_forward", "attention", "scaled_dot_product_attention")

pytestmark = [pytest.mark.e2e, pytest.mark.kernel, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The driver that the example will use; the cache folder of the example is the module's own."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    command = [sys.executable, str(LAUNCH), "--device", "stand-in", "--library"]
    yield Path(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip())
    os.environ.pop("XDG_CACHE_HOME")
    if before is not None:
        os.environ["XDG_CACHE_HOME"] = before


def demo(work: Path, *options: str) -> Program:
    """The example on the stand-in."""
    return Program([sys.executable, str(LAUNCH), "--device", "stand-in", *options], work, "demo")


def test_launches_equal_the_programs_own_count_by_kernel_and_call_path(driver: Path, tmp_path: Path) -> None:
    with Agent(tmp_path, driver) as agent:
        agent.wait_ready()
        with demo(tmp_path, "--duration", "6s") as program:
            assert program.wait(60) == 0, program.log()
            done = json.loads(program.text().splitlines()[-1])
        wait_for(lambda: agent.metric("otelprof_launches_seen_total") >= done["launches"], 20, agent)
        assert agent.stop() == 0, agent.log()
    truth = Counter({(tuple(entry["path"]), entry["kernel"]): entry["launches"] for entry in done["paths"]})
    seen = agent.rows(LAUNCHES, done["engine_pid"])

    assert done["launches"] > 1000
    assert sum(seen.values()) == done["launches"]
    assert not {leaf for _, leaf in seen if leaf.startswith("[lost")}
    assert seen == truth
    assert any(path[-3:] == ATTENTION and leaf == "cudnn_flash_attn_kernel" for path, leaf in seen)


def bpf_objects() -> set[tuple[str, int]]:
    """What bpftool lists of programs and links."""
    found = set()
    for kind in ("prog", "link"):
        out = subprocess.run(["bpftool", "-j", kind], capture_output=True, text=True, check=True).stdout
        found |= {(kind, int(entry["id"])) for entry in json.loads(out or "[]")}
    return found


def test_a_killed_agent_leaves_the_target_running_and_unprobed(driver: Path, tmp_path: Path) -> None:
    before = bpf_objects()
    with demo(tmp_path, "--duration", "60s") as program:
        wait_for(lambda: program.text().count("\n") >= 1, 60, program)
        with Agent(tmp_path, driver) as agent:
            agent.wait_ready()
            wait_for(lambda: agent.metric("otelprof_launches_seen_total") > 100, 20, agent, program)
            assert bpf_objects() - before
            os.kill(agent.pid, signal.SIGKILL)
            agent.wait(10)
        wait_for(lambda: not bpf_objects() - before, 20, program)
        with Agent(tmp_path, driver, "second") as second:
            second.wait_ready()
            wait_for(lambda: second.metric("otelprof_launches_seen_total") > 100, 20, second, program)
            assert second.stop() == 0, second.log()
        assert program.stop() == 0, program.log()
