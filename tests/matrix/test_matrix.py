"""The basic case on every interpreter of the machine, each other case on two: the oldest that can run it and the newest."""

import os

import pytest

from otelprof.targets.cpython_layouts import NEWEST, OLDEST
from tests.matrix.cases import BASIC, CASES, observe
from tests.unit.python_programs import supported

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to attach BPF programs"),
]
OBSERVATIONS = 3
SIDE_BY_SIDE = 6


def two_hardest(case):
    able = [one for one in supported() if case.runs_on(one)]
    return able[:1] + able[1:][-1:]


def groups():
    found = supported()
    return [found[start : start + SIDE_BY_SIDE] for start in range(0, len(found), SIDE_BY_SIDE)]


def lasting_faults(case, interpreters):
    """What is wrong at each of these interpreters, in all of up to three observations: shares of few samples vary by chance
    and with what else the machine does, a real fault is there every time."""
    for _ in range(OBSERVATIONS):
        seen = observe(case, interpreters)
        faults = {str(one): found for one, sight in seen.items() if (found := list(case.judge(sight)))}
        interpreters = [one for one in interpreters if str(one) in faults]
        if not interpreters:
            break
    return faults


@pytest.mark.parametrize("minor", range(OLDEST, NEWEST + 1))
def test_every_supported_version_is_here(minor):
    if not any(one.version[1] == minor for one in supported()):
        pytest.skip(f"no CPython 3.{minor} here: make roots")


@pytest.mark.parametrize("interpreters", groups(), ids=lambda group: f"{group[0]}..{group[-1]}")
def test_the_basic_case_on_every_interpreter(interpreters):
    assert lasting_faults(BASIC, interpreters) == {}


@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.name)
def test_each_other_case_on_two_interpreters(case):
    interpreters = two_hardest(case)
    if not interpreters:
        pytest.skip(f"no CPython 3.{case.since} or newer here: make roots")
    for together in [[one] for one in interpreters] if case.whole_tree else [interpreters]:
        assert lasting_faults(case, together) == {}
