"""A program on the stand-in driver that captures its step once and replays it, and says what the driver counted.

Commands on standard input: `open` (looks the kernels up), `capture`, `update`, `replay N`, `take BYTES`, `free INDEX`, `quit`.
Each is answered by the driver's ledger.
"""

import ctypes
import json
import sys

POINTER, UNSIGNED, LONG = ctypes.c_void_p, ctypes.c_uint, ctypes.c_ulonglong
TYPES = {
    "cuCtxSetCurrent": [POINTER],
    "cuModuleGetFunction": [POINTER, POINTER, ctypes.c_char_p],
    "cuLaunchKernel": [POINTER, *[UNSIGNED] * 7, POINTER, POINTER, POINTER],
    "cuMemcpyHtoDAsync_v2": [LONG, POINTER, ctypes.c_size_t, POINTER],
    "cuMemAlloc_v2": [POINTER, ctypes.c_size_t],
    "cuMemFree_v2": [LONG],
    "cuStreamBeginCapture_v2": [POINTER, UNSIGNED],
    "cuStreamEndCapture": [POINTER, POINTER],
    "cuEventRecord": [POINTER, POINTER],
    "cuStreamWaitEvent": [POINTER, POINTER, UNSIGNED],
    "cuGraphInstantiateWithFlags": [POINTER, POINTER, LONG],
    "cuGraphExecUpdate_v2": [POINTER, POINTER, POINTER],
    "cuGraphLaunch": [POINTER, POINTER],
    "cuStreamSynchronize": [POINTER],
    "cuStreamCreate": [POINTER, UNSIGNED],
    "cuEventCreate": [POINTER, UNSIGNED],
}
NAMES = ("attention_kernel", "gemm_kernel", "side_kernel")
IMAGE = "".join(f".entry {name}\n" for name in NAMES).encode() + b"\0"


def call(name, *arguments):
    """A driver call that must work."""
    function = getattr(lib, name)
    function.argtypes = TYPES.get(name)
    result = function(*arguments)
    assert result == 0, f"{name}: {result}"


def made(name, *arguments):
    """The handle that a call gives through its first argument."""
    handle = POINTER()
    call(name, ctypes.byref(handle), *arguments)
    return handle


def launch(kernel, where):
    call("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, where, None, None)


def attention():
    launch(kernels["attention_kernel"], stream)


def mlp():
    for _ in range(3):
        launch(kernels["gemm_kernel"], stream)


def beside():
    """Work on another stream that joins the capture."""
    call("cuEventRecord", forked, stream)
    call("cuStreamWaitEvent", side, forked, 0)
    launch(kernels["side_kernel"], side)
    call("cuEventRecord", joined, side)
    call("cuStreamWaitEvent", stream, joined, 0)


def model_forward():
    attention()
    mlp()
    beside()
    call("cuMemcpyHtoDAsync_v2", memory, host, 4096, stream)


def captured(step):
    graph = POINTER()
    call("cuStreamBeginCapture_v2", stream, 0)
    step()
    call("cuStreamEndCapture", stream, ctypes.byref(graph))
    return graph


def capture():
    return made("cuGraphInstantiateWithFlags", captured(model_forward), 0)


def other_forward():
    for _ in range(4):
        launch(kernels["gemm_kernel"], stream)
    beside()
    call("cuMemcpyHtoDAsync_v2", memory, host, 4096, stream)


def update():
    call("cuGraphExecUpdate_v2", executable, captured(other_forward), ctypes.create_string_buffer(64))


def replay_graph(times):
    for _ in range(times):
        call("cuGraphLaunch", executable, stream)
    call("cuStreamSynchronize", stream)


def take(size):
    taken.append(made("cuMemAlloc_v2", size).value)


def ledger():
    text = ctypes.create_string_buffer(1 << 16)
    lib.standin_ledger(text, len(text))
    return json.loads(text.value)


taken = []
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    command, *numbers = line.split()
    if command == "open":
        lib = ctypes.CDLL(sys.argv[1])
        call("cuInit", 0)
        call("cuCtxSetCurrent", made("cuDevicePrimaryCtxRetain", 0))
        module = made("cuModuleLoadData", IMAGE)
        stream, side = made("cuStreamCreate", 1), made("cuStreamCreate", 1)
        forked, joined = made("cuEventCreate", 2), made("cuEventCreate", 2)
        memory, host = made("cuMemAlloc_v2", 4096).value, ctypes.create_string_buffer(4096)
        kernels = {name: made("cuModuleGetFunction", module, name.encode()) for name in NAMES}
    elif command == "capture":
        executable = capture()
    elif command == "take":
        take(*map(int, numbers))
    elif command == "free":
        call("cuMemFree_v2", taken[int(numbers[0])])
    elif command == "update":
        update()
    elif command == "replay":
        replay_graph(*map(int, numbers))
    else:
        break
    print(json.dumps(ledger()), flush=True)
