"""Starts the inference server on what this machine has: PyTorch on a GPU, else the small framework on the stand-in driver.

    python3 launch.py [--duration SECONDS] [--rate REQUESTS_A_SECOND] [--port PORT] [--batch 1..8]
    python3 launch.py --library      # compile what is missing, print the path of the driver to be used, and end

Any Python from 3.8 on, no packages. The stand-in and the dispatcher are compiled once and kept in a cache folder.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
STANDIN = HERE.parents[1] / "native" / "standin"
sys.path.insert(0, str(STANDIN))
import build_standin  # noqa: E402 - it lives beside the sources that it compiles

DISPATCHER = HERE / "tinytorch" / "dispatcher.cpp"
DISPATCHER_FLAGS = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]
LAUNCH_COST_NS = "2500"  # of CPU for each launch; a real driver's order of size


class CannotStart(RuntimeError):
    """The server can't be started; the text is one line that says why and what to do."""


def seconds(text: str) -> float:
    """A duration: 30, 30s, 500ms, 2m or 1h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a duration such as 30, 30s or 2m")
    return float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def rate(text: str) -> float:
    """Requests a second, from none to what a loopback front can take."""
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) > 1000:
        raise argparse.ArgumentTypeError(f"{text!r} isn't 0 to 1000")
    return float(text)


def batch_limit(text: str) -> int:
    """A batch of 1 to 8."""
    if text not in list("12345678"):
        raise argparse.ArgumentTypeError(f"{text!r} isn't 1 to 8")
    return int(text)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="An inference server to profile, with its own load.")
    parser.add_argument("--duration", type=seconds, help="end after this time (default: run until Ctrl-C)")
    parser.add_argument("--rate", type=rate, default=16.0, help="mean requests a second; 0: no load (default 16)")
    parser.add_argument("--port", type=int, default=0, help="of the HTTP front on 127.0.0.1; 0 picks a free one")
    parser.add_argument("--batch", type=batch_limit, default=8, help="requests served together, 1 to 8 (default 8)")
    parser.add_argument("--tokens", type=int, default=12, help="tokens that each request asks for (default 12)")
    parser.add_argument("--device", choices=["auto", "torch", "stand-in"], default="auto", help="(default auto)")
    parser.add_argument("--library", action="store_true", help="print the path of the driver that would be used, and end")
    return parser.parse_args(arguments)


def has_gpu() -> bool:
    """Whether this Python has a PyTorch that sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return False
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False).returncode == 0


def cache_folder() -> Path:
    """A folder of this user's alone for what is compiled, named by the content of the sources."""
    sources = [DISPATCHER, Path(__file__), *sorted(STANDIN.glob("*"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources if path.is_file())).hexdigest()[:16]
    root = os.environ.get("XDG_CACHE_HOME")
    parent = Path(root) / "otelprof" if root else Path(tempfile.gettempdir()) / f"otelprof-demo-{os.getuid()}"
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = parent.lstat()
    except OSError as problem:
        raise CannotStart(f"cannot make the cache folder {parent}: {problem.strerror}; set XDG_CACHE_HOME") from None
    if about.st_uid != os.getuid() or about.st_mode & 0o022 or parent.is_symlink():
        raise CannotStart(f"{parent} isn't this user's alone: remove it or set XDG_CACHE_HOME")
    return parent / f"inference-server-{digest}"


def build(folder: Path) -> None:
    """Compile the stand-in driver and the dispatcher into `folder`, unless they are there."""
    dispatcher = folder / "libtinytorch.so"
    if dispatcher.exists() and (folder / "libcuda.so.1").exists():
        return
    print("inference_server: compiling the stand-in driver and the dispatcher", file=sys.stderr)
    try:
        build_standin.build_standin(folder)
        unfinished = folder / f".libtinytorch.{os.getpid()}"
        command = ["c++", *DISPATCHER_FLAGS, "-o", str(unfinished), str(DISPATCHER), "-ldl"]
        build_standin.run_compiler(command)
        unfinished.replace(dispatcher)
    except build_standin.BuildError as problem:
        raise CannotStart(str(problem)) from None


def prepare_standin() -> list[str]:
    """Build what is missing and set the environment for the stand-in; the server's arguments for it."""
    folder = cache_folder()
    build(folder)
    before = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = f"{folder}:{before}" if before else str(folder)
    os.environ.setdefault("STANDIN_LAUNCH_COST_NS", LAUNCH_COST_NS)
    return ["--operators", "tinytorch.functional", "--dispatcher", str(folder / "libtinytorch.so")]


def choose_device(wish: str) -> list[str]:
    """The server's arguments for the device that is there or wished for."""
    gpu = wish != "stand-in" and has_gpu()
    if wish == "torch" and not gpu:
        raise CannotStart("this Python has no PyTorch that sees a GPU; use --device stand-in")
    if gpu:
        print("inference_server: PyTorch on the GPU of this machine", file=sys.stderr)
        return ["--operators", "tinytorch.torch_functional", "--dispatcher", ""]
    reason = "as asked" if wish == "stand-in" else "no GPU with PyTorch here"
    print(f"inference_server: on the stand-in driver ({reason})", file=sys.stderr)
    return prepare_standin()


def library(arguments: list[str]) -> str:
    """The path of the stand-in that goes with the server's arguments; empty with PyTorch, which finds the real driver."""
    dispatcher = arguments[arguments.index("--dispatcher") + 1]
    return str(Path(dispatcher).with_name("libcuda.so.1")) if dispatcher else ""


def main() -> int:
    """Choose, then become the server."""
    options = parse()
    try:
        arguments = choose_device(options.device)
    except CannotStart as problem:
        print(f"inference_server: {problem}", file=sys.stderr)
        return 1
    if options.library:
        print(library(arguments))
        return 0
    for name in ("rate", "port", "batch", "tokens"):
        arguments += [f"--{name}", str(getattr(options, name))]
    if options.duration is not None:
        arguments += ["--duration", str(options.duration)]
    os.environ.setdefault("OTEL_SERVICE_NAME", "inference-server")
    return start_server(arguments)


def start_server(arguments: list[str]) -> NoReturn:
    """Turn this process into the server."""
    os.execv(sys.executable, [sys.executable, str(HERE / "server.py"), *arguments])


if __name__ == "__main__":
    sys.exit(main())
