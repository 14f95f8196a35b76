"""CUDA driver libraries: known by content, probed at the cheapest instruction, attached once for all their processes."""

import ctypes
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from otelprof.batch import CallKind
from otelprof.counters import CUDA_FILES, CUDA_RETURN_SITES, Counters
from otelprof.ebpf.mappings import NewMapping
from otelprof.errors import Unsupported
from otelprof.processes.maps import Maps, read_maps
from otelprof.symbols.elf import Elf, FileSource
from otelprof.targets.cuda import (
    DESCRIPTORS_LIMIT,
    LibcudaFiles,
    Site,
    find_libcuda,
    is_libcuda,
    mapped_region,
    open_libcuda,
    probe_sites,
)
from otelprof.targets.cuda_entries import BY_ENTRY, ENTRY_POINTS, RUNTIME_ENTRY_POINTS, Returns
from otelprof.targets.descriptors import free_descriptors
from otelprof.targets.probe_sites import best_place
from otelprof.targets.return_sites import ReturnSites

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = {point.entry: number for number, point in enumerate(ENTRY_POINTS, 1)}

# Bodies by shape. The trampoline has the bytes of NVIDIA's libcuda: cmpl, je over the jump, jump through a table.
TRAMPOLINE = """.byte 0x81, 0x3d
        .long 0
        .long 0x321cba00
        .byte 0x74, 0x0c
        jmp *0(%rip)"""
SHAPES = {
    "trampoline": TRAMPOLINE,
    "nop5": ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n ret",
    "nop": "nop\n ret",
    "push": "push %rbp\n pop %rbp\n ret",
    "push_r12": "push %r12\n pop %r12\n ret",
    "endbr_push": "endbr64\n push %rbp\n pop %rbp\n ret",
    "endbr_nop5": "endbr64\n .byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n ret",
    "endbr_sub": "endbr64\n sub $16, %rsp\n add $16, %rsp\n ret",
    "sub": "sub $16, %rsp\n add $16, %rsp\n ret",
    "other_cmp": TRAMPOLINE.replace("0x321cba00", "0x321cba01"),
    "other_je": TRAMPOLINE.replace("0x74, 0x0c", "0x75, 0x0c"),
}


