"""The queue on disk: order, bounds, what an end of any kind leaves, and files that aren't what they were."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otelprof.component import Build, Kind, Signal
from otelprof.config import Registry, load_values
from otelprof.counters import EXPORT_FAILED, EXPORT_SENT, QUEUE_BYTES
from otelprof.errors import ConfigError, OtelprofError
from otelprof.exporters import disk_queue
from otelprof.exporters.answers import Answer, Verdict
from otelprof.exporters.disk_queue import DiskQueue
from otelprof.exporters.retry import Policy, Retry
from otelprof.exporters.sender import Sender
from otelprof.extensions.file_storage.config import Settings
from otelprof.extensions.file_storage.extension import FileStorage
from otelprof.otlp.encode import Encoded, Options
from otelprof.testing import RecordingHost, sample_batch

MIB = 1 << 20


def request(number, size=100, kind=Signal.PROFILES):
    return Encoded(kind, number.to_bytes(4, "big") * (size // 4), number, number + 1)


def all_of(queue):
    found = []
    while len(queue):
        found.append(queue.take())
        queue.done()
    return found


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def test_requests_come_back_whole_in_order_and_leave_nothing(tmp_path):
    queue = DiskQueue(tmp_path, MIB)
    sent = [request(1), request(2, kind=Signal.TRACES), request(3, 0)]
    assert [queue.put(one) for one in sent] == [[], [], []]
    assert len(files(tmp_path)) == queue.kept == 3
    assert all_of(queue) == sent
    assert (files(tmp_path), queue.bytes) == ([], 0)


def test_the_next_start_has_what_was_left_and_what_was_under_way(tmp_path):
    queue = DiskQueue(tmp_path, MIB)
    for number in range(3):
        queue.put(request(number))
    queue.take()
    assert queue.close() == []
    again = DiskQueue(tmp_path, MIB)
    again.put(request(3))
    assert all_of(again) == [request(number) for number in range(4)]


def test_the_oldest_go_when_it_is_full(tmp_path):
    queue = DiskQueue(tmp_path, 1000)
    dropped = [one.items for number in range(1, 11) for one in queue.put(request(number, 300))]
    assert dropped == [1, 2, 3, 4, 5, 6, 7]
    assert queue.bytes <= 1000
    assert queue.put(request(11, 2000))[-1].items == 11
    queue.close()


def test_a_smaller_limit_at_the_next_start_loses_the_oldest_by_count(tmp_path):
    queue = DiskQueue(tmp_path, MIB)
    for number in range(1, 4):
        queue.put(request(number, 300))
    queue.close()
    again = DiskQueue(tmp_path, 700)
    assert [one.items for one in again.lost] == [1]
    assert [one.items for one in all_of(again)] == [2, 3]


@pytest.mark.parametrize("damage", [b"", b"OTPQ", b"\0" * 200])
def test_a_damaged_file_is_lost_alone(tmp_path, damage):
    queue = DiskQueue(tmp_path, MIB)
    queue.put(request(1))
    queue.put(request(2))
    queue.close()
    (tmp_path / files(tmp_path)[0]).write_bytes(damage)
    (tmp_path / "00000000000000000009.part").write_bytes(b"half")
    again = DiskQueue(tmp_path, MIB)
    assert all_of(again) == [request(2)]
    assert len(again.lost) == 1
    assert files(tmp_path) == []


def test_data_that_changed_meanwhile_is_found_by_its_checksum(tmp_path):
    queue = DiskQueue(tmp_path, MIB)
    queue.put(request(7))
    file = tmp_path / files(tmp_path)[0]
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    assert queue.take() is None
    assert [one.items for one in queue.lost] == [7]


def test_a_folder_belongs_to_one_agent(tmp_path):
    queue = DiskQueue(tmp_path, MIB)
    with pytest.raises(OtelprofError, match="is in use by another agent"):
        DiskQueue(tmp_path, MIB)
    queue.close()
    DiskQueue(tmp_path, MIB).close()


def test_with_fsync_it_is_the_same(tmp_path):
    queue = DiskQueue(tmp_path, MIB, fsync=True)
    queue.put(request(1))
    assert all_of(queue) == [request(1)]


def test_a_full_disk_keeps_requests_in_memory_and_counts_them_at_the_end(tmp_path, monkeypatch):
    real = disk_queue._write
    full = {"now": False}

    def write(path, content, fsync):
        if full["now"]:
            raise OSError(28, "No space left on device")
        real(path, content, fsync)

    monkeypatch.setattr(disk_queue, "_write", write)
    queue = DiskQueue(tmp_path, MIB)
    queue.put(request(1))
    full["now"] = True
    queue.put(request(2))
    assert queue.take() == request(1)
    queue.done()
    assert queue.take() == request(2)
    queue.put(request(3))
    assert not queue.keeps_current()
    assert [one.items for one in queue.close()] == [3]


@pytest.mark.skipif(os.geteuid() != 0, reason="missing: root, to mount a small file system")
def test_a_really_full_file_system_leaves_no_half_file(tmp_path):
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], capture_output=True).returncode:
        pytest.skip("missing: the right to mount")
    try:
        queue = DiskQueue(tmp_path, MIB)
        for number in range(10):
            queue.put(request(number, 16_000))
        assert 0 < queue.kept < 10
        assert all(name.endswith(".request") for name in files(tmp_path))
        assert all_of(queue) == [request(number, 16_000) for number in range(10)]
        queue.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


class Server:
    """A transport that is away until it is told otherwise."""

    endpoint = "test:1"

    def __init__(self, away=True):
        self.away, self.got = away, []

    def open(self):
        pass

    def send(self, sent, seconds):
        if self.away:
            return Answer(Verdict.RETRY, "unavailable", "nobody listens there")
        self.got.append(sent)
        return Answer(Verdict.ACCEPTED)

    def close(self):
        pass


def sender(folder, server):
    host = RecordingHost(extensions={"file_storage": FileStorage(Build("file_storage", Settings(folder)))})
    retry = Retry(initial_interval=60.0, max_elapsed_time=0.0)
    made = Sender(Build("otlp_grpc/a", None), server, Options(), Policy(retry=retry, storage="file_storage"))
    made.start(host)
    return made, host.counters


def test_a_sender_keeps_what_it_can_t_send_and_the_next_one_sends_it(tmp_path):
    first, counters = sender(tmp_path, Server())
    for count in range(1, 4):
        first.consume(sample_batch({"main;work": count}))
    first.shutdown(time.monotonic() + 2)
    assert counters.get(EXPORT_SENT) == counters.get(EXPORT_FAILED) == 0
    server = Server(away=False)
    second, counters = sender(tmp_path, server)
    second.shutdown(time.monotonic() + 5)
    assert [one.samples for one in server.got] == [1, 1, 1]
    assert counters.get(EXPORT_SENT, "otlp_grpc/a") == 3
    assert counters.get(QUEUE_BYTES, "otlp_grpc/a") == 0
    assert files(tmp_path / "exporter_otlp_grpc_a") == []


CHILD = """
import sys, threading
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from tests.unit.test_exporters_disk_queue import Server, sender
from otelprof.testing import sample_batch
made, counters = sender(Path(sys.argv[1]), Server())
for count in range(1, 6):
    made.consume(sample_batch({"main;work": count}))
