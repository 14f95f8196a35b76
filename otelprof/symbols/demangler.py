"""The child that demangles: `python -m otelprof.symbols.demangler`, one name a line in, one a line out.

A name of 450 bytes can stand for a text of terabytes (each part naming the one before twice), on which LLVM's demangler ends
its process and GCC's takes all memory; so it happens here, with little memory and without rights. What it uses: `pycxxfilt`
(LLVM's demangler, which knows Rust too) where that is installed, else `__cxa_demangle` of libstdc++.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import sys
from collections.abc import Callable

from otelprof.text import clean

MEMORY = 1 << 30
OUTPUT_LIMIT = 1 << 14
_NOBODY = 65_534

Demangle = Callable[[str], str]


def find() -> Demangle:
    """What can demangle here; what can't leaves names as they are."""
    try:
        found: Demangle = importlib.import_module("pycxxfilt").demangle
    except ImportError:
        return _of_libstdcxx()
    return found


def _of_libstdcxx() -> Demangle:
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return str
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]

    def demangle(name: str) -> str:
        address = function(name.encode(), None, None, None)
        if not address:
            return name
        text = ctypes.string_at(address).decode("utf-8", "replace")
        free(address)
        return text

    return demangle


def main() -> None:
    """Answer until the input ends."""
    demangle = find()
    demangle("_Z1fv")  # what is loaded late must be there before rights are given up
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    for line in sys.stdin:
        name = line.rstrip("\n")
        try:
            text = demangle(name) or name
        except ValueError:
            text = name
        sys.stdout.write(clean(text, OUTPUT_LIMIT).replace("\n", " ") + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
