"""The arithmetic of attaching: the clock's changing period, lists of CPUs, the kernel's structures."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelprof.ebpf import attach
from otelprof.ebpf.mappings import _mapping
from otelprof.ebpf.perf_event import Attr, online_cpus


@pytest.fixture
def periods(monkeypatch):
    """Clocks that tick nowhere; the periods that were set."""
    found = []
    monkeypatch.setattr(attach, "open_cpu_clock", lambda cpu, period: found.append(period) or cpu)
    monkeypatch.setattr(attach, "_attach_event", lambda program, fd: None)
    monkeypatch.setattr(attach, "set_period", lambda fd, period: found.append(period))
    return found


def ticks(periods, pauses, hz):
    """How often a clock ticks that is given another period after each of `pauses` seconds."""
    clock = attach.Clock(0, 0, hz)
    now, total = clock._started, 0
    for pause in pauses:
        total += int(pause * 1e9) // periods[-1]
        now += pause
        clock.rearm(now)
    return total


@pytest.mark.parametrize("hz", [19, 99, 999])
def test_the_clock_keeps_its_mean(periods, hz):
    """Though each change of the period loses what has run of the old one."""
    pauses = [random.Random(hz).uniform(0.5, 1.5) for _ in range(500)]

    assert ticks(periods, pauses, hz) == pytest.approx(hz * sum(pauses), rel=0.002)


def test_every_period_is_well_beside_the_mean(periods):
    ticks(periods, [0.5] * 200, 99)
    away = [abs(period * 99 / 1e9 - 1) for period in periods]

    assert all(0.0499 < share < 0.1501 for share in away)
    assert {period * 99 > 1e9 for period in periods} == {True, False}


@given(st.lists(st.integers(0, 400), min_size=1, max_size=30, unique=True))
@settings(max_examples=50)
def test_lists_of_cpus_are_read(cpus):
    cpus = sorted(cpus)
    spans = []
    for cpu in cpus:
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])

    assert online_cpus(",".join(f"{a}-{b}" if a != b else str(a) for a, b in spans) + "\n") == cpus


def test_the_event_is_packed_as_the_kernel_reads_it():
    packed = Attr(1, 2, 3, (7, 23), config1=4, config2=5).pack()

    assert len(packed) == 112
    assert struct.unpack_from("<IIQQ", packed) == (1, 112, 2, 3)
    assert struct.unpack_from("<Q", packed, 40) == ((1 << 7) | (1 << 23),)
    assert struct.unpack_from("<QQ", packed, 56) == (4, 5)


def test_a_mappings_path_may_be_any_bytes():
    body = struct.pack("<IIQQQIIQQII", 7, 8, 0x1000, 0x2000, 0x3000, 8, 1, 99, 0, 5, 2) + b"/tmp/\xff\xfe\0\0\0\0"
    found = _mapping(body)

    assert (found.pid, found.address, found.length, found.offset) == (7, 0x1000, 0x2000, 0x3000)
    assert (found.device, found.inode, found.path) == ((8, 1), 99, "/tmp/\udcff\udcfe")
