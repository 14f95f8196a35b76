"""Recursion to 300 frames, which is shown whole, and to 700, whose root end is cut."""

import json
import sys
import time


def bottom(end):
    t = 0
    while time.monotonic() < end:
        for i in range(1000):
            t += i
    return t


def whole(depth, end):
    return whole(depth - 1, end) if depth else bottom(end)


def cut(depth, end):
    return cut(depth - 1, end) if depth else bottom(end)


def main():
    sys.setrecursionlimit(2000)
    end = time.monotonic() + float(sys.argv[1])
    print(json.dumps({}), flush=True)
    while time.monotonic() < end:
        whole(300, time.monotonic() + 0.2)
        cut(700, time.monotonic() + 0.2)


main()
