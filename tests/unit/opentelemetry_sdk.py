"""Releases of opentelemetry-sdk for the interpreters of this machine: installed by pip at first use, kept in ~/.cache/otelprof.

None of them goes into an environment: a program gets one by PYTHONPATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.unit.python_programs import Interpreter, supported

RELEASES = ("1.20.0", "1.25.0", "1.30.0", "1.36.0", "1.40.0", "1.45.2")
"""A handful from the oldest that is read to the newest."""
_NEWEST = {8: "1.33.1", 9: "1.39.1"}  # the last releases that support 3.8 and 3.9
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "otelprof" / "opentelemetry"
_PATIENCE = 100


def interpreters() -> list[Interpreter]:
    """Those that can be targets, outside of environments: what they import comes from PYTHONPATH alone."""
    return [one if one.root else replace(one, path=one.file) for one in supported()]


def newest(interpreter: Interpreter) -> str:
    """The newest release that supports an interpreter, of those that are tested."""
    return _NEWEST.get(interpreter.version[1], RELEASES[-1])


def environment(interpreter: Interpreter, release: str = "", beside: str = "") -> dict[str, str]:
    """The environment in which `interpreter` imports a release (the newest), and another package `beside` it.

    Skips the test where they can't be had.
    """
    folder = installed(interpreter, release or newest(interpreter), beside)
    if isinstance(folder, str):
        pytest.skip(folder)
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


@cache
def installed(interpreter: Interpreter, release: str, beside: str = "") -> Path | str:
    """The folder with a release, as the interpreter sees it; a text says why there is none."""
    if interpreter.root or not _has_pip(interpreter):
        return _borrowed(interpreter, release)
    folder = _CACHE / "-".join(filter(None, (".".join(map(str, interpreter.version)), release, beside)))
    if not (folder / "done").exists():
        failure = _install(interpreter, [f"opentelemetry-sdk=={release}", *filter(None, [beside])], folder)
        if failure:
            return failure
    return folder


def _install(interpreter: Interpreter, packages: list[str], folder: Path) -> str:
    """Install into `folder`, whole or not at all; why it failed, empty when it didn't."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=_CACHE))
    options = ["-q", "--disable-pip-version-check", "--no-compile", "--only-binary", ":all:", "--target", str(fresh)]
    command = [interpreter.path, "-m", "pip", "install", *options, *packages]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE)
        (fresh / "done").touch()
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(fresh, ignore_errors=True)
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        return f"{' and '.join(packages)} can't be installed for {interpreter}: {said[-1] if said else error}"
    return ""


@cache
def _has_pip(interpreter: Interpreter) -> bool:
    return not subprocess.run([interpreter.path, "-m", "pip", "--version"], capture_output=True, check=False).returncode


def _borrowed(interpreter: Interpreter, release: str) -> Path | str:
    """What another interpreter got, as a copy where the root is another one: the packages are pure Python."""
    lenders = [one for one in interpreters() if not one.root and _has_pip(one)]
    found = (
        installed(lenders[-1], release) if lenders else f"no interpreter here has pip to install opentelemetry-sdk {release}"
    )
    if isinstance(found, str) or not interpreter.root:
        return found
    inside = Path(f"/tmp/opentelemetry-{release}")
    if not Path(f"{interpreter.root}{inside}").exists():
        shutil.copytree(found, f"{interpreter.root}{inside}")
    return inside
