"""Python that C calls: sort keys, map, reduce, a substitution, construction, comparison, iteration, a foreign call-back."""

import ctypes
import functools
import json
import re
import sys
import time


def burn():
    t = 0
    for i in range(500):
        t += i * i
    return t


def by_key(value):
    burn()
    return -value


def by_map(value):
    burn()
    return value


def by_reduce(one, other):
    burn()
    return one + other


def by_pattern(match):
    burn()
    return match.group().upper()


class Built:
    def __init__(self, value=0):
        burn()
        self.value = value

    def __lt__(self, other):
        burn()
        return True


def by_iteration(count):
    for number in range(count):
        burn()
        yield str(number)


def by_pointer(_one, _other):
    burn()
    return 0


COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
LIBC = ctypes.CDLL(None)


def round_trip():
    sorted(range(20), key=by_key)
    list(map(by_map, range(20)))
    functools.reduce(by_reduce, range(20))
    re.sub("[abc]", by_pattern, "abcabcabcabc")
    sorted([Built() for _ in range(20)])
    "".join(by_iteration(20))
    LIBC.qsort((ctypes.c_int * 16)(), ctypes.c_size_t(16), ctypes.c_size_t(4), COMPARE(by_pointer))


def main():
    end = time.monotonic() + float(sys.argv[1])
    print(json.dumps({}), flush=True)
    while time.monotonic() < end:
        round_trip()


main()
