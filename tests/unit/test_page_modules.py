"""The pure modules of the page, tested where they run: by node's own test runner."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UI = ROOT / "otelprof" / "backend" / "ui"
TESTS = sorted((ROOT / "tests" / "unit" / "page").glob("*.test.mjs"))
MOST_LINES = 500


def node() -> str:
    """Path of a node that takes ES modules without a package.json (20.19 and newer)."""
    path = shutil.which("node")
    if not path:
        pytest.skip("needs node (Debian: nodejs, 20.19 or newer)")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)\.(\d+)", version)
    if not found or (int(found[1]), int(found[2])) < (20, 19):
        pytest.skip(f"needs node 20.19 or newer, this is {version.strip()}")
    return path


@pytest.mark.parametrize("test", TESTS, ids=lambda path: path.stem)
def test_pure_modules_in_node(test: Path) -> None:
    """Every case of one file passes; node's report is the message."""
    env = {**os.environ, "TZ": "Europe/Berlin", "NODE_NO_WARNINGS": "1"}
    done = subprocess.run([node(), "--test", str(test)], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", sorted(UI.glob("*.*")), ids=lambda path: path.name)
def test_page_files_are_short_and_say_what_they_are_for(path: Path) -> None:
    """No file over 500 lines; scripts and styles begin with a comment."""
    text = path.read_text()
    assert text.count("\n") <= MOST_LINES
    if path.suffix in (".js", ".css"):
        assert text.startswith(("/**\n", "/* "))


def test_page_needs_no_inline_script_or_style_and_nothing_from_outside() -> None:
    """What the policy default-src 'self' would refuse, and what would write markup from data, isn't there."""
    page = (UI / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)
    for path in UI.glob("*.*"):
        text = path.read_text()
        outside = [url for url in re.findall(r"https?://[^\s\"'`)]+", text) if url != "http://www.w3.org/2000/svg"]
        assert not outside, path.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function\(", text), path.name


def test_all_imports_of_the_page_exist() -> None:
    """Modules import files and names that are there."""
    for path in UI.glob("*.js"):
        for names, target in re.findall(r"import \{([^}]*)\} from \"\./([\w.]+)\"", path.read_text()):
            exported = set(re.findall(r"export (?:async )?(?:function|const|class) (\w+)", (UI / target).read_text()))
            assert {name.strip() for name in names.split(",") if name.strip()} <= exported, f"{path.name} from {target}"
