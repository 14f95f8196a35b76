"""Chromium without a window, steered through its debugging pipe (DevTools protocol, JSON with a zero byte between messages).

The browser reads commands from descriptor 3 and writes answers and events to 4
(https://chromedevtools.github.io/devtools-protocol/, `--remote-debugging-pipe`).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

OPTIONS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--mute-audio",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--no-proxy-server",
    "--remote-debugging-pipe",
]
FLAME = "[data-testid=flamegraph]"


def program() -> str | None:
    """Path of a Chromium, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page in an own Chromium with an own profile folder; a context manager."""

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp(prefix="page-test-")
        self._commands, self._answers = self._start()
        self._pending = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(1440, 900)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _start(self) -> tuple[int, int]:
        """Start the program; descriptors for commands and answers."""
        theirs, commands = os.pipe()
        answers, back = os.pipe()
        words = [program() or "chromium", f"--user-data-dir={self._profile}", *OPTIONS, "about:blank"]
        shell = ["bash", "-c", f'exec "$@" 3<&{theirs} 4>&{back}', "bash"]  # dash takes one digit only
        self._process = subprocess.Popen(
            [*shell, *words],
            pass_fds=(theirs, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs)
        os.close(back)
        return commands, answers

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Result of one command; an error of the browser is a RuntimeError."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return dict(answer["result"])

    def _next(self, seconds: float = 30.0) -> dict[str, Any]:
        """The next message; events are kept."""
        while b"\0" not in self._pending:
            if not select.select([self._answers], [], [], seconds)[0]:
                raise TimeoutError("the browser is silent")
            self._pending += os.read(self._answers, 1 << 20)
        raw, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self.events.append(message)
        return message

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        """Size of the window in CSS pixels and pixels of the screen per CSS pixel."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def theme(self, name: str) -> None:
        """`light` or `dark`, as the system would say."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, url: str) -> None:
        """Load a page and wait until its graph or list is there, empty or refused."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        state = "document.querySelector('[data-testid=flamegraph], #main[data-state]')?.dataset.state"
        self.until(f"['ready', 'empty', 'error'].includes({state})")

    def js(self, expression: str) -> Any:
        """Value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", "exception"))
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = 15.0) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.js(f"Boolean({expression})"):
            if time.monotonic() > end:
                raise TimeoutError(f"not true within {seconds} s: {expression}")
            time.sleep(0.03)

    def data(self, key: str) -> str:
        """A data attribute of the flame graph."""
        return str(self.js(f"document.querySelector('{FLAME}').dataset.{key}"))

    def text(self, selector: str) -> str:
        """Visible text of an element."""
        return str(self.js(f"document.querySelector({json.dumps(selector)}).innerText"))

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """x, y, width and height of an element in the window."""
        edge = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        found = self.js(f"(r => [r.x, r.y, r.width, r.height])({edge})")
        return found[0], found[1], found[2], found[3]

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A mouse event of the protocol: mouseMoved, mousePressed, mouseReleased, mouseWheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click_at(self, x: float, y: float, count: int = 1) -> None:
        """Move there and click."""
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=count)
        self.mouse("mouseReleased", x, y, button="left", clickCount=count)

    def click(self, selector: str) -> None:
        """Click the middle of an element."""
        x, y, width, height = self.box(selector)
        self.click_at(x + width / 2, y + height / 2)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press at a point, move to another, release."""
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, button="left", clickCount=1)
        self.mouse("mouseMoved", (start[0] + end[0]) / 2, end[1], button="left", buttons=1)
        self.mouse("mouseMoved", *end, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def key(self, name: str, text: str = "") -> None:
        """Press and release a key by its DOM name."""
        codes = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36}
        facts = {"key": name, "windowsVirtualKeyCode": codes.get(name, 0)} | ({"text": text} if text else {})
        self.call("Input.dispatchKeyEvent", type="keyDown", **facts)
        self.call("Input.dispatchKeyEvent", type="keyUp", **facts)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def settle(self) -> None:
        """Wait until movements are over and two frames are drawn."""
        self.js("new Promise(done => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 300))")

    def screenshot(self, path: Path | None = None) -> bytes:
        """The window as PNG."""
        png = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        if path:
            path.write_bytes(png)
        return png

    def complaints(self) -> list[str]:
        """Uncaught errors, console errors and what the policy refused, since the page was opened."""
        self.js("0")
        return [text for event in self.events if (text := _complaint(event))]


def _complaint(event: dict[str, Any]) -> str:
    params = event.get("params", {})
    if event["method"] == "Runtime.exceptionThrown":
        return str(params["exceptionDetails"].get("exception", {}).get("description", params["exceptionDetails"]["text"]))
    if event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
        return " ".join(str(arg.get("value", arg.get("description", ""))) for arg in params["args"])
    if event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
        return f"{params['entry']['text']} {params['entry'].get('url', '')}"
    return ""
