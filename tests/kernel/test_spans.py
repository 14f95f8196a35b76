"""The current span on samples of live programs, against the programs' own log of when they were in which."""

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from otelprof.ebpf.layout import wire
from otelprof.processes.memory import Memory
from otelprof.targets.opentelemetry import SpanFinder
from tests.kernel.conftest import Collected, until
from tests.unit.opentelemetry_sdk import RELEASES, environment, interpreters
from tests.unit.python_programs import recognise

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(240)]
PROGRAM = str(Path(__file__).parents[1] / "unit" / "span_program.py")
SCENARIOS = (
    "nested", "tasks", "threads", "executor", "remote", "unsampled", "60 variables", "10000 variables", "baggage", "unfolded",
)  # fmt: skip
PROCESS = 3


def recent():
    """The interpreter of the releases' table."""
    return next(one for one in interpreters() if one.version[:2] == sys.version_info[:2])


def one_of_each():
    """One interpreter of each version, free-threaded ones besides; the smoothest to start first."""
    found = {}
    for one in sorted(interpreters(), key=lambda one: bool(one.root)):
        found.setdefault((one.version[1], one.path.endswith("t"), "t/" in one.path), one)
    return list(found.values())


def started(run, interpreter, release="", beside=""):
    """The program, with everything imported; programs in another root are read from standard input."""
    command = [*interpreter.command, "-c", Path(PROGRAM).read_text()]
    running = run(*command, env=environment(interpreter, release, beside))
    assert running.line() == "ready"
    return running


def watched(session, pid):
    """Have the kernel read the spans of a running program; its layouts."""
    target, memory = recognise(pid), Memory(pid)
    finder = SpanFinder(memory, target.cpython, target.runtime)
    layouts = finder.look()
    for layout in layouts:
        key = 0 if layout.interpreter == finder.main else layout.interpreter
        session.set_spans(pid, key, layout.to_record(wire().dtype("span_layout")))
    record = wire().record("target", {"process": PROCESS, "flags": wire()["TARGET_PYTHON"] | wire()["TARGET_SPANS"]})
    record["python"] = target.layout.to_record(wire().dtype("python_layout"))
    session.set_target(pid, record)
    return layouts


@dataclass
class Judged:
    """Samples inside logged intervals: with the right span, with none where there was one, with another one."""

    right: int = 0
    missing: int = 0
    wrong: int = 0

    def good(self, least):
        """Whether enough were right, 99 % at least, and none wrong."""
        return self.right >= least and not self.wrong and self.missing <= 0.01 * (self.right + self.missing)


def judged(samples, log):
    """Hold the samples of one process against its log."""
    result = Judged()
    rows = sorted(map(tuple, log), key=lambda row: row[1])
    for thread in {row[0] for row in rows}:
        own = [row for row in rows if row[0] == thread]
        begins = np.array([row[1] for row in own])
        for origin in samples["origin"][samples["origin"]["tid"] == thread]:
            number = int(np.searchsorted(begins, origin["time"], "right")) - 1
            if number < 0 or origin["time"] >= own[number][2]:
                continue
            found = (origin["trace_id"].tobytes() + origin["span_id"].tobytes()).hex().replace("0" * 48, "")
            expected = own[number][3]
            result.right += found == expected
            result.missing += bool(expected) and not found
            result.wrong += bool(found) and found != expected
    return result


def done(session, running, scenario, seconds=0.4, enough=20):
    """Run a scenario as often as it takes to have some samples right, however busy the machine is; its verdict."""
    total, collected = Judged(), Collected(session)
    for _ in range(20):
        running.say(f"{scenario} {seconds}")
        log = running.line()
        verdict = judged(collected.more().of("samples", running.pid), log)
        total = Judged(total.right + verdict.right, total.missing + verdict.missing, total.wrong + verdict.wrong)
        if total.right >= enough or total.wrong:
            break
    return total, collected


@pytest.mark.parametrize("interpreter", one_of_each(), ids=str)
def test_each_sample_carries_the_span_that_it_was_taken_in(session, run, interpreter):
    running = started(run, interpreter)
    assert len(watched(session, running.pid)) == 1
    session.attach_sampler(997)
    verdicts = {scenario: done(session, running, scenario)[0] for scenario in SCENARIOS}

    assert {scenario: verdict for scenario, verdict in verdicts.items() if not verdict.good(20)} == {}


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_of_the_sdk_is_read(session, run, release):
    running = started(run, recent(), release)
    watched(session, running.pid)
    session.attach_sampler(997)
    verdicts = {scenario: done(session, running, scenario)[0] for scenario in ("nested", "tasks", "remote")}

    assert {scenario: verdict for scenario, verdict in verdicts.items() if not verdict.good(20)} == {}


