"""Durations, sizes and shares as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelprof.config.units import (
    format_duration,
    format_percent,
    format_size,
    parse_duration,
    parse_percent,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5), ("1m30s", 90), ("100ms", 0.1), ("1.5h", 5400), ("0", 0), ("250us", 250e-6), ("1µs", 1e-6), (".5s", 0.5)],
)
def test_durations_are_read_as_go_reads_them(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-1s", "5d", "1e3s", "5s5", "9999999999h", "5s" * 1000, "nan", "1..5s"])
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="such as 5s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "count"), [("64MiB", 64 << 20), ("500kB", 500_000), ("7", 7), ("1 GiB", 1 << 30), ("1.5kib", 1536)]
)
def test_sizes_know_decimal_and_binary_units(text, count):
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1TiB?", "1.2.3", "9" * 40])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="such as 64MiB"):
        parse_size(text)


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("100%", 1), ("0%", 0), ("0.5%", 0.005)])
def test_shares_are_percents(text, share):
    assert parse_percent(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["1", "101%", "-1%", "%", "nan%", "a%"])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(ValueError, match="0% to 100%"):
        parse_percent(text)


@given(st.integers(1, 10**8))
def test_a_written_duration_is_read_back(milliseconds):
    assert parse_duration(format_duration(milliseconds / 1000)) == pytest.approx(milliseconds / 1000, rel=1e-4)


@given(st.integers(0, 2**50))
def test_a_written_size_is_read_back(count):
    assert parse_size(format_size(count)) == count


@given(st.integers(0, 100))
def test_a_written_share_is_read_back(percent):
    assert parse_percent(format_percent(percent / 100)) == pytest.approx(percent / 100)
