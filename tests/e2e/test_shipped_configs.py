"""Every file in collector-config/ is loaded here by what reads it; what the Collector reads is in test_collector.py."""

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from otelprof.config import Registry, load_file
from tests.e2e.programs import otelprof

SHIPPED = Path(__file__).resolve().parents[2] / "collector-config"
KUBERNETES = SHIPPED / "kubernetes"
UNIT = SHIPPED / "systemd" / "otelprof.service"
AGENTS = sorted([*SHIPPED.glob("agent*.yaml"), KUBERNETES / "agent.yaml"])
FOR_THE_COLLECTOR = {"builder.yaml", "profiles-fragment.yaml", "spans-fragment.yaml"}

pytestmark = pytest.mark.e2e


def names(path):
    return str(path.relative_to(SHIPPED))


FILES = sorted(path for path in SHIPPED.rglob("*") if path.is_file())


def test_every_file_is_loaded_by_a_test():
    read = {*AGENTS, UNIT, *KUBERNETES.glob("*.yaml"), *(SHIPPED / name for name in FOR_THE_COLLECTOR)}
    assert set(FILES) == read


@pytest.mark.parametrize("path", FILES, ids=names)
def test_the_head_says_what_it_is_and_what_it_was_tested_with(path):
    head = " ".join(line.strip("# \n") for line in path.read_text().splitlines() if line.startswith("#"))
    assert path.read_text().startswith("# ")
    assert re.search(r"feature[ -]gate|The gate|No Collector|says what it was tested with", head), head
    assert not re.search(r"/root/|/work/", path.read_text())


@pytest.mark.parametrize("path", AGENTS, ids=names)
def test_an_agent_s_configuration_is_good_and_has_nothing_unused(path):
    assert load_file(path, Registry.installed()).warnings == ()


def test_validate_takes_one_of_them():
    done = subprocess.run([otelprof(), "validate", "--config", str(AGENTS[0])], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, f"otelprof: {AGENTS[0]}: good\n")


def documents():
    """What kustomize makes of the base, by kind; without kubectl the files themselves."""
    if shutil.which("kubectl"):
        made = subprocess.run(["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, timeout=60)
        assert made.returncode == 0, made.stderr
        return {one["kind"]: one for one in yaml.safe_load_all(made.stdout)}
    base = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    return {one["kind"]: one for one in (yaml.safe_load((KUBERNETES / name).read_text()) for name in base["resources"])}


def test_the_base_names_all_its_files():
    base = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    named = {*base["resources"], *base["configMapGenerator"][0]["files"], "kustomization.yaml"}
    assert named == {path.name for path in KUBERNETES.iterdir()}


def container():
    pod = documents()["DaemonSet"]["spec"]["template"]["spec"]
    (found,) = pod["containers"]
    return pod, found


def test_the_daemonset_has_the_least_rights_and_no_token():
    pod, agent = container()
    rights = agent["securityContext"]
    assert pod["hostPID"] is True
    assert not pod.get("hostNetwork")
    assert pod["automountServiceAccountToken"] is documents()["ServiceAccount"]["automountServiceAccountToken"] is False
    assert (rights["privileged"], rights["allowPrivilegeEscalation"], rights["readOnlyRootFilesystem"]) == (False, False, True)
    assert rights["capabilities"]["drop"] == ["ALL"]


def test_the_daemonset_s_command_ports_and_mounts_fit_the_agent_s_configuration():
    pod, agent = container()
    config = yaml.safe_load((KUBERNETES / "agent.yaml").read_text())
    mounts = {mount["name"]: mount["mountPath"] for mount in agent["volumeMounts"]}
    assert agent["args"] == ["run", "--config", f"{mounts['config']}/agent.yaml"]
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    assert config["service"]["telemetry"]["metrics"]["address"].endswith(f":{agent['ports'][0]['containerPort']}")
    given = {variable["name"] for variable in agent["env"]}
    assert set(re.findall(r"\$\{env:(\w+)", (KUBERNETES / "agent.yaml").read_text())) <= given
    assert {"K8S_NODE_NAME", "STATE_DIRECTORY"} <= given


def unit():
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(UNIT)
    return parser


def test_systemd_takes_the_unit_and_finds_it_hardened():
    service = unit()["Service"]
    assert service["ExecStart"].endswith("otelprof run --config /etc/otelprof/agent.yaml")
    assert service["AmbientCapabilities"] == service["CapabilityBoundingSet"]
    if not shutil.which("systemd-analyze"):
        pytest.skip("missing: systemd-analyze")
    for command in (["verify"], ["security", "--offline=yes", "--no-pager", "--threshold=45"]):
        done = subprocess.run(["systemd-analyze", *command, str(UNIT)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_capabilities_that_both_give_are_enough_for_a_user_without_rights():
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("missing: root, or setpriv, to give rights away")
    granted = unit()["Service"]["AmbientCapabilities"].split()
    assert [f"CAP_{name}" for name in container()[1]["securityContext"]["capabilities"]["add"]] == granted
    rights = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in granted)])
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]
    become += [f"--{kind}={rights}" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
    readable = subprocess.run([*become, "test", "-x", otelprof()], timeout=60).returncode == 0
    if not readable:
        pytest.skip("missing: an installation that other users may read")
    done = subprocess.run([*become, otelprof(), "check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^ok +BPF programs", done.stdout, re.MULTILINE)
