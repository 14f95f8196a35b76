"""The Explore page in headless Chromium: drawing, hover, zoom, search, keys, pickers, time line, live updates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.e2e import page_profiles as profiles
from tests.e2e.page_browser import FLAME, Browser, program
from tests.e2e.page_server import PageServer

ROW = 20
pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not program(), reason="needs Chromium (Debian: chromium)")]
COLOURS = f"""(canvas => new Set(new Uint32Array(canvas.getContext('2d')
    .getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size)(document.querySelector('{FLAME} canvas'))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of this file."""
    with Browser() as page:
        yield page


@pytest.fixture
def server() -> Iterator[PageServer]:
    """A backend with answers of its own for each test."""
    with PageServer() as backend:
        yield backend


def explore(server: PageServer, type_id: str = profiles.CPU, service: str = "inference-server", **more: object) -> str:
    """Address of the page."""
    query = f'{{service_name="{service}"}}'
    return f"{server.url}/explore?" + urlencode({"type": type_id, "query": query, "from": "now-15m", "until": "now"} | more)


def spot(browser: Browser, level: int, share: float) -> tuple[float, float]:
    """A point of the flame graph: a row, and a share of the width."""
    x, y, width, _ = browser.box(FLAME)
    return x + width * share, y + level * ROW + ROW / 2


def address(browser: Browser) -> dict[str, str]:
    """The parameters of the page's address."""
    return {key: values[0] for key, values in parse_qs(urlsplit(str(browser.js("location.href"))).query).items()}


def test_graph_is_drawn_with_its_figures(server: PageServer, browser: Browser) -> None:
    """State, total, bars and levels are those of the answer, in more than three colours, without a complaint."""
    browser.open(explore(server, profiles.LAUNCHES))
    browser.settle()
    answer = profiles.launches()
    bars = sum(len(level) // 4 for level in answer["levels"])
    found = [browser.data(key) for key in ("state", "total", "frames", "depth", "other")]
    assert found == ["ready", str(answer["total"]), str(bars), str(len(answer["levels"])), "0"]
    assert browser.js(COLOURS) > 3
    assert not browser.complaints()


def test_legend_names_the_kinds_that_occur(server: PageServer, browser: Browser) -> None:
    """Python, native, CUDA and marks for launches; only CUDA frames have values of their own."""
    browser.open(explore(server, profiles.LAUNCHES))
    assert browser.js("[...document.querySelectorAll('#legend li')].map(item => item.textContent.trim())") == [
        "Python",
        "Native",
        "CUDA 100 %",
        "Marks",
    ]


def test_hover_tells_name_kind_place_and_values(server: PageServer, browser: Browser) -> None:
    """The tooltip of model_forward: its place, its total and its share; it goes with the pointer."""
    browser.open(explore(server, profiles.CPU))
    browser.mouse("mouseMoved", *spot(browser, 5, 0.5))
    browser.until("!document.querySelector('[role=tooltip]').hidden")
    text = browser.text("[role=tooltip]")
    whole = sum(count for _, count in profiles.CPU_STACKS)
    inside = sum(count for stack, count in profiles.CPU_STACKS if "python:model_forward@model.py:88" in stack)
    assert text.startswith("model_forward\n")
    assert "Python" in text
    assert "model.py:88" in text
    assert f"{100 * inside / whole:.1f} %" in text
    assert f"{inside * profiles.PERIOD / 1e9:.1f} s" in text
    browser.mouse("mouseMoved", 5, 5)
    browser.until("document.querySelector('[role=tooltip]').hidden")


def test_click_zooms_and_the_path_leads_back(server: PageServer, browser: Browser) -> None:
    """Fewer bars, the path, the address; the browser's way back and the reset button show all again."""
    browser.open(explore(server))
    bars = int(browser.data("frames"))
    browser.click_at(*spot(browser, 5, 0.5))
    browser.until(f"document.querySelector('{FLAME}').dataset.frames < {bars}")
    assert "model_forward" in browser.text("#crumbs")
    assert address(browser)["zoom"]
    browser.js("history.back()")
    browser.until(f"document.querySelector('{FLAME}').dataset.frames == {bars}")
    browser.settle()
    browser.click_at(*spot(browser, 5, 0.5))
    browser.until("document.querySelector('[data-reset]')")
    browser.click("[data-reset]")
    browser.until(f"document.querySelector('{FLAME}').dataset.frames == {bars}")
    assert "zoom" not in address(browser)


def test_link_opens_the_zoom_and_the_search(server: PageServer, browser: Browser) -> None:
    """What the address says is shown after a reload."""
    browser.open(explore(server, search="launch"))
    browser.click_at(*spot(browser, 5, 0.5))
    browser.until("document.querySelector('[data-reset]')")
    crumbs, found, frames = browser.text("#crumbs"), browser.text("#found"), browser.data("frames")
    browser.open(str(browser.js("location.href")))
    assert (browser.text("#crumbs"), browser.text("#found"), browser.data("frames")) == (crumbs, found, frames)
    assert browser.js("document.querySelector('#search').value") == "launch"


def test_search_shows_the_share_and_filters_the_table(server: PageServer, browser: Browser) -> None:
    """`/` goes to the field; matches are counted once per stack; Escape ends it."""
    browser.open(explore(server, profiles.LAUNCHES))
    browser.key("/", "/")
    browser.type("flash_attn")
    browser.until("document.querySelector('#found').textContent")
    whole = sum(count for _, count in profiles.LAUNCH_STACKS)
    assert browser.text("#found") == f"{100 * 4096 / whole:.1f} % · 1"
    assert browser.js("[...document.querySelectorAll('#functions tbody tr')].map(row => row.dataset.name)") == [
        "[cuda] cudnn_flash_attn_kernel"
    ]
    assert address(browser)["search"] == "flash_attn"
    browser.key("Enter")
    browser.until("document.querySelector('[role=tooltip]').innerText.includes('cudnn_flash_attn_kernel')")
    browser.key("Escape")
    browser.until("!document.querySelector('#found').textContent")


def test_keys_walk_zoom_and_come_back(server: PageServer, browser: Browser) -> None:
    """Down to the widest child, right to its sibling, Enter zooms, Escape goes one up."""
    browser.open(explore(server, profiles.LAUNCHES))
    browser.js(f"document.querySelector('{FLAME}').focus()")
    for _ in range(6):
        browser.key("ArrowDown")
    browser.until("document.querySelector('[role=tooltip]').innerText.startsWith('model_forward')")
    browser.key("ArrowRight")
    browser.until("document.querySelector('[role=tooltip]').innerText.startsWith('sample_tokens')")
    browser.key("Enter")
    browser.until("document.querySelector('#crumbs').innerText.includes('sample_tokens')")
    browser.key("Escape")
    browser.until("!document.querySelector('#crumbs').innerText.includes('sample_tokens')")
    browser.key("Home")
    browser.until("!document.querySelector('[data-reset]')")


def test_pickers_change_type_service_and_range(server: PageServer, browser: Browser) -> None:
    """Friendly titles; each choice stands in the address and in the next request."""
    browser.open(f"{server.url}/explore")
    assert browser.js("[...document.querySelectorAll('#type option')].map(o => o.text)") == ["CPU time", "GPU kernel launches"]
    choose = "(e, v) => { e.value = v; e.dispatchEvent(new Event('change')) }"
    browser.js(f"({choose})(document.querySelector('#type'), '{profiles.LAUNCHES}')")
    browser.until(f"document.querySelector('{FLAME}').dataset.total == {profiles.launches()['total']}")
    browser.js(f"({choose})(document.querySelector('#service'), 'inference-server')")
    browser.js("[...document.querySelectorAll('#spans button')].find(b => b.textContent == '5m').click()")
    browser.until(f"document.querySelector('{FLAME}').dataset.state == 'ready'")
    assert address(browser) == {
        "type": profiles.LAUNCHES,
        "query": '{service_name="inference-server"}',
        "from": "now-5m",
        "until": "now",
    }
    last = parse_qs(urlsplit([path for path in server.requests if "flamegraph" in path][-1]).query)
    assert 299_000 <= int(last["until"][0]) - int(last["from"][0]) <= 301_000
    assert last["query"] == ['{service_name="inference-server"}']
    browser.until("document.title == 'GPU kernel launches · inference-server · otelprof'")


def test_dragging_on_the_time_line_selects_a_range(server: PageServer, browser: Browser) -> None:
    """From and until become the selection, the time line keeps its span; the link takes it back."""
    browser.open(explore(server))
    x, y, width, height = browser.box("#timeline")
    browser.drag((x + width * 0.25, y + height / 2), (x + width * 0.5, y + height / 2))
    browser.until("new URLSearchParams(location.search).has('window')")
    browser.until(f"document.querySelector('{FLAME}').dataset.state == 'ready'")
    chosen = address(browser)
    assert 215_000 <= int(chosen["until"]) - int(chosen["from"]) <= 235_000
    assert chosen["window"] == "now-15m~now"
    assert f"from={chosen['from']}&until={chosen['until']}" in [path for path in server.requests if "flamegraph" in path][-1]
    browser.click("#clear-selection")
    browser.until("!new URLSearchParams(location.search).has('window')")
    assert address(browser)["from"] == "now-15m"


def test_news_change_the_graph_and_keep_zoom_and_search(server: PageServer, browser: Browser) -> None:
    """A live page follows the backend; it isn't in the state `loading` meanwhile."""
    browser.open(explore(server, search="launch"))
    browser.click_at(*spot(browser, 5, 0.5))
    browser.until("document.querySelector('[data-reset]')")
    browser.js(f"""(flame => {{ window.states = new Set(); new MutationObserver(() => states.add(flame.dataset.state))
        .observe(flame, {{attributes: true, attributeFilter: ['data-state']}}) }})(document.querySelector('{FLAME}'))""")
    more = [*profiles.CPU_STACKS, ((*profiles.MLP, "python:new_function@new.py:1"), 500)]
    server.flames[profiles.CPU, "inference-server"] = answer = profiles.flame((stack, n * profiles.PERIOD) for stack, n in more)
    server.push()
    browser.until(f"document.querySelector('{FLAME}').dataset.total == {answer['total']}")
    assert "model_forward" in browser.text("#crumbs")
    assert browser.text("#found")
    assert browser.js("[...states]") in (["ready"], [])
    assert not browser.complaints()


def test_pause_holds_the_picture(server: PageServer, browser: Browser) -> None:
    """While paused news change nothing; going on fetches what was missed."""
    browser.open(explore(server))
    total = browser.data("total")
    browser.until("document.querySelector('#live').dataset.feed == 'live'")
    browser.click("#live")
    browser.until("document.querySelector('#live').innerText == 'Paused'")
    server.flames[profiles.CPU, "inference-server"] = answer = profiles.flame([(profiles.FLASH, 7)])
    asked = len(server.requests)
    server.push()
    browser.settle()
    assert (browser.data("total"), len(server.requests)) == (total, asked)
    browser.click("#live")
    browser.until(f"document.querySelector('{FLAME}').dataset.total == {answer['total']}")


def test_refused_refresh_is_said_and_recovers(server: PageServer, browser: Browser) -> None:
    """The graph stays under the message; with the next answer all is well again."""
    browser.open(explore(server))
    server.failure = (503, "the store is busy: try again in 2 s")
    server.push()
    browser.until(f"document.querySelector('{FLAME}').dataset.state == 'error'")
    assert "the store is busy" in browser.text("[role=status]")
    assert int(browser.data("frames")) > 10
    server.failure = None
    browser.click("[role=status] button")
    browser.until(f"document.querySelector('{FLAME}').dataset.state == 'ready'")
    assert browser.js("document.querySelector('[role=status]').hidden")


def test_refused_query_shows_the_backends_words(server: PageServer, browser: Browser) -> None:
    """A selector that can't be read: state error, the message, no graph of something else."""
    server.failure = (400, "the selector ends in the middle of a string")
    browser.open(explore(server))
    assert (browser.data("state"), browser.data("frames")) == ("error", "0")
    assert "the selector ends in the middle" in browser.text("[role=status]")


def test_table_sorts_and_picks(server: PageServer, browser: Browser) -> None:
    """Largest self first, then by total; a click marks the function in the graph."""
    names = "[...document.querySelectorAll('#functions tbody tr')].map(row => row.dataset.name)"
    browser.open(explore(server))
    assert browser.js(names)[0] == "cuLaunchKernel"
    browser.click("[data-sort=total]")
    assert browser.js(names)[0] in ("Engine.run", "Engine.step", "main", "<module>")
    browser.click("#functions tbody tr:nth-child(3) button")
    browser.until("document.querySelector('#search').value == document.querySelectorAll('#functions tbody tr')[0].dataset.name")


def test_bars_have_the_colours_of_the_theme_and_the_sharpness_of_the_screen(server: PageServer, browser: Browser) -> None:
    """Dark and light differ without a reload; two pixels per CSS pixel are used."""
    browser.theme("dark")
    browser.open(explore(server))
    browser.settle()
    pixel = f"[...document.querySelector('{FLAME} canvas').getContext('2d').getImageData(12, 4, 1, 1).data].join()"
    dark = browser.js(pixel)
    browser.theme("light")
    browser.until(f"{pixel} != '{dark}'")
    browser.resize(900, 700, 2)
    browser.until(f"(c => c.width == 2 * c.clientWidth)(document.querySelector('{FLAME} canvas'))")
    browser.resize(1440, 900)


def test_a_thousand_refreshes_in_a_burst_become_few_requests(server: PageServer, browser: Browser) -> None:
    """News that come faster than once a second are joined."""
    browser.open(explore(server))
    browser.until("document.querySelector('#live').dataset.feed == 'live'")
    begin, before = time.monotonic(), len([path for path in server.requests if "flamegraph" in path])
    for _ in range(1000):
        server.push()
    browser.settle()
    asked = len([path for path in server.requests if "flamegraph" in path]) - before
    assert asked <= time.monotonic() - begin + 2
