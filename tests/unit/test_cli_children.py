"""Child processes: who they run as, what is passed on, how they end."""

import os
import pwd
import signal
import time

import pytest

from otelprof.cli.caller import Caller, caller
from otelprof.cli.children import ChildProcess
from otelprof.errors import OtelprofError

NOBODY = pwd.getpwnam("nobody")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


def child(script, user=None, **how):
    lines = []
    made = ChildProcess("child", ["/bin/sh", "-c", script], user or Caller(), lines.append)
    made.start(**how)
    return made, lines


def test_its_lines_are_handed_over_and_its_end_is_waited_for():
    made, lines = child("read x; echo one $x >&2; printf two >&2; exit 3", fed=True)
    made.feed(b"fed\n")

    assert made.wait(time.monotonic() + 10)
    assert (made.status, lines) == (3, ["one fed", "two"])


def test_what_ignores_a_signal_is_killed_with_its_group():
    made, lines = child("trap '' TERM; echo up >&2; sleep 100")
    while not lines:
        time.sleep(0.01)
    made.signal(signal.SIGTERM)
    made.end(time.monotonic() + 0.2)

    assert made.status == -signal.SIGKILL


def test_feeding_one_that_has_ended_is_no_error():
    made, _ = child("exec 0<&-; exit 0", fed=True)
    made.wait(time.monotonic() + 10)
    made.feed(b"x" * 1_000_000)


@as_root
def test_under_sudo_a_child_is_the_user_who_typed_the_command(monkeypatch):
    monkeypatch.setenv("SUDO_UID", str(NOBODY.pw_uid))
    made, lines = child("id -u >&2; id -G >&2; echo $HOME $USER >&2", caller())

    assert made.wait(time.monotonic() + 10)
    assert lines == [str(NOBODY.pw_uid), str(NOBODY.pw_gid), f"{NOBODY.pw_dir} nobody"]


@pytest.mark.parametrize("value", ["", "0", "-1", "root", "4294967294"])
def test_without_a_user_behind_sudo_nothing_changes(monkeypatch, value):
    monkeypatch.setenv("SUDO_UID", value)

    assert caller() == Caller()


@as_root
def test_a_program_that_the_user_may_not_run_is_one_line(tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    made = ChildProcess("child", [str(program)], Caller(NOBODY.pw_uid, NOBODY.pw_gid), lambda line: None)

    with pytest.raises(OtelprofError, match=f"user {NOBODY.pw_uid} may not run .*program"):
        made.start()
