"""How many file descriptors probes may still take: a part of them stays free for everything else that opens files."""

from __future__ import annotations

import os
import resource

_RESERVE = 4  # the fourth part of the limit stays free
_LEAST_RESERVE = 32


def free_descriptors() -> int:
    """Descriptors that this process may open beyond its reserve; negative when it has begun to use that."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are all that is wanted
    return soft - used - max(soft // _RESERVE, _LEAST_RESERVE)
