"""Mangled C++ and Rust names as people read them; with `pycxxfilt` (LLVM's demangler, optional), else as they are."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, lru_cache

from otelprof.text import clean

_MANGLED = ("_Z", "_R", "__Z")
_LENGTH_LIMIT = 1 << 14  # longer ones are left as they are
_OPENING, _CLOSING = "(<[{", ")>]}"


@cache
def _demangler() -> Callable[[str], str] | None:
    try:
        found: Callable[[str], str] = importlib.import_module("pycxxfilt").demangle
    except ImportError:
        return None
    return found


@lru_cache(4096)
def readable(name: str) -> str:
    """The name without return type and parameters: `at::add<float>` of `_ZN2at3addIfEEvRKNS_6TensorE`."""
    return clean(short(demangle(name)))


def demangle(name: str) -> str:
    """The whole name as it stood in the source; `name` itself when it isn't mangled or nothing can demangle it."""
    demangler = _demangler() if name.startswith(_MANGLED) and len(name) <= _LENGTH_LIMIT else None
    try:
        return (demangler(name) if demangler else name) or name
    except ValueError:
        return name


def short(name: str) -> str:
    """A demangled name without its parameters and the type that it returns."""
    start = _parameters(name)
    return name if start is None else _without_type(name[:start])


def _parameters(name: str) -> int | None:
    """Where the parenthesis opens that the last one closes; None when the name has no parameters."""
    depth = 0
    for place in range(name.rfind(")"), -1, -1):
        depth += (name[place] == ")") - (name[place] == "(")
        if depth == 0:
            return place if not name[:place].endswith("operator") and place > 0 else None
    return None


def _without_type(name: str) -> str:
    """The part behind the last blank outside all brackets; an operator's own blanks and brackets don't count."""
    end = name.rfind("operator")
    depth = 0
    for place in range((end if end >= 0 else len(name)) - 1, -1, -1):
        letter = name[place]
        depth += (letter in _CLOSING) - (letter in _OPENING)
        if letter == " " and depth == 0:
            return name[place + 1 :]
    return name
