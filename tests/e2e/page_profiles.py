"""Profiles for the tests of the page: an inference server's CPU time and launches, large, deep and hostile ones.

`flame()` folds stacks into the answer of `/api/v1/flamegraph`; a frame is written `kind:name@file:line`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

Stacks = Iterable[tuple[tuple[str, ...], int]]

CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
LAUNCHES = "gpu:gpu_kernel_launches:count:gpu:count"
KERNEL_TIME = "gpu:gpu_kernel_time:nanoseconds:gpu:nanoseconds"
PERIOD = 10_101_010

ENGINE = (
    "python:<module>@engine.py:212",
    "python:main@engine.py:198",
    "python:Engine.run@engine.py:141",
    "python:Engine.step@engine.py:96",
)
FORWARD = (*ENGINE, "python:model_forward@model.py:88")
LAYER = (*FORWARD, "python:TransformerLayer.forward@model.py:61")
ATTENTION = (*LAYER, "python:attention@model.py:34")
FLASH = (*ATTENTION, "python:scaled_dot_product_attention@functional.py:207")
MLP = (*LAYER, "python:mlp@model.py:47")
HTTP = ("python:<module>@server.py:90", "python:serve_forever@socketserver.py:232", "python:Handler.do_POST@server.py:41")
DISPATCH = ("native:torchlike::dispatch(Op const&, Tensor const*)", "native:torchlike::cuda::launch(Kernel, dim3, dim3)")
DRIVER = (*DISPATCH, "native:cuLaunchKernel")
TICK = ("kernel:entry_SYSCALL_64", "kernel:do_syscall_64")
WAIT = (*ENGINE, "python:sample_tokens@sampling.py:33", "native:torchlike::item()", "native:cuStreamSynchronize")

CPU_STACKS: list[tuple[tuple[str, ...], int]] = [
    ((*FLASH, *DRIVER), 310),
    ((*FLASH, *DISPATCH), 120),
    ((*FLASH,), 45),
    ((*MLP, "python:linear@functional.py:88", *DRIVER), 240),
    ((*MLP, "python:linear@functional.py:88", *DISPATCH), 66),
    ((*MLP, "python:gelu@functional.py:120", *DRIVER), 140),
    ((*LAYER, "python:layer_norm@functional.py:61", *DRIVER), 95),
    ((*LAYER, "python:layer_norm@functional.py:61"), 12),
    ((*FORWARD, "python:embed@model.py:20", *DRIVER), 30),
    (WAIT, 170),
    ((*WAIT, *TICK, "kernel:ksys_ioctl"), 85),
    ((*ENGINE, "python:Tokenizer.encode@tokenizer.py:57", "python:bpe@tokenizer.py:31"), 260),
    ((*ENGINE, "python:Tokenizer.encode@tokenizer.py:57", "python:bpe@tokenizer.py:31", "native:unicode_join"), 60),
    ((*ENGINE, "python:Tokenizer.encode@tokenizer.py:57", "python:lookup@tokenizer.py:19"), 44),
    ((*ENGINE, "python:Queue.get@queue.py:171", "native:PyThread_acquire_lock_timed", *TICK, "kernel:futex_wait"), 38),
    ((*HTTP, "python:loads@__init__.py:346", "native:scan_once"), 52),
    ((*HTTP, "python:BaseHTTPRequestHandler.send_response@server.py:497"), 18),
    ((*HTTP, "native:sock_send", *TICK, "kernel:tcp_sendmsg"), 41),
    (("mark:[no Python frames]", "native:std::thread::_M_invoke", "native:worker_main"), 23),
]
LAUNCH_STACKS: list[tuple[tuple[str, ...], int]] = [
    ((*FLASH, *DRIVER, "cuda:[cuda] cudnn_flash_attn_kernel"), 4096),
    ((*ATTENTION, "python:rotary@model.py:29", *DRIVER, "cuda:[cuda] rope_kernel"), 4096),
    ((*MLP, "python:linear@functional.py:88", *DRIVER, "cuda:[cuda] ampere_sgemm_128x64_tn"), 8192),
    ((*MLP, "python:gelu@functional.py:120", *DRIVER, "cuda:[cuda] vectorized_elementwise_kernel"), 4096),
    ((*LAYER, "python:layer_norm@functional.py:61", *DRIVER, "cuda:[cuda] layer_norm_kernel"), 8192),
    ((*FORWARD, "python:embed@model.py:20", *DRIVER, "cuda:[cuda] gather_kernel"), 512),
    ((*ENGINE, "python:sample_tokens@sampling.py:33", *DRIVER, "cuda:[cuda] softmax_kernel"), 512),
    ((*ENGINE, "python:sample_tokens@sampling.py:33", *DRIVER, "cuda:[cuda] tiny_copy_kernel"), 6144),
    (("mark:[no launch stack]", "cuda:[cuda] vectorized_elementwise_kernel"), 96),
]
LOST_STACKS = [*CPU_STACKS, (("mark:[lost: ring full]",), 100), ((*MLP, "mark:[truncated]"), 60)]
CANARY_STACKS = [
    *(row for row in CPU_STACKS if row[0][-1] not in ("native:unicode_join", "python:bpe@tokenizer.py:31")),
    ((*ENGINE, "python:Tokenizer.encode@tokenizer.py:57", "python:bpe_cached@tokenizer.py:70"), 40),
    ((*MLP, "python:linear@functional.py:88", "python:check_finite@functional.py:70"), 420),
]
HOSTILE = [
    "<img src=x onerror=document.title='owned'>",
    "<script>document.title='owned'</script>",
    "\"><svg onload=document.title='owned'>",
    "{{constructor.constructor('document.title=1')()}}",
    "a;b \u202e\u0007 & ]]> 'quoted'",
    "名前_\U0001f680",
]


@dataclass
class Node:
    """A bar while the tree is built."""

    total: int = 0
    own: int = 0
    children: dict[str, Node] = field(default_factory=dict)


def flame(stacks: Stacks, unit: str = "nanoseconds") -> dict[str, object]:
    """The answer of `/api/v1/flamegraph` for stacks with values."""
    root = Node()
    for stack, value in stacks:
        node = root
        node.total += value
        for frame in stack:
            node = node.children.setdefault(frame, Node())
            node.total += value
        node.own += value
    return _answer(root, unit)


def _answer(root: Node, unit: str) -> dict[str, object]:
    """Levels of gap, total, self, name, breadth first."""
    names, kinds, files, index = ["total"], [""], [""], {"": 0}
    levels: list[list[int]] = []
    row: list[tuple[int, str, Node]] = [(0, "", root)]
    while row:
        values, below, at = [], [], 0
        for start, frame, node in row:
            if frame not in index:
                index[frame] = len(names)
                kind, _, rest = frame.partition(":")
                name, _, file = rest.partition("@")
                names.append(name), kinds.append(kind), files.append(file)
            values += [start - at, node.total, node.own, index[frame]]
            at = start + node.total
            for key in sorted(node.children):
                below.append((start, key, node.children[key]))
                start += node.children[key].total
        levels.append(values)
        row = below
    most = max((own for level in levels for own in level[2::4]), default=0)
    levels = levels if root.total else []
    return {
        "names": names,
        "kinds": kinds,
        "files": files,
        "levels": levels,
        "total": root.total,
        "max_self": most,
        "other": 0,
        "unit": unit,
        "until": 0,
    }


def difference(left: dict[str, object], right: dict[str, object], unit: str = "nanoseconds") -> dict[str, object]:
    """The answer of `/api/v1/diff` for two answers of `/api/v1/flamegraph`."""
    root = _Pair()
    for side, answer in enumerate((left, right)):
        _plant(root, answer, side)
    names, levels = {"": 0}, []
    row = [(0, 0, "", root)] if root.total != [0, 0] else []
    while row:
        values, below, at = [], [], [0, 0]
        for *start, frame, pair in row:
            number = names.setdefault(frame, len(names))
            values += [v for i in (0, 1) for v in (start[i] - at[i], pair.total[i], pair.own[i])] + [number]
            at = [start[i] + pair.total[i] for i in (0, 1)]
            inner = list(start)
            for name, child in sorted(pair.children.items()):
                below.append((*inner, name, child))
                inner = [inner[i] + child.total[i] for i in (0, 1)]
        levels.append(values)
        row = below
    parts = [frame.split("\0") if frame else ["", "total", ""] for frame in names]
    kinds, texts, files = (list(column) for column in zip(*parts, strict=True))
    totals = {"left_total": root.total[0], "right_total": root.total[1], "total": sum(root.total)}
    return {"names": texts, "kinds": kinds, "files": files, "levels": levels, "other": 0, "max_self": 0, "unit": unit, **totals}


@dataclass
class _Pair:
    """A bar of two sides while the tree is built."""

    total: list[int] = field(default_factory=lambda: [0, 0])
    own: list[int] = field(default_factory=lambda: [0, 0])
    children: dict[str, _Pair] = field(default_factory=dict)


def _plant(root: _Pair, answer: dict[str, object], side: int) -> None:
    """Add one answer to a side of the tree; a bar's parent is the one above that holds its left edge."""
    above: list[tuple[int, int, _Pair]] = [(0, 1 << 62, root)]
    for depth, level in enumerate(answer["levels"]):
        at, here = 0, []
        for gap, total, own, name in zip(*[iter(level)] * 4, strict=True):
            at += gap
            parent = next(pair for begin, end, pair in above if begin <= at < end)
            key = "\0".join(str(answer[part][name]) for part in ("kinds", "names", "files"))
            pair = parent.children.setdefault(key, _Pair()) if depth else root
            pair.total[side] += total
            pair.own[side] += own
            here.append((at, at + total, pair))
            at += total
        above = here


