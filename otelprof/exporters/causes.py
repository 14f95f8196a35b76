"""What a sender says in the log: one line for each cause, not for each try."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

_SAY_AGAIN = 600.0  # seconds after which a cause that goes on is said again
_MAX_CAUSES = 100  # a server may word the same cause in ever new ways


class Causes:
    """Says each cause once, and again only after a while; says when things work again."""

    def __init__(self, component: str, endpoint: str) -> None:
        self._prefix = f"{component}: {endpoint}"
        self._said: dict[str, float] = {}
        self._failing = False

    def say(self, cause: str, failing: bool = True) -> None:
        """Log the cause unless it was said a short while ago."""
        now = time.monotonic()
        if now - self._said.get(cause, -_SAY_AGAIN) < _SAY_AGAIN:
            return
        if len(self._said) >= _MAX_CAUSES:
            self._said.clear()
        self._said[cause] = now
        self._failing = self._failing or failing
        log.warning("%s: %s", self._prefix, cause)

    def works(self) -> None:
        """Log that sending works, after a cause was said."""
        if self._failing:
            self._failing = False
            log.info("%s: works again", self._prefix)
