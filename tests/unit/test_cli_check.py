"""`otelprof check`: what is missing is named, and the exit status says whether the main job can run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from otelprof.cli import check

COMMAND = [sys.executable, "-m", "otelprof", "check"]


def run(*arguments, wrap=()):
    return subprocess.run([*wrap, *COMMAND, *arguments], capture_output=True, text=True, timeout=60)


def test_each_finding_is_one_line_and_one_json_object():
    plain, document = run(), run("--json")
    found = json.loads(document.stdout)

    assert plain.returncode == document.returncode == int(any(one["required"] and not one["ok"] for one in found))
    assert len(plain.stdout.splitlines()) == len(found)
    assert [one["name"] for one in found][:3] == ["kernel", "BTF", "capabilities"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv to give rights away")
def test_missing_rights_are_named_and_the_status_is_1():
    done = run(wrap=["setpriv", "--bounding-set", "-bpf,-sys_admin", "--inh-caps", "-bpf,-sys_admin"])

    assert done.returncode == 1
    assert "CAP_BPF missing" in done.stdout
    assert "CAP_PERFMON missing" not in done.stdout
    assert done.stdout.splitlines()[-1].endswith("not tried, since what they need is missing")


def test_a_kernel_that_is_locked_down_is_told_on_one_line(monkeypatch):
    monkeypatch.setattr(check, "lockdown_mode", lambda: "confidentiality")
    found = check.findings()

    assert [one.name for one in found if "confidentiality" in one.seen] == ["lockdown"]
    assert check.broken(found)


def test_a_kernel_without_types_names_btf_and_its_release(monkeypatch):
    monkeypatch.setattr(check, "BTF", Path("/nowhere/vmlinux"))
    found = check.btf()

    assert not found.ok
    assert os.uname().release in found.seen


def test_what_is_only_limited_does_not_break_the_main_job(monkeypatch):
    monkeypatch.setattr(check, "_UPROBES", Path("/nowhere/type"))

    assert not check.uprobes().ok
    assert not check.broken([check.uprobes()])
