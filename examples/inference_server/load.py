"""The built-in load: clients that post bursts of 1 to 8 prompts, over and over, at a set mean rate."""

from __future__ import annotations

import http.client
import json
import threading
import time

CLIENTS = 8
WORDS = ("the", "profiler", "shows", "the", "line", "that", "launched", "the", "kernel", "it", "then", "waited", "for")


def prompt_of(number: int) -> str:
    """A prompt of some length; the same number gives the same prompt."""
    return " ".join(WORDS[(number * 7 + place) % len(WORDS)] for place in range(72 + number % 17))


class Load(threading.Thread):
    """Posts bursts until it is told to stop; a server that is busy or gone is left alone until the next burst."""

    def __init__(self, port: int, rate: float, tokens: int) -> None:
        super().__init__(name="load-generator", daemon=True)
        self._clients = [http.client.HTTPConnection("127.0.0.1", port, timeout=30) for _ in range(CLIENTS)]
        self._rate = rate
        self._tokens = tokens
        self._stopped = threading.Event()
        self._number = 0

    def run(self) -> None:
        due = time.monotonic()
        burst = 0
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            size = burst % CLIENTS + 1
            self._post_burst(size)
            burst += 1
            due = max(due + size / self._rate, time.monotonic() - 1.0)

    def stop(self) -> None:
        """No further bursts; the one under way is let go."""
        self._stopped.set()

    def _post_burst(self, size: int) -> None:
        clients = self._clients[:size]
        try:
            for client in clients:
                self._number += 1
                body = json.dumps({"prompt": prompt_of(self._number), "max_tokens": self._tokens})
                client.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            for client in clients:
                client.getresponse().read()
        except (OSError, http.client.HTTPException):
            for client in clients:
                client.close()
