"""Functions with difficult names, each called in turn."""

import json
import sys
import time

NAMES = [
    "größe",
    "вычислить",
    "計算する",
    "a" * 2000,
    "ö" * 3000,
    "with space",
    "semi;colon",
    "new\nline",
    "escape\x1b[31m",
    "",
]


def make(name):
    def function(count):
        t = 0
        for i in range(count):
            t += i
        return t

    code = function.__code__
    names = {"co_name": name, "co_qualname": name} if hasattr(code, "co_qualname") else {"co_name": name}
    function.__code__ = code.replace(**names)
    return function


def main():
    functions = [make(name) for name in NAMES]
    end = time.monotonic() + float(sys.argv[1])
    print(json.dumps(NAMES), flush=True)
    while time.monotonic() < end:
        for function in functions:
            function(20000)


main()
