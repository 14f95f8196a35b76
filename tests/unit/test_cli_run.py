"""`otelprof run` and its fellows as whole processes, with components of a third party."""

import importlib.util
import json
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("fake_components", Path(__file__).parent / "fake_components.py")
fakes = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fakes)

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def config(source=None, sink=None, **telemetry):
    return json.dumps(
        {
            "receivers": {"fake_source": source or {}},
            "exporters": {"fake_sink": sink or {}},
            "service": {
                "telemetry": {"metrics": {"address": "127.0.0.1:0"}, **telemetry},
                "pipelines": {"profiles": {"receivers": ["fake_source"], "exporters": ["fake_sink"]}},
            },
        }
    )


@pytest.fixture
def env(tmp_path):
    return fakes.environment(tmp_path)


def command(env, *arguments, stdin="", **more):
    return subprocess.run(
        [*fakes.COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=60, env=env, **more
    )


class Running:
    """`otelprof run` in the background."""

    def __init__(self, env, text, *arguments):
        self.process = subprocess.Popen(
            [*fakes.COMMAND, "run", *(arguments or ("--config", "-"))],
            env=env,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.process.stdin.write(text)
        self.process.stdin.close()

    def line(self, word):
        for line in self.process.stderr:
            if word in line:
                return line.strip()
        raise AssertionError(f"no line with {word!r}")

    def end(self, number=signal.SIGTERM):
        start = time.monotonic()
        self.process.send_signal(number)
        lines = self.process.stderr.read().splitlines()
        return self.process.wait(30), time.monotonic() - start, lines

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()


def test_a_pipeline_runs_until_its_receiver_has_no_more_and_ends_with_the_summary(env):
    done = command(env, "run", "--config", "-", stdin=config({"batches": 3}))

    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert lines[0].startswith("listening on http://127.0.0.1:")
    assert lines[-1] == "samples=3 launches=0 lost=0 sent=3 unsent=0"
    assert done.stdout == ""


def test_a_signal_ends_it_cleanly_and_what_was_not_sent_is_counted(env):
    for number in (signal.SIGTERM, signal.SIGINT):
        with Running(env, config(sink={"fails": True})) as agent:
            agent.line("ready")
            status, seconds, lines = agent.end(number)
        assert status == 0
        assert seconds < 5
        assert re.fullmatch(r"samples=\d+ launches=0 lost=0 sent=0 unsent=[1-9]\d*", lines[-1])


def test_it_ends_in_time_although_a_component_hangs(env):
    with Running(env, config(sink={"hangs": True})) as agent:
        agent.line("ready")
        status, seconds, lines = agent.end()

    assert (status, seconds < 5) == (0, True)
    assert "fake_sink didn't stop in time" in lines[-2]
    assert lines[-1].startswith("samples=")


def test_the_second_signal_ends_it_at_once(env):
    with Running(env, config(sink={"hangs": True})) as agent:
        agent.line("ready")
        agent.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        status, seconds, _ = agent.end(signal.SIGINT)

    assert status == 130
    assert seconds < 2


def test_its_page_says_when_it_is_ready_and_what_it_counted(env):
    with Running(env, config()) as agent:
        url = agent.line("listening on").removeprefix("listening on ")
        agent.line("ready")
        with OPENER.open(f"{url}/readyz", timeout=10) as answer:
            assert answer.status == 200
        with OPENER.open(f"{url}/metrics", timeout=10) as answer:
            assert b"otelprof_samples_seen_total" in answer.read()
        agent.end()


@pytest.mark.parametrize(
    ("source", "line"),
    [({"refuses": True}, "CAP_BPF is missing: run as root"), ({"breaks": True}, "the ring is gone: start again")],
)
def test_what_cannot_go_on_is_one_line_and_status_1(env, source, line):
    done = command(env, "run", "--config", "-", stdin=config(source))

    assert done.returncode == 1
    assert done.stderr.splitlines().count(f"otelprof: {line}") == 1
    assert "Traceback" not in done.stderr


def test_a_bug_in_a_component_is_one_line_without_a_traceback(env):
    done = command(env, "run", "--config", "-", stdin=config({"batches": 5}, {"raises": True}))

    said = [line for line in done.stderr.splitlines() if "KeyError" in line]
    assert done.returncode == 0
    assert len(said) == 1
    assert "Traceback" not in done.stderr
    assert "\n" not in said[0]


def test_a_thread_that_dies_ends_the_agent_with_one_line(env):
    done = command(env, "run", "--config", "-", stdin=config({"dies": True}))

    said = [line for line in done.stderr.splitlines() if "IndexError" in line]
    assert done.returncode == 1
    assert len(said) == 1
    assert said[0].startswith(
        "otelprof: internal error in fake_source: IndexError: out of\ufffdrange; run again with OTELPROF_DEBUG"
    )
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_one_line(env):
    with Running(env, config()) as agent:
        address = agent.line("listening on").rpartition("//")[2]
        done = command(env, "run", "--config", "-", "--set", f"service.telemetry.metrics.address={address}", stdin=config())
        agent.end()

    assert done.returncode == 1
    assert f"can't listen on {address}" in done.stderr


def test_a_bad_configuration_is_one_line_a_mistake_and_status_1(env):
    text = config({"batches": "many"}, {"fail": True})
    for name in ("run", "validate"):
        done = command(env, name, "--config", "-", stdin=text)
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 2
        assert "receivers.fake_source.batches: a whole number is needed" in done.stderr
        assert "unknown key; did you mean fails?" in done.stderr


def test_a_good_configuration_validates(env, tmp_path):
    file = tmp_path / "Größe.yaml"
    file.write_text(config(), encoding="utf-8")
    done = command({**env, "LC_ALL": "C"}, "validate", "--config", str(file))

    assert (done.returncode, done.stderr) == (0, f"otelprof: {file}: good\n")


def test_later_files_are_laid_over_earlier_ones_and_set_over_all(env, tmp_path):
    (tmp_path / "first.yaml").write_text(config({"batches": 5}, {"fails": True}))
    (tmp_path / "second.yaml").write_text("receivers: {fake_source: {batches: 4}}\nexporters: {fake_sink: {fails: false}}\n")
    files = ["--config", f"file:{tmp_path}/first.yaml", "--config", str(tmp_path / "second.yaml")]
    done = command(env, "run", *files, "--set", "receivers.fake_source.batches=2")
    assert done.stderr.splitlines()[-1] == "samples=2 launches=0 lost=0 sent=2 unsent=0"
    variable = {**env, "MORE": "receivers: {fake_source: {batches: 3}}"}
    done = command(variable, "run", *files, "--config", "env:MORE")
    assert done.stderr.splitlines()[-1] == "samples=3 launches=0 lost=0 sent=3 unsent=0"


def test_a_mistake_names_the_file_that_it_is_in(env, tmp_path):
    (tmp_path / "first.yaml").write_text(config({"batches": 5}))
    (tmp_path / "second.yaml").write_text("exporters:\n  fake_sink:\n    fail: true\n")
    done = command(env, "validate", "--config", str(tmp_path / "first.yaml"), "--config", str(tmp_path / "second.yaml"))
    assert done.stderr == f"otelprof: {tmp_path}/second.yaml:3: exporters.fake_sink.fail: unknown key; did you mean fails?\n"


def test_hangup_goes_on_with_the_file_as_it_is_now_and_keeps_the_counters(env, tmp_path):
    file = tmp_path / "agent.yaml"
    file.write_text(config())
    with Running(env, "", "--config", str(file)) as agent:
        agent.line("ready")
        file.write_text(config({"batches": 1}, {"fails": True}))
        agent.process.send_signal(signal.SIGHUP)
        agent.line("the configuration was read again")
        lines = agent.process.stderr.read().splitlines()  # the new one ends after one batch
        assert agent.process.wait(30) == 0
    sent, unsent = re.search(r"sent=(\d+) unsent=(\d+)", lines[-1]).groups()
    assert int(sent) >= 1
    assert unsent == "1"


def test_hangup_with_a_broken_file_keeps_the_old_configuration(env, tmp_path):
    file = tmp_path / "agent.yaml"
    file.write_text(config())
    with Running(env, "", "--config", str(file)) as agent:
        agent.line("ready")
        file.write_text("receivers: [")
        agent.process.send_signal(signal.SIGHUP)
        assert "agent.yaml:1: not YAML" in agent.line("not YAML")
        agent.line("the configuration has mistakes, so the one before goes on")
        file.unlink()
        agent.process.send_signal(signal.SIGHUP)
        agent.line("can't be read")
        assert agent.process.poll() is None
        assert agent.end()[0] == 0


def test_hangup_with_a_configuration_that_can_t_start_goes_back_to_the_old_one(env, tmp_path):
    file = tmp_path / "agent.yaml"
    file.write_text(config())
    with Running(env, "", "--config", str(file)) as agent:
        agent.line("ready")
        file.write_text(config({"refuses": True}))
        agent.process.send_signal(signal.SIGHUP)
        agent.line("CAP_BPF is missing")
        agent.line("the new configuration can't run, so the one before goes on")
        agent.line("ready")
        status, _, lines = agent.end()
    assert status == 0
    assert re.fullmatch(r"samples=[1-9]\d* launches=0 lost=0 sent=[1-9]\d* unsent=0", lines[-1])


def test_components_are_listed_as_a_table_and_as_json(env):
    table, document = command(env, "components"), command(env, "components", "--json")

    assert re.search(r"^fake_sink +exporter +development +counts samples$", table.stdout, re.MULTILINE)
    assert {"type": "fake_source", "kind": "receiver", "stability": "development", "summary": "makes samples"} in json.loads(
        document.stdout
    )
    assert "component exporters.fake_gone (fake_nothing:SINK) can't be loaded" in document.stderr


def test_wrong_use_is_one_line_and_status_2(env):
    for arguments in (["run"], ["nothing"], ["run", "--config"], ["record", "--duration", "soon"], ["validate", "--bad"]):
        done = command(env, *arguments)
        assert done.returncode == 2, arguments
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stdout == ""


def test_every_command_explains_itself_with_an_example(env):
    names = re.findall(r"^  (\w[\w-]*)  ", command(env, "--help").stdout, re.MULTILINE)
    assert len(names) >= 9
    for name in names:
        done = command(env, name, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"otelprof {name}" in done.stdout.partition("Example")[2]


def test_closed_streams_do_not_break_a_command(env):
    for redirection, status in (">&-", 0), ("2>&-", 0), (">&- 2>&- <&-", 0):
        line = f'exec "$@" {redirection}'
        done = subprocess.run(
            ["sh", "-c", line, "sh", *fakes.COMMAND, "components"], env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == status
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr


def test_a_reader_that_leaves_is_no_traceback(env):
    line = '"$@" | head -c 1 >/dev/null'
    done = subprocess.run(
        ["sh", "-c", line, "sh", *fakes.COMMAND, "components"], env=env, capture_output=True, text=True, timeout=60
    )

    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_colours_are_for_terminals_and_can_be_switched_off(env):
    script = f"{' '.join(fakes.COMMAND)} run --config - <<'E'\n{config({'batches': 1}, {'raises': True})}\nE\n"
    terminal = ["script", "-qec", script, "/dev/null"]
    coloured = subprocess.run(terminal, env={**env, "TERM": "xterm"}, capture_output=True, text=True, timeout=60).stdout
    plain = subprocess.run(
        terminal, env={**env, "TERM": "xterm", "NO_COLOR": "1"}, capture_output=True, text=True, timeout=60
    ).stdout

    assert "\033[31m" in coloured
    assert "\033" not in plain
    assert "fake_sink failed" in plain
