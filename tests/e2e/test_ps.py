"""`otelprof ps`: what can be profiled, and why not."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to look into processes"),
]


def ps(*options):
    return subprocess.run([sys.executable, "-m", "otelprof", "ps", *options], capture_output=True, text=True, timeout=60)


@pytest.fixture
def programs():
    """A Python with a name of its own and a program without Python, both waiting for their input."""
    code = "print('ready', flush=True); input()"
    env = {**os.environ, "OTEL_SERVICE_NAME": "shop\x1b[31m"}
    python = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    other = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert python.stdout.readline() == b"ready\n"
    yield python.pid, other.pid
    for process in (python, other):
        process.kill()
        process.wait()
        process.stdin.close()
    python.stdout.close()


def test_json_has_every_process_with_what_is_seen_of_it(programs):
    python, other = programs
    done = ps("--json")
    rows = {row["pid"]: row for row in json.loads(done.stdout)}

    assert done.returncode == 0, done.stderr
    assert list(rows[python]) == ["pid", "service", "version", "build", "frames", "tier", "reason", "action"]
    assert rows[python]["frames"] == "python"
    assert rows[python]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert rows[python]["reason"] == ""
    assert (rows[other]["service"], rows[other]["frames"]) == ("cat", "native")


def test_the_table_shows_python_and_no_control_character_of_a_name(programs):
    python, other = programs
    shown = ps().stdout
    lines = {line.split()[0]: line for line in shown.splitlines()}

    assert "shop\N{REPLACEMENT CHARACTER}[31m" in lines[str(python)]
    assert "\x1b" not in shown
    assert str(other) not in lines
    assert str(other) in {line.split()[0] for line in ps("--all").stdout.splitlines()}
