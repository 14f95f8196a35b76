"""The Compare page in headless Chromium: difference, side by side, table of changes, ranges, address."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.e2e import page_profiles as profiles
from tests.e2e.page_browser import FLAME, Browser, program
from tests.e2e.page_server import PageServer
from tests.e2e.test_page_explore import COLOURS, address, spot

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not program(), reason="needs Chromium (Debian: chromium)")]
PICTURE = Path(__file__).parents[2] / "docs" / "compare.png"
ROWS = "[...document.querySelectorAll('#changes tbody tr')].map(row => [row.dataset.name, row.dataset.fate])"
READY = f"document.querySelector('{FLAME}')?.dataset.state == 'ready'"


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


def compare(server: PageServer, **more: object) -> str:
    """Address of the page: the inference server against its next version."""
    sides = {"left_query": '{service_name="inference-server"}', "right_query": '{service_name="canary"}'}
    return f"{server.url}/compare?" + urlencode({"type": profiles.CPU, "from": "now-15m", "until": "now"} | sides | more)


def share(stacks: list[tuple[tuple[str, ...], int]], frame: str) -> float:
    """Percent of the stacks' values in which a frame occurs."""
    return 100 * sum(n for stack, n in stacks if frame in stack) / sum(n for _, n in stacks)


def test_difference_is_drawn_and_told(server: PageServer, browser: Browser) -> None:
    """Both totals, both shares and the change of the bar under the pointer."""
    browser.open(compare(server))
    browser.settle()
    assert browser.data("total") == str(profiles.cpu()["total"] + profiles.canary()["total"])
    assert browser.js(COLOURS) > 3
    browser.mouse("mouseMoved", *spot(browser, 5, 0.5))
    browser.until("!document.querySelector('[role=tooltip]').hidden")
    tip = browser.text("[role=tooltip]")
    before, after = (share(stacks, profiles.FORWARD[-1]) for stacks in (profiles.CPU_STACKS, profiles.CANARY_STACKS))
    assert tip.startswith("model_forward\n")
    assert f"{before:.1f} %" in tip
    assert f"{after:.1f} %" in tip
    assert f"+{after - before:.1f} points" in tip
    assert not browser.complaints()


def test_table_names_what_changed_most_and_what_came_and_went(server: PageServer, browser: Browser) -> None:
    """Sorted by the change of the self share; Added and Removed list those alone."""
    browser.open(compare(server))
    assert browser.js(ROWS)[:3] == [["check_finite", "added"], ["bpe", "removed"], ["unicode_join", "removed"]]
    browser.click("[data-fate=added]")
    assert browser.js(ROWS) == [["check_finite", "added"], ["bpe_cached", "added"]]
    browser.click("[data-fate=removed]")
    assert sorted(name for name, _ in browser.js(ROWS)) == ["bpe", "unicode_join"]
    browser.click("[data-fate='']")
    browser.click("[data-order=total]")
    assert browser.js(ROWS)[0][0] == "check_finite"
    assert address(browser)["order"] == "total"


def test_sides_are_shown_beside_each_other_and_zoom_together(server: PageServer, browser: Browser) -> None:
    """A click on the left goes to the same path on the right."""
    browser.open(compare(server, view="sides"))
    x, y, width, _ = browser.box("#flame-left")
    right = "document.querySelector('#flame-right').dataset"
    bars = browser.js(f"Number({right}.frames)")
    browser.click_at(x + width / 2, y + 5 * 20 + 10)
    browser.until(f"{right}.frames < {bars}")
    assert "model_forward" in browser.text("#crumbs")


def test_dragging_a_side_changes_its_range_alone(server: PageServer, browser: Browser) -> None:
    """The address has it, the other side keeps its own; the requests ask for both."""
    browser.open(compare(server))
    before = browser.text("#left [data-part=range]")
    x, y, width, height = browser.box("#right .timeline")
    browser.drag((x + width * 0.6, y + height / 2), (x + width * 0.7, y + height / 2))
    browser.until("new URLSearchParams(location.search).has('right_from')")
    browser.until(READY)
    chosen = address(browser)
    assert 85_000 <= int(chosen["right_until"]) - int(chosen["right_from"]) <= 95_000
    assert browser.text("#left [data-part=range]") == before
    asked = [path for path in server.requests if "/api/v1/diff" in path][-1]
    assert f"right_from={chosen['right_from']}&right_until={chosen['right_until']}" in asked


