"""`otelprof query` against a running backend: what a user reads, what a script reads, and what is said when it can't be."""

import json
import os
import pty
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.backend_program import PROTOBUF, TRACES, Backend
from tests.e2e.programs import free_port, otelprof
from tests.unit.otlp_requests import CPU, PERIOD, Builder
from tests.unit.test_backend_traces import FIRST, requests, samples

pytestmark = pytest.mark.e2e
NOW = int(time.time())


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """A backend with requests of `web`, and `shop` with other work now than twenty minutes ago."""
    with Backend(tmp_path_factory.mktemp("query"), store="memory") as program:
        program.send(samples())
        program.post(TRACES, requests(), content_type=PROTOBUF)
        for second, stacks in (
            (NOW - 1200, {"main;work": 9, "main;idle": 1}),
            (NOW - 60, {"main;work": 5, "main;\x1b[31mevil": 5}),
        ):
            builder = Builder("shop", start=second * 10**9)
            for stack, count in stacks.items():
                builder.sample(*stack.split(";"), values=(count,))
            program.send(builder.data())
        yield program


def query(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command, its output in a pipe."""
    command = [otelprof(), "query", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment})


def lines(backend: Backend, *arguments: str) -> list[list[str]]:
    """The words of each line of a command that has to succeed."""
    done = query(*arguments, "--url", backend.url)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    return [line.split() for line in done.stdout.splitlines()]


def test_the_table_of_functions(backend: Backend) -> None:
    found = lines(backend, "top", "-q", "shop", "--from", "now-10m")
    assert found[0] == ["self", "total", "function"]
    assert ["50.5", "ms", "50.0%", "50.5", "ms", "50.0%", "work", "app.py:1"] in [
        [word.replace("50.51", "50.5") for word in line] for line in found
    ]
    assert lines(backend, "top", "-q", "shop", "--order", "total", "-n", "1")[1][-2:] == ["main", "app.py:1"]


def test_the_call_tree_is_indented_and_thin_calls_are_left_out(backend: Backend) -> None:
    found = lines(backend, "flame", "-q", "shop", "--min-share", "20")
    assert [line[3:] for line in found] == [
        ["total"],
        ["│", "main", "app.py:1"],
        ["│", "│", "\ufffd[31mevil", "app.py:1"],
        ["│", "│", "work", "app.py:1"],
    ]
    assert [line[0] for line in found] == ["100.0%", "100.0%", "25.0%", "70.0%"]


def test_what_changed_stands_first(backend: Backend) -> None:
    found = lines(backend, "diff", "-q", "shop", "--from", "now-10m", "--before-from", "now-30m", "--before-until", "now-15m")
    assert found[2] == ["+50.0", "0.0%", "50.0%", "\ufffd[31mevil", "app.py:1"]
    assert found[3] == ["-40.0", "90.0%", "50.0%", "work", "app.py:1"]


def test_lines_over_time_by_label(backend: Backend) -> None:
    found = lines(backend, "series", "-g", "service_name")
    assert [line[-1] for line in found[1:3]] == ["service_name=shop", "service_name=web"]
    assert set(found[1][2]) - {"▁"}


def test_requests_and_the_spans_of_one(backend: Backend) -> None:
    found = lines(backend, "traces", "--order", "launches", "-n", "1")
    assert found[1][0] == FIRST.hex()
    assert found[1][-4:] == ["7", "web", "GET", "/"]
    tree = lines(backend, "traces", FIRST.hex())
    assert [line[-1] for line in tree] == ["span", "/", "SELECT", "gemm"]
    assert tree[2][-2] == "│"


def test_json_is_what_the_backend_answers(backend: Backend) -> None:
    for name in ("top", "flame", "diff", "series", "traces"):
        done = query(name, "--url", backend.url, "--json", "-t", CPU)
        assert isinstance(json.loads(done.stdout), dict), done.stderr
    assert json.loads(query("top", "--url", backend.url, "--json", "-q", "shop").stdout)["total"] == 20 * PERIOD


def test_colours_are_for_terminals(backend: Backend) -> None:
    master, slave = pty.openpty()
    environment = {name: text for name, text in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    command = [otelprof(), "query", "top", "--url", backend.url, "-q", "web"]
    subprocess.run(command, stdout=slave, env=environment, check=True, timeout=60)
    os.close(slave)
    shown = os.read(master, 65_536).decode()
    os.close(master)
    assert "\x1b[33mhandle\x1b[0m" in shown


def test_without_samples_it_says_which_there_are(backend: Backend) -> None:
    done = query("top", "--url", backend.url, "-q", "nobody")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no samples between" in done.stderr
    assert "cpu: last data" in done.stderr


REFUSALS = [
    (("top", "-t", "gpu_idle"), 1, "this backend has samples of: cpu, gpu_kernel_launches"),
    (("top", "-q", "{a="), 1, "the backend refused with 400"),
    (("top", "--from", "yesterday"), 2, "a time is `now`"),
    (("top", "--from", "now", "--until", "now-1h"), 2, "--from is after --until"),
    (("traces", "12"), 1, "32 hex digits"),
]


@pytest.mark.parametrize(("arguments", "status", "words"), REFUSALS)
def test_what_can_not_be_answered_is_one_line(backend: Backend, arguments: tuple[str, ...], status: int, words: str) -> None:
    done = query(*arguments, OTELPROF_URL=backend.url)
    assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
    assert words in done.stderr


def test_no_backend_is_one_line_that_says_what_to_do() -> None:
    done = query("top", "--url", f"127.0.0.1:{free_port()}")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "Connection refused" in done.stderr
    assert "--url" in done.stderr


def test_a_token_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# ours\nsecret\n")
    with Backend(tmp_path, "--token-file", str(tmp_path / "tokens"), store="memory") as program:
        assert "--token-file" in query("traces", "--url", program.url).stderr
        assert query("traces", "--url", program.url, "--token-file", str(tmp_path / "tokens")).returncode == 0
        assert query("traces", "--url", program.url, OTELPROF_TOKEN="secret").returncode == 0


@pytest.mark.parametrize("name", ["top", "flame", "diff", "series", "traces"])
def test_help_has_examples(name: str) -> None:
    done = query(name, "--help")
    assert done.returncode == 0
    assert f"otelprof query {name}" in done.stdout
