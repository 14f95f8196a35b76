"""What tests of the packages share: clean sources, the wheel built from them, and a virtual environment with it.

Nothing is downloaded: builds use the build tools of the environment that runs the tests, and the dependencies of the
installed wheel are links to that environment's, only those that the wheel's own metadata ask for.
"""

import io
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
BUILD = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]


def pip(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run pip; `path` is its PATH, the tests' own where none is given."""
    env = {**os.environ, "PATH": path or f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run([sys.executable, "-m", "pip", *arguments], env=env, capture_output=True, text=True, timeout=100)


def build_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a source folder or archive; the source folder stays as it is."""
    done = pip("wheel", *BUILD, f"--config-settings=build-dir={folder}/build", "--wheel-dir", str(folder), str(source))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed sources, without anything that was built or left beside them."""
    archive = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "archive", "HEAD"]
    done = subprocess.run(archive, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"missing: a git checkout of the sources ({done.stderr.decode(errors='replace').strip()})")
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="session")
def tracked(source: Path) -> set[str]:
    """Names of the committed files."""
    return {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}


@pytest.fixture(scope="session")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from clean sources."""
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


def requirements(distribution: metadata.Distribution, extra: str) -> set[str]:
    """Names of what a distribution requires here, with one extra or none."""
    wanted = [Requirement(text) for text in distribution.requires or []]
    return {each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": extra})}


def closure(names: set[str]) -> dict[str, metadata.Distribution]:
    """The distributions of this environment with these names, and all that they require in turn."""
    found: dict[str, metadata.Distribution] = {}
    waiting = sorted(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in found:
            found[name] = metadata.distribution(name)
            waiting += sorted(requirements(found[name], ""))
    return found


def link_packages(names: set[str], folder: Path) -> None:
    """Link what belongs to the distributions `names`, and to those that they require, into `folder`."""
    folder.mkdir()
    for distribution in closure(names).values():
        top = {file.parts[0] for file in distribution.files or [] if ".." not in file.parts}
        for name in top - {"__pycache__"}:
            if not (folder / name).exists():
                (folder / name).symlink_to(Path(str(distribution.locate_file(name))))


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel, and without what the agent doesn't require."""

    folder: Path
    backend: Path
    """For PYTHONPATH: the packages of the extra `backend`."""

    def run(self, *command: str, backend: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, in an empty folder, away from the sources."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        env = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
        env["PYTHONPATH"] = str(self.backend) if backend else ""
        program = [str(self.folder / "bin" / command[0]), *command[1:]]
        return subprocess.run(program, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def python(self, code: str) -> str:
        """What a piece of Python prints there."""
        done = self.run("python", "-c", code)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in a fresh virtual environment, with the agent's dependencies and no more."""
    folder = tmp_path_factory.mktemp("installed") / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, capture_output=True)
    done = pip("--python", str(folder / "bin" / "python"), "install", *BUILD[1:], str(wheel))
    assert done.returncode == 0, done.stderr[-3000:]
    (site,) = folder.glob("lib/python3.*/site-packages")
    (package,) = metadata.distributions(name="otelprof", path=[str(site)])
    agent, backend = folder.parent / "agent", folder.parent / "backend"
    link_packages(requirements(package, ""), agent)
    link_packages(requirements(package, "backend"), backend)
    (site / "dependencies.pth").write_text(f"{agent}\n")
    return Installed(folder, backend)
