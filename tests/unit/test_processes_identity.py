"""Facts of a process: what it is called, and nothing of its arguments or environment that wasn't asked for."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otelprof.errors import TargetError
from otelprof.processes import identity
from otelprof.processes.identity import read_facts, read_stat, service_name, unix_time
from otelprof.processes.resource import process_resource
from tests.unit.python_programs import until


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["python", "app.py"], "app"),
        (["/usr/bin/python3.11", "-u", "/srv/shop/NAME-10.py", "--token=secret"], "NAME-10"),
        (["python3", "-m", "pkg.mod", "secret"], "pkg.mod"),
        (["python", "-Im", "pkg.mod"], "pkg.mod"),
        (["python", "-mgunicorn", "wsgi:app"], "gunicorn"),
        (["python", "-X", "dev", "-W", "ignore", "serve.py"], "serve"),
        (["python", "-Xdev", "-Wignore", "serve.py"], "serve"),
        (["python", "--check-hash-based-pycs", "always", "serve.py"], "serve"),
        (["python", "/usr/local/bin/uvicorn", "app:app"], "uvicorn"),
        (["/venv/bin/python", "/venv/bin/gunicorn", "wsgi:app"], "gunicorn"),
        (["python", "/srv/shop/__main__.py"], "shop"),
        (["python", "-m", "shop.__main__"], "shop"),
        (["python", "-c", "secret()"], "python3.11"),
        (["python"], "python3.11"),
        (["python", "-"], "python3.11"),
        (["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(4)", "--multiprocessing-fork"], "parent"),
        (["gunicorn: master [wsgi:app]"], "gunicorn"),
        (["celeryd: secret@host"], "celeryd"),
        ([""], "python3.11"),
        ([], "python3.11"),
    ],
)
def test_a_python_service_is_called_after_its_script_or_module(arguments, name):
    assert service_name(arguments, "python3.11", "parent") == name


@pytest.mark.parametrize("executable", ["nginx", "myapp", "python-wrapper"])
def test_any_other_service_is_called_after_its_executable(executable):
    assert service_name([f"/opt/{executable}", "-c", "secret"], executable) == executable


def test_facts_of_a_living_program(tmp_path):
    script = tmp_path / "shop api.py"
    script.write_text("print(1, flush=True); input()")
    env = {**os.environ, "OTEL_SERVICE_NAME": "shop", "OTEL_RESOURCE_ATTRIBUTES": "a=b%20c,d=é", "SECRET": "1"}
    began = time.time()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, script, "--token=x"], stdin=pipe, stdout=pipe, env=env) as child:
        child.stdout.readline()
        facts = read_facts(child.pid)
        child.kill()
    assert facts.environment == (("OTEL_RESOURCE_ATTRIBUTES", "a=b%20c,d=é"), ("OTEL_SERVICE_NAME", "shop"))
    assert (facts.service, facts.command) == ("shop api", Path(sys.executable).name)
    assert facts.executable_path == os.path.realpath(sys.executable)
    assert (facts.pid, facts.parent, facts.uid, facts.namespace_pid) == (child.pid, os.getpid(), os.getuid(), child.pid)
    assert abs(facts.start_time / 1e9 - began) < 2
    assert facts.pid_namespace == Path("/proc/self/ns/pid").stat().st_ino
    assert "token" not in repr(facts)
    assert "SECRET" not in repr(facts)


def test_a_title_that_holds_arguments_does_not_leave():
    """Programs such as Chromium write all their arguments into the first one, with blanks between."""
    arguments = "/opt/browser --password=x"
    command = ["bash", "-c", f"exec -a '{arguments}' sleep 1000"]
    with subprocess.Popen(command) as child:
        while read_facts(child.pid).executable_name != "sleep":
            time.sleep(0.01)
        facts = read_facts(child.pid)
        child.kill()
    assert facts.command == "sleep"
    assert "password" not in repr(facts)


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        ("0::/system.slice/docker-{id}.scope", True),
        ("12:cpu:/docker/{id}", True),
        ("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope", True),
        ("1:name=systemd:/kubepods/besteffort/pod42/{id}\n0::/", True),
        ("0::/user.slice/user-1000.slice", False),
        ("0::/", False),
        ("", False),
    ],
)
def test_container_ids_stand_in_the_cgroup(cgroup, found):
    number = "0123456789abcdef" * 4
    assert identity._container(identity._cgroup(cgroup.format(id=number).encode())) == (number if found else "")


def test_a_name_of_blanks_and_brackets_does_not_confuse_the_line(tmp_path):
    program = tmp_path / ") R 1 (x"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "1000"]) as child:
        stat = read_stat(child.pid)
        child.kill()
    assert stat.parent == os.getpid()
    assert abs(unix_time(stat.start_ticks) / 1e9 - time.time()) < 5
    assert not stat.kernel_thread


def test_a_process_that_has_ended_is_a_target_error():
    with subprocess.Popen(["true"]) as child:
        pass
    with pytest.raises(TargetError, match=f"process {child.pid}: stat can't be read"):
        read_facts(child.pid)


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, {"rank": 3, "local_rank": 1, "world_size": 8}),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_JOB_NAME": "secret"}, {"rank": 5, "world_size": 16}),
        ({"RANK": "0", "SLURM_PROCID": "5"}, {"rank": 0}),
        ({"RANK": "token-1234", "WORLD_SIZE": "", "LOCAL_RANK": "-1"}, {}),
    ],
)
def test_the_place_in_a_distributed_job_is_an_attribute_and_nothing_else_of_these_variables(environment, ranks):
    with subprocess.Popen(["sleep", "1000"], env={"PATH": "/usr/bin:/bin", **environment}) as child:
        until(lambda: read_facts(child.pid).command == "sleep", "exec")
        resource = dict(process_resource(read_facts(child.pid)).attributes)
        child.kill()
    assert {key.removeprefix("otelprof."): value for key, value in resource.items() if "rank" in key or "world" in key} == ranks
    assert "secret" not in str(resource)
