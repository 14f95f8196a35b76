"""Replays of CUDA graphs under the lines that captured them, counted exactly, also by an agent that came after the capture."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_program import LAUNCHES, Agent
from tests.e2e.programs import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.kernel, pytest.mark.timeout(180)]
ROOT = Path(__file__).resolve().parents[2]
KERNELS, BYTES, MEMORY = "gpu_graph_kernels/count", "gpu_memcpy/bytes", "gpu_memory_reserved/bytes"
CAPTURE = ("<module>", "capture", "captured", "model_forward")
REPLAY = ("<module>", "replay_graph", "call")
STEP = {
    (*CAPTURE, "attention", "launch", "call", "attention_kernel"): 1,
    (*CAPTURE, "mlp", "launch", "call", "gemm_kernel"): 3,
    (*CAPTURE, "beside", "launch", "call", "side_kernel"): 1,
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.spec_from_file_location("build_standin", ROOT / "native" / "standin" / "build_standin.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    built: Path = module.build_standin(tmp_path_factory.mktemp("driver"))
    return built


class Target:
    """The program; `say` gives the driver's own count after a command."""

    def __init__(self, driver: Path) -> None:
        command = [sys.executable, str(ROOT / "tests" / "e2e" / "graph_program.py"), str(driver)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        self.line()

    def line(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def say(self, command: str) -> Any:
        assert self.process.stdin
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.line()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def target(driver: Path) -> Iterator[Target]:
    """A program that hasn't opened the driver yet."""
    found = Target(driver)
    yield found
    found.end()


def of(agent: Agent, kind: str, pid: int) -> dict[tuple[str, ...], int]:
    return {(*path, leaf): value for (path, leaf), value in agent.rows(kind, pid).items()}


def times(step: dict[tuple[str, ...], int], number: int) -> dict[tuple[str, ...], int]:
    return {stack: amount * number for stack, amount in step.items()}


def handed_on(agent: Agent, target: Target, launches: int) -> None:
    """Wait until that many launches of the target are in the agent's file."""
    wait_for(lambda: sum(agent.rows(LAUNCHES, target.pid).values()) >= launches, 20, agent)


def test_each_replay_counts_its_kernels_where_they_were_captured(driver: Path, target: Target, tmp_path: Path) -> None:
    with Agent(tmp_path, driver) as agent:
        agent.wait_ready()
        target.say("open")
        target.say("capture")
        truth = target.say("replay 250")
        handed_on(agent, target, 255)
        assert agent.stop() == 0, agent.log()
    kernels = of(agent, KERNELS, target.pid)

    assert kernels == times(STEP, 250)
    assert Counter({stack[-1]: value for stack, value in kernels.items()}) == {
        name: found["replayed"] for name, found in truth["kernels"].items()
    }
    assert of(agent, LAUNCHES, target.pid) == {**STEP, (*REPLAY, "[graph replay]"): 250}, "calls: captured ones and replays"
    assert of(agent, BYTES, target.pid) == {(*CAPTURE, "call", "cuMemcpyHtoDAsync_v2"): 250 * 4096}, "moved by replays only"
    assert truth["bytes"]["host_to_device"] == 250 * 4096


def test_an_update_changes_what_replays_run(driver: Path, target: Target, tmp_path: Path) -> None:
    with Agent(tmp_path, driver) as agent:
        agent.wait_ready()
        for command in ("open", "capture", "replay 10", "update", "replay 20"):
            target.say(command)
        handed_on(agent, target, 5 + 10 + 5 + 20)
        assert agent.stop() == 0, agent.log()
    found = of(agent, KERNELS, target.pid)
    updated = {stack: value for stack, value in found.items() if "other_forward" in stack}

    assert {stack: value for stack, value in found.items() if stack not in updated} == times(STEP, 10)
    assert Counter(stack[-1] for stack in updated) == {"gemm_kernel": 1, "side_kernel": 1}
    assert sum(updated.values()) == 20 * 5


def test_a_capture_that_nobody_saw_is_marked(driver: Path, target: Target, tmp_path: Path) -> None:
    for command in ("open", "capture"):
        target.say(command)
    with Agent(tmp_path, driver) as agent:
        agent.wait_ready()
        target.say("replay 30")
        handed_on(agent, target, 30)
        assert agent.stop() == 0, agent.log()

    assert of(agent, LAUNCHES, target.pid) == {(*REPLAY, "[graph captured before attach]"): 30}
    assert of(agent, KERNELS, target.pid) == {}


def test_kernels_hang_under_the_replays_own_stack_where_that_is_set(driver: Path, target: Target, tmp_path: Path) -> None:
    with Agent(tmp_path, driver, cuda={"graph_stacks": "replay"}) as agent:
        agent.wait_ready()
        target.say("open")
        target.say("capture")
        target.say("replay 12")
        handed_on(agent, target, 17)
        assert agent.stop() == 0, agent.log()
    leaves = {stack[-1]: value for stack, value in times(STEP, 12).items()}

    assert of(agent, KERNELS, target.pid) == {(*REPLAY, "[graph replay]", leaf): value for leaf, value in leaves.items()}


def test_an_agent_that_is_killed_and_started_again_knows_the_captures(driver: Path, target: Target, tmp_path: Path) -> None:
    """Engines capture once; names and graphs are kept by process, and go with it."""
    with Agent(tmp_path, driver) as agent:
        agent.wait_ready()
        target.say("open")
        target.say("capture")
        target.say("replay 5")
        handed_on(agent, target, 10)
        kept = tmp_path / "state" / "cuda"
        wait_for(lambda: any('executables":[[' in file.read_text() for file in kept.glob(f"{target.pid}-*.json")), 10, agent)
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait(10)
    with Agent(tmp_path, driver, "second") as second:
        second.wait_ready()
        target.say("replay 40")
        handed_on(second, target, 40)
        target.end()
        wait_for(lambda: not list(kept.glob(f"{target.pid}-*.json")), 20, second)
        assert second.stop() == 0, second.log()

    assert of(second, KERNELS, target.pid) == times(STEP, 40)
    assert of(second, LAUNCHES, target.pid) == {(*REPLAY, "[graph replay]"): 40}


def test_driver_memory_is_held_by_the_stack_that_took_it(driver: Path, target: Target, tmp_path: Path) -> None:
    """From the second call of a place on: the first teaches where it returns."""
    held = ("<module>", "take", "made", "call", "cuMemAlloc_v2")
    with Agent(tmp_path, driver) as agent:
        agent.wait_ready()
        target.say("open")
        taken = 0

        def seen() -> bool:
            nonlocal taken
            target.say("take 4096")
            taken += 1
            return agent.last(MEMORY, target.pid)[held[:-1], held[-1]] >= 2 * 4096

        wait_for(seen, 20, agent)
        before = agent.last(MEMORY, target.pid)[held[:-1], held[-1]]
        target.say("take 8192")
        target.say(f"free {taken - 1}")
        target.say("capture")
        handed_on(agent, target, 5)
        assert agent.stop() == 0, agent.log()
    last = agent.last(MEMORY, target.pid)

    assert set(last) == {(held[:-1], held[-1])}
    assert last[held[:-1], held[-1]] % 4096 == 0
    assert before < last[held[:-1], held[-1]] <= (taken - 1) * 4096 + 8192


def test_waits_bound_the_time_of_replays_and_launches_in_a_capture_have_none(
    driver: Path, target: Target, tmp_path: Path
) -> None:
    with Agent(tmp_path, driver) as agent:
        agent.wait_ready()
        target.say("open")
        target.say("capture")
        target.say("replay 1")  # teaches the wait's return site
        handed_on(agent, target, 6)
        target.say("replay 3")
        handed_on(agent, target, 9)
        assert agent.stop() == 0, agent.log()
    found = of(agent, "gpu_time_bound/nanoseconds", target.pid)

    assert set(found) == {(*REPLAY, "[graph replay]")}
    assert found[*REPLAY, "[graph replay]"] >= 3 * 50_000, "five kernels of 10 microseconds each"
