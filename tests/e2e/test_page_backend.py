"""From a recorded session through agent and backend to the page: it fills and grows while one looks at it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
import yaml

from tests.e2e.backend_program import Backend
from tests.e2e.page_browser import FLAME, Browser, program
from tests.e2e.page_profiles import LAUNCHES
from tests.e2e.programs import Program, free_port, otelprof, wait_for
from tests.unit.otlp_requests import PERIOD, Builder

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not program(), reason="needs Chromium (Debian: chromium)")]
STACK = ("model_forward", "attention", "scaled_dot_product_attention")
KERNEL = "cudnn_flash_attn_kernel"


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Program]:
    """A backend with an in-memory store."""
    http, grpc = free_port(), free_port()
    listen = ["--listen", f"127.0.0.1:{http}", "--grpc-listen", f"127.0.0.1:{grpc}", "--store", "memory"]
    with Program([otelprof(), "backend", *listen], tmp_path, "backend") as server:
        server.http = http
        wait_for(lambda: server.get(f"http://127.0.0.1:{http}/readyz") == 200, 30, server)
        yield server


def replay(work: Path, http: int, launches: int) -> None:
    """Send that many launches of one kernel from one Python stack through an agent."""
    now = time.time_ns()
    stack = [{"name": name, "kind": "cpython", "file": "model.py", "line": 10} for name in STACK]
    common = {"kind": "launch", "pid": 77, "tid": 77, "stack": stack, "kernel": KERNEL, "device": 0, "stream": 7}
    lines = [{**common, "time_unix_nano": now - i * 1000, "correlation_id": i + 1} for i in range(launches)]
    (work / "session.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {
        "receivers": {"replay": {"path": str(work / "session.jsonl")}},
        "processors": {"cuda_stitch": {"spans": "none"}},
        "exporters": {"otlp_http": {"endpoint": f"http://127.0.0.1:{http}"}},
        "service": {
            "telemetry": {"metrics": {"address": "127.0.0.1:0"}},
            "pipelines": {"profiles": {"receivers": ["replay"], "processors": ["cuda_stitch"], "exporters": ["otlp_http"]}},
        },
    }
    (work / "agent.yaml").write_text(yaml.safe_dump(config))
    with Program([otelprof(), "run", "--config", str(work / "agent.yaml")], work, "agent") as agent:
        assert agent.wait(30) == 0, agent.log()


def test_page_fills_and_grows_while_one_looks(backend: Program, tmp_path: Path) -> None:
    """Empty at first; the first launches draw the way from Python to the kernel, more make the total grow."""
    with Browser() as page:
        page.open(f"http://127.0.0.1:{backend.http}/explore?type={LAUNCHES}&from=now-5m&until=now")
        assert page.data("state") == "empty"
        replay(tmp_path, backend.http, 300)
        page.until(f"document.querySelector('{FLAME}').dataset.total == 300")
        page.until("document.querySelectorAll('#functions tbody tr').length == 4")
        names = page.js("[...document.querySelectorAll('#functions tbody tr')].map(row => row.dataset.name)")
        assert set(names) == {*STACK, f"[cuda] {KERNEL}"}
        assert page.data("depth") == "5"
        replay(tmp_path, backend.http, 200)
        page.until(f"document.querySelector('{FLAME}').dataset.total == 500")
        x, y, width, _ = page.box(FLAME)
        page.mouse("mouseMoved", x + width / 2, y + 4 * 20 + 10)
        page.until(f"document.querySelector('[role=tooltip]').innerText.includes('{KERNEL}')")
        tip = page.text("[role=tooltip]")
        assert "CUDA" in tip
        assert "500" in tip
        assert "100 %" in tip
        for name in ("pprof", "folded", "speedscope"):
            assert page.js(f"fetch(document.querySelector('[data-export={name}]').href).then(answer => answer.status)") == 200
        assert not page.complaints()


def test_comparison_and_requests_come_from_the_same_backend(backend: Program, tmp_path: Path) -> None:
    """The launches are new against a time before them; samples outside of spans make no request, and the page says so."""
    with Browser() as page:
        begin = int(time.time() * 1000)
        replay(tmp_path, backend.http, 300)
        now = int(time.time() * 1000)
        sides = {
            "left_from": begin - 600_000,
            "left_until": begin - 300_000,
            "right_from": begin - 60_000,
            "right_until": now + 1000,
        }
        span = {"type": LAUNCHES, "from": begin - 600_000, "until": now + 1000}
        page.open(f"http://127.0.0.1:{backend.http}/compare?{urlencode(span | sides)}")
        assert (page.data("state"), page.data("total"), page.data("depth")) == ("ready", "300", "5")
        rows = page.js("[...document.querySelectorAll('#changes tbody tr')].map(row => [row.dataset.name, row.dataset.fate])")
        assert sorted(rows) == sorted([name, "added"] for name in (*STACK, f"[cuda] {KERNEL}"))
        page.open(f"http://127.0.0.1:{backend.http}/traces?from=now-15m&until=now")
        assert "no requests in this time" in page.text("[role=status]")
        assert not page.complaints()


def test_a_request_of_samples_leads_to_its_flame_graph(tmp_path: Path) -> None:
    """A profile whose samples name a span is a request on the Traces page; its cost is the link to those samples alone."""
    builder = Builder("traced")
    builder.sample("inside", values=(3,), link_index=builder.link(b"\x01" * 16, b"\x02" * 8))
    builder.sample("outside", values=(4,))
    with Backend(tmp_path, store="memory") as program, Browser() as page:
        program.send(builder.data())
        page.open(f"{program.url}/traces?from=now-1h&until=now")
        assert page.js("document.querySelector('#main').dataset.state") == "ready"
        page.click("#requests button")
        page.until("document.querySelector('#spans-of-one a')")
        page.click("#spans-of-one a")
        page.until(f"document.querySelector('{FLAME}')?.dataset.state == 'ready'")
        assert page.data("total") == str(3 * PERIOD)
        page.click("#only button")
        page.until(f"document.querySelector('{FLAME}').dataset.total == {7 * PERIOD}")
        assert not page.complaints()
