"""Child processes that a command supervises: their lines are passed on, and they end when the supervisor does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO

from otelprof.cli.caller import Caller
from otelprof.errors import OtelprofError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LINE_LIMIT = 1 << 16
_LIBC = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """In the child, before exec: SIGTERM when the supervisor dies, however it does."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class ChildProcess:
    """One program in a process group of its own (Ctrl-C reaches the supervisor alone); call from the main thread.

    `on_line` gets each line of its standard error, on a thread of its own, and returns what to pass on (None: nothing).
    """

    def __init__(self, name: str, argv: Sequence[str], user: Caller, on_line: Callable[[str], str | None]) -> None:
        self.name, self._argv, self._user, self._on_line = name, list(argv), user, on_line
        self._process: subprocess.Popen[bytes] | None = None
        self._relay: threading.Thread | None = None

    def start(self, fed: bool = False, pass_fds: Sequence[int] = ()) -> None:
        """Start it; `fed` means that `feed` says later what it reads on standard input."""
        try:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                process_group=0,
                pass_fds=tuple(pass_fds),
                preexec_fn=_end_with_parent,  # noqa: PLW1509  prctl alone is safe between fork and exec
                **self._user.popen_arguments(),
            )
        except PermissionError:
            who = f"user {self._user.uid}" if self._user.uid is not None else "this user"
            raise OtelprofError(f"{who} may not run {self._argv[0]}: install otelprof where that is allowed") from None
        if self._process.stderr is not None:
            self._relay = threading.Thread(target=self._pass_on, args=(self._process.stderr,), daemon=True)
            self._relay.start()

    def feed(self, data: bytes) -> None:
        """Give it all of its standard input."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:  # it may have ended: its status tells
                stdin.write(data)

    @property
    def status(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self._process.poll() if self._process is not None else None

    @property
    def pid(self) -> int:
        """Its process id; 0 before it started."""
        return self._process.pid if self._process is not None else 0

    def signal(self, number: int) -> None:
        """Send a signal if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self, until: float) -> bool:
        """Wait for its end until a time of CLOCK_MONOTONIC seconds; false when it still runs."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        if self._relay is not None:
            self._relay.join(max(0.1, until - time.monotonic()))
        return True

    def end(self, until: float) -> None:
        """Wait for its end after a signal; at `until` it and its group are killed."""
        if not self.wait(until) and self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self.wait(time.monotonic() + 1)

    def _pass_on(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(_LINE_LIMIT):
                passed = self._on_line(line.decode(errors="replace").rstrip("\n"))
                if passed is not None:
                    sys.stderr.write(passed + "\n")
                    sys.stderr.flush()
