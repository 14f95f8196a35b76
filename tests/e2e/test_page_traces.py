"""The Traces page in headless Chromium: requests by cost, the spans of one, to a flame graph and back."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.e2e import page_profiles as profiles
from tests.e2e.page_browser import FLAME, Browser, program
from tests.e2e.page_server import PageServer
from tests.e2e.test_page_explore import address

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not program(), reason="needs Chromium (Debian: chromium)")]
TRACES = "[...document.querySelectorAll('#requests tr')].map(row => Number('0x' + row.dataset.trace))"
SPANS = "[...document.querySelectorAll('#spans-of-one tr')].map(row => row.cells[0].firstChild.textContent)"
READY = "document.querySelector('#main')?.dataset.state == 'ready'"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of this file."""
    with Browser() as page:
        yield page


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    """A backend whose answers stay."""
    with PageServer() as backend:
        yield backend


def test_requests_are_ordered_by_what_is_asked(server: PageServer, browser: Browser) -> None:
    """By CPU at first; a click on a column orders by that, and the address says it."""
    browser.open(f"{server.url}/traces")
    assert browser.js(TRACES) == [4, 3, 2, 1]
    browser.click("[data-order=launches]")
    browser.until(f"{READY} && {TRACES}.join() == '1,2,3,4'")
    assert address(browser)["order"] == "launches"
    browser.js("history.back()")
    browser.until(f"{READY} && {TRACES}.join() == '4,3,2,1'")
    assert not browser.complaints()


def test_a_request_opens_to_its_spans(server: PageServer, browser: Browser) -> None:
    """The tree by start, each span with its own values; a link opens the same."""
    browser.open(f"{server.url}/traces")
    browser.click("#requests tr:nth-child(4) button")
    browser.until(f"{SPANS}.length == 4")
    assert browser.js(SPANS) == ["POST /v1/completions", "tokenize", "generate", "model_forward"]
    indents = browser.js(
        "[...document.querySelectorAll('#spans-of-one tr')].map(row => parseInt(row.cells[0].style.paddingLeft))"
    )
    assert indents == [16, 30, 30, 44]
    browser.open(str(browser.js("location.href")))
    assert browser.js(SPANS)[1] == "tokenize"
    browser.click("#close")
    browser.until("document.querySelector('#detail').hidden")


def test_from_a_span_to_its_flame_graph_and_back(server: PageServer, browser: Browser) -> None:
    """The value is the link; Explore asks for that span, says so, and leads back to the request."""
    browser.open(f"{server.url}/traces?trace={1:032x}")
    browser.until(f"{SPANS}.length == 4")
    browser.click("#spans-of-one tr:nth-child(3) td:nth-child(4) a")
    browser.until(f"document.querySelector('{FLAME}')?.dataset.state == 'ready'")
    asked = parse_qs(urlsplit([path for path in server.requests if "/flamegraph" in path][-1]).query)
    assert (asked["span"], asked["trace"], asked["type"]) == ([f"{3:016x}"], [f"{1:032x}"], [profiles.LAUNCHES])
    assert f"Only samples of span {3:016x}" in browser.text("#only")
    browser.click("#only a")
    browser.until(f"location.pathname == '/traces' && {SPANS}.length == 4")
    browser.js("history.back()")
    browser.until("location.pathname == '/explore' && document.querySelector('#only button')")
    browser.click("#only button")
    browser.until("!new URLSearchParams(location.search).has('span')")
    browser.until("document.querySelector('#only').hidden")


def test_requests_without_spans_and_names_that_are_markup(server: PageServer, browser: Browser) -> None:
    """A request that only samples tell of has its id; markup stays text."""
    browser.open(f"{server.url}/traces")
    assert browser.text("#requests tr:nth-child(1) button").startswith("request 00000000")
    assert browser.text("#requests tr:nth-child(2) button").startswith(profiles.HOSTILE[0])
    assert browser.js("document.querySelectorAll('img[src=x]').length") == 0
    assert not browser.complaints()


def test_a_phone_can_scroll_to_all_columns(server: PageServer, browser: Browser) -> None:
    """The page itself is no wider than the window."""
    browser.resize(400, 800, 2)
    browser.open(f"{server.url}/traces?trace={1:032x}")
    assert browser.js("document.documentElement.scrollWidth") <= 400
    browser.resize(1440, 900)
