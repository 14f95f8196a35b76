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
SIDE_BY_SIDE = 6


def two_hardest(case):
    able = [one for one in supported() if case.runs_on(one)]
    return able[:1] + able[1:][-1:]


def groups():
    found = supported()
    return [found[start : start + SIDE_BY_SIDE] for start in range(0, len(found), SIDE_BY_SIDE)]


@pytest.mark.parametrize("minor", range(OLDEST, NEWEST + 1))
def test_every_supported_version_is_here(minor):
    if not any(one.version[1] == minor for one in supported()):
        pytest.skip(f"no CPython 3.{minor} here: make roots")


@pytest.mark.parametrize("interpreters", groups(), ids=lambda group: f"{group[0]}..{group[-1]}")
def test_the_basic_case_on_every_interpreter(interpreters):
    seen = observe(BASIC, interpreters)
    faults = {str(one): list(BASIC.judge(found)) for one, found in seen.items()}

    assert {one: found for one, found in faults.items() if found} == {}


@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: case.name)
def test_each_other_case_on_two_interpreters(case):
    interpreters = two_hardest(case)
    if not interpreters:
        pytest.skip(f"no CPython 3.{case.since} or newer here: make roots")
    for one in interpreters if case.whole_tree else [None]:
        seen = observe(case, [one] if one else interpreters)
        faults = {str(where): list(case.judge(found)) for where, found in seen.items()}

        assert {where: found for where, found in faults.items() if found} == {}
