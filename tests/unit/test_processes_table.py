"""The table of processes: one number for each life of each program, and one place that lets go of it."""

import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from otelprof.ebpf.layout import wire
from otelprof.processes.identity import read_facts, read_stat
from otelprof.processes.table import EXEC, EXIT, FORK, ChangeKind, Processes
from tests.unit.python_programs import default, running, said, until

FORKED = 0x80000000


def event(kind, pid, process=0, parent=0, moment=None):
    """One record of struct process_event."""
    record = np.zeros(1, wire().dtype("process_event"))
    record["time"] = time.monotonic_ns() if moment is None else moment
    record["pid"], record["kind"], record["process"], record["parent"] = pid, kind, process, parent
    return record


@pytest.fixture
def child():
    """A program that waits."""
    with subprocess.Popen(["sleep", "1000"]) as started:
        yield started
        started.kill()


@pytest.fixture
def table(child):
    """A table that knows the program."""
    table = Processes()
    table.scan()
    return table


def kinds(changes):
    return [(change.kind, change.process.pid) for change in changes]


def test_the_kinds_of_events_are_the_wires():
    assert wire().enum("process_event_kind") == {"PROCESS_FORK": FORK, "PROCESS_EXEC": EXEC, "PROCESS_EXIT": EXIT}


def test_a_scan_finds_every_process_once(table, child):
    assert {os.getpid(), child.pid} <= {process.pid for process in table}
    numbers = [process.incarnation for process in table]
    assert len(set(numbers)) == len(numbers)
    assert all(0 < number < FORKED for number in numbers)
    assert table.get(table.by_pid(child.pid).incarnation) is table.by_pid(child.pid)
    assert not [change for change in table.scan() if change.process.pid in (os.getpid(), child.pid)]


def test_kernel_threads_and_zombies_are_no_processes(table):
    assert not any(read_stat(process.pid).kernel_thread for process in table if Path(f"/proc/{process.pid}").exists())
    zombie = subprocess.Popen(["true"])
    until(lambda: read_stat(zombie.pid).is_zombie, "a zombie")
    assert table.look(zombie.pid) == []
    zombie.wait()


def test_the_end_is_noticed_by_an_event_and_facts_stay_until_all_is_decoded(table, child):
    process = table.by_pid(child.pid)
    end = time.monotonic_ns()
    assert kinds(table.apply(event(EXIT, child.pid, process.incarnation, moment=end))) == [(ChangeKind.ENDED, child.pid)]
    assert table.by_pid(child.pid) is None
    assert table.get(process.incarnation).facts.command == "sleep"
    assert table.decoded(end) == []
    assert table.decoded(end + 1) == [process]
    assert table.get(process.incarnation) is None
    assert table.ended == 0


def test_the_end_is_noticed_by_a_scan_when_the_event_was_lost(table, child):
    child.kill()
    child.wait()
    assert (ChangeKind.ENDED, child.pid) in kinds(table.scan())


def test_exec_makes_a_new_program_under_the_same_number(table):
    code = "import os; print(1, flush=True); input(); os.execv('/bin/cat', ['cat'])"
    with running(default(), code) as child:
        said(child)
        (first,) = [change.process for change in table.look(child.pid)]
        print(file=child.stdin, flush=True)
        until(lambda: read_facts(child.pid).executable_name == "cat", "exec")
        ended, found = table.apply(event(EXEC, child.pid, first.incarnation))
    assert (ended.kind, ended.process) == (ChangeKind.ENDED, first)
    assert found.kind is ChangeKind.FOUND
    assert found.process.incarnation != first.incarnation
    assert found.process.identity == type(first.identity)(child.pid, first.identity.start_ticks, 1)
    assert found.process.facts.command == "cat"


