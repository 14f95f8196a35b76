"""From plain YAML values to frozen dataclasses of settings, by their type hints, with every mistake reported at once.

A settings class is a frozen dataclass whose fields have defaults and `setting(...)` metadata:

    @dataclass(frozen=True, slots=True)
    class Settings:
        report_interval: Duration = setting(Duration(5.0), "how often a batch leaves the receiver", minimum=0.05)

Hints that are understood: int, float, bool, str, Path, Duration, ByteSize, Percent, Literal[...], X | None, tuple[X, ...],
dict[str, X], nested settings classes and Any. A null value means the default, as in the Collector. A static method `completed`,
where a class has one, gets the settings that were given and returns them with what stands for absent ones. It and
`__post_init__` may raise ConfigError (each line starting with a key) or ValueError for what types can't say.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin

from otelprof.config.units import ByteSize, Duration, Percent, parse_duration, parse_percent, parse_size
from otelprof.errors import ConfigError

Report = Callable[[str, str], None]
"""Takes the path of a mistake and what is wrong there."""

INVALID = object()
"""Stands for a value that was reported as wrong."""


def setting(
    default: Any,
    meaning: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    check: Callable[[Any], object] | None = None,
) -> Any:
    """A field of a settings class: its default, what it means (for docs/configuration.md) and its range.

    `check` gets the converted value and raises ValueError for what the type can't say.
    """
    metadata = {"meaning": meaning, "minimum": minimum, "maximum": maximum, "check": check}
    if isinstance(default, Hashable):
        return dataclasses.field(default=default, metadata=metadata)
    return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(word[:100], names, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known: {', '.join(names)}" if names else ""


def shown(value: object) -> str:
    """A value as an error message quotes it, cut to a readable length."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def convert(hint: Any, value: object, path: str, report: Report) -> Any:
    """`value` as the type `hint`, or INVALID after reporting what is wrong at `path`."""
    if dataclasses.is_dataclass(hint):
        return convert_class(cast("type[Any]", hint), value, path, report)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        inner = next(arm for arm in get_args(hint) if arm is not type(None))
        return None if value is None else convert(inner, value, path, report)
    if origin in (tuple, dict):
        return (_tuple if origin is tuple else _dict)(hint, value, path, report)
    try:
        return _literal(hint, value) if origin is Literal else _SCALARS[hint](value)
    except ValueError as error:
        report(path, f"{error}, not {shown(value)}")
        return INVALID


def convert_class(cls: type[Any], value: object, path: str, report: Report) -> Any:
    """An instance of the settings class `cls` from a mapping (or null), or INVALID after reporting."""
    if value is not None and not isinstance(value, Mapping):
        report(path, f"a mapping of settings is needed, not {shown(value)}")
        return INVALID
    given = {key: entry for key, entry in (value or {}).items() if entry is not None}
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    for key in value or {}:
        if key not in fields:
            report(f"{path}.{key}", f"unknown key{nearest(str(key), fields)}")
    found = {
        key: _checked(fields[key], convert(hints[key], entry, f"{path}.{key}", report), f"{path}.{key}", report)
        for key, entry in given.items()
        if key in fields
    }
    missing = [name for name, field in fields.items() if _required(field) and name not in given]
    for name in missing:
        report(path, f"{name} is missing")
    if missing or any(entry is INVALID for entry in found.values()):
        return INVALID
    return _made(cls, found, path, report)


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _made(cls: type[Any], values: dict[str, Any], path: str, report: Report) -> Any:
    complete = getattr(cls, "completed", None)
    try:
        return cls(**(complete(values) if complete else values))
    except ConfigError as error:
        for line in error.lines:
            report(*_split(path, line))
    except ValueError as error:
        report(path, str(error))
    return INVALID


def _split(path: str, line: str) -> tuple[str, str]:
    """Where a line `key: what is wrong` of a settings class belongs."""
    key, colon, rest = line.partition(": ")
    return (f"{path}.{key}", rest) if colon and " " not in key else (path, line)


def _checked(field: dataclasses.Field[Any], value: Any, path: str, report: Report) -> Any:
    """`value`, or INVALID after reporting what its field doesn't allow."""
    if value is INVALID or value is None:
        return value
    try:
        _check_range(field.metadata, value)
        check = field.metadata.get("check")
        if check is not None:
            check(value)
    except ValueError as error:
        report(path, str(error))
        return INVALID
    return value


def _check_range(metadata: Mapping[str, Any], value: object) -> None:
    least, most = metadata.get("minimum"), metadata.get("maximum")
    if not isinstance(value, int | float) or ((least is None or value >= least) and (most is None or value <= most)):
        return
    bounds = [f"{word} {_number(bound)}" for word, bound in (("at least", least), ("at most", most)) if bound is not None]
    raise ValueError(f"must be {' and '.join(bounds)}, not {_number(value)}")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _tuple(hint: Any, value: object, path: str, report: Report) -> Any:
    if not isinstance(value, list | tuple):
        report(path, f"a list is needed, not {shown(value)}")
        return INVALID
    inner = get_args(hint)[0]
    found = tuple(convert(inner, entry, f"{path}.{number}", report) for number, entry in enumerate(value))
    return INVALID if any(entry is INVALID for entry in found) else found


def _dict(hint: Any, value: object, path: str, report: Report) -> Any:
    if not isinstance(value, Mapping):
        report(path, f"a mapping is needed, not {shown(value)}")
        return INVALID
    inner = get_args(hint)[1]
    found = {str(key): convert(inner, entry, f"{path}.{key}", report) for key, entry in value.items()}
    return INVALID if any(entry is INVALID for entry in found.values()) else found


def _literal(hint: Any, value: object) -> object:
    choices = get_args(hint)
    if isinstance(value, bool) and value not in choices:  # YAML reads a bare `off` or `on` as a truth value
        value = {True: "on", False: "off"}[value]
    if value not in choices:
        raise ValueError(f"must be one of {', '.join(map(str, choices))}")
    return value


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _int(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("a whole number is needed")
    return value


def _float(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("a number is needed")
    return float(value)


def _str(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("a text is needed")
    return str(value)


def _path(value: object) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("the path of a file is needed")
    return Path(value)


def _duration(value: object) -> Duration:
    return parse_duration(str(value) if isinstance(value, str | int) and not isinstance(value, bool) else "")


def _size(value: object) -> ByteSize:
    return parse_size(str(value) if isinstance(value, str | int) and not isinstance(value, bool) else "")


def _percent(value: object) -> Percent:
    return parse_percent(value if isinstance(value, str) else "")


_SCALARS: dict[Any, Callable[[object], Any]] = {
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    Path: _path,
    Duration: _duration,
    ByteSize: _size,
    Percent: _percent,
    Any: lambda value: value,
}
