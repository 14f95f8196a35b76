"""Two subinterpreters, each busy in a thread of its own, beside the main one."""

import json
import sys
import threading
import time

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

BUSY = """
import time
def busy_in_{name}(end):
    t = 0
    while time.monotonic() < end:
        for i in range(1000):
            t += i
busy_in_{name}({end})
"""


def busy_in_main(end):
    t = 0
    while time.monotonic() < end:
        for i in range(1000):
            t += i


def main():
    end = time.monotonic() + float(sys.argv[1])
    threads = [
        threading.Thread(target=interpreters.run_string, args=(interpreters.create(), BUSY.format(name=name, end=end)))
        for name in ("left", "right")
    ]
    for thread in threads:
        thread.start()
    print(json.dumps({}), flush=True)
    busy_in_main(end)
    for thread in threads:
        thread.join()


main()