@cache
def cpu() -> dict[str, object]:
    """CPU time of an inference server."""
    return flame([(stack, count * PERIOD) for stack, count in CPU_STACKS])


@cache
def canary() -> dict[str, object]:
    """CPU time of its next version: one function is new, one gone, one smaller."""
    return flame([(stack, count * PERIOD) for stack, count in CANARY_STACKS])


def traces(now: int) -> list[dict[str, object]]:
    """What `/api/v1/traces` lists: requests that end at `now`, Unix milliseconds; one is known by its samples alone."""
    rows = []
    for i, name in enumerate(["POST /v1/completions", "POST /v1/completions", HOSTILE[0], ""]):
        cost = {"cpu_ns": (i + 1) * 3 * PERIOD, "launches": 960 - 300 * i, "gpu_time_ns": 0, "waiting_ns": i * 1_500_000}
        start = {"start_us": (now - 2000 * i - 400) * 1000, "duration_ns": (90 - 10 * i) * 1_000_000} if name else {}
        known = {"start_us": 0, "duration_ns": 0} | start
        rows.append(
            {"trace": f"{i + 1:032x}", "name": name, "service": "inference-server" if name else "", "spans": 3, **known, **cost}
        )
    return rows


def spans(trace: str, now: int) -> list[dict[str, object]]:
    """What `/api/v1/spans` lists of one of them: a request, its two steps, and a part of the second."""
    rows = []
    for i, (name, parent) in enumerate([("POST /v1/completions", 0), ("tokenize", 1), ("generate", 1), ("model_forward", 3)]):
        times = {"start_us": (now - 400 + 20 * i) * 1000, "duration_ns": (90 - 20 * i) * 1_000_000}
        cost = {"cpu_ns": i * PERIOD, "launches": 240 if i > 1 else 0, "gpu_time_ns": 0, "waiting_ns": 0}
        ids = {"span": f"{i + 1:016x}", "parent": f"{parent:016x}" if parent else ""}
        rows.append({**ids, "service": "inference-server", "name": name, "attributes": {}, **times, **cost})
    return rows if int(trace, 16) else []


