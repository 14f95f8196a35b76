"""The Explore page with what it doesn't choose: hostile names, very deep and large graphs, empty ranges, nothing at all."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import page_profiles as profiles
from tests.e2e.page_browser import FLAME, Browser, program
from tests.e2e.page_server import PageServer
from tests.e2e.test_page_explore import COLOURS, ROW, explore, spot

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not program(), reason="needs Chromium (Debian: chromium)")]
PICTURE = Path(__file__).parents[2] / "docs" / "explore.png"


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


def test_names_that_are_markup_stay_text(server: PageServer, browser: Browser) -> None:
    """On load, on hover over every bar, in the search and the table: no element is made and no script runs."""
    browser.open(explore(server, service="hostile"))
    title = browser.js("document.title")
    tips = set()
    for level in range(3):
        for column in range(36):
            browser.mouse("mouseMoved", *spot(browser, level, (column + 0.5) / 36))
            tips.add(browser.text("[role=tooltip]").split("\n")[0])
    assert set(profiles.HOSTILE[:4]) <= tips
    browser.click("#search")
    browser.type(profiles.HOSTILE[0])
    browser.until("document.querySelector('#found').textContent")
    browser.click_at(*spot(browser, 1, 0.5))
    browser.settle()
    assert browser.js("document.querySelectorAll('img[src=x], script:not([src]), svg[onload]').length") == 0
    assert browser.js("document.title") == title
    assert not browser.complaints()


def test_exported_svg_is_well_formed_and_has_all_names(server: PageServer, browser: Browser) -> None:
    """The click offers a file whose text is the names, without a script or an image."""
    browser.open(explore(server, service="hostile"))
    browser.js("""window.saved = new Promise(done => { const make = URL.createObjectURL;
        URL.createObjectURL = blob => { blob.text().then(done); return make.call(URL, blob) } }), 0""")
    browser.js("document.querySelector('[data-export=svg]').click()")
    root = ET.fromstring(str(browser.js("saved")))
    assert not [element.tag for element in root.iter() if element.tag.endswith(("script", "img", "image", "foreignObject"))]
    text = " ".join(root.itertext())
    assert all(name in text for name in profiles.HOSTILE[:4])


def test_other_exports_are_links_to_what_is_shown(server: PageServer, browser: Browser) -> None:
    """Format, type, selector and range stand in each address."""
    browser.open(explore(server, **{"from": 1000, "until": 2000}))
    for name in ("pprof", "folded", "speedscope", "perfetto"):
        link = browser.js(f"document.querySelector('[data-export={name}]').href")
        assert f"/api/v1/export?format={name}&type=process_cpu%3A" in link
        assert link.endswith("&from=1000&until=2000")


def test_refused_export_is_said_and_not_saved(server: PageServer, browser: Browser) -> None:
    """The backend's words over the graph, which stays as it is."""
    browser.open(explore(server))
    browser.click("#export button")
    browser.click("[data-export=pprof]")
    browser.until("document.querySelector('[role=status]').innerText.includes('no /api/v1/export')")
    assert browser.data("state") == "ready"
    assert browser.js("document.querySelector('#export .menu-list').hidden")


def test_five_thousand_levels_are_drawn_and_scroll_to_the_end(server: PageServer, browser: Browser) -> None:
    """The wheel goes to the last level, which is drawn."""
    browser.open(explore(server, service="deep"))
    assert int(browser.data("depth")) == 5001
    flame = f"document.querySelector('{FLAME}')"
    x, y, width, height = browser.box(FLAME)
    browser.mouse("mouseWheel", x + width / 2, y + height / 2, deltaX=0, deltaY=200_000)
    browser.until(f"(e => e.scrollTop > 0 && e.scrollTop + e.clientHeight >= e.scrollHeight - 1)({flame})")
    browser.settle()
    assert browser.js(COLOURS) > 3
    browser.mouse("mouseMoved", x + 10, y + height - 2 * ROW)
    browser.until("document.querySelector('[role=tooltip]').innerText.startsWith('recurse_')")
    assert not browser.complaints()


