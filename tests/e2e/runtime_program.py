"""A program whose library launches through a CUDA runtime: DRIVER RUNTIME LIBRARY.

It launches everything once, says so, and launches again for each number of rounds on standard input.
"""

import ctypes
import json
import os
import sys

os.environ["CUDA_DRIVER"] = sys.argv[1]
ctypes.CDLL(sys.argv[2], ctypes.RTLD_GLOBAL).start_runtime()
library = ctypes.CDLL(sys.argv[3])


def serve():
    library.run_all()


def other():
    library.run_other()


def work(rounds):
    for _ in range(rounds):
        serve()
        other()


work(1)
print(json.dumps(1), flush=True)
for line in sys.stdin:
    work(int(line))
    print(json.dumps(int(line)), flush=True)
