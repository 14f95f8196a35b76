"""Compiles the walkers of bpf/ for this machine, so that tests can run them on memory of their own."""

import ctypes
import subprocess
from pathlib import Path

BPF = Path(__file__).resolve().parents[2] / "bpf"
FLAGS = ["-DOTELPROF_HOST", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=bounds", "-fsanitize-undefined-trap-on-error"]


def build_walkers(folder: Path, name: str = "walkers") -> ctypes.CDLL:
    """The library of bpf/host/`name`.c, built in `folder`; an access outside of an array ends the process."""
    path = folder / f"{name}.so"
    subprocess.run(["cc", *FLAGS, "-shared", "-fPIC", f"-I{BPF}", "-o", path, BPF / "host" / f"{name}.c"], check=True)
    return ctypes.CDLL(str(path))