def test_thin_bars_are_counted_as_other(server: PageServer, browser: Browser) -> None:
    """With 17,000 bars on 900 pixels many are thinner than one; what is drawn and what is other is said."""
    answer = profiles.large()
    bars = sum(len(level) // 4 for level in answer["levels"])
    browser.open(explore(server, service="large"))
    assert bars > 15_000
    assert 500 < int(browser.data("frames")) < bars
    assert 0 < float(browser.data("other")) < int(browser.data("total"))
    assert not browser.complaints()


def test_empty_range_says_when_and_where_there_are_data(server: PageServer, browser: Browser) -> None:
    """The words that scripts look for; a button leads to the data."""
    browser.open(explore(server, **{"from": 1_000_000_000_000, "until": 1_000_000_900_000}))
    text = browser.text("[role=status]")
    assert browser.data("state") == "empty"
    assert "no samples between 2001-09-09" in text
    assert "last data 20" in text
    assert "GPU kernel launches" in text
    browser.click("[role=status] .chips button:last-child")
    browser.until(f"document.querySelector('{FLAME}').dataset.state == 'ready'")
    assert browser.data("total") == str(profiles.launches()["total"])


def test_first_visit_says_what_to_do_and_draws_when_something_arrives(browser: Browser) -> None:
    """Without any data: the commands; with the first profile: the graph, without a reload."""
    with PageServer() as empty:
        flames, empty.flames = empty.flames, {}
        browser.open(f"{empty.url}/")
        assert browser.data("state") == "empty"
        assert "otelprof up" in browser.text("[role=status]")
        browser.until("document.querySelector('#live').dataset.feed == 'live'")
        empty.flames = flames
        empty.push()
        browser.until(f"document.querySelector('{FLAME}').dataset.state == 'ready'")
        assert "otelprof up" not in browser.text("[role=status]")
        assert not browser.complaints()


def test_backend_that_goes_away_is_said(browser: Browser) -> None:
    """A sentence instead of an exception; the live button says that it tries again."""
    with PageServer() as backend:
        browser.open(explore(backend))
    browser.js("document.querySelector('#spans button').click()")
    browser.until(f"document.querySelector('{FLAME}').dataset.state == 'error'")
    assert "the backend does not answer" in browser.text("[role=status]")
    browser.until("document.querySelector('#live').dataset.feed == 'lost'")


def test_narrow_window_shows_graph_and_table_below_each_other(server: PageServer, browser: Browser) -> None:
    """Nothing is wider than a phone; the graph keeps a usable height."""
    browser.resize(400, 800, 2)
    browser.open(explore(server))
    browser.settle()
    assert browser.js("document.documentElement.scrollWidth") <= 400
    assert browser.box(FLAME)[3] > 120
    browser.resize(1440, 900)


def test_picture_for_the_documentation(server: PageServer, browser: Browser, tmp_path: Path) -> None:
    """The launches with a hovered kernel; UPDATE_SCREENSHOTS=1 writes docs/explore.png, else a temporary file."""
    path = PICTURE if os.environ.get("UPDATE_SCREENSHOTS") else tmp_path / "explore.png"
    browser.theme("dark")
    browser.resize(1280, 720, 2)
    browser.open(explore(server, profiles.LAUNCHES))
    browser.mouse("mouseMoved", *spot(browser, 12, 0.16))
    browser.until("document.querySelector('[role=tooltip]').innerText.includes('cudnn_flash_attn_kernel')")
    browser.settle()
    browser.screenshot(path)
    browser.resize(1440, 900)
    assert path.stat().st_size > 20_000


def test_pages_that_nobody_sees_hold_no_connection(server: PageServer, browser: Browser) -> None:
    """Going from page to page more often than a browser opens connections to one host still gets an answer."""
    for _ in range(8):
        browser.open(explore(server))
    assert browser.data("state") == "ready"