@pytest.mark.parametrize("scenario", ["1 request", "50 requests", "500 requests"])
def test_requests_are_told_apart_however_many_run_at_a_time(session, run, scenario):
    running = started(run, recent())
    watched(session, running.pid)
    session.attach_sampler(997)
    verdict, _ = done(session, running, scenario, seconds=1, enough=100)

    assert verdict.good(100), verdict


def test_greenlets_have_their_own_spans(session, run):
    running = started(run, recent(), beside="gevent")
    watched(session, running.pid)
    session.attach_sampler(997)
    verdict, _ = done(session, running, "greenlets")

    assert verdict.good(20), verdict


def test_a_process_without_spans_has_no_links_and_nothing_is_counted_as_lost(session, run):
    running = started(run, recent())
    watched(session, running.pid)
    session.attach_sampler(997)
    verdict, collected = done(session, running, "none")

    assert verdict.right >= 20
    assert not collected.samples["origin"]["span_id"].any()
    assert collected.last.counts["COUNT_SPANS_LOST"] == 0


INNER = """
import json, time
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
with trace.get_tracer("inner").start_as_current_span("inner") as span:
    ids = span.get_span_context()
    end = time.monotonic() + 0.3
    while time.monotonic() < end: pass
print(json.dumps(f"{ids.trace_id:032x}{ids.span_id:016x}"), flush=True)
"""
OUTER = """
import json, sys
from opentelemetry import trace
import opentelemetry.sdk.trace
MODULE as interpreters
try: number = interpreters.create("legacy")
except TypeError: number = interpreters.create(isolated=False)
interpreters.run_string(number, "import opentelemetry.sdk.trace")
print(json.dumps("ready"), flush=True)
sys.stdin.readline()
interpreters.run_string(number, sys.argv[1])
"""
SUB_INTERPRETERS = {12: "import _xxsubinterpreters", 13: "import _interpreters"}


@pytest.mark.parametrize("one", [one for one in interpreters() if one.version[1] in SUB_INTERPRETERS], ids=str)
def test_spans_in_a_sub_interpreter_are_its_own(session, run, one):
    code = OUTER.replace("MODULE", SUB_INTERPRETERS[one.version[1]])
    running = run(*one.command, "-c", code, INNER, env=environment(one))
    assert running.line() == "ready"
    assert len(watched(session, running.pid)) == 2
    session.attach_sampler(997)
    collected = Collected(session)
    running.say()
    expected = running.line()
    found = collected.more().of("samples", running.pid)["origin"]
    seen = Counter((origin["trace_id"].tobytes() + origin["span_id"].tobytes()).hex() for origin in found)

    assert seen.pop(expected) > 5
    assert set(seen) <= {"0" * 48}  # while it imports


def test_a_class_of_spans_that_nobody_knows_is_told_and_read_from_then_on(session, run):
    running = started(run, recent())
    (layout,) = watched(session, running.pid)
    session.attach_sampler(997)
    verdict, collected = done(session, running, "subclass")
    assert verdict.wrong == 0
    assert collected.last.counts["COUNT_SPANS_LOST"] > 0

    unknown = int(session.spans(running.pid)["unknown_type"])
    target, memory = recognise(running.pid), Memory(running.pid)
    more = SpanFinder(memory, target.cpython, target.runtime).add_type(layout, unknown)
    assert more is not None
    assert more.types[-1].type == unknown


def test_a_child_that_is_forked_inside_a_span_is_in_it_at_once(session, run):
    running = started(run, recent())
    watched(session, running.pid)
    record = session.target(running.pid)
    record["flags"] |= wire()["TARGET_FOLLOW"]
    session.set_target(running.pid, record)
    session.attach_sampler(997)
    collected = Collected(session)
    running.say("forked 0.7")
    child, log = running.line()
    running.line()
    samples = collected.more().of("samples", child)

    assert judged(samples, log).good(10), judged(samples, log)
    assert set(samples["origin"]["process"]) == {wire()["INCARNATION_FORKED"]}
    until(lambda: session.spans(child) is None, "the kernel to let go of the child")


def test_exec_forgets_how_spans_were_read(session, run):
    running = started(run, recent())
    watched(session, running.pid)
    assert session.spans(running.pid) is not None
    running.end()
    until(lambda: session.spans(running.pid) is None, "the kernel to let go")


def test_driver_calls_carry_the_span_too(session, run):
    """The same record head: here only that the layouts of both programs agree."""
    origin = wire().dtype("cuda_call").fields["origin"][0]
    assert origin == wire().dtype("sample").fields["origin"][0]
    assert Counter(origin.names)["trace_id"] == 1
