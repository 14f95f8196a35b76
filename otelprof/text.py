"""The one gate for strings from outside: what leaves it is valid UTF-8 of bounded length.

Names come from other people's processes and files, so they may hold lone surrogates, be megabytes long, or steer a
terminal. Everything that is sent, stored or shown passes here.
"""

from __future__ import annotations

import re

NAME_LIMIT = 4096
"""Bytes that a name keeps; Pyroscope takes 2,048 for a label's value, mangled C++ names are often longer."""

CUT = "…"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def utf8(text: str, limit: int = NAME_LIMIT) -> bytes:
    """`text` as valid UTF-8: lone surrogates become U+FFFD, and beyond `limit` bytes it is cut, with `…` at its end."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    return data if len(data) <= limit else _cut(data, limit)


def clean(text: str, limit: int = NAME_LIMIT) -> str:
    """`utf8` as a string again."""
    return utf8(text, limit).decode()


def printable(text: str, limit: int = NAME_LIMIT) -> str:
    """`text` for one line of a terminal or a log: control characters and marks of direction become U+FFFD."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", clean(text, limit))


def _cut(data: bytes, limit: int) -> bytes:
    """`data` cut on the border of a character, `…` included in the limit."""
    mark = CUT.encode()
    return data[: max(limit - len(mark), 0)].decode(errors="ignore").encode() + mark
