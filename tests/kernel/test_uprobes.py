"""Many uprobes in one link, or one event each on older kernels: the same records either way."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from otelprof.ebpf.layout import wire
from otelprof.ebpf.uprobes import can_attach_many
from otelprof.errors import TargetError
from otelprof.symbols.elf import Elf, FileSource
from otelprof.targets.cuda import probe_sites
from tests.kernel.conftest import Collected

pytestmark = [pytest.mark.kernel]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver with 23 entry points."""
    spec = importlib.util.spec_from_file_location("build_standin", ROOT / "native" / "standin" / "build_standin.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_standin(tmp_path_factory.mktemp("driver"))


@pytest.fixture(params=["many", "single"])
def way(request, monkeypatch) -> str:
    """Both ways of attaching; what an older kernel can't do is told to be missing."""
    if request.param == "many" and not can_attach_many():
        pytest.skip("this kernel has no links of many uprobes (6.6 and newer have)")
    for module in ("session", "cuda_probes"):
        monkeypatch.setattr(f"otelprof.ebpf.{module}.can_attach_many", lambda: request.param == "many")
    return request.param


def entries(driver: Path) -> list[tuple[int, int]]:
    elf = Elf(FileSource(os.open(driver, os.O_RDONLY)))
    return [(site.offset, wire()[site.entry]) for site in probe_sites(elf)]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_every_entry_point_is_met_and_nothing_stays(way, session, run, driver) -> None:
    running = run(sys.executable, str(ROOT / "tests" / "kernel" / "cuda_program.py"), str(driver))
    running.line()
    session.set_target(running.pid, wire().record("target", {"process": 5}))
    session.attach_cuda(str(driver), []).close()  # the programs are loaded at first use and stay
    before = descriptors()
    probes = session.attach_cuda(str(driver), entries(driver))
    assert descriptors() > before
    for command in ("open", "work 30 20"):
        running.say(command)
        running.line()
    calls = Collected(session).more().calls
    found = {name: int((calls["entry"] == wire()[name]).sum()) for name in ("CUDA_LAUNCH_KERNEL", "CUDA_STREAM_SYNCHRONIZE")}
    assert found == {"CUDA_LAUNCH_KERNEL": 50, "CUDA_STREAM_SYNCHRONIZE": 1}
    site = session.attach_return(str(driver), entries(driver)[0][0])
    for open_probes in (site, probes, probes):
        open_probes.close()
    assert descriptors() == before


def test_a_file_that_is_gone_leaves_no_probe(way, session, driver, tmp_path) -> None:
    session.attach_cuda(str(driver), []).close()
    before = descriptors()
    with pytest.raises(TargetError, match="the process may have ended"):
        session.attach_cuda(str(tmp_path / "gone"), entries(driver))
    with pytest.raises(TargetError, match="the process may have ended"):
        session.attach_return(str(tmp_path / "gone"), 64)
    assert descriptors() == before
