"""What /proc tells of a process: which life of which number it is, and the facts that describe it.

Facts are taken at first sight, since a process may be gone a moment later. Arguments and environment stay here: what goes
out is the name of the service that they give, and the variables that were asked for by name.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from otelprof.errors import TargetError
from otelprof.otlp import semconv
from otelprof.processes.proc_files import read_file
from otelprof.text import clean

OTEL_VARIABLES = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
"""The variables that are always kept."""
RANK_VARIABLES = {
    semconv.RANK: ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    semconv.LOCAL_RANK: ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    semconv.WORLD_SIZE: ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
}
"""Where launchers of distributed jobs (torchrun, Open MPI, MPICH, Slurm) put a process's place, the first one counts."""

_FILE_LIMIT = 1 << 18
_VALUE_LIMIT = 1 << 15
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, include/linux/sched.h
_TICKS = os.sysconf("SC_CLK_TCK")
_CONTAINER = re.compile(r"(?:^|[/:.-])([0-9a-f]{64})(?:\.scope)?(?:$|[/:])")
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*[a-z]*")
_SPAWNED = "from multiprocessing."


@dataclass(frozen=True, slots=True)
class Stat:
    """Some fields of /proc/PID/stat (man 5 proc). `image` differs for each program that a process runs (0: hidden)."""

    state: str
    parent: int
    kernel_thread: bool
    start_ticks: int
    image: int

    @property
    def is_zombie(self) -> bool:
        """True when the process has ended and waits for its parent."""
        return self.state in "ZX"


@dataclass(frozen=True, slots=True)
class Identity:
    """One life of one program: a number, when its process began (clock ticks after boot), the how manieth exec of it."""

    pid: int
    start_ticks: int
    generation: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a process; texts are valid UTF-8, and empty when they can't be read.

    `command` is the first argument's file name (the executable's where that has blanks). `service` is what to call it
    without a name of its own: the script's or module's name, else the executable's. `environment` holds only the variables
    that were asked for, as they are.
    """

    pid: int
    parent: int = 0
    namespace_pid: int = 0
    """The number that the process has for itself; 0: not known."""
    comm: str = ""
    executable_path: str = ""
    command: str = ""
    service: str = ""
    uid: int = -1
    start_time: int = 0
    """Unix time, nanoseconds; exact to a clock tick."""
    cgroup: str = ""
    container_id: str = ""
    pid_namespace: int = 0
    """Inode of the namespace; 0: hidden."""
    environment: tuple[tuple[str, str], ...] = ()
    ranks: tuple[tuple[str, int], ...] = ()
    """Its place in a distributed job, by the attributes of RANK_VARIABLES."""

    @property
    def executable_name(self) -> str:
        """The executable's file name."""
        return PurePosixPath(self.executable_path).name


def read_stat(pid: int) -> Stat:
    """The process's own line; TargetError when there is none of this number."""
    data = read_file(pid, "stat", _FILE_LIMIT)
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 46:
        raise TargetError(f"process {pid} has ended")
    flags, start, stack, arguments = int(fields[6]), int(fields[19]), int(fields[25]), int(fields[45])
    return Stat(fields[0].decode(), int(fields[1]), bool(flags & _KERNEL_THREAD), start, stack ^ arguments << 1)


def read_facts(pid: int, variables: Iterable[str] = OTEL_VARIABLES, parent_service: str = "") -> Facts:
    """The facts of a living process; what is hidden from us stays empty. TargetError when it has ended.

    `parent_service` names a worker that Python's multiprocessing spawned, whose own command line says nothing.
    """
    stat = read_stat(pid)
    arguments = [_text(part) for part in _read_open(pid, "cmdline").split(b"\0")]
    executable = _link(pid, "exe").removesuffix(" (deleted)")
    status = _status(_read_open(pid, "status"))
    cgroup = _cgroup(_read_open(pid, "cgroup"))
    environment = _read_open(pid, "environ")
    return Facts(
        pid=pid,
        parent=stat.parent,
        namespace_pid=_last_number(status.get("NSpid", "")) or pid,
        comm=clean(_text(_read_open(pid, "comm")).rstrip("\n")),
        executable_path=clean(executable),
        command=clean(_command(arguments[0], PurePosixPath(executable).name)),
        service=clean(service_name(arguments, PurePosixPath(executable).name, parent_service)),
        uid=_first_number(status.get("Uid", "")),
        start_time=unix_time(stat.start_ticks),
        cgroup=clean(cgroup),
        container_id=_container(cgroup),
        pid_namespace=_last_number("".join(ch if ch.isdigit() else " " for ch in _link(pid, "ns/pid"))),
        environment=_environment(environment, variables),
        ranks=_ranks(environment),
    )