def build(path: Path, functions: dict[str, str], aliases: dict[str, str] | None = None) -> Path:
    """A shared library at `path` with functions by shape (a key of SHAPES), and further names for some."""
    lines = [".text"]
    for name, shape in functions.items():
        lines += [
            ".p2align 5",
            f".globl {name}",
            f".type {name}, @function",
            f"{name}:",
            f" {SHAPES[shape]}",
            f".size {name}, . - {name}",
        ]
    for alias, name in (aliases or {}).items():
        lines += [f".globl {alias}", f".type {alias}, @function", f".set {alias}, {name}"]
    source = path.with_suffix(".S")
    source.write_text("\n".join([*lines, '.section .note.GNU-stack, "", @progbits', ""]))
    command = ["cc", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-o", str(path), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def driver(path: Path, shape: str = "trampoline") -> Path:
    """A library that passes for a driver, its launch function of this shape."""
    return build(path, {"cuInit": "trampoline", "cuLaunchKernel": shape})


@contextmanager
def mapping(*libraries: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has these libraries open; it ends with the block."""
    code = (
        "import ctypes, sys; kept = [ctypes.CDLL(path) for path in sys.argv[1:]]; print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, *map(str, libraries)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        try:
            yield child
        finally:
            child.communicate("")


def elf(path: Path) -> Elf:
    return Elf(FileSource(os.open(path, os.O_RDONLY)))


def sites(path: Path) -> dict[str, Site]:
    return {site.symbol: site for site in probe_sites(elf(path))}


def start_of(path: Path, name: str) -> int:
    """Where a function begins in the file, as binutils see it."""
    symbols = subprocess.run(["nm", "-D", path], check=True, capture_output=True, text=True).stdout
    (address,) = re.findall(rf"^([0-9a-f]+) T {name}$", symbols, re.MULTILINE)
    headers = subprocess.run(["readelf", "-lW", path], check=True, capture_output=True, text=True).stdout
    for offset, start, size in re.findall(r"LOAD\s+0x(\w+) 0x(\w+) 0x\w+ 0x(\w+)", headers):
        if int(start, 16) <= int(address, 16) < int(start, 16) + int(size, 16):
            return int(address, 16) - int(start, 16) + int(offset, 16)
    raise AssertionError(name)


# --- places and sites ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "at", "emulated"),
    [
        ("trampoline", 10, True),
        ("nop5", 0, True),
        ("nop", 0, True),
        ("push", 0, True),
        ("push_r12", 0, True),
        ("endbr_push", 4, True),
        ("endbr_nop5", 4, True),
        ("endbr_sub", 0, False),
        ("sub", 0, False),
        ("other_cmp", 0, False),
        ("other_je", 0, False),
    ],
)
def test_a_probe_goes_to_the_cheapest_instruction_that_keeps_the_arguments(
    shape: str, at: int, emulated: bool, tmp_path: Path
) -> None:
    path = driver(tmp_path / "libcuda.so.1", shape)
    site = sites(path)["cuLaunchKernel"]
    assert (site.offset - start_of(path, "cuLaunchKernel"), site.emulated) == (at, emulated)
    assert site.entry == "CUDA_LAUNCH_KERNEL"


@pytest.mark.parametrize("cut", range(14))
def test_half_a_trampoline_is_none(cut: int) -> None:
    code = bytes.fromhex("813d8877665500ba1c32740cff25")
    assert best_place(code).at == 10
    assert best_place(code[:cut]).at == 0


def test_a_probe_never_goes_beyond_the_function() -> None:
    code = bytes.fromhex("f30f1efa90")
    assert best_place(code, size=5).at == 4
    assert best_place(code, size=4).at == 0


def test_two_names_at_one_address_are_one_site_and_missing_entry_points_none(tmp_path: Path) -> None:
    path = build(
        tmp_path / "libcuda.so.1",
        {"cuInit": "push", "cuLaunchKernel": "push", "cuGraphLaunch_ptsz": "push"},
        {"cuLaunchKernel_ptsz": "cuLaunchKernel"},
    )
    assert {name: site.entry for name, site in sites(path).items()} == {
        "cuLaunchKernel": "CUDA_LAUNCH_KERNEL",
        "cuGraphLaunch_ptsz": "CUDA_GRAPH_LAUNCH",
    }


def test_every_exported_form_is_probed_with_its_entry_point(tmp_path: Path) -> None:
    names = [name for point in ENTRY_POINTS for name in point.exports]
    path = build(tmp_path / "libcuda.so.1", dict.fromkeys(["cuInit", *names], "trampoline"))
    found = sites(path)
    assert {name: BY_ENTRY[site.entry].exports for name, site in found.items()} == {
        name: point.exports for point in ENTRY_POINTS for name in point.exports
    }
    assert all(site.offset == start_of(path, name) + 10 for name, site in found.items())


def test_the_table_of_entry_points_is_that_of_the_wire() -> None:
    header = (ROOT / "bpf" / "wire.h").read_text()
    (body,) = re.findall(r"enum cuda_entry \{(.*?)\};", header, re.DOTALL)
    assert set(re.findall(r"^\s+(CUDA_\w+) =", body, re.MULTILINE)) - {"CUDA_NONE"} == set(BY_ENTRY) | {
        point.entry for point in RUNTIME_ENTRY_POINTS
    }


def test_waits_give_times_and_look_ups_give_names() -> None:
    waits = {"cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize"}
    assert {p.name for p in ENTRY_POINTS if p.returns is Returns.TIME} == waits
    assert all(point.kind is None for point in ENTRY_POINTS if point.returns in (Returns.NAME, Returns.HANDLE, Returns.RESULT))
    assert all((point.kind is CallKind.SYNC) == (point.returns is Returns.TIME) for point in ENTRY_POINTS)


def test_a_library_is_a_driver_by_what_it_exports(tmp_path: Path) -> None:
    runtime = build(tmp_path / "libcudart.so.13", {"cudaLaunchKernel": "push", "cuInit": "push"})
    assert not is_libcuda(elf(runtime))
    assert is_libcuda(elf(driver(tmp_path / "renamed-cuda.so")))


# --- files -----------------------------------------------------------------------------------------------------


class Probe:
    """Probes that a test can look at."""

    def __init__(self, file: tuple[int, int], sites: list[tuple[int, int]]) -> None:
        self.file, self.sites, self.closed = file, sites, 0
        self.descriptors = 6

    def close(self) -> None:
        self.closed += 1


class Recorder:
    """Takes the place of the kernel: remembers what is attached, or refuses."""

    def __init__(self, refuse: bool = False) -> None:
        self.refuse = refuse
        self.probes: list[Probe] = []

    def attach_cuda(self, path: int, sites: Sequence[tuple[int, int]]) -> Probe:
        if self.refuse:
            raise Unsupported("perf_event_open was refused")
        found = os.fstat(path)
        self.probes.append(Probe((found.st_dev, found.st_ino), list(sites)))
        return self.probes[-1]

    def attach_return(self, path: int, offset: int) -> Probe:
        return self.attach_cuda(path, [(offset, 0)])

    @property
    def open(self) -> list[Probe]:
        return [probe for probe in self.probes if not probe.closed]


def files(recorder: Recorder, limit: int = DESCRIPTORS_LIMIT) -> tuple[LibcudaFiles, Counters]:
    counters = Counters()
    return LibcudaFiles(recorder, NUMBERS, counters, limit), counters


def test_a_library_is_attached_once_for_all_processes_and_let_go_after_the_last(tmp_path: Path) -> None:
    recorder = Recorder()
    found, counters = files(recorder)
    path = driver(tmp_path / "libcuda.so.1")
    with mapping(path) as one, mapping(path) as two:
        assert found.look_at(1, one.pid, read_maps(one.pid).regions) == 1
        assert found.look_at(2, two.pid, read_maps(two.pid).regions) == 0
        assert found.look_at(2, two.pid, read_maps(two.pid).regions) == 0
    assert [probe.sites for probe in recorder.probes] == [
        [(start_of(path, "cuLaunchKernel") + 10, NUMBERS["CUDA_LAUNCH_KERNEL"])]
    ]
    assert recorder.probes[0].file == (path.stat().st_dev, path.stat().st_ino)
    assert counters.get(CUDA_FILES, "probed") == 1
    found.leave(1)
    assert len(recorder.open) == 1
    found.leave(2)
    assert recorder.open == []
    assert counters.get(CUDA_FILES, "probed") == 0


def test_a_forked_child_keeps_its_parents_library_attached(tmp_path: Path) -> None:
    recorder = Recorder()
    found, _ = files(recorder)
    with mapping(driver(tmp_path / "libcuda.so.1")) as child:
        found.look_at(1, child.pid, read_maps(child.pid).regions)
    found.inherit(1, 2)
    found.leave(1)
    assert len(recorder.open) == 1
    assert [path for path, _ in found.libraries_of(2)] == [str(tmp_path / "libcuda.so.1")]
    found.leave(2)
    assert recorder.open == []


def test_a_deleted_library_and_a_copy_are_found_too(tmp_path: Path) -> None:
    recorder = Recorder()
    found, _ = files(recorder)
    (tmp_path / "copy").mkdir()
    first, copy = driver(tmp_path / "libcuda.so.1"), driver(tmp_path / "copy" / "libcuda.so.535.261.03")
    with mapping(first, copy) as child:
        first.unlink()
        assert found.look_at(1, child.pid, read_maps(child.pid).regions) == 2
    assert len({probe.file for probe in recorder.probes}) == 2


def test_a_mapping_that_the_kernel_tells_of_is_enough(tmp_path: Path) -> None:
    recorder = Recorder()
    found, _ = files(recorder)
    path = driver(tmp_path / "libcuda.so.1")
    with mapping(path) as child:
        (region,) = [r for r in read_maps(child.pid).regions if r.path == str(path) and r.executable]
        major, minor = (int(part, 16) for part in region.device.split(":"))
        told = NewMapping(
            child.pid, region.start, region.end - region.start, region.offset, (major, minor), region.inode, region.path
        )
        assert mapped_region(told) == region
        assert found.look_at(1, child.pid, [mapped_region(told)]) == 1


def test_other_libraries_with_cuda_in_their_name_are_opened_once_and_left_alone(tmp_path: Path) -> None:
    recorder = Recorder()
    found, _ = files(recorder)
    path = build(tmp_path / "libcudart.so.13", {"cudaLaunchKernel": "push"})
    (tmp_path / "libcuda-notes.so").write_text("no ELF file at all")
    with mapping(path) as child:
        regions = read_maps(child.pid).regions
        assert find_libcuda(regions)
        assert found.look_at(1, child.pid, regions) == 0
        (region,) = find_libcuda(regions).values()
        assert open_libcuda(child.pid, region) is None
    assert found.look_at(2, child.pid, regions) == 0
    assert recorder.probes == []


def test_a_process_that_is_gone_and_a_kernel_that_refuses_are_no_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found, counters = files(Recorder(refuse=True))
    with mapping(driver(tmp_path / "libcuda.so.1")) as child:
        regions = read_maps(child.pid).regions
        assert found.look_at(1, child.pid, regions) == 0
        assert found.look_at(2, child.pid, regions) == 0
    assert found.look_at(3, child.pid, regions) == 0
    assert len(caplog.messages) == 1
    assert "launches through" in caplog.messages[0]
    assert counters.get(CUDA_FILES, "refused") == 1


def test_files_and_descriptors_are_bounded_and_a_freed_place_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    found, counters = files(recorder, limit=12)
    copies = []
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        copies.append(driver(tmp_path / str(number) / "libcuda.so.1"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    with mapping(copies[0]) as one, mapping(*copies[1:]) as two:
        assert found.look_at(1, one.pid, read_maps(one.pid).regions) == 1
        assert found.look_at(2, two.pid, read_maps(two.pid).regions) == 1
        assert counters.get(CUDA_FILES, "waiting") == 2
        found.leave(1)
        assert counters.get(CUDA_FILES, "probed") == 2
        assert counters.get(CUDA_FILES, "waiting") == 1
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(caplog.messages) == 1
    found.leave(2)
    assert recorder.open == []
    assert counters.get(CUDA_FILES, "waiting") == 0


def test_probes_leave_descriptors_for_others(tmp_path: Path) -> None:
    """With a limit of open files that is nearly reached a library waits instead of taking the last ones."""
    recorder = Recorder()
    found, counters = files(recorder)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with mapping(driver(tmp_path / "libcuda.so.1")) as child:
        regions = read_maps(child.pid).regions
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, hard))
        try:
            assert free_descriptors() < 0
            assert found.look_at(1, child.pid, regions) == 0
            assert counters.get(CUDA_FILES, "waiting") == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        found.leave(2)
        assert counters.get(CUDA_FILES, "probed") == 1
    found.leave(1)
    assert recorder.open == []


IN_TURN = """import _ctypes, ctypes, sys
for line in sys.stdin:
    library = ctypes.CDLL(line.strip())
    print("open", flush=True)
    sys.stdin.readline()
    _ctypes.dlclose(library._handle)
    print("closed", flush=True)
"""


def test_a_library_that_was_closed_gives_its_place_to_another(tmp_path: Path) -> None:
    """A process that opens hundreds of copies in turn: only what is mapped takes room."""
    recorder = Recorder()
    found, counters = files(recorder, limit=12)
    with subprocess.Popen([sys.executable, "-c", IN_TURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        for number in range(5):
            (tmp_path / str(number)).mkdir()
            print(driver(tmp_path / str(number) / "libcuda.so.1"), file=child.stdin, flush=True)
            assert child.stdout.readline() == "open\n"
            assert found.look_at(1, child.pid, read_maps(child.pid).regions) == 1
            assert len(recorder.open) <= 2
            print("close", file=child.stdin, flush=True)
            assert child.stdout.readline() == "closed\n"
        child.communicate("")
    assert len({probe.file for probe in recorder.probes}) == 5
    assert counters.get(CUDA_FILES, "waiting") == 0
    found.leave(1)
    assert recorder.open == []


def test_close_takes_all_probes_away(tmp_path: Path) -> None:
    recorder = Recorder()
    found, _ = files(recorder)
    with mapping(driver(tmp_path / "libcuda.so.1")) as child:
        found.look_at(1, child.pid, read_maps(child.pid).regions)
    found.close()
    found.leave(1)
    assert [probe.closed for probe in recorder.probes] == [1]


# --- return sites ----------------------------------------------------------------------------------------------


def return_sites(recorder: Recorder, limit: int = 512) -> tuple[ReturnSites, Counters]:
    counters = Counters()
    return ReturnSites(recorder, counters, limit), counters


def an_address(maps: Maps, name: str) -> tuple[int, int]:
    """Some address in code of a file whose path ends in `name`, and its offset in the file."""
    region = next(region for region in maps.regions if region.executable and region.path.endswith(name))
    return region.start + 0x40, region.offset + 0x40


def test_a_return_site_is_probed_once_in_its_file_for_all_processes(tmp_path: Path) -> None:
    recorder = Recorder()
    found, counters = return_sites(recorder)
    path = driver(tmp_path / "libcuda.so.1")
    with mapping(path) as one, mapping(path) as two:
        for process, child in ((1, one), (2, two)):
            address, offset = an_address(read_maps(child.pid), "libcuda.so.1")
            found.learn(process, child.pid, [address])
            found.learn(process, child.pid, [address])
    assert [probe.sites for probe in recorder.probes] == [[(offset, 0)]]
    assert counters.get(CUDA_RETURN_SITES, "probed") == 1
    found.leave(1)
    assert len(recorder.open) == 1
    found.leave(2)
    assert recorder.open == []


def test_code_made_at_run_time_is_left_out_and_counted() -> None:
    recorder = Recorder()
    found, counters = return_sites(recorder)
    heap = ctypes.create_string_buffer(64)
    assert found.learn(1, os.getpid(), [ctypes.addressof(heap), 0x10]) == 0
    assert counters.get(CUDA_RETURN_SITES, "no_file") == 2
    found.leave(1)
    assert counters.get(CUDA_RETURN_SITES, "no_file") == 0


def test_return_sites_are_bounded_and_refusals_counted(tmp_path: Path) -> None:
    recorder = Recorder()
    found, counters = return_sites(recorder, limit=2)
    with mapping(driver(tmp_path / "libcuda.so.1")) as child:
        address, _ = an_address(read_maps(child.pid), "libcuda.so.1")
        assert found.learn(1, child.pid, [address, address + 1, address + 2]) == 2
        assert counters.get(CUDA_RETURN_SITES, "table_full") == 1
        recorder.refuse = True
        found.leave(1)
        assert found.learn(2, child.pid, [address]) == 0
        assert counters.get(CUDA_RETURN_SITES, "refused") == 1
    found.close()
    assert found.learn(3, child.pid, [address]) == 0, "the process is gone"
