"""Driver libraries in live processes: found, probed at the trampoline, kernels named, waits timed, let go at the end."""

import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from otelprof.counters import CUDA_FILES, CUDA_RETURN_SITES, Counters
from otelprof.ebpf.layout import wire
from otelprof.ebpf.session import Session
from otelprof.processes.maps import read_maps
from otelprof.symbols.cuda import KernelNames
from otelprof.targets.cuda import LibcudaFiles, mapped_region, may_be_libcuda
from otelprof.targets.return_sites import ReturnSites
from tests.kernel.conftest import Collected, until

pytestmark = [pytest.mark.kernel]
ROOT = Path(__file__).resolve().parents[2]
PROCESS = 5


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in driver, which has NVIDIA's trampolines."""
    spec = importlib.util.spec_from_file_location("build_standin", ROOT / "native" / "standin" / "build_standin.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_standin(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def files(session: Session) -> Iterator[LibcudaFiles]:
    found = LibcudaFiles(session, wire().enum("cuda_entry"), Counters())
    yield found
    found.close()


def program(session, run, path):
    """A program that is a target and hasn't opened the driver yet."""
    running = run(sys.executable, str(ROOT / "tests" / "kernel" / "cuda_program.py"), str(path))
    running.line()
    session.set_target(running.pid, wire().record("target", {"process": PROCESS}))
    return running


def told(running, command: str) -> None:
    running.say(command)
    assert running.line() == command.split(maxsplit=1)[0]


def attach(files: LibcudaFiles, pid: int, process: int = PROCESS) -> int:
    return files.look_at(process, pid, read_maps(pid).regions)


def launches(collected: Collected) -> Counter:
    """Launches by the kernel's name."""
    names = KernelNames(Counters())
    names.add(collected.names)
    calls = collected.calls[collected.calls["entry"] == wire()["CUDA_LAUNCH_KERNEL"]]
    return Counter(names.frame(PROCESS, 0, int(call["function"])).name for call in calls)


def test_launches_are_counted_by_kernel_at_the_trampoline(session, files, run, driver) -> None:
    running = program(session, run, driver)
    told(running, "open")
    assert attach(files, running.pid) == 1
    ((path, sites),) = files.libraries_of(PROCESS)
    assert path == str(driver)
    assert all(site.emulated and "trampoline" in site.why for site in sites)
    told(running, "work 200 100")
    collected = Collected(session).more()
    assert launches(collected) == {"gemm": 200, "softmax": 100}
    assert (collected.calls["grid"][-2].tolist(), collected.calls["block"][-2].tolist()) == ([4, 2, 1], [128, 1, 1])


def test_a_wait_has_its_duration_once_its_return_site_is_known(session, files, run, driver) -> None:
    """The first wait teaches the site; the second one is timed. Names become certain the same way."""
    running = program(session, run, driver)
    told(running, "open")
    attach(files, running.pid)
    told(running, "work 1 1")
    collected = Collected(session).more()
    waits = collected.calls["entry"] >= wire()["CUDA_STREAM_SYNCHRONIZE"]
    counters = Counters()
    sites = ReturnSites(session, counters)
    assert sites.learn(PROCESS, running.pid, map(int, set(collected.calls["caller"][waits]))) >= 1
    told(running, "work 0 5")
    collected = Collected(session).more()
    (wait,) = collected.returns
    assert wait["time"] - wait["begin"] > 2_000_000, "five kernels of 2 ms, most of which the wait sits out"
    assert wait["result"] == 0
    assert set(collected.names["source"]) == {wire()["NAME_AT_RETURN"]}
    sites.leave(PROCESS)
    assert counters.get(CUDA_RETURN_SITES, "probed") == 0


def test_a_library_that_is_opened_late_is_told_by_the_kernel(session, files, run, driver) -> None:
    running = program(session, run, driver)
    assert attach(files, running.pid) == 0
    session.watch_mappings()
    told(running, "open")
    told_of = until(lambda: [new for new in session.mappings() if may_be_libcuda(mapped_region(new))], "the mapping")
    assert files.look_at(PROCESS, running.pid, map(mapped_region, told_of)) == 1
    told(running, "work 10 0")
    assert launches(Collected(session).more()) == {"gemm": 10}


def test_a_deleted_library_is_probed_too(session, files, run, driver, tmp_path: Path) -> None:
    copy = tmp_path / "libcuda.so.1"
    copy.write_bytes(driver.read_bytes())
    running = program(session, run, copy)
    told(running, "open")
    copy.unlink()
    assert attach(files, running.pid) == 1
    told(running, "work 7 0")
    assert launches(Collected(session).more()) == {"gemm": 7}


def test_a_process_in_another_mount_namespace_is_probed_through_its_own_root(
    session, files, run, driver, tmp_path: Path
) -> None:
    """As in a container: the path that it maps means nothing here."""
    inside = tmp_path / "inside"
    inside.mkdir()
    script = (
        f"mount -t tmpfs none {inside} && cp {driver} {inside}/libcuda.so.1 && exec {sys.executable} {{}} {inside}/libcuda.so.1"
    )
    command = script.format(ROOT / "tests" / "kernel" / "cuda_program.py")
    running = run("unshare", "--mount", "sh", "-c", command)
    running.line()
    session.set_target(running.pid, wire().record("target", {"process": PROCESS}))
    told(running, "open")
    assert not (inside / "libcuda.so.1").exists()
    assert attach(files, running.pid) == 1
    told(running, "work 3 4")
    assert launches(Collected(session).more()) == {"gemm": 3, "softmax": 4}


def test_one_file_under_two_overlays_is_one_library(session, files, run, driver, tmp_path: Path) -> None:
    """Two containers of one image: each launch counts once."""
    lower, *mounted = (tmp_path / name for name in ("lower", "one", "two"))
    for folder in (lower, *mounted):
        folder.mkdir()
    (lower / "libcuda.so.1").write_bytes(driver.read_bytes())
    done = [overlay(lower, folder) for folder in mounted]
    try:
        if not all(done):
            pytest.skip("this kernel mounts no overlayfs here")
        running = [program(session, run, folder / "libcuda.so.1") for folder in mounted]
        for other in running:
            told(other, "open")
        assert [attach(files, each.pid, number) for number, each in enumerate(running, 1)] == [1, 0]
        told(running[0], "work 3 0")
        told(running[1], "work 5 0")
        collected = Collected(session).more()
        assert Counter(collected.of("calls", each.pid)["entry"].tolist()[1:-1].count(1) for each in running) == {3: 1, 5: 1}
    finally:
        for folder in mounted:
            subprocess.run(["umount", "-l", folder], check=False, capture_output=True)


def overlay(lower: Path, folder: Path) -> bool:
    """Mount `lower` at `folder` through an overlay of its own."""
    more = folder.parent / f"{folder.name}-lower"
    more.mkdir()
    options = f"lowerdir={lower}:{more}"
    return not subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, folder], check=False, capture_output=True
    ).returncode


def test_nothing_stays_when_the_last_process_is_gone(session, run, driver) -> None:
    counters = Counters()
    files = LibcudaFiles(session, wire().enum("cuda_entry"), counters)
    running = program(session, run, driver)
    told(running, "open")
    session.attach_cuda(str(driver), []).close()  # the programs are loaded at first use and stay
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        assert attach(files, running.pid) == 1
        assert counters.get(CUDA_FILES, "probed") == 1
        files.leave(PROCESS)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    told(running, "work 5 5")
    assert len(Collected(session).more().calls) == 0
