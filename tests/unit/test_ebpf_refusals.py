"""Each thing that the kernel may lack is told in one line that names it."""

import errno
import os

import pytest

from otelprof.ebpf.libbpf import libbpf
from otelprof.ebpf.loader import _complaint
from otelprof.ebpf.refusals import lockdown_mode, missing_capabilities, preflight, refused
from otelprof.errors import Unsupported

ALL = (1 << 41) - 1
BPF, PERFMON, ADMIN = 1 << 39, 1 << 38, 1 << 21


def status(held):
    return f"Name:\tx\nCapInh:\t0\nCapEff:\t{held:016x}\n"


@pytest.fixture
def machine(tmp_path):
    """Files that stand for a machine on which everything is there."""
    for name, text in (("status", status(ALL)), ("btf", ""), ("lockdown", "[none] integrity confidentiality\n")):
        (tmp_path / name).write_text(text)
    return tmp_path


def refusal(machine):
    with pytest.raises(Unsupported) as caught:
        preflight(machine / "status", machine / "btf", machine / "lockdown")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_complete_machine_is_fine(machine):
    preflight(machine / "status", machine / "btf", machine / "lockdown")
    (machine / "lockdown").unlink()
    preflight(machine / "status", machine / "btf", machine / "lockdown")


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        (ALL & ~ADMIN & ~BPF, ["CAP_BPF"]),
        (ALL & ~ADMIN & ~PERFMON, ["CAP_PERFMON"]),
        (0, ["CAP_BPF", "CAP_PERFMON"]),
        (ADMIN, []),
        (BPF | PERFMON, []),
    ],
)
def test_missing_rights_are_named(machine, held, missing):
    assert missing_capabilities(status(held)) == missing
    (machine / "status").write_text(status(held))
    if missing:
        line = refusal(machine)
        assert line.startswith(" and ".join(missing) + " ")


def test_a_kernel_without_btf_is_named_by_its_release(machine):
    (machine / "btf").unlink()
    line = refusal(machine)

    assert "BTF" in line
    assert os.uname().release in line


def test_a_locked_kernel_is_named_by_its_mode(machine):
    (machine / "lockdown").write_text("none integrity [confidentiality]\n")
    assert "confidentiality" in refusal(machine)
    assert lockdown_mode(machine / "lockdown") == "confidentiality"
    assert lockdown_mode(machine / "nowhere") == ""


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EPERM, "seccomp"),
        (errno.ENOSYS, "seccomp"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EINVAL, "the verifier's words"),
        (errno.EACCES, "the verifier's words"),
    ],
)
def test_a_refused_system_call_is_named(number, words):
    line = str(refused("perf_event_open", OSError(number, "x"), "the verifier's words"))

    assert line.startswith("perf_event_open was refused")
    assert words in line
    assert "\n" not in line


def test_the_verifiers_own_words_are_found_in_the_log():
    libbpf().log.clear()
    libbpf().log.extend(
        [
            "libbpf: prog 'x': BPF program load failed: Permission denied",
            "libbpf: prog 'x': -- BEGIN PROG LOAD LOG --",
            "0: (b7) r1 = 0",
            "R0 !read_ok",
            "processed 3 insns (limit 1000000)",
            "-- END PROG LOAD LOG --",
            "libbpf: failed to load object 'x'",
        ]
    )

    assert _complaint() == "R0 !read_ok"
