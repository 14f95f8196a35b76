"""A program that is nothing but Python at first, imports OpenTelemetry when it is told to, and launches kernels in spans.

span_program.py FOLDER: "ready"; a line: "imported"; a line: works in three spans, prints [trace id, span id, launches] of each.
"""

import json
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]
from tests.unit.standin_driver import Driver  # noqa: E402

KERNEL, SECONDS = "gemm", 0.7


def say(what):
    print(json.dumps(what), flush=True)


def work(driver, function, launches):
    end = time.monotonic() + SECONDS
    for _ in range(launches):
        assert driver.launch(function) == 0
    while time.monotonic() < end:
        pass


def main():
    driver = Driver(Path(sys.argv[1])).start()
    say("ready")
    sys.stdin.readline()
    function = driver.kernel(KERNEL)
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())
    say("imported")
    sys.stdin.readline()
    done = []
    for launches in (10, 20, 30):
        with trace.get_tracer("program").start_as_current_span("request") as span:
            work(driver, function, launches)
            ids = span.get_span_context()
            done.append([f"{ids.trace_id:032x}", f"{ids.span_id:016x}", launches])
    work(driver, function, 5)  # in no span
    say(done)
    sys.stdin.readline()


main()
