"""A program with spans of every shape, which logs when it was in which: the truth for samples. Runs on Python 3.8 and newer.

span_program.py SCENARIO SECONDS: says "ready" once everything is imported, waits for a line, works, and prints a JSON list
of [thread, begin, end, ids]: from begin to end (CLOCK_MONOTONIC, ns) the thread ran with that span current, as the API says.
"""

import asyncio
import contextvars
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

trace.set_tracer_provider(TracerProvider())
tracer = trace.get_tracer("spans")
context.get_current()  # 1.20 makes the runtime context at the first use
LOG = []
SLICE = 0.01


def current():
    """The ids of the current span in hex, empty when there is none that is valid."""
    found = trace.get_current_span().get_span_context()
    return f"{found.trace_id:032x}{found.span_id:016x}" if found.is_valid else ""


def burn(seconds=SLICE):
    """Work without a change of context, and log it."""
    ids = current()
    begin = time.monotonic_ns()
    end = begin + int(seconds * 1e9)
    now = begin
    while now < end:
        sum(range(200))
        now = time.monotonic_ns()
    LOG.append((threading.get_native_id(), begin, now, ids))


def span(name="work"):
    return tracer.start_as_current_span(name)


def nested(end):
    while time.monotonic() < end:
        burn()
        with span("outer"):
            burn()
            with span("inner"):
                burn()
            burn()


def tasks(end):
    """asyncio: two tasks in spans of their own, one in none, on one thread."""

    async def task(name):
        with span(name):
            while time.monotonic() < end:
                burn(SLICE / 2)
                await asyncio.sleep(0)
                with span("step"):
                    burn(SLICE / 2)
                    await asyncio.sleep(0.001)

    async def bare():
        while time.monotonic() < end:
            burn(SLICE / 4)
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(task("a"), task("b"), bare())

    asyncio.run(main())


def crowd(count):
    """asyncio: many requests at a time, each in a span of its own."""

    def many(end):
        async def request():
            while time.monotonic() < end:
                with span("request"):
                    burn(0.001)
                    await asyncio.sleep(0)
                    burn(0.001)

        async def main():
            await asyncio.gather(*(request() for _ in range(count)))

        asyncio.run(main())

    return many


def greenlets(end):
    """gevent: greenlets in spans of their own, and one in none, on one thread."""
    import gevent

    def work(named):
        while time.monotonic() < end:
            if named:
                with span():
                    burn(SLICE / 2)
                    gevent.sleep(0)
                    burn(SLICE / 2)
            else:
                burn(SLICE / 4)
                gevent.sleep(0)

    gevent.joinall([gevent.spawn(work, number) for number in range(3)])


def threads(end):
    def work(named):
        while time.monotonic() < end:
            if named:
                with span():
                    burn()
            else:
                burn()

    started = [threading.Thread(target=work, args=(number % 2,)) for number in range(3)]
    for one in started:
        one.start()
    for one in started:
        one.join()


def executor(end):
    """A pool whose jobs run in a copy of the context of who asked for them."""
    with ThreadPoolExecutor(2) as pool:
        while time.monotonic() < end:
            with span("request"):
                jobs = [pool.submit(contextvars.copy_context().run, burn) for _ in range(4)]
                burn()
            jobs.append(pool.submit(burn))  # in no span
            for job in jobs:
                job.result()


def remote(end):
    """Spans that only carry ids: of a caller elsewhere, with small and large ids, and invalid ones."""
    largest = (1 << 128) - 1, (1 << 64) - 1
    for ids in [(0x1234, 0x56), largest, (1 << 127, 1), (7 << 60, 1 << 60), (0, 5), (5, 0)] * 9:
        parent = NonRecordingSpan(SpanContext(*ids, is_remote=True, trace_flags=TraceFlags(1)))
        token = context.attach(trace.set_span_in_context(parent))
        burn()
        if time.monotonic() < end and ids[0] and ids[1]:
            with span("child"):
                burn()
        context.detach(token)


def unsampled(end):
    silent = TracerProvider(sampler=ALWAYS_OFF).get_tracer("silent")
    while time.monotonic() < end:
        with silent.start_as_current_span("not recorded"):
            burn()


def variables(count):
    def many(end):
        kept = [contextvars.ContextVar(f"variable {number}") for number in range(count)]
        for one in kept:
            one.set(1)
        nested(end)

    return many


def baggage(end):
    """A Context of 3,000 keys, put together at once."""
    values = {f"key {number}": number for number in range(3000)}
    values.update(trace.set_span_in_context(tracer.start_span("laden")))
    token = context.attach(context.Context(values) if hasattr(context, "Context") else type(context.get_current())(values))
    while time.monotonic() < end:
        burn()
    context.detach(token)


def unfolded(end):
    """Spans whose attributes somebody has looked at as a dictionary, changed and added to."""
    while time.monotonic() < end:
        with span() as one:
            vars(one)["something"] = 1
            burn()
            for number in range(40):
                setattr(one, f"more_{number}", number)
            burn()


def subclass(end):
    """A class of spans that nobody knows."""
    from opentelemetry.sdk.trace import _Span

    class Own(_Span):
        pass

    parent = tracer.start_span("parent")
    while time.monotonic() < end:
        own = Own("own", trace.SpanContext(5, 7, is_remote=False), resource=getattr(parent, "resource", None))
        with trace.use_span(own):
            burn()


def forked(end):
    """A child that was forked inside a span goes on in it, and then makes its own."""
    with span("before the fork"):
        child = os.fork()
        burn()
        if not child:
            LOG.clear()
            burn(0.1)
            nested(end)
            print(json.dumps([os.getpid(), LOG]), flush=True)
            os._exit(0)
    os.waitpid(child, 0)


def none(end):
    while time.monotonic() < end:
        burn()


SCENARIOS = {
    "nested": nested, "tasks": tasks, "threads": threads, "executor": executor, "remote": remote, "unsampled": unsampled,
    "60 variables": variables(60), "10000 variables": variables(10_000), "baggage": baggage, "unfolded": unfolded,
    "1 request": crowd(1), "50 requests": crowd(50), "500 requests": crowd(500), "greenlets": greenlets,
    "none": none, "subclass": subclass, "forked": forked,
}  # fmt: skip

if __name__ == "__main__":
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        scenario, _, seconds = line.strip().rpartition(" ")
        LOG.clear()
        SCENARIOS[scenario](time.monotonic() + float(seconds))
        print(json.dumps(LOG), flush=True)
