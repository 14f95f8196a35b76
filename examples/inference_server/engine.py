"""The engine process: owns the GPU, gathers requests into batches, generates tokens, answers.

It talks with the front through one pipe: in come requests and two words, out go answers. It ends when it is told to
stop or when the front is gone.
"""

from __future__ import annotations

import importlib
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, List, NamedTuple

import model
from ledger import LEDGER
from tokenizer import tokenize

GATHER_SECONDS = 0.01  # how long a batch waits for one more request
LEDGER_WANTED, STOP = "ledger", "stop"


class Request(NamedTuple):
    """One request of a client."""

    number: int
    prompt: str
    max_tokens: int


class Answer(NamedTuple):
    """What became of it; with an error, the tokens until then."""

    number: int
    tokens: List[int]
    batch_size: int
    launches: int
    error: str = ""


def engine_main(pipe: Connection, operators: str, dispatcher: str, max_batch: int) -> None:
    """Run the engine until it is told to stop; the front alone decides when that is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        ops = importlib.import_module(operators)
        ops.open_device(Path(dispatcher))
    except (RuntimeError, ImportError, OSError) as problem:
        pipe.send(("failed", str(problem)))
        return
    pipe.send(("ready", {"device": ops.device_name()}))
    try:
        serve_requests(pipe, ops, max_batch)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the front is gone


def serve_requests(pipe: Connection, ops: Any, max_batch: int) -> None:
    """Batch after batch."""
    while True:
        batch, words = gather_batch(pipe, max_batch)
        if batch:
            for answer in run_batch(ops, batch):
                pipe.send(("answer", answer))
        for word in words:
            pipe.send((word, {**LEDGER.as_json(), "driver": ops.device_ledger()}))
        if STOP in words:
            return


def gather_batch(pipe: Connection, max_batch: int) -> tuple[list[Request], list[str]]:
    """Wait for a request, then take those that follow closely; a word ends the wait."""
    batch: list[Request] = []
    words: list[str] = []
    while len(batch) < max_batch and not words and (not batch or pipe.poll(GATHER_SECONDS)):
        message = pipe.recv()
        if isinstance(message, str):
            words.append(message)
        else:
            batch.append(message)
    return batch, words


def run_batch(ops: Any, batch: list[Request]) -> list[Answer]:
    """Serve requests together; all of them get as many tokens as the longest asks for, cut to their own wish."""
    before = LEDGER.launches
    last_tokens = [tokenize(request.prompt)[-1] for request in batch]
    steps: list[list[int]] = []
    error = ""
    try:
        generate(ops, last_tokens, max(request.max_tokens for request in batch), steps)
    except RuntimeError as problem:
        error = str(problem)
    launches = LEDGER.launches - before
    LEDGER.note_batch([request.number for request in batch], launches, failed=bool(error))
    return [
        Answer(request.number, [step[row] for step in steps[: request.max_tokens]], len(batch), launches, error)
        for row, request in enumerate(batch)
    ]


def generate(ops: Any, tokens: list[int], wanted: int, steps: list[list[int]]) -> None:
    """Append the tokens of each step, one for each sequence, to `steps`."""
    for _step in range(wanted):
        logits = model.model_forward(ops, tokens)
        tokens = model.sample_tokens(ops, logits, len(tokens))
        steps.append(tokens)
