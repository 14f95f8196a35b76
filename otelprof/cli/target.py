"""The command of `record -- CMD`: it waits before its first instruction until the recording has begun.

A shell stops itself and then becomes the command (`exec`), so nothing of it is missed and its PID is known beforehand. It
runs as the caller, not with the rights of the agent.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence

from otelprof.cli.caller import caller
from otelprof.errors import OtelprofError

_GATE = 'kill -STOP $$; exec "$@"'
_PATIENCE = 2.0  # seconds that the command has for its end after SIGTERM


class TargetCommand:
    """The command; `keep_stdout`: standard output belongs to the result, so the command writes to standard error."""

    def __init__(self, argv: Sequence[str], keep_stdout: bool) -> None:
        if shutil.which(argv[0]) is None:
            raise OtelprofError(f"{argv[0]}: no such command; name a program after --")
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _GATE, "sh", *argv], stdout=2 if keep_stdout else None, **caller().popen_arguments()
        )
        os.waitpid(self._process.pid, os.WUNTRACED)  # it has stopped itself
        self._reaper = threading.Thread(target=self._process.wait, name="reaper", daemon=True)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.returncode

    def go(self) -> None:
        """Let it run."""
        self._process.send_signal(signal.SIGCONT)
        self._reaper.start()

    def end(self) -> None:
        """Ask it to end when it still runs; it isn't killed."""
        if not self._reaper.is_alive() and self._process.returncode is None:  # it never began
            self._process.kill()
            self._process.wait()
        elif self._process.returncode is None:
            self._process.terminate()
            self._reaper.join(_PATIENCE)
