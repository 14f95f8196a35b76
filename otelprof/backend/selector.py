"""Label selectors in PromQL's form: `name{label="value", other=~"re.*"}`, every part optional.

Label names may be dotted or quoted (`service.name`, `"service.name"`) and are the same as with underscores. Regular
expressions are RE2's, anchored at both ends as in Prometheus, so no pattern takes more than linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2

from otelprof.errors import MalformedInput

MAX_SELECTOR = 16_384  # characters
MAX_MATCHERS = 64
MAX_PATTERN = 1000
_RE2_MEMORY = 8 << 20

_TOKEN = re.compile(
    r"""\s*(?:(?P<op>=~|!~|!=|=)|(?P<mark>[{},])|(?P<name>[A-Za-z_][A-Za-z0-9_.:]*)"""
    r"""|"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|`(?P<raw>[^`]*)`)""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}

Labels = Mapping[str, str]
Token = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label; a label that isn't there has the value ""."""

    name: str
    op: str
    value: str

    def matches(self, value: str) -> bool:
        """True when a value fulfils it."""
        found = value == self.value if self.op in ("=", "!=") else bool(_pattern(self.value).fullmatch(value))
        return found is (self.op in ("=", "=~"))


@lru_cache(maxsize=256)
def _pattern(text: str) -> Any:
    """A compiled pattern; MalformedInput when it isn't one."""
    if len(text) > MAX_PATTERN:
        raise MalformedInput(f"a pattern has more than {MAX_PATTERN} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _RE2_MEMORY
    try:
        return re2.compile(text, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise MalformedInput(f"not a regular expression (RE2): {reason[:200]}") from None


def parse_selector(text: str) -> tuple[Matcher, ...]:
    """The conditions of a selector; none for "" and "{}". MalformedInput says what is wrong."""
    tokens = _tokens(text)
    matchers: list[Matcher] = []
    if tokens and tokens[0][0] == "name":
        matchers.append(Matcher("__name__", "=", tokens.pop(0)[1]))
    if tokens:
        matchers.extend(_braces(tokens, text))
    for matcher in matchers:
        matcher.matches("")  # a pattern that isn't one is an error now
    return tuple(matchers)


def select(matchers: Iterable[Matcher], labels: Labels) -> bool:
    """True when labels fulfil all conditions."""
    return all(matcher.matches(labels.get(matcher.name, "")) for matcher in matchers)


def label_name(text: str) -> str:
    """A label's name as it is stored: dots are underscores."""
    return text.replace(".", "_")


def _tokens(text: str) -> list[Token]:
    if len(text) > MAX_SELECTOR:
        raise MalformedInput(f"a selector has more than {MAX_SELECTOR} characters")
    found: list[Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if not match:
            raise MalformedInput(f"selector {text[:100]!r}: can't be read from character {at + 1} on")
        kind = match.lastgroup or ""
        value = match[kind]
        found.append(("string", _unescaped(value)) if kind in ("double", "single") else (kind, value))
        at = match.end()
    return [("string", value) if kind == "raw" else (kind, value) for kind, value in found]


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)

    return _ESCAPE.sub(one, text)


def _braces(tokens: list[Token], text: str) -> list[Matcher]:
    if tokens[0] != ("mark", "{") or tokens[-1] != ("mark", "}") or len(tokens) < 2:
        raise MalformedInput(f"selector {text[:100]!r}: conditions stand in one pair of braces")
    inside, found = tokens[1:-1], []
    while inside:
        comma = inside.index(("mark", ",")) if ("mark", ",") in inside else len(inside)
        found.append(_matcher(inside[:comma], text))
        inside = inside[comma + 1 :]
    if len(found) > MAX_MATCHERS:
        raise MalformedInput(f"a selector has more than {MAX_MATCHERS} conditions")
    return found


def _matcher(tokens: list[Token], text: str) -> Matcher:
    kinds = [kind for kind, _ in tokens]
    if kinds == ["string"]:
        return Matcher("__name__", "=", tokens[0][1])
    if kinds not in (["name", "op", "string"], ["string", "op", "string"]):
        raise MalformedInput(f'selector {text[:100]!r}: a condition is name="value", with =, !=, =~ or !~')
    return Matcher(label_name(tokens[0][1]), tokens[1][1], tokens[2][1])
