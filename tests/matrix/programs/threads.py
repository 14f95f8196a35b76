"""A thousand threads that wait and one that works."""

import json
import sys
import threading
import time


def waiting(event):
    event.wait()


def working(end):
    t = 0
    while time.monotonic() < end:
        for i in range(1000):
            t += i


def main():
    threading.stack_size(1 << 16)
    event = threading.Event()
    threads = [threading.Thread(target=waiting, args=(event,)) for _ in range(1000)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + float(sys.argv[1])
    worker = threading.Thread(target=working, args=(end,))
    worker.start()
    print(json.dumps({}), flush=True)
    worker.join()
    event.set()
    for thread in threads:
        thread.join()


main()
