"""The rooms import downward only, and nothing of the product knows the stand-ins."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "otelprof"

# Each room may import the rooms of the lines above its own, and itself.
LAYERS = [
    {"batch", "counters", "errors", "text", "__init__"},
    {"component", "config"},
    {"ebpf", "processes", "targets", "symbols", "inject", "otlp", "formats"},
    {"receivers", "processors", "exporters", "extensions", "backend", "testing"},
    {"pipeline", "telemetry", "telemetry_push", "agent", "cli", "reference", "__main__"},
]
LEVEL = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
FORBIDDEN = {("backend", "ebpf"), ("exporters", "receivers"), ("exporters", "processors"), ("processors", "receivers")}


def room(path: Path) -> str:
    """The first part below otelprof/: the module's or package's name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Rooms of otelprof that a module imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" if node.module == "otelprof" else node.module for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("otelprof.")}
    return found - {"__version__"}


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_its_own_room_and_lower_ones(path: Path) -> None:
    here = room(path)
    assert here in LEVEL, f"{here} stands in no layer: add it to LAYERS in this test and to docs/architecture.md"
    upward = {name for name in imports(path) if LEVEL.get(name, 99) > LEVEL[here]}
    assert not upward, f"imports upward: {sorted(upward)}"
    assert not {name for name in imports(path) if (here, name) in FORBIDDEN}


def test_nothing_of_the_product_knows_the_stand_ins() -> None:
    sources = [*MODULES, *(ROOT / "bpf").rglob("*.[ch]")]
    knowing = [str(path) for path in sources if "stand-in" in path.read_text() or "standin" in path.read_text()]
    allowed = {str(PACKAGE / "cli" / "up.py")}  # says on stderr which of the two the demo chose
    assert not set(knowing) - allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "no module docstring"
