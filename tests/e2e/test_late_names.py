"""Kernels that were looked up before the attach have their names: code of CUDA 13's compiler, and code in CUDA 12's shape.

The runtime is the test's own and the driver is the stand-in; the library's host code is NVIDIA's compiler's, from its wheels.
"""

import importlib.util
import os
import stat
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otelprof.symbols.cuda_registrations import scan
from otelprof.symbols.elf import Elf, FileSource
from tests.e2e.agent_program import LAUNCHES, Agent
from tests.e2e.programs import wait_for
from tests.kernel.conftest import Running

pytestmark = [pytest.mark.e2e, pytest.mark.kernel, pytest.mark.timeout(240)]
HERE = Path(__file__).parent
STANDIN = HERE.parents[1] / "native" / "standin" / "build_standin.py"
WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
CUDA_13 = {"_Z5scaleIfEvPT_S0_", "_Z5scaleIdEvPT_S0_", "_Z12plain_kernelPf", "_ZN4math12in_namespaceEPiPKf"}
CUDA_12 = {"_Z5scaleIfEvPT_S0_", "_Z13reduce_kernelPf"}


@pytest.fixture(scope="module")
def compiler(request: pytest.FixtureRequest) -> Path:
    """nvcc of CUDA 13 from NVIDIA's wheels, fetched for this test."""
    assert request.config.cache
    folder = request.config.cache.mkdir("nvidia-nvcc")
    if len(list(folder.glob("*.whl"))) != len(WHEELS):
        wanted = [f"{name}>=13,<14" for name in WHEELS]
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder, *wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
        if done.returncode:
            pytest.skip(f"needs NVIDIA's compiler from {', '.join(WHEELS)}: {done.stderr.strip().splitlines()[-1]}")
    root = folder / "unpacked"
    if not root.exists():
        for wheel in folder.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(root)
        for program in [*root.glob("nvidia/*/bin/*"), *root.glob("nvidia/*/nvvm/bin/*")]:
            if program.is_file():
                program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return next(root.glob("nvidia/*/bin/nvcc"))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the driver and the runtime."""
    folder = tmp_path_factory.mktemp("cuda")
    spec = importlib.util.spec_from_file_location("build_standin", STANDIN)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.build_standin(folder)
    build(folder / "libcudart.so.13", HERE / "cuda_runtime.c", "-ldl")
    return folder


def build(target: Path, source: Path, *options: str) -> Path:
    command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", target, source, *options]
    subprocess.run(command, check=True)
    return target


def cuda_13(work: Path, compiler: Path, level: str, *, stripped: bool) -> Path:
    library = work / f"libkernels{level}{'s' if stripped else ''}.so"
    options = ["-arch=sm_80", "-shared", "-Xcompiler", f"-fPIC,{level}", "-cudart", "none"]
    path = f"{compiler.parent}:{os.environ['PATH']}"
    subprocess.run(
        [compiler, *options, "-o", library, HERE / "kernels.cu"], check=True, env={**os.environ, "PATH": path}, cwd=work
    )
    if stripped:
        subprocess.run(["strip", library], check=True)
    return library


@pytest.fixture
def run(work: Path) -> Iterator[Callable[[Path], Running]]:
    """Starts the program with a library; it has launched everything once."""
    started: list[Running] = []

    def start(library: Path) -> Running:
        files = (work / "libcuda.so.1", work / "libcudart.so.13", library)
        started.append(Running(sys.executable, str(HERE / "runtime_program.py"), *map(str, files)))
        assert started[-1].line() == 1
        return started[-1]

    yield start
    for running in started:
        running.end()


def launches(work: Path, running: Running, tmp_path: Path, rounds: int) -> Counter[str]:
    """What an agent that comes late says of the program's launches, by kernel."""
    with Agent(tmp_path, work / "libcuda.so.1") as agent:
        agent.wait_ready()
        running.say(str(rounds))
        running.line()
        wait_for(lambda: sum(agent.rows(LAUNCHES, running.pid).values()) >= 3 * rounds, 20, agent)
        assert agent.stop() == 0, agent.log()
    found: Counter[str] = Counter()
    for (_, leaf), value in agent.rows(LAUNCHES, running.pid).items():
        found[leaf] += value
    return found


@pytest.mark.parametrize(("level", "stripped"), [("-O0", False), ("-O3", True)])
def test_kernels_of_cuda_13_have_names_after_a_late_attach(work, compiler, run, tmp_path, level, stripped) -> None:
    library = cuda_13(work, compiler, level, stripped=stripped)
    assert launches(work, run(library), tmp_path, 500) == {
        "scale<float>": 500, "scale<double>": 500, "plain_kernel": 1000, "math::in_namespace": 500,
    }  # fmt: skip


def test_kernels_of_cuda_12_have_names_once_the_runtime_was_seen_to_launch_them(work, run, tmp_path) -> None:
    library = build(work / "libkernels12.so", HERE / "cuda12_library.c", "-s")
    running = run(library)
    with Agent(tmp_path, work / "libcuda.so.1") as agent:
        agent.wait_ready()
        rounds = 0

        def named() -> bool:
            nonlocal rounds
            running.say("20")
            rounds += running.line()
            return {leaf for _, leaf in agent.rows(LAUNCHES, running.pid)} >= {"scale<float>", "reduce_kernel"}

        wait_for(named, 20, agent)
        wait_for(lambda: sum(agent.rows(LAUNCHES, running.pid).values()) == 3 * rounds, 20, agent)
        assert agent.stop() == 0, agent.log()
    found = agent.rows(LAUNCHES, running.pid)
    assert {leaf for _, leaf in found} == {"scale<float>", "reduce_kernel"}
    assert {(path[-2:], leaf) for path, leaf in found} == {
        (("work", "serve"), "scale<float>"), (("work", "serve"), "reduce_kernel"), (("work", "other"), "reduce_kernel"),
    }  # fmt: skip


@pytest.mark.parametrize("stripped", [False, True])
@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_registrations_and_handles_are_found_in_the_code_of_cuda_13(work, compiler, level, stripped) -> None:
    found = scanned(cuda_13(work, compiler, level, stripped=stripped))
    assert set(found.functions.values()) == CUDA_13
    assert {found.functions[host] for host in found.slots.values()} == CUDA_13


def test_registrations_are_found_in_the_shape_of_cuda_12(work) -> None:
    found = scanned(build(work / "libkernels12r.so", HERE / "cuda12_library.c", "-s"))
    assert set(found.functions.values()) == CUDA_12
    assert found.slots == {}


def scanned(library: Path):
    return scan(Elf(FileSource(os.open(library, os.O_RDONLY))))
