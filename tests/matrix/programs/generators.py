"""Generators resumed from two places, one ten times as often, and coroutines below an event loop."""

import asyncio
import json
import sys
import time


def items(count):
    for number in range(count):
        t = 0
        for i in range(300):
            t += i * number
        yield t


def often(count):
    return sum(items(10 * count))


def seldom(count):
    return sum(items(count))


async def inner(number):
    t = 0
    for i in range(2000):
        t += i * number
    await asyncio.sleep(0)
    return t


async def outer_left(until):
    while time.monotonic() < until:
        await inner(1)


async def outer_right(until):
    while time.monotonic() < until:
        await inner(2)


async def both(until):
    await asyncio.gather(outer_left(until), outer_right(until))


def main():
    end = time.monotonic() + float(sys.argv[1])
    print(json.dumps({}), flush=True)
    while time.monotonic() < end:
        for _ in range(200):
            often(10)
            seldom(10)
        asyncio.run(both(time.monotonic() + 0.1))


main()
