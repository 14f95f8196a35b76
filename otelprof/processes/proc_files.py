"""Files of /proc/PID: bounded reads, and what to tell a user when one can't be read."""

from __future__ import annotations

import errno

from otelprof.errors import TargetError


def advice(error: OSError) -> str:
    """What to do about a file of a process that the kernel refused."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return "run as root or with CAP_SYS_PTRACE"
    return "it has ended"


def read_file(pid: int, name: str, limit: int) -> bytes:
    """The first `limit` bytes of /proc/`pid`/`name`; TargetError when it can't be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            parts: list[bytes] = []
            left = limit
            while left > 0 and (part := file.read(min(left, 1 << 16))):
                parts.append(part)
                left -= len(part)
            return b"".join(parts)
    except OSError as error:
        raise TargetError(f"process {pid}: {name} can't be read ({error.strerror}); {advice(error)}") from None