def test_a_known_program_that_ended_before_anybody_looked_is_told_by_its_events(table, child):
    (forked,) = table.apply(event(FORK, 4_000_002, FORKED | 7, child.pid))
    executed = event(EXEC, 4_000_002, FORKED | 7)
    executed["next"], executed["comm"], executed["program"]["inode"] = FORKED | 8, b"worker", 5
    ended, found = table.apply(executed)

    assert (ended.process, found.kind) == (forked.process, ChangeKind.FOUND)
    assert found.process is table.get(FORKED | 8)
    assert (found.process.facts.service, found.process.facts.executable_path) == ("worker", "")
    assert found.process.facts.cgroup == forked.process.facts.cgroup
    assert found.process.program == (5, 0)


def test_a_scan_notices_another_program_when_the_event_was_lost(table):
    code = "import os, sys; print(1, flush=True); input()\n"
    code += "os.execv(sys.executable, [sys.executable, '-c', 'print(2, flush=True); input()'])"
    with running(default(), code) as child:
        said(child)
        table.look(child.pid)
        print(file=child.stdin, flush=True)
        assert said(child) == 2
        assert [change.kind for change in table.look(child.pid)] == [ChangeKind.ENDED, ChangeKind.FOUND]


def test_a_forked_child_of_a_target_takes_the_kernels_number_and_its_parents_facts(table, child):
    parent = table.by_pid(child.pid)
    (change,) = table.apply(event(FORK, 4_000_000, FORKED | 5, child.pid))
    assert (change.kind, change.parent) == (ChangeKind.FORKED, parent)
    assert change.process.incarnation == FORKED | 5
    assert change.process.facts.service == parent.facts.service
    assert change.process.facts.parent == child.pid
    assert table.get(FORKED | 5) is change.process


def test_a_fork_that_proc_told_of_first_gets_a_second_number(table, child):
    process = table.by_pid(child.pid)
    assert table.apply(event(FORK, child.pid, FORKED | 6, os.getpid(), moment=process.seen_at - 1)) == []
    assert table.get(FORKED | 6) is table.get(process.incarnation) is process
    table.apply(event(EXIT, child.pid, process.incarnation))
    table.decoded(time.monotonic_ns())
    assert table.get(FORKED | 6) is table.get(process.incarnation) is None


def test_events_from_before_the_first_look_tell_of_an_earlier_life(table, child):
    process = table.by_pid(child.pid)
    for kind in (EXEC, EXIT):
        assert table.apply(event(kind, child.pid, 99, moment=process.seen_at - 1)) == []
    assert table.by_pid(child.pid) is process


def test_a_fork_of_a_process_that_is_no_target_is_not_looked_at(table, child):
    before = len(table)
    assert table.apply(event(FORK, 4_000_001, 0, child.pid)) == []
    assert len(table) == before


def test_the_table_is_bounded_and_counts_whom_it_refused(child):
    table = Processes(limit=3)
    table.scan()
    assert len(table) == 3
    assert table.refused > 0


def test_the_oldest_ended_process_makes_room(child):
    table = Processes(limit=2)
    table.look(child.pid)
    first = table.by_pid(child.pid)
    table.apply(event(EXIT, child.pid, first.incarnation))
    table.look(os.getpid())
    table.look(os.getppid())
    assert table.get(first.incarnation) is None
    assert len(table) == 2


def test_what_is_kept_of_a_process_is_closed_with_it(table, child):
    class Kept:
        closed = False

        def close(self):
            self.closed = True

    process = table.by_pid(child.pid)
    kept = process.keep(Kept, Kept)
    assert process.keep(Kept, Kept) is kept is process.kept(Kept)
    memory = process.memory
    table.apply(event(EXIT, child.pid, process.incarnation))
    assert not kept.closed
    table.decoded(time.monotonic_ns())
    assert kept.closed
    assert memory._file == -1


def test_the_same_number_used_again_is_another_process(table):
    """A PID that comes back: its new holder has its own incarnation, facts and start."""
    with running(default(), "print(1, flush=True); input()") as child:
        said(child)
        table.look(child.pid)
        first = table.by_pid(child.pid)
        table.apply(event(EXIT, child.pid, first.incarnation))
        (change,) = table.look(child.pid)
        assert change.process.incarnation != first.incarnation
        assert {first, change.process} == {table.get(first.incarnation), table.get(change.process.incarnation)}