def test_link_opens_the_same_comparison(server: PageServer, browser: Browser) -> None:
    """Search, shape and view are those of the address; swapping turns added into removed."""
    browser.open(compare(server, view="table", python=1, search="bpe"))
    assert browser.js(ROWS) == [["bpe", "removed"], ["bpe_cached", "added"]]
    browser.click("#swap")
    browser.until(READY)
    browser.until(f"{ROWS}.join() == 'bpe,added,bpe_cached,removed'")
    url, rows = str(browser.js("location.href")), browser.js(ROWS)
    browser.open(url)
    assert browser.js(ROWS) == rows
    browser.js("history.back()")
    browser.until(f"{ROWS}.join() == 'bpe,removed,bpe_cached,added'")


def test_pages_lead_to_each_other_with_what_is_shown(server: PageServer, browser: Browser) -> None:
    """Explore's type, selector and time go along, and back."""
    query = urlencode(
        {"type": profiles.LAUNCHES, "query": '{service_name="inference-server"}', "from": "now-5m", "until": "now"}
    )
    browser.open(f"{server.url}/explore?{query}")
    browser.click("[data-page=compare]")
    browser.until(f"location.pathname == '/compare' && {READY}")
    assert browser.js("document.querySelector('#type').value") == profiles.LAUNCHES
    assert browser.js("document.querySelector('#left [data-part=service]').value") == "inference-server"
    assert browser.text("#left [data-part=range]").endswith("2.5 min")
    browser.click("[data-page=explore]")
    browser.until(f"location.pathname == '/explore' && {READY}")
    assert browser.js("document.querySelector('#type').value") == profiles.LAUNCHES


def test_sides_without_samples_and_refusals_are_said(server: PageServer, browser: Browser) -> None:
    """Nothing on either side, and the backend's own words."""
    browser.open(compare(server, **{"from": 1_000_000, "until": 2_000_000}))
    assert browser.data("state") == "empty"
    assert "no samples on either side" in browser.text("[role=status]")
    server.failure = (400, "the selector ends in the middle of a string")
    browser.open(compare(server))
    server.failure = None
    assert browser.data("state") == "error"
    assert "the selector ends in the middle" in browser.text("[role=status]")


def test_names_that_are_markup_stay_text(server: PageServer, browser: Browser) -> None:
    """In the table, the graphs' words and the tooltip."""
    sides = {f"{side}_query": '{service_name="hostile"}' for side in ("left", "right")}
    browser.open(compare(server, **sides))
    title = browser.js("document.title")
    for column in range(36):
        browser.mouse("mouseMoved", *spot(browser, 2, (column + 0.5) / 36))
    assert set(profiles.HOSTILE[:4]) <= {name for name, _ in browser.js(ROWS)}
    assert browser.js("document.querySelectorAll('img[src=x], script:not([src]), svg[onload]').length") == 0
    assert browser.js("document.title") == title
    assert not browser.complaints()


def test_a_phone_shows_the_sides_below_each_other(server: PageServer, browser: Browser) -> None:
    """Nothing is wider than the window."""
    browser.resize(400, 800, 2)
    for view in ("diff", "sides", "table"):
        browser.open(compare(server, view=view))
        assert browser.js("document.documentElement.scrollWidth") <= 400
    browser.resize(1440, 900)


def test_picture_for_the_documentation(server: PageServer, browser: Browser, tmp_path: Path) -> None:
    """The difference with a bar under the pointer; UPDATE_SCREENSHOTS=1 writes docs/compare.png, else a temporary file."""
    path = PICTURE if os.environ.get("UPDATE_SCREENSHOTS") else tmp_path / "compare.png"
    browser.theme("dark")
    browser.resize(1280, 720, 2)
    browser.open(compare(server))
    browser.mouse("mouseMoved", *spot(browser, 8, 0.65))
    browser.until("document.querySelector('[role=tooltip]').innerText.startsWith('linear')")
    browser.settle()
    browser.screenshot(path)
    browser.resize(1440, 900)
    assert path.stat().st_size > 20_000
