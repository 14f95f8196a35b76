"""The errors that otelprof raises on purpose.

OtelprofError            anything that a user can be told in one line; exit status 1
├── ConfigError          a configuration that can't run; one line per mistake in `lines`
├── UsageError           wrong use of the command line; exit status 2
├── Unsupported          this kernel, these rights or this machine lack something; says what and what to do
├── TargetError          a process can't be looked into: it ended, or the kernel refused
└── MalformedInput       bytes that aren't what they should be: ELF, OTLP, pprof, folded text, sessions
    └── TooLarge         the same, by size

Each message is one line: what is wrong, then what to do. Anything else that escapes is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence


class OtelprofError(Exception):
    """An error whose message is one line for the user."""

    exit_status = 1


class ConfigError(OtelprofError):
    """A configuration with one or more mistakes; `lines` has one line per mistake, each with its path."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = tuple(lines)


class UsageError(OtelprofError):
    """Wrong use of the command line."""

    exit_status = 2


class Unsupported(OtelprofError):
    """The kernel, the rights or the machine lack something that is needed."""


class TargetError(OtelprofError):
    """A process can't be looked into (any more)."""


class MalformedInput(OtelprofError):
    """Input that isn't in its format."""


class TooLarge(MalformedInput):
    """Input beyond a stated limit."""