threading.Event().wait(60)
"""


def test_kill_9_loses_nothing_that_was_queued(tmp_path):
    root = str(Path(__file__).resolve().parents[2])
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), root])
    folder = tmp_path / "exporter_otlp_grpc_a"
    end = time.monotonic() + 60
    while not folder.exists() or len(files(folder)) < 5 or any(name.endswith(".part") for name in files(folder)):
        assert time.monotonic() < end
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    server = Server(away=False)
    second, counters = sender(tmp_path, server)
    second.shutdown(time.monotonic() + 5)
    assert counters.get(EXPORT_SENT) == len(server.got) == 5
    assert len({one.data for one in server.got}) == 5


def configuration(**service):
    pipeline = {"receivers": ["replay"], "exporters": ["otlp_grpc"]}
    return {
        "extensions": {"file_storage": {"directory": "/tmp/x"}},
        "receivers": {"replay": {"path": "x"}},
        "exporters": {"otlp_grpc": {"sending_queue": {"storage": "file_storage"}}},
        "service": {"pipelines": {"profiles": pipeline}, **service},
    }


def test_the_collector_s_way_to_name_a_storage_is_understood():
    found = load_values(configuration(extensions=["file_storage"]), Registry.installed())
    assert found.components[Kind.EXPORTER, "otlp_grpc"].settings.sending_queue.storage == "file_storage"


def test_a_storage_that_doesn_t_run_is_a_mistake():
    with pytest.raises(ConfigError, match=r"exporters\.otlp_grpc\.sending_queue\.storage: 'file_storage' isn't among"):
        load_values(configuration(), Registry.installed())
