"""Turns a refusal of the kernel into one line: which right or feature is missing, and what to do.

`preflight` looks before anything is loaded; `refused` reads an errno afterwards. Sources: capabilities(7), bpf(2),
perf_event_open(2), kernel_lockdown(7).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from otelprof.errors import Unsupported

CAPABILITIES = {"CAP_PERFMON": 38, "CAP_BPF": 39}
CAP_SYS_ADMIN = 21
BTF = Path("/sys/kernel/btf/vmlinux")
STATUS = Path("/proc/self/status")
LOCKDOWN = Path("/sys/kernel/security/lockdown")
PID_NAMESPACE = Path("/proc/self/ns/pid")
INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, include/linux/proc_ns.h


def missing_capabilities(status: str) -> list[str]:
    """Names of the capabilities that a process with this /proc/PID/status lacks; CAP_SYS_ADMIN stands for all."""
    line = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    held = int(line.split()[1], 16)
    if held >> CAP_SYS_ADMIN & 1:
        return []
    return [name for name, bit in sorted(CAPABILITIES.items()) if not held >> bit & 1]


def lockdown_mode(path: Path = LOCKDOWN) -> str:
    """`none`, `integrity` or `confidentiality`; empty when the kernel doesn't say."""
    try:
        text = path.read_text()
    except OSError:
        return ""
    return text.partition("[")[2].partition("]")[0]


def in_hosts_pid_namespace(path: Path = PID_NAMESPACE) -> bool:
    """True when PIDs here are the host's, which the kernel's records have; also when /proc doesn't tell."""
    try:
        return path.stat().st_ino == INITIAL_PID_NAMESPACE
    except OSError:
        return True


def preflight(status: Path = STATUS, btf: Path = BTF, lockdown: Path = LOCKDOWN) -> None:
    """Raise Unsupported when something is missing without which no program can load."""
    missing = missing_capabilities(status.read_text())
    if missing:
        raise Unsupported(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: run as root, or give the process "
            "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE"
        )
    if not in_hosts_pid_namespace():
        raise Unsupported(
            "this runs in a PID namespace of its own, where processes can't be told apart: "
            "run it with hostPID: true (Kubernetes) or --pid=host (docker)"
        )
    if not btf.exists():
        raise Unsupported(
            f"kernel {os.uname().release} has no BTF ({btf} is missing): "
            "use a kernel with CONFIG_DEBUG_INFO_BTF=y, or mount /sys"
        )
    if lockdown_mode(lockdown) == "confidentiality":
        raise Unsupported(
            "the kernel is in lockdown, mode confidentiality, which forbids BPF to read memory: boot with lockdown=integrity"
        )


def refused(call: str, error: OSError, said: str = "") -> Unsupported:
    """The error for a system call that failed; `said` is the line of libbpf's log that tells why."""
    reason = os.strerror(error.errno or errno.EIO)
    mode = lockdown_mode()
    if error.errno == errno.EPERM or (error.errno == errno.EACCES and not said):  # the verifier says EACCES too
        locked = mode not in ("", "none")
        cause = f"lockdown is in mode {mode}" if locked else "a seccomp filter or a user namespace may forbid it"
        why = f"{cause}: run as root outside of a restricted container"
    elif error.errno == errno.ENOSYS:
        why = "the kernel lacks it or a seccomp filter hides it: allow it, or run outside of the container"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        why = "too many open files: raise `ulimit -n`"
    else:
        why = said or f"kernel {os.uname().release}; the log at level debug has the kernel's words"
    return Unsupported(f"{call} was refused ({reason}): {why}")
