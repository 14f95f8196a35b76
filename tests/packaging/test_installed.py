"""The installed wheel: commands, components, objects, the demo, and the agent without the backend's packages."""

import json
import os
from pathlib import Path

import pytest

from tests.packaging.conftest import Installed
from tests.packaging.test_wheel import PROJECT, VERSION

REPLAY = """
receivers: {replay: {path: %s}}
exporters: {debug: {}}
service: {pipelines: {profiles: {receivers: [replay], exporters: [debug]}}}
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="missing: root, to load BPF programs")


def test_version_is_the_projects(installed: Installed) -> None:
    assert installed.run("otelprof", "--version").stdout == f"otelprof {VERSION}\n"


def test_package_is_the_installed_one(installed: Installed) -> None:
    where = Path(installed.python("import otelprof; print(otelprof.__file__)").strip())
    assert where.is_relative_to(installed.folder)


def test_every_component_is_listed(installed: Installed) -> None:
    done = installed.run("otelprof", "components", "--json")
    assert done.returncode == 0, done.stderr
    listed = json.dumps(json.loads(done.stdout))
    for name in PROJECT["entry-points"]["otelprof.components"]:
        assert name.split(".")[1] in listed


def test_every_entry_point_loads(installed: Installed) -> None:
    code = """
from importlib.metadata import entry_points
print(*(point.name for point in entry_points(group='otelprof.components') if point.load()))
"""
    assert set(installed.python(code).split()) == PROJECT["entry-points"]["otelprof.components"].keys()


def test_objects_are_bpf_programs_that_the_package_finds(installed: Installed) -> None:
    code = """
from otelprof.ebpf.object import OBJECTS, read_object
for name in OBJECTS:
    data = read_object(name)
    print(name, data[:4] == b'\\x7fELF', int.from_bytes(data[18:20], 'little'))
"""
    lines = installed.python(code).splitlines()
    assert len(lines) >= 3
    assert [line.split()[1:] for line in lines] == [["True", "247"]] * len(lines)  # EM_BPF, elf.h


def test_page_is_in_the_package(installed: Installed) -> None:
    code = "from importlib.resources import files; print((files('otelprof') / 'backend/ui/index.html').read_text())"
    assert "<html" in installed.python(code)


def test_modules_of_the_agent_load_without_the_backends_packages(installed: Installed) -> None:
    code = """
import importlib, otelprof, pkgutil
names = [m.name for m in pkgutil.walk_packages(otelprof.__path__, 'otelprof.') if not m.name.startswith('otelprof.backend.')]
for name in names:
    if not name.endswith('__main__'):
        importlib.import_module(name)
print(len(names))
"""
    assert int(installed.python(code)) > 50


@pytest.mark.parametrize("command", ["check", "ps", "components", "version"])
def test_agents_commands_work_without_the_backends_packages(installed: Installed, command: str) -> None:
    done = installed.run("otelprof", command)
    assert done.returncode in (0, 1)
    assert done.stdout
    assert "internal error" not in done.stderr


def test_agent_runs_without_the_backends_packages(installed: Installed, tmp_path: Path) -> None:
    session = tmp_path / "session.jsonl"
    sample = {"kind": "sample", "pid": 1, "tid": 1, "time_unix_nano": 1_700_000_000_000_000_000, "count": 3, "stack": ["main"]}
    session.write_text(json.dumps(sample) + "\n")
    config = tmp_path / "agent.yaml"
    config.write_text(REPLAY % session)
    done = installed.run("otelprof", "run", "--config", str(config))
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].startswith("samples=3 ")


def test_shipped_configuration_is_good(installed: Installed) -> None:
    path = installed.folder / "share" / "otelprof" / "collector-config" / "agent-minimal.yaml"
    assert installed.run("otelprof", "validate", "--config", str(path)).returncode == 0


def test_backend_without_its_packages_says_what_to_install(installed: Installed) -> None:
    done = installed.run("otelprof", "backend")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "pip install 'otelprof[backend]'" in line


def test_backend_takes_the_packages_of_its_extra(installed: Installed) -> None:
    assert installed.run("python", "-c", "import otelprof.backend.main", backend=True).returncode == 0


@needs_root
@pytest.mark.kernel
def test_up_with_the_demo_works_from_the_wheel(installed: Installed) -> None:
    ports = ["--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0", "--store", "memory"]
    done = installed.run("otelprof", "up", "--demo", "--duration", "2s", *ports, backend=True)
    assert done.returncode == 0, done.stderr
    assert "ready: open http://127.0.0.1:" in done.stderr
    assert "demo: inference_server: on " in done.stderr
    assert done.stderr.splitlines()[-1].startswith("samples=")
