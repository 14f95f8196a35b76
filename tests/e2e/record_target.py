"""A program to record: busy in two functions, with a child on request; ends after argv[1] seconds or at SIGTERM."""

import subprocess
import sys
import time


def heavy(count):
    return sum(number * number for number in range(count))


def working(until):
    while time.monotonic() < until:
        heavy(2000)


def main():
    seconds = float(sys.argv[1])
    child = subprocess.Popen([sys.executable, __file__, sys.argv[1]]) if "child" in sys.argv[2:] else None
    print("ready", flush=True)
    working(time.monotonic() + seconds)
    if child is not None:
        child.wait()


if __name__ == "__main__":
    main()
