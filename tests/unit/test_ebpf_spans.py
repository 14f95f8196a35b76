"""When processes are looked at for OpenTelemetry, and what the kernel is told: on live processes, with a made-up kernel."""

import os
import sys

import numpy as np
import pytest

from otelprof.counters import SPAN_PROCESSES, SPANS_READ, SPANS_UNREADABLE, Counters
from otelprof.ebpf.layout import wire
from otelprof.processes.identity import Facts, Identity
from otelprof.processes.table import Process
from otelprof.receivers.ebpf import spans as module
from otelprof.receivers.ebpf.spans import SOURCE, Spans, SpanSource, span_flag
from tests.unit.python_programs import Interpreter, recognise, running, said

HERE = Interpreter(sys.executable, sys.version_info[:3])
CODE = """
import json, sys
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    exec(json.loads(line), globals())
    print(json.dumps("done"), flush=True)
"""
IMPORT = '"import opentelemetry.sdk.trace"'
OTHER = '"from opentelemetry import context; context._RUNTIME_CONTEXT = type(\\"Own\\", (), {})()"'


class Kernel:
    """The maps, as a session gives them."""

    def __init__(self):
        self.layouts, self.targets = {}, {}

    def set_spans(self, pid, interpreter, layout):
        self.layouts[pid, interpreter] = layout

    def spans(self, pid, interpreter=0):
        return self.layouts.get((pid, interpreter))

    def drop_spans(self, pid, interpreter=0):
        return self.layouts.pop((pid, interpreter), None) is not None

    def target(self, pid):
        return self.targets.get(pid)

    def set_target(self, pid, record):
        self.targets[pid] = record


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def kernel():
    return Kernel()


@pytest.fixture
def counters():
    return Counters()


@pytest.fixture
def spans(kernel, counters, clock):
    return Spans(kernel, counters)


@pytest.fixture
def child():
    with running(HERE, CODE) as process:
        assert said(process) == "ready"
        yield process


def does(child, line):
    child.stdin.write(line + "\n")
    child.stdin.flush()
    assert said(child) == "done"


def process(pid, incarnation=5):
    return Process(incarnation, Identity(pid, 1, 0), 0, Facts(pid, service="shop"))


def met(spans, kernel, pid, incarnation=5, parent=None):
    one = process(pid, incarnation)
    kernel.targets[pid] = wire().record("target", {"process": incarnation, "flags": wire()["TARGET_PYTHON"]})
    spans.found(one, recognise(pid), parent)
    return one


def test_a_late_import_is_found_at_one_of_the_next_looks(spans, kernel, child, clock, counters):
    one = met(spans, kernel, child.pid)
    for _ in range(20):
        spans.look()
        clock[0] += module.WAITING
    assert kernel.layouts == {}
    assert span_flag(one) == 0
    does(child, IMPORT)
    spans.look()

    assert list(kernel.layouts) == [(child.pid, 0)]
    assert kernel.targets[child.pid]["flags"] == wire()["TARGET_PYTHON"] | wire()["TARGET_SPANS"]
    assert span_flag(one) == wire()["TARGET_SPANS"]
    assert counters.get(SPAN_PROCESSES, SOURCE) == 1
    spans.leave([one])
    assert counters.get(SPAN_PROCESSES, SOURCE) == 0


def test_a_process_that_runs_another_program_by_now_is_left_alone(spans, kernel, child):
    does(child, IMPORT)
    met(spans, kernel, child.pid)
    kernel.targets[child.pid]["process"] = 77
    spans.look()

    assert kernel.layouts == {}
    assert not kernel.targets[child.pid]["flags"] & wire()["TARGET_SPANS"]


def test_a_forked_child_that_the_kernel_told_nothing_of_is_told_later(spans, kernel, child, clock):
    does(child, IMPORT)
    parent = met(spans, kernel, child.pid)
    spans.look()
    with running(HERE, CODE) as other:
        assert said(other) == "ready"
        target = recognise(child.pid)
        forked = process(other.pid, wire()["INCARNATION_FORKED"] | 1)
        kernel.targets[other.pid] = wire().record("target", {"process": forked.incarnation, "flags": wire()["TARGET_PYTHON"]})
        spans.found(forked, target, parent)
        clock[0] += module.SETTLED
        spans.look()

    assert kernel.layouts[other.pid, 0] == kernel.layouts[child.pid, 0]
    assert kernel.targets[other.pid]["flags"] & wire()["TARGET_SPANS"]


def test_another_runtime_context_is_said_once_and_not_looked_at_again(spans, kernel, child, clock, caplog):
    does(child, IMPORT)
    does(child, OTHER)
    met(spans, kernel, child.pid)
    for _ in range(5):
        spans.look()
        clock[0] += module.SETTLED
    lines = [record.message for record in caplog.records]

    assert len(lines) == 1
    assert lines[0].startswith("shop: no spans are read: its runtime context of OpenTelemetry is Own")
    assert kernel.layouts == {}


def test_the_layouts_of_other_interpreters_go_with_the_process(kernel):
    for interpreter in (0, 0x1000, 0x2000):
        kernel.layouts[9, interpreter] = object()
    SpanSource(None, lambda interpreter: kernel.drop_spans(9, interpreter), dict.fromkeys((0, 0x1000, 0x2000))).close()

    assert list(kernel.layouts) == [(9, 0)]


def test_records_in_spans_are_counted(spans, counters):
    class Drained:
        samples = np.zeros(5, wire().dtype("sample"))
        calls = np.zeros(3, wire().dtype("cuda_call"))
        counts = {"COUNT_SPANS_LOST": 4}  # noqa: RUF012 never changed

    Drained.samples["origin"]["span_id"][:2] = 7
    Drained.calls["origin"]["span_id"][0] = 7
    spans.count(Drained)

    assert counters.get(SPANS_READ, SOURCE) == 3
    assert counters.get(SPANS_UNREADABLE) == 4


def test_a_process_that_has_ended_is_no_trouble(spans, kernel, child):
    target = recognise(child.pid)
    gone = process(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    spans.found(gone, target)
    spans.look()

    assert kernel.layouts == {}