@cache
def launches() -> dict[str, object]:
    """Its kernel launches."""
    return flame(LAUNCH_STACKS, "count")


@cache
def deep(depth: int = 5000) -> dict[str, object]:
    """Chains of 100 to `depth` frames."""
    stacks = []
    for length in (100, 500, 1000, depth):
        stacks.append((tuple(f"python:recurse_{i % 7}@deep.py:{10 * (i % 7) + 1}" for i in range(length)), PERIOD * 10))
    return flame(stacks)


def hostile() -> dict[str, object]:
    """Names that would be markup where text is wanted."""
    return flame([((f"python:{a}@{a}", f"native:{b}"), PERIOD) for a in HOSTILE for b in HOSTILE])


@cache
def large(bars: int = 17_000) -> dict[str, object]:
    """About that many bars with a long tail of thin ones."""
    rng = random.Random(17)
    kinds = ["python", "python", "native", "kernel", "cuda"]
    stacks = []
    for _ in range(bars // 11):
        depth = rng.randint(8, 40)
        stack, name = [], 0
        for level in range(depth):
            name = name * 3 + min(int(rng.expovariate(0.9)), 5)
            stack.append(f"{kinds[name % 5]}:function_{level}_{name % 997}@module_{name % 31}.py:{name % 400}")
        stacks.append((tuple(stack), int(PERIOD * rng.paretovariate(1.2))))
    return flame(stacks)
