"""`otelprof check`: what this kernel and these rights allow, one line a finding.

The last finding is the proof: the programs are loaded, attached and let go again. Everything before says why it could fail.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from otelprof.cli.messages import json_result, result, table
from otelprof.ebpf.libbpf import libbpf
from otelprof.ebpf.perf_event import open_cpu_clock
from otelprof.ebpf.refusals import BTF, STATUS, in_hosts_pid_namespace, lockdown_mode, missing_capabilities
from otelprof.ebpf.session import Session, SessionSettings
from otelprof.errors import OtelprofError

_UPROBES = Path("/sys/bus/event_source/devices/uprobe/type")
_CAP_SYS_PTRACE = 19  # linux/capability.h
_PERIOD = 10_101_010  # nanoseconds, 99 Hz


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, whether it is as it should be, what was seen, what to do.

    `required`: the main job, CPU profiles of Python, can't run without it.
    """

    name: str
    ok: bool
    seen: str
    action: str = ""
    required: bool = True


def kernel() -> Finding:
    """The kernel's release; what it can do is found by trying."""
    about = os.uname()
    return Finding(
        "kernel", about.sysname == "Linux", f"{about.sysname} {about.release} {about.machine}", "use Linux 5.15 or newer"
    )


def btf() -> Finding:
    """The kernel's own types, to which our programs are fitted."""
    seen = f"{BTF} is there" if BTF.exists() else f"{BTF} is missing on kernel {os.uname().release}"
    return Finding("BTF", BTF.exists(), seen, "use a kernel with CONFIG_DEBUG_INFO_BTF=y, or mount /sys")


def capabilities() -> Finding:
    """The rights to load programs and to open performance events."""
    missing = missing_capabilities(STATUS.read_text())
    seen = f"{' and '.join(missing)} missing" if missing else "CAP_BPF and CAP_PERFMON"
    return Finding("capabilities", not missing, seen, "run as root, or give CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE")


def ptrace() -> Finding:
    """The right to look into other users' processes."""
    line = next((line for line in STATUS.read_text().splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    held = bool(int(line.split()[1], 16) >> _CAP_SYS_PTRACE & 1)
    seen = "CAP_SYS_PTRACE" if held else "CAP_SYS_PTRACE missing: only processes of this user can be read"
    return Finding("other users' processes", held, seen, "give CAP_SYS_PTRACE", required=False)


def perf_events() -> Finding:
    """The clock that samples are taken by."""
    try:
        os.close(open_cpu_clock(0, _PERIOD))
    except (OtelprofError, OSError) as error:
        return Finding("perf_event_open", False, str(error))
    return Finding("perf_event_open", True, "software cpu-clock works")


def uprobes() -> Finding:
    """What CUDA probes are made of."""
    found = _UPROBES.exists()
    seen = "the kernel has them" if found else f"{_UPROBES} is missing"
    return Finding("uprobes", found, seen, "use a kernel with CONFIG_UPROBE_EVENTS=y to see CUDA", required=False)


def library() -> Finding:
    """The library that loads the programs."""
    try:
        return Finding("libbpf", True, libbpf().version)
    except OtelprofError as error:
        return Finding("libbpf", False, str(error))


def lockdown() -> Finding:
    """Whether the kernel forbids reading memory."""
    mode = lockdown_mode()
    seen = f"mode {mode}" if mode else "the kernel has none"
    return Finding("lockdown", mode != "confidentiality", seen, "boot with lockdown=integrity")


def pid_namespace() -> Finding:
    """Whether PIDs here are the host's."""
    initial = in_hosts_pid_namespace()
    seen = "the host's" if initial else "an own one: PIDs here aren't the host's"
    return Finding("PID namespace", initial, seen, "run with hostPID: true, or docker run --pid=host")


def memlock() -> Finding:
    """The limit on locked memory, which kernels before 5.11 charged BPF maps to."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    seen = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft // 1024} kB, which newer kernels don't charge BPF to"
    return Finding("locked memory", True, seen, required=False)


def programs() -> Finding:
    """The proof: load and attach, then let go."""
    session = None
    try:
        session = Session.open(SessionSettings(node=False))
        session.attach_sampler(99)
        return Finding("BPF programs", True, "load and attach")
    except (OtelprofError, OSError) as error:
        return Finding("BPF programs", False, str(error))
    finally:
        if session is not None:
            session.close()


CHECKS: tuple[Callable[[], Finding], ...] = (
    *(kernel, btf, capabilities, ptrace, perf_events),
    *(uprobes, library, lockdown, pid_namespace, memlock),
)


def findings() -> list[Finding]:
    """All findings, in order; the proof isn't tried where something required is missing."""
    found = [check() for check in CHECKS]
    if broken(found):
        return [*found, Finding("BPF programs", False, "not tried, since what they need is missing")]
    return [*found, programs()]


def cuda_findings(cost: bool) -> list[Finding]:
    """One finding for each driver library; one that says that there is none."""
    from otelprof.cli.check_cuda import drivers  # noqa: PLC0415 - loads what the other checks don't need

    found = [
        Finding("CUDA driver", all(site.emulated for site in driver.sites), driver.seen,
                "launches cost more here: some probes are single-stepped", required=False)
        for driver in drivers(measure=cost)
    ]  # fmt: skip
    return found or [Finding("CUDA driver", True, "none in the usual places, none mapped by a process", required=False)]


def broken(found: Iterable[Finding]) -> bool:
    """True when the main job can't run."""
    return any(finding.required and not finding.ok for finding in found)


def _row(finding: Finding) -> tuple[str, str, str]:
    word = "ok" if finding.ok else "MISSING" if finding.required else "limited"
    more = f"; {finding.action}" if finding.action and not finding.ok else ""
    return word, finding.name, finding.seen + more


@click.command("check", short_help="what this kernel and these rights allow")
@click.option("--cuda", is_flag=True, help="The CUDA driver libraries of this node and where their probes go.")
@click.option("--cost", is_flag=True, help="With --cuda: measure what a probe adds to a launch, here and now.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(cuda: bool, cost: bool, as_json: bool) -> int:
    """Say what this kernel and these rights allow, one line a finding. Status 1 when Python can't be profiled here.

    \b
    Examples:
      sudo otelprof check
      otelprof check --json
      sudo otelprof check --cuda --cost
    """  # noqa: D301  click's mark for lines that stay as they are
    found = findings()
    if cuda or cost:
        found += cuda_findings(cost)
    if as_json:
        json_result([asdict(finding) for finding in found])
    else:
        result(table(_row(finding) for finding in found))
    return int(broken(found))
