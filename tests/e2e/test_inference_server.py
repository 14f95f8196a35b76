"""The example service from outside: its lines, its ledger against the driver's, its faults, its HTTP front, its end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.programs import Program, free_port, wait_for

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "inference_server"
LAUNCH = str(EXAMPLE / "launch.py")
ATTENTION = ["model_forward", "attention", "scaled_dot_product_attention"]
pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stand-in is compiled once for all tests here."""
    return tmp_path_factory.mktemp("cache")


class Service(Program):
    """The launched example, ready."""

    def __init__(self, work: Path, cache: Path, *options: str, python: str = sys.executable, **env: str) -> None:
        command = [python, LAUNCH, "--device", "stand-in", *options]
        super().__init__(command, work, "inference_server", {"XDG_CACHE_HOME": str(cache), **env})

    def wait_ready(self) -> dict[str, Any]:
        """Its first line."""
        wait_for(lambda: "\n" in self.text(), 60, self)
        return self.lines()[0]

    def lines(self) -> list[dict[str, Any]]:
        """All its lines so far."""
        return [json.loads(line) for line in self.text().splitlines()]

    def post(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Status and answer of a completion."""
        url = f"http://127.0.0.1:{self.lines()[0]['port']}/v1/completions"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


def gone(pid: int) -> bool:
    """Whether no process has this number, or one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> list[dict[str, Any]]:
    """The two lines of a run with its own load, long enough for a batch of every size."""
    service = Service(tmp_path_factory.mktemp("run"), cache, "--duration", "4s")
    assert service.wait(60) == 0, service.log()
    return service.lines()


@pytest.fixture
def quiet(tmp_path: Path, cache: Path) -> Iterator[Service]:
    """A service without load of its own."""
    with Service(tmp_path, cache, "--rate", "0") as service:
        service.wait_ready()
        yield service


def test_it_prints_one_line_when_ready_and_one_when_done(run: list[dict[str, Any]]) -> None:
    assert [line["event"] for line in run] == ["ready", "done"]
    assert run[0]["device"] == "stand-in"
    assert run[0]["pid"] == run[1]["pid"]
    assert run[0]["engine_pid"] == run[1]["engine_pid"] != run[0]["pid"]


def test_the_ledger_is_what_the_driver_counted(run: list[dict[str, Any]]) -> None:
    done = run[1]
    driver = done["driver"]
    assert done["kernels"] == {name: row["launches"] for name, row in driver["kernels"].items() if row["launches"]}
    assert done["launches"] == driver["calls"]["cuLaunchKernel"] + driver["calls"]["cuLaunchKernelEx"] > 0
    for name in ("cuStreamSynchronize", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"):
        assert sum(row["count"] for row in done["calls"] if row["call"] == name) == driver["calls"][name]


def test_paths_add_up_to_kernels_and_batches_to_launches(run: list[dict[str, Any]]) -> None:
    done = run[1]
    totals: Counter[str] = Counter()
    for row in done["paths"]:
        totals[row["kernel"]] += row["launches"]
    assert totals == done["kernels"]
    assert sum(row["launches"] for row in done["requests"]["by_batch_size"].values()) == done["launches"]
    completed = sum(row["requests"] for row in done["requests"]["by_batch_size"].values())
    assert completed == done["requests"]["completed"]


def test_attention_is_launched_from_consecutive_python_frames(run: list[dict[str, Any]]) -> None:
    paths = [row["path"] for row in run[1]["paths"] if row["kernel"] == "cudnn_flash_attn_kernel"]
    assert [path[-3:] for path in paths] == [ATTENTION]


def test_one_batch_size_has_a_storm_of_tiny_kernels(run: list[dict[str, Any]]) -> None:
    rows = run[1]["requests"]["by_batch_size"]
    per_batch = {int(size): row["launches"] // row["batches"] for size, row in rows.items()}
    assert len(per_batch) > 1
    assert per_batch.pop(5) > 3 * max(per_batch.values())


def test_each_sequence_of_a_batch_waits_for_the_gpu_by_itself(quiet: Service) -> None:
    tokens = 6
    status, answer = quiet.post(json.dumps({"prompt": "one two three", "max_tokens": tokens}).encode())
    assert (status, answer["batch_size"], len(answer["tokens"])) == (200, 1, tokens)
    assert quiet.stop() == 0
    done = quiet.lines()[-1]
    assert {row["call"]: row["count"] for row in done["calls"]}["cuStreamSynchronize"] == tokens
    assert done["launches"] == answer["launches"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"prompt": "x", "max_tokens": "many"}', b"[" * 50000, b" " * 70000]
)
def test_a_bad_request_is_refused_and_the_service_goes_on(quiet: Service, body: bytes) -> None:
    status, answer = quiet.post(body)
    assert status == 400
    assert "prompt" in answer["error"]
    assert quiet.post(b'{"prompt": ""}')[0] == 200


def test_the_ledger_can_be_read_while_it_runs(quiet: Service) -> None:
    quiet.post(b'{"prompt": "x", "max_tokens": 1}')
    with urllib.request.urlopen(f"http://127.0.0.1:{quiet.lines()[0]['port']}/ledger", timeout=30) as answer:
        ledger = json.loads(answer.read())
    assert ledger["kernels"]["cudnn_flash_attn_kernel"] == ledger["driver"]["kernels"]["cudnn_flash_attn_kernel"]["launches"]
    assert ledger["kernels"]["cudnn_flash_attn_kernel"] > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_ends_it_clean_with_its_ledger(tmp_path: Path, cache: Path, number: int) -> None:
    with Service(tmp_path, cache, "--rate", "40") as service:
        ready = service.wait_ready()
        os.killpg(service.pid, number)
        assert service.wait(10) == 0
        assert service.lines()[-1]["event"] == "done"
        assert gone(ready["engine_pid"])
        assert "Traceback" not in service.log()


def test_the_engine_ends_with_its_front(tmp_path: Path, cache: Path) -> None:
    with Service(tmp_path, cache) as service:
        engine = service.wait_ready()["engine_pid"]
        service.process.kill()
        service.wait(10)
        wait_for(lambda: gone(engine), 10)


def test_the_front_ends_with_its_engine_and_says_so(tmp_path: Path, cache: Path) -> None:
    with Service(tmp_path, cache) as service:
        os.kill(service.wait_ready()["engine_pid"], signal.SIGKILL)
        assert service.wait(10) == 1
        assert "the engine ended without its ledger" in service.log()


def test_its_processes_name_the_service(quiet: Service) -> None:
    for pid in (quiet.lines()[0]["pid"], quiet.lines()[0]["engine_pid"]):
        assert b"OTEL_SERVICE_NAME=inference-server" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def test_launches_that_fail_are_counted_and_their_requests_told(tmp_path: Path, cache: Path) -> None:
    with Service(tmp_path, cache, "--rate", "0", STANDIN_FAIL="cuLaunchKernelEx:3:719") as service:
        service.wait_ready()
        status, answer = service.post(b'{"prompt": "x", "max_tokens": 2}')
        assert (status, answer["error"]) == (500, "CUDA driver error 719")
        assert service.stop() == 0
        done = service.lines()[-1]
    assert done["kernels"]["cudnn_flash_attn_kernel"] == done["driver"]["kernels"]["cudnn_flash_attn_kernel"]["launches"] == 3
    assert done["requests"]["failed"] == 1


def test_a_driver_that_cannot_start_and_a_taken_port_are_one_line(tmp_path: Path, cache: Path) -> None:
    with Service(tmp_path, cache, STANDIN_FAIL="cuInit:1:100") as service:
        assert service.wait(60) == 1
        assert service.log().splitlines()[-1] == "inference_server: CUDA driver error 100"
    port = free_port()
    with Service(tmp_path, cache, "--rate", "0", "--port", str(port)) as first:
        first.wait_ready()
        (tmp_path / "second").mkdir()
        with Service(tmp_path / "second", cache, "--port", str(port)) as second:
            assert second.wait(60) == 1
            assert second.log().splitlines()[-1] == f"inference_server: 127.0.0.1:{port}: Address already in use"


def test_torch_without_a_gpu_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-I", LAUNCH, "--device", "torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1
    assert done.stderr == "inference_server: this Python has no PyTorch that sees a GPU; use --device stand-in\n"


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    with Service(tmp_path, tmp_path / "empty", PATH="/nonexistent") as service:
        assert service.wait(60) == 1
        assert service.log().splitlines()[-1].startswith("inference_server: no C compiler `cc`: install one")


def test_two_that_start_at_once_may_compile_at_once(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    with Service(tmp_path / "a", tmp_path, "--rate", "0") as first, Service(tmp_path / "b", tmp_path, "--rate", "0") as second:
        assert first.wait_ready()["event"] == second.wait_ready()["event"] == "ready"
        assert first.stop() == second.stop() == 0


def oldest_python() -> str | None:
    """A Python 3.8, which is the oldest that the example runs on."""
    installed = sorted(Path("~/.pyenv/versions").expanduser().glob("3.8.*/bin/python3"))
    return str(installed[0]) if installed else shutil.which("python3.8")


def test_it_runs_on_python_3_8(tmp_path: Path, cache: Path) -> None:
    python = oldest_python()
    if python is None:
        pytest.skip("needs a Python 3.8 (python3.8 on PATH, or pyenv's)")
    with Service(tmp_path, cache, "--rate", "0", python=python) as service:
        service.wait_ready()
        assert service.post(b'{"prompt": "x", "max_tokens": 1}')[0] == 200
        assert service.stop() == 0
        paths = [row["path"][-3:] for row in service.lines()[-1]["paths"]]
    assert ATTENTION in paths


def test_wrong_options_are_refused_with_exit_code_2(tmp_path: Path) -> None:
    for options in (["--batch", "9"], ["--duration", "soon"], ["--device", "abacus"], ["--rate", "-1"]):
        done = subprocess.run([sys.executable, LAUNCH, *options], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert options[0] in done.stderr


def shape(value: Any) -> Any:
    """Types and keys of a JSON document; of a list, its first item's."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    return type(value).__name__


def missing(expected: Any, actual: Any, place: str = "") -> list[str]:
    """Where `actual` lacks what `expected` has."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        absent = [f"{place}.{key}" for key in expected if key not in actual]
        both = [key for key in expected if key in actual]
        return absent + [found for key in both for found in missing(expected[key], actual[key], f"{place}.{key}")]
    if isinstance(expected, list) and isinstance(actual, list) and expected and actual:
        return missing(expected[0], actual[0], f"{place}[0]")
    return [] if type(expected) is type(actual) and (isinstance(expected, list) or expected == actual) else [place]


def test_the_readme_shows_what_it_prints(run: list[dict[str, Any]]) -> None:
    blocks = re.findall(r"```json\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    shown = [shape(json.loads(block)) for block in blocks]
    assert len(shown) == 2
    assert [missing(expected, shape(actual)) for expected, actual in zip(shown, run, strict=True)] == [[], []]
