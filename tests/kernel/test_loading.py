"""Loading: what the kernel refuses is told in one line, and nothing stays behind."""

import ctypes
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from otelprof.ebpf import loader as loading
from otelprof.ebpf.loader import Loader
from otelprof.ebpf.session import Session, SessionSettings
from otelprof.errors import Unsupported
from tests.kernel.conftest import file_offset, until

pytestmark = [pytest.mark.kernel]
BPF = Path(__file__).resolve().parents[2] / "bpf"


def compiled(folder, source):
    """A BPF object of a piece of C."""
    (folder / "piece.bpf.c").write_text(source)
    flags = ["-target", "bpf", "-mcpu=v3", "-g", "-O2", f"-I{BPF}", "-idirafter", "/usr/include"]
    subprocess.run(["clang", *flags, "-c", folder / "piece.bpf.c", "-o", folder / "piece.o"], check=True)
    return (folder / "piece.o").read_bytes()


def test_what_the_verifier_says_is_in_the_line(session, tmp_path, monkeypatch):
    """A program that follows a pointer which may be null."""
    source = (
        '#include "maps.h"\nSEC("perf_event") int bad(void *c) { u32 k = 0; struct target *t = '
        "bpf_map_lookup_elem(&targets, &k); return t->process; }\nLICENSE_OF_OBJECT;"
    )
    image = compiled(tmp_path, source)
    monkeypatch.setattr(loading, "read_object", lambda name: image)
    with pytest.raises(Unsupported) as caught:
        Loader({}).load("piece")

    line = str(caught.value)
    assert "\n" not in line
    assert "invalid mem access 'map_value_or_null'" in line


def test_objects_share_their_maps(session):
    """What one object's programs write, the others' read: there is one `targets`, by its id in the kernel."""
    session.attach_sampler(99)
    session._cuda()
    ids = [{map_id(fd) for fd in [loaded.maps["targets"]]} for loaded in session._objects.values()]

    assert len(session._objects) == 3
    assert len(set.union(*ids)) == 1


def map_id(fd):
    """The kernel's number of a map."""
    return int(re.search(r"^map_id:\s+(\d+)", Path(f"/proc/self/fdinfo/{fd}").read_text(), re.MULTILINE)[1])


@pytest.mark.parametrize(
    ("dropped", "named"),
    [
        (["bpf", "sys_admin"], ["CAP_BPF"]),
        (["perfmon", "sys_admin"], ["CAP_PERFMON"]),
        (["bpf", "perfmon", "sys_admin"], ["CAP_BPF", "CAP_PERFMON"]),
    ],
)
def test_missing_rights_are_one_line(session, dropped, named):
    code = (
        "from otelprof.ebpf.session import Session\nfrom otelprof.errors import Unsupported\n"
        "try: Session.open()\nexcept Unsupported as error: print(error)"
    )
    names = ",".join(f"-{name}" for name in dropped)
    command = ["setpriv", "--bounding-set", names, "--inh-caps", names, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert len(done.stdout.splitlines()) == 1, done.stderr
    assert re.findall(r"CAP_\w+(?= |,)", done.stdout.split(" missing")[0]) == named
    assert done.stderr == ""


def test_bpf_and_perfmon_are_enough(session):
    """No CAP_SYS_ADMIN, no CAP_SYS_RESOURCE: samples, process events and mappings all the same."""
    code = (
        "from otelprof.ebpf.session import Session\n"
        "s = Session.open(); s.attach_sampler(99); s.watch_mappings(); s._cuda(); s.drain(); s.mappings(); s.close()\n"
        "print('fine')"
    )
    command = ["setpriv", "--bounding-set", "-all,+bpf,+perfmon", "--inh-caps", "-all", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_closing_leaves_nothing(session):
    """Programs, maps and links of a session go with it."""
    session.close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    other = Session.open(SessionSettings())
    other.attach_sampler(99)
    other.watch_mappings()
    other._cuda()
    other.drain()
    other.close()
    other.close()

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_nothing_stays_when_the_loader_is_killed(session, run):
    """kill -9: no program is left, and with it no link, probe or perf event."""
    place = file_offset(os.getpid(), ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value)
    code = (
        "import time; from otelprof.ebpf.session import Session; s = Session.open(); s.attach_sampler(99); "
        f"s.attach_return(*{place}); print('[]', flush=True); time.sleep(600)"
    )
    loader = run(sys.executable, "-c", code)
    loader.line()
    held = programs_of(loader.pid)
    assert {"sample_cpu", "process_forked", "process_exited", "cuda_return"} <= set(held.values())

    os.kill(loader.pid, signal.SIGKILL)
    loader.process.wait()
    until(lambda: not set(held) & set(loaded_programs()), "the programs to go")


def loaded_programs():
    """Ids and names of all programs in the kernel."""
    listed = subprocess.run(["bpftool", "prog", "list"], capture_output=True, text=True, check=True).stdout
    return {int(number): name for number, name in re.findall(r"^(\d+): \w+  name (\w+)", listed, re.MULTILINE)}


def programs_of(pid):
    """Programs that a process holds, by the fdinfo of its descriptors."""
    ids = set()
    for fd in Path(f"/proc/{pid}/fdinfo").iterdir():
        ids |= {int(number) for number in re.findall(r"^prog_id:\s+(\d+)", fd.read_text(), re.MULTILINE)}
    return {number: name for number, name in loaded_programs().items() if number in ids}


def test_the_verifier_has_far_less_to_do_than_it_may(session):
    """The kernel allows a million instructions; a tenth leaves room for its future opinions."""
    session.attach_sampler(99)
    session._cuda()
    for name, statistics in session.statistics().items():
        print(f"{name}: {statistics.verified_instructions} instructions verified")
        assert 0 < statistics.verified_instructions < 100_000
