"""Plain values become typed settings, and every mistake has its own line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from otelprof.config.settings import INVALID, convert_class, setting
from otelprof.config.units import ByteSize, Duration, Percent
from otelprof.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Inner:
    share: Percent = setting(Percent(0.01), "a share")
    limit: ByteSize = setting(ByteSize(1024), "a size")


def _even(value: int) -> None:
    if value % 2:
        raise ValueError("must be even")


@dataclass(frozen=True, slots=True)
class Outer:
    every: Duration = setting(Duration(5.0), "a duration", minimum=0.05)
    count: int = setting(2, "a number", minimum=1, maximum=10, check=_even)
    factor: float = setting(1.0, "a factor")
    on: bool = setting(True, "a switch")
    name: str = setting("x", "a name")
    path: Path | None = setting(None, "a file")
    mode: Literal["all", "off"] = setting("all", "a mode")
    names: tuple[str, ...] = setting((), "names")
    headers: dict[str, str] = setting({}, "headers")
    inner: Inner = setting(Inner(), "more")
    anything: Any = setting(None, "whatever")


@dataclass(frozen=True, slots=True)
class Strict:
    low: int = setting(1, "the lower one")
    high: int = setting(2, "the higher one")

    def __post_init__(self):
        if self.low > self.high:
            raise ConfigError(["low: must not be above high", "the two contradict each other"])


def read(cls, values):
    """The instance, or INVALID, and the lines of what was reported."""
    found: list[str] = []
    made = convert_class(cls, values, "receivers.x", lambda path, message: found.append(f"{path}: {message}"))
    return made, found


def test_nothing_and_null_give_the_defaults():
    assert read(Outer, None) == (Outer(), [])
    assert read(Outer, {"every": None, "inner": None, "headers": None}) == (Outer(), [])


def test_every_kind_of_value_is_converted():
    made, mistakes = read(
        Outer,
        {
            "every": "1m30s",
            "count": 4,
            "factor": 2,
            "on": False,
            "name": 7,
            "path": "/tmp/x",
            "mode": "off",
            "names": ["a", "b"],
            "headers": {"k": "v"},
            "inner": {"share": "5%", "limit": "1MiB"},
            "anything": [1],
        },
    )

    assert not mistakes
    assert made == Outer(
        Duration(90.0),
        4,
        2.0,
        False,
        "7",
        Path("/tmp/x"),
        "off",
        ("a", "b"),
        {"k": "v"},
        Inner(Percent(0.05), ByteSize(1 << 20)),
        [1],
    )


def test_yaml_reads_a_bare_off_as_false_and_a_choice_still_works():
    made, mistakes = read(Outer, {"mode": False})

    assert (made.mode, mistakes) == ("off", [])


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"evry": "5s"}, "receivers.x.evry: unknown key; did you mean every?"),
        ({"zzz": 1}, "receivers.x.zzz: unknown key; known: anything, count, every, "),
        ({"every": 5}, "receivers.x.every: a duration such as 5s, 1m30s or 100ms is needed, not 5"),
        ({"every": "10ms"}, "receivers.x.every: must be at least 0.05, not 0.01"),
        ({"count": True}, "receivers.x.count: a whole number is needed, not true"),
        ({"count": 12}, "receivers.x.count: must be at least 1 and at most 10, not 12"),
        ({"count": 3}, "receivers.x.count: must be even"),
        ({"on": "yes"}, "receivers.x.on: must be true or false, not 'yes'"),
        ({"mode": "of"}, "receivers.x.mode: must be one of all, off, not 'of'"),
        ({"names": "a"}, "receivers.x.names: a list is needed, not 'a'"),
        ({"names": ["a", []]}, "receivers.x.names.1: a text is needed, not []"),
        ({"headers": []}, "receivers.x.headers: a mapping is needed, not []"),
        ({"inner": {"limit": "big"}}, "receivers.x.inner.limit: a size such as 64MiB, 500kB or 1024 is needed, not 'big'"),
        ({"inner": 3}, "receivers.x.inner: a mapping of settings is needed, not 3"),
        ({"path": ""}, "receivers.x.path: the path of a file is needed, not ''"),
    ],
)
def test_a_mistake_is_one_line_with_its_path(values, line):
    made, mistakes = read(Outer, values)

    assert len(mistakes) == 1
    assert mistakes[0].startswith(line)
    assert made is INVALID or "unknown key" in mistakes[0]


def test_all_mistakes_are_reported_together():
    _, mistakes = read(Outer, {"every": "x", "count": "y", "inner": {"share": "z", "what": 1}, "wrong": 1})

    assert len(mistakes) == 5


def test_what_a_settings_class_refuses_stands_at_its_key():
    _, mistakes = read(Strict, {"low": 3})

    assert mistakes == ["receivers.x.low: must not be above high", "receivers.x: the two contradict each other"]


def test_a_long_value_is_cut_in_the_message():
    _, mistakes = read(Outer, {"count": "z" * 5000})

    assert len(mistakes[0]) < 200