def _command(argument: str, executable: str) -> str:
    """The first argument's file name; where a program put all its arguments into that one, as Chromium does, they stay."""
    return executable if re.search(r"\s", argument) else PurePosixPath(argument).name


def program_of(pid: int) -> tuple[int, int]:
    """Inode and device of a process's executable as the kernel numbers them (MKDEV, linux/kdev_t.h); (0, 0): hidden."""
    try:
        status = Path(f"/proc/{pid}/exe").stat()
    except OSError:
        return 0, 0
    return status.st_ino, os.major(status.st_dev) << 20 | os.minor(status.st_dev)


def unix_time(ticks: int) -> int:
    """Clock ticks after boot as Unix nanoseconds."""
    boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    tick = 1_000_000_000 // _TICKS
    return (boot // tick + ticks) * tick


def service_name(arguments: Sequence[str], executable: str, parent: str = "") -> str:
    """What to call a service that has no name of its own.

    `python app.py` is app, `python -m pkg.mod` is pkg.mod, a script such as gunicorn goes by its file name; a worker that
    multiprocessing spawned is called as its parent is; anything else as its executable.
    """
    command = PurePosixPath(arguments[0]).name if arguments else ""
    if not _PYTHON.fullmatch(executable):
        return executable or command
    if command and not _PYTHON.fullmatch(command):  # the program has changed its title: `gunicorn: master [app]`
        return re.split(r"[:\s]", command)[0] or executable
    kind, value = _python_program(arguments[1:])
    if kind == "module":
        return value.removesuffix(".__main__")
    if kind == "script":
        return _script_name(PurePosixPath(value)) or executable
    return parent or executable if value.startswith(_SPAWNED) else executable


def _script_name(path: PurePosixPath) -> str:
    return path.parent.name if path.name == "__main__.py" else path.stem


def _python_program(arguments: Sequence[str]) -> tuple[str, str]:
    """(script | module | code | nothing, its value) of an interpreter's arguments (man 1 python)."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "--check-hash-based-pycs":
            next(rest, "")
        elif not argument.startswith("-"):
            return ("script", argument) if argument else ("nothing", "")
        elif not argument.startswith("--"):
            option, value = _letters(argument[1:])
            if option in "WXcm" and option:
                value = value or next(rest, "")
            if option in "cm" and option:
                return ("code" if option == "c" else "module"), value
    return "nothing", ""


def _letters(flags: str) -> tuple[str, str]:
    """The first flag of a group such as `-um` that takes a value, and what follows it in the same argument."""
    for number, letter in enumerate(flags):
        if letter in "cmWX":
            return letter, flags[number + 1 :]
    return "", ""


def _environment(data: bytes, variables: Iterable[str]) -> tuple[tuple[str, str], ...]:
    wanted = {os.fsencode(name): name for name in variables}
    found: dict[str, str] = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name in wanted:
            found.setdefault(wanted[name], clean(_text(value), _VALUE_LIMIT))
    return tuple(sorted(found.items()))


def _ranks(data: bytes) -> tuple[tuple[str, int], ...]:
    """Numbers only, whatever else these variables may hold."""
    said = dict(_environment(data, (name for names in RANK_VARIABLES.values() for name in names)))
    found = []
    for attribute, names in RANK_VARIABLES.items():
        values = [said[name] for name in names if re.fullmatch(r"[0-9]{1,9}", said.get(name, ""))]
        found += [(attribute, int(value)) for value in values[:1]]
    return tuple(found)


def _container(cgroup: str) -> str:
    found = _CONTAINER.findall(cgroup)
    return found[-1] if found else ""


def _cgroup(data: bytes) -> str:
    """The path that names a container if one does, else the last one (that of version 2, where there is one)."""
    paths = [line.split(":", 2)[-1] for line in _text(data).splitlines()]
    return next((path for path in paths if _CONTAINER.search(path)), paths[-1] if paths else "")


def _status(data: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in _text(data).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _first_number(text: str) -> int:
    words = text.split()
    return int(words[0]) if words and words[0].isdigit() else -1


def _last_number(text: str) -> int:
    words = text.split()
    return int(words[-1]) if words and words[-1].isdigit() else 0


def _link(pid: int, name: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/{name}").readlink())
    except OSError:
        return ""


def _read_open(pid: int, name: str) -> bytes:
    """A file that may be hidden from us: nothing then."""
    try:
        return read_file(pid, name, _FILE_LIMIT)
    except TargetError:
        return b""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
