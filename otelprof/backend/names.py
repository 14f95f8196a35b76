"""What frames are called in answers: one name for frames of the same function, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from otelprof.otlp import semconv
from otelprof.otlp.content import Keys
from otelprof.otlp.decoded import Frames
from otelprof.otlp.tables import UNKNOWN

Ints = npt.NDArray[np.int64]

_KINDS = {"cpython": "python", "native": "native", "kernel": "kernel", "cuda": "cuda"}
_PREFIX = {semconv.FRAME_TYPES[kind]: text for kind, text in semconv.LABELS.items()}


class Name(NamedTuple):
    """What a bar is called: bars of one parent with the same name, kind and file are one bar."""

    text: str
    kind: str = ""  # python, native, kernel, cuda, mark
    file: str = ""


def shown_name(kind: str, name: str, file: str) -> Name:
    """The name that people see of a frame in OTLP's form."""
    if not kind and name.startswith("["):
        return Name(name, "mark")
    return Name(_PREFIX.get(kind, "") + (name or UNKNOWN), _KINDS.get(kind, ""), file)


@dataclass(frozen=True, slots=True)
class Naming:
    """Distinct `names` in order with `[unknown]` last, a place (`file:line`) for each, and which frame has which.

    `known` u8[n] are the frames' keys in order, `numbers` i8[n] the numbers of their names.
    """

    names: list[Name]
    places: list[str]
    known: Keys
    numbers: Ints

    @classmethod
    def of(cls, frames: Frames) -> Naming:
        """The names of frames."""
        shown = list(map(shown_name, frames.kinds, frames.names, frames.files))
        names = sorted(set(shown))
        number = {name: i for i, name in enumerate(names)}
        lines = np.where(frames.starts > 0, frames.starts, frames.lines).tolist()
        places = {name: f"{name.file}:{line}" if line > 0 else name.file for name, line in zip(shown, lines, strict=True)}
        order = np.argsort(frames.keys)
        numbers = np.array([number[name] for name in shown], np.int64)[order]
        return cls([*names, Name(UNKNOWN, "mark")], [*(places[name] for name in names), ""], frames.keys[order], numbers)

    def __len__(self) -> int:
        return len(self.names)

    def of_frames(self, keys: Keys) -> Ints:
        """The number of each frame's name; that of `[unknown]` for frames that aren't known."""
        if not len(self.known):
            return np.full(len(keys), len(self) - 1, np.int64)
        at = np.minimum(np.searchsorted(self.known, keys), len(self.known) - 1)
        return np.where(self.known[at] == keys, self.numbers[at], len(self) - 1)
