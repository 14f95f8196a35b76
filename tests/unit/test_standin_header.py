"""The stand-in against NVIDIA's own header: prototypes, layouts, constants and versions agree.

The header comes from NVIDIA's wheel, which is fetched for this test and is no part of the project."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.unit.standin_driver import SOURCES, entries

WHEEL = "nvidia-cuda-runtime>=13,<14"
COMPILE = ["cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", f"-I{SOURCES}"]

LAYOUT = """
#include "cuda_api.h"
#include <stdio.h>
#define SIZE(type) printf(#type " %zu\\n", sizeof(type));
#define AT(field) printf(#field " %zu\\n", offsetof(CUlaunchConfig, field));
#define VALUE(name) printf(#name " %lld\\n", (long long)name);
int main(void) {
    SIZE(CUdevice) SIZE(CUdeviceptr) SIZE(CUfunction) SIZE(CUresult) SIZE(CUuuid) SIZE(cuuint64_t) SIZE(CUjit_option)
    SIZE(CUlibraryOption) SIZE(CUdevice_attribute) SIZE(CUstreamCaptureMode) SIZE(CUlaunchConfig) SIZE(CUlaunchAttribute)
    AT(gridDimX) AT(gridDimY) AT(gridDimZ) AT(blockDimX) AT(blockDimY) AT(blockDimZ) AT(sharedMemBytes) AT(hStream)
    AT(attrs) AT(numAttrs)
    VALUES
    return 0;
}
"""


@pytest.fixture(scope="module")
def headers(request: pytest.FixtureRequest) -> Path:
    """The folder with NVIDIA's cuda.h."""
    assert request.config.cache
    folder = request.config.cache.mkdir("nvidia-cuda-runtime")
    if not list(folder.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder, WHEEL]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"needs cuda.h of the wheel {WHEEL}: {done.stderr.strip().splitlines()[-1]}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith(".h")])
    return next(folder.glob("**/cuda.h")).parent


def compile_with(headers: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Compile with NVIDIA's declarations in place of the project's own."""
    command = [*COMPILE, "-DSTANDIN_NVIDIA_HEADER", f"-isystem{headers}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("source", sorted(SOURCES.glob("*.c")), ids=lambda path: path.name)
def test_every_source_compiles_against_nvidias_header(headers: Path, source: Path) -> None:
    done = compile_with(headers, "-fsyntax-only", source)
    assert done.returncode == 0, done.stderr


def test_a_wrong_prototype_is_refused(headers: Path, tmp_path: Path) -> None:
    source = tmp_path / "wrong.c"
    source.write_text('#include "standin.h"\nCUresult impl_cuStreamQuery_ptsz(CUevent wrong) { return !wrong; }\n')
    done = compile_with(headers, "-fsyntax-only", source)
    assert "conflicting types for" in done.stderr


def constants() -> list[str]:
    """The constants that the project's own header defines."""
    text = (SOURCES / "cuda_api.h").read_text()
    named = re.findall(r"^ +(CU\w+) = \d+,$", text, re.MULTILINE)
    assert "CUDA_ERROR_LAUNCH_FAILED" in named
    return named


def layout(folder: Path, *options: str) -> str:
    """Sizes, offsets and constants as a compiled program prints them."""
    source, program = folder / "layout.c", folder / "layout"
    source.write_text(LAYOUT.replace("VALUES", " ".join(f"VALUE({name})" for name in constants())))
    subprocess.run([*COMPILE, *options, "-o", program, source], check=True)
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def test_sizes_offsets_and_constants_are_nvidias(headers: Path, tmp_path: Path) -> None:
    theirs = layout(tmp_path, "-DSTANDIN_NVIDIA_HEADER", f"-isystem{headers}")
    assert layout(tmp_path) == theirs
    assert "hStream 32" in theirs.splitlines()


def test_each_variant_appeared_in_the_version_that_nvidia_says(headers: Path) -> None:
    typedefs = set(re.findall(r"\bPFN_\w+\b", (headers / "cudaTypedefs.h").read_text()))
    for entry in entries():
        suffix = "".join(re.findall(r"_pt[ds][sz]$", entry.exported))
        assert f"PFN_{entry.base}_v{entry.since}{suffix}" in typedefs
