"""Who asked for a command: under sudo the user behind it, so that only the agent itself keeps root's rights."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Caller:
    """A user to run programs as; `uid` None means the one who runs now."""

    uid: int | None = None
    gid: int = 0
    groups: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def popen_arguments(self) -> dict[str, Any]:
        """What subprocess.Popen needs to run a program as this user."""
        env = {**os.environ, **self.environment}
        if self.uid is None:
            return {"env": env}
        return {"env": env, "user": self.uid, "group": self.gid, "extra_groups": list(self.groups)}


def caller() -> Caller:
    """The user who typed the command: SUDO_UID's when root was reached by sudo, else the one who runs now."""
    text = os.environ.get("SUDO_UID", "")
    if os.geteuid() != 0 or not text.isdecimal() or int(text) == 0:
        return Caller()
    try:
        entry = pwd.getpwuid(int(text))
    except KeyError:
        return Caller()
    return Caller(
        entry.pw_uid,
        entry.pw_gid,
        tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)),
        {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name},
    )
