"""A thread in C code that gave the GIL away, beside one that runs Python."""

import hashlib
import json
import sys
import threading
import time


def hashing(end):
    data = bytes(1 << 20)
    while time.monotonic() < end:
        hashlib.sha256(data)


def counting(end):
    t = 0
    while time.monotonic() < end:
        for i in range(1000):
            t += i
    return t


def main():
    end = time.monotonic() + float(sys.argv[1])
    print(json.dumps({}), flush=True)
    thread = threading.Thread(target=hashing, args=(end,), name="hasher")
    thread.start()
    counting(end)
    thread.join()


main()
