"""Builds the stand-in driver with the C compiler at hand: for tests and for the demo, into a folder they choose."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-fvisibility=hidden", "-fomit-frame-pointer"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
LINK_FLAGS = ["-shared", "-s", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-Wl,-z,defs", "-lpthread", "-ldl"]


class BuildError(RuntimeError):
    """The compiler is missing or refused; the text is one line that says what to do or the compiler's own words."""


def run_compiler(command: list[str]) -> None:
    """Run a compiler; raise BuildError with what it said."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except FileNotFoundError:
        raise BuildError(f"no C compiler `{command[0]}`: install one (Debian: apt-get install gcc g++)") from None
    if done.returncode:
        raise BuildError(f"{command[0]} failed: {done.stdout.strip()}")


def build_standin(folder: Path, compiler: str = "cc") -> Path:
    """Compile libcuda.so.1 into `folder` (made if it isn't there) and return its path.

    The file appears whole or not at all, so that several processes may build at once. Raises BuildError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "libcuda.so.1"
    with tempfile.TemporaryDirectory(prefix=".libcuda.", dir=folder) as unfinished:
        built = Path(unfinished) / target.name
        sources = [str(path) for path in [*sorted(SOURCES.glob("*.c")), SOURCES / "trampoline.S"]]
        exports = f"-Wl,--version-script={SOURCES / 'exports.map'}"
        run_compiler([compiler, *FLAGS, *WARNINGS, "-o", str(built), *sources, exports, *LINK_FLAGS])
        built.replace(target)
    return target
