"""The wheel and the source archive: what is in them, what isn't, and what they say of themselves."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tests.packaging.conftest import BUILD, ROOT, build_wheel, pip

SHARED = ("examples/inference_server/", "native/standin/", "collector-config/")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]


def contents(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def about(wheel: Path) -> Message:
    """The wheel's METADATA."""
    return message_from_bytes(contents(wheel)[f"otelprof-{VERSION}.dist-info/METADATA"])


def test_wheel_holds_the_package_the_objects_and_the_demo_and_nothing_else(wheel: Path, tracked: set[str]) -> None:
    package = {name for name in tracked if name.startswith("otelprof/")}
    objects = {f"otelprof/_{name.removesuffix('.c')}.o" for name in tracked if re.fullmatch(r"bpf/\w+\.bpf\.c", name)}
    share = {name for name in tracked if name.startswith(SHARED) and not name.endswith("/ruff.toml")}
    data = {f"otelprof-{VERSION}.data/data/share/otelprof/{name}" for name in share}
    files = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE", "licenses/LICENSE-BPF"}
    assert objects
    assert contents(wheel).keys() == package | objects | data | {f"otelprof-{VERSION}.dist-info/{name}" for name in files}


def test_wheel_fits_every_python_3_of_this_architecture(wheel: Path) -> None:
    assert wheel.name.startswith(f"otelprof-{VERSION}-py3-none-linux_")


def test_wheel_names_no_folder_of_the_machine_that_built_it(wheel: Path, source: Path) -> None:
    assert [name for name, data in contents(wheel).items() if str(source.parent).encode() in data] == []


def test_objects_are_stripped_to_code_and_btf(wheel: Path) -> None:
    for name, data in contents(wheel).items():
        if name.endswith(".bpf.o"):
            assert b".BTF" in data
            assert b".debug_info" not in data


def test_wheel_from_the_source_archive_is_the_same(source: Path, wheel: Path, tmp_path: Path) -> None:
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True, timeout=60)
    (archive,) = tmp_path.glob("*.tar.gz")
    assert contents(build_wheel(archive, tmp_path)) == contents(wheel)
    with tarfile.open(archive) as packed:
        top = {name.split("/")[1] for name in packed.getnames()}
    assert top == {
        *("PKG-INFO", "README.md", "CHANGELOG.md", "LICENSE", "LICENSE-BPF", "pyproject.toml", "CMakeLists.txt"),
        *("bpf", "otelprof", "examples", "native", "collector-config"),
    }


def test_agent_requires_few_packages_and_never_bcc(about: Message) -> None:
    every = [text.split(";")[0].strip() for text in about.get_all("Requires-Dist", [])]
    agent = [text for text in about.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert 0 < len(agent) <= 12
    assert not [text for text in every if text.lower().startswith("bcc")]


def test_heavy_packages_are_asked_for_by_the_extra_alone(about: Message) -> None:
    agent = " ".join(text for text in about.get_all("Requires-Dist", []) if "extra ==" not in text)
    extra = " ".join(text for text in about.get_all("Requires-Dist", []) if "extra ==" in text)
    for name in ("chdb", "starlette", "uvicorn"):
        assert name not in agent
        assert name in extra


def test_metadata_say_licences_and_python(about: Message) -> None:
    assert about["License-Expression"] == "Apache-2.0"
    assert about.get_all("License-File") == ["LICENSE", "LICENSE-BPF"]
    assert about["Requires-Python"] == ">=3.11"
    assert about["Description-Content-Type"] == "text/markdown"


def test_without_clang_one_line_says_what_to_install(source: Path, tmp_path: Path) -> None:
    build = [*BUILD, f"--config-settings=build-dir={tmp_path}/build", "--wheel-dir", str(tmp_path), str(source)]
    done = pip("wheel", *build, path=str(Path(sys.executable).parent))
    assert done.returncode != 0
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "apt-get install" in line]
    assert [line.strip() for line in lines] == [
        "clang is needed to compile the BPF programs: apt-get install clang llvm libbpf-dev"
    ]
