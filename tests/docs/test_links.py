"""Whatever a document points to is there: files, sections of commands, targets of make."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path for path in ROOT.rglob("*.md") if not {".venv", "build", "shared", ".git"} & set(path.relative_to(ROOT).parts)
)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
CODE = re.compile(r"`((?:bpf|otelprof|native|tests|examples|docs|collector-config|benchmarks|scripts)/[\w./-]+)`")
MAKE = re.compile(r"`?\bmake ([a-z]+)\b")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    targets = [target for target in LINK.findall(path.read_text()) if "://" not in target]
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_the_text_exist(path: Path) -> None:
    names = [name for name in CODE.findall(path.read_text()) if "NAME" not in name]
    missing = [name for name in names if not (ROOT / name).exists()]
    assert not missing


def test_every_target_of_make_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        word
        for path in DOCUMENTS
        for block in re.findall(r"`make [a-z]+|^make [a-z]+", path.read_text(), re.MULTILINE)
        for word in MAKE.findall(block)
    }
    assert named
    assert not named - targets


def test_every_decision_has_its_number_once() -> None:
    numbers = [path.name[:4] for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")]
    assert sorted(numbers) == sorted(set(numbers))
