"""A known call tree: three quarters of the time in `heavy`, one in `light`, both below Worker.step."""

import json
import random
import signal
import sys
import time


def heavy(n):
    t = 0
    for i in range(3 * n):
        t += i & 3
    return t


def light(n):
    t = 0
    for i in range(n):
        t += i & 3
    return t


class Worker:
    def __init__(self):
        self.spent = {"heavy": 0.0, "light": 0.0}

    def step(self, n):
        begun = time.thread_time()
        heavy(n)
        between = time.thread_time()
        light(n)
        self.spent["heavy"] += between - begun
        self.spent["light"] += time.thread_time() - between


def work(worker):
    steps, end = random.Random(5), time.monotonic() + float(sys.argv[1])  # uneven steps, so that no sampling rate locks on
    while time.monotonic() < end:
        worker.step(steps.randrange(3000, 30000))


def main():
    worker = Worker()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    print(json.dumps({"heavy": heavy.__code__.co_firstlineno, "light": light.__code__.co_firstlineno}), flush=True)
    try:
        work(worker)
    finally:
        whole = sum(worker.spent.values())
        print(json.dumps({name: spent / whole for name, spent in worker.spent.items()}), flush=True)


main()
