"""`otelprof check --cuda`: each driver library once, with the places of its probes, and what a probe costs."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

STANDIN = Path(__file__).resolve().parents[2] / "native" / "standin" / "build_standin.py"
HOLDER = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('open', flush=True); sys.stdin.read()"

pytestmark = [pytest.mark.e2e, pytest.mark.kernel, pytest.mark.skipif(os.geteuid() != 0, reason="needs root to attach")]


def test_a_mapped_driver_is_found_with_its_sites_and_cost(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("build_standin", STANDIN)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library = module.build_standin(tmp_path)
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLDER, library], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for holder in holders:
            assert holder.stdout
            assert holder.stdout.readline() == b"open\n"
        command = [sys.executable, "-m", "otelprof", "check", "--cuda", "--cost", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        found = [row for row in json.loads(done.stdout) if row["name"] == "CUDA driver" and str(library) in row["seen"]]
    finally:
        for holder in holders:
            holder.communicate()
    (row,) = found
    assert row["ok"]
    assert "at je of the driver's trampoline" in row["seen"]
    assert "an empty probe costs" in row["seen"], row["seen"]
