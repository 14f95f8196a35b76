"""The ring reader on a file that is laid out as the kernel lays out a ring: wraps, unfinished and discarded records."""

import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otelprof.ebpf.rings import Ring

SIZE, PAGE = 4096, 4096
RECORD = np.dtype([("number", "<u8"), ("text", "S13"), ("end", "u1")])
STRIDE = 8 + 24
BUSY, DISCARDED = 1 << 31, 1 << 30


class Producer:
    """Writes records as kernel/bpf/ringbuf.c does, into an ordinary file."""

    def __init__(self):
        self.fd = os.memfd_create("ring")
        os.ftruncate(self.fd, 2 * PAGE + SIZE)
        self.position = 0

    def close(self):
        os.close(self.fd)

    @property
    def room(self):
        consumed = struct.unpack("<Q", os.pread(self.fd, 8, 0))[0]
        return (SIZE - (self.position - consumed)) // STRIDE

    def write(self, number, flags=0):
        header = struct.pack("<II", RECORD.itemsize | flags, 0)
        body = np.array([(number, b"t%d" % number, number % 256)], RECORD).tobytes()
        for index, byte in enumerate((header + body).ljust(STRIDE, b"\xff")):
            os.pwrite(self.fd, bytes([byte]), 2 * PAGE + (self.position + index) % SIZE)
        self.position += STRIDE
        os.pwrite(self.fd, struct.pack("<Q", self.position), PAGE)

    def finish(self, behind):
        """Takes the flag off a record that is `behind` bytes before the end."""
        os.pwrite(self.fd, struct.pack("<I", RECORD.itemsize), 2 * PAGE + (self.position - behind) % SIZE)


@pytest.fixture
def producer():
    made = Producer()
    yield made
    made.close()


@given(st.lists(st.lists(st.sampled_from([0, 0, 0, DISCARDED]), max_size=100), max_size=12))
@settings(max_examples=40, deadline=None)
def test_what_was_written_comes_out_once_and_in_order(rounds):
    producer, number = Producer(), 0
    ring = Ring(producer.fd, SIZE, RECORD)
    for flags in rounds:
        expected = []
        for flag in flags[: producer.room]:
            producer.write(number, flag)
            expected += [] if flag else [number]
            number += 1
        records = ring.read()

        assert records["number"].tolist() == expected
        assert records["text"].tolist() == [b"t%d" % n for n in expected]
        assert records["end"].tolist() == [n % 256 for n in expected]
        assert ring.backlog == 0
    ring.close()
    producer.close()


def test_a_record_that_is_being_written_holds_back_those_after_it(producer):
    ring = Ring(producer.fd, SIZE, RECORD)
    producer.write(1)
    producer.write(2, BUSY)
    producer.write(3)

    assert ring.read()["number"].tolist() == [1]
    assert ring.read()["number"].tolist() == []
    assert ring.backlog == 2
    producer.finish(2 * STRIDE)
    assert ring.read()["number"].tolist() == [2, 3]


def test_what_was_read_stays_when_the_ring_goes_on(producer):
    ring = Ring(producer.fd, SIZE, RECORD)
    producer.write(1)
    first = ring.read()
    for _ in range(4):
        while producer.room:
            producer.write(9)
        ring.read()
    ring.close()

    assert first["number"].tolist() == [1]
