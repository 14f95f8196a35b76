"""The gate for strings: valid UTF-8, bounded, cut on characters; nothing that steers a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otelprof.text import clean, printable, utf8

ANY = st.text(st.characters(codec=None), max_size=40)


@given(ANY, st.integers(3, 60))
def test_what_leaves_the_gate_is_utf8_within_the_limit_and_starts_as_it_was(text: str, limit: int) -> None:
    data = utf8(text, limit)
    assert len(data) <= limit
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert data.decode() == whole or whole.startswith(data.decode().removesuffix("…"))


@given(ANY)
def test_text_that_fits_is_kept(text: str) -> None:
    assert clean(clean(text)) == clean(text)
    assert clean(text) == text or any("\ud800" <= sign <= "\udfff" for sign in text)


def test_a_cut_name_says_so() -> None:
    assert utf8("ééé", 5).decode() == "é…"


@given(ANY)
def test_a_printable_line_has_no_control_characters(text: str) -> None:
    assert not any(ord(sign) < 32 or 0x7F <= ord(sign) < 0xA0 or sign in "\u2028\u2029\u202e" for sign in printable(text))
