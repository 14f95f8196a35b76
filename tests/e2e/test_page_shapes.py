"""The Explore page's other shapes of one graph, the menu of a bar, suggestions for labels, losses and tokens."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from tests.e2e import page_profiles as profiles
from tests.e2e.page_browser import FLAME, Browser, program
from tests.e2e.page_server import PageServer
from tests.e2e.test_page_explore import address, explore, spot

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not program(), reason="needs Chromium (Debian: chromium)")]
NAMES = "[...document.querySelectorAll('#functions tbody tr')].map(row => row.dataset.name)"
LAUNCHED = sum(count for stack, count in profiles.CPU_STACKS if "native:cuLaunchKernel" in stack)
WHOLE = sum(count for _, count in profiles.CPU_STACKS)


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


def button(browser: Browser, words: str, within: str = "body") -> None:
    """Click the element that a person would find by these words."""
    found = f"[...document.querySelectorAll('{within} :is(button, a, label)')]"
    wanted = f"{found}.find(e => e.innerText.startsWith({json.dumps(words)}))"
    browser.until(wanted)
    browser.js(f"{wanted}.click()")


def test_callers_and_callees_from_the_table(server: PageServer, browser: Browser) -> None:
    """One click on the row's button: its value over both graphs, callers above, callees below, and the way back."""
    browser.open(explore(server))
    browser.click("#functions tbody tr .row-around")
    browser.until("document.querySelector('.around #function-head')")
    head = browser.text("#function-head")
    assert "cuLaunchKernel" in head
    assert f"{100 * LAUNCHED / WHOLE:.1f} %" in head
    assert address(browser)["around"] == "cuLaunchKernel"
    assert browser.js("document.querySelector('#callers').dataset.depth") == "11"
    assert (browser.data("depth"), browser.data("frames")) == ("1", "1")
    assert browser.js("document.querySelector('[role=status]').hidden")
    button(browser, "Back to the whole graph")
    browser.until("!document.querySelector('.around')")
    assert browser.data("total") == str(profiles.cpu()["total"])
    assert not browser.complaints()


def test_callers_stand_on_the_function(server: PageServer, browser: Browser) -> None:
    """The lowest row of the callers is the function, the one above who calls it."""
    browser.open(explore(server, around="bpe", file="tokenizer.py"))
    browser.settle()
    x, y, width, height = browser.box("#callers")
    for rows, name in ((1, "bpe"), (2, "Tokenizer.encode"), (3, "Engine.step")):
        browser.mouse("mouseMoved", x + width / 2, y + height - rows * 20 + 6)
        browser.until(f"document.querySelector('[role=tooltip]').innerText.startsWith('{name}\\n')")
    assert browser.js(NAMES) == ["unicode_join"]


def test_a_function_that_is_not_there_is_said(server: PageServer, browser: Browser) -> None:
    """A link to callers and callees of something that this time hasn't got shows the graph and says so."""
    browser.open(explore(server, around="gone"))
    assert browser.data("state") == "ready"
    assert "gone isn't in this profile" in browser.text("[role=status]")
    browser.click("[role=status] button")
    browser.until("document.querySelector('[role=status]').hidden")


def test_python_only_gives_native_values_to_their_python_caller(server: PageServer, browser: Browser) -> None:
    """The total stays, native functions are gone from graph and table, the address says it."""
    browser.open(explore(server))
    browser.click("#options button")
    button(browser, "Python only", "#options")
    browser.until("new URLSearchParams(location.search).get('python') == '1'")
    names = browser.js(NAMES)
    assert not {"cuLaunchKernel", "futex_wait"} & set(names)
    attention = sum(count for stack, count in profiles.CPU_STACKS if profiles.FLASH[-1] in stack)
    row = browser.text("#functions tr[data-name=scaled_dot_product_attention] .self")
    assert row.startswith(f"{100 * attention / WHOLE:.1f} %")
    assert browser.data("total") == str(profiles.cpu()["total"])
    assert browser.text("#options-count") == "1"


def test_leaf_first_puts_functions_with_own_values_under_the_root(server: PageServer, browser: Browser) -> None:
    """The kernels of launches are the second row; the table keeps self and total of all functions."""
    browser.open(explore(server, profiles.LAUNCHES))
    before = browser.text("#functions tbody")
    browser.open(explore(server, profiles.LAUNCHES, invert=1))
    browser.mouse("mouseMoved", *spot(browser, 1, 0.9))
    browser.until("document.querySelector('[role=tooltip]').innerText.startsWith('[cuda] ')")
    assert browser.text("#functions tbody") == before
    assert "Self" not in browser.text("[role=tooltip]")


def test_recursion_folds(server: PageServer, browser: Browser) -> None:
    """Of seven functions that call each other 5,000 deep one round stays, and the six that a stack began of another."""
    browser.open(explore(server, service="deep", recursion=1))
    assert browser.data("depth") == str(1 + 7 + 1000 % 7)
    assert browser.data("total") == str(profiles.deep()["total"])


def test_flames_stand_on_the_lower_edge(server: PageServer, browser: Browser) -> None:
    """The root is the lowest row, the arrow up goes to the callee, a click zooms as before."""
    browser.open(explore(server, flip=1))
    browser.settle()
    x, y, width, height = browser.box(FLAME)
    browser.mouse("mouseMoved", x + width / 2, y + height - 10)
    browser.until("document.querySelector('[role=tooltip]').innerText.startsWith('total')")
    browser.js(f"document.querySelector('{FLAME}').focus()")
    for _ in range(6):
        browser.key("ArrowUp")
    browser.until("document.querySelector('[role=tooltip]').innerText.startsWith('model_forward')")
    browser.click_at(x + width / 2, y + height - 5 * 20 - 10)
    browser.until("document.querySelector('#crumbs').innerText.includes('model_forward')")


def test_right_click_copies_the_name_and_says_so(server: PageServer, browser: Browser) -> None:
    """The menu of a bar by pointer; the words go to screen readers too."""
    browser.open(explore(server))
    x, y = spot(browser, 5, 0.5)
    for kind in ("mousePressed", "mouseReleased"):
        browser.mouse(kind, x, y, button="right", clickCount=1)
    browser.until("!document.querySelector('.bar-menu').hidden")
    button(browser, "Copy name", ".bar-menu")
    browser.until("document.querySelector('#announce').textContent == 'Copied model_forward'")
    assert browser.js("document.querySelector('.bar-menu').hidden")


def test_keys_reach_the_menu_the_callers_and_the_copy(server: PageServer, browser: Browser) -> None:
    """`c` copies the marked bar's name, `s` shows its callers and callees; what is marked is announced."""
    browser.open(explore(server))
    browser.js(f"document.querySelector('{FLAME}').focus()")
    for _ in range(5):
        browser.key("ArrowDown")
    browser.until("document.querySelector('#announce').textContent.startsWith('Engine.step, ')")
    browser.key("c", "c")
    browser.until("document.querySelector('#announce').textContent == 'Copied Engine.step'")
    browser.key("s", "s")
    browser.until("document.querySelector('#function-head').innerText.includes('Engine.step')")


def test_labels_are_suggested_and_applied(server: PageServer, browser: Browser) -> None:
    """Names, then the values of the one that was taken; Enter without a mark applies."""
    browser.open(explore(server, service="inference-server"))
    browser.js("(e => { e.value = ''; e.focus() })(document.querySelector('#query'))")
    browser.type("{po")
    options = "[...document.querySelectorAll('#query-list li')].map(item => item.textContent)"
    browser.until(f"{options}.join() == 'pod'")
    browser.key("ArrowDown")
    browser.key("Enter")
    browser.until(f"{options}.length == 3")
    for _ in range(2):
        browser.key("ArrowDown")
    browser.key("Enter")
    assert browser.js("document.querySelector('#query').value") == '{pod="gpu-a-1"}'
    browser.key("Enter")
    browser.until("new URLSearchParams(location.search).get('query') == '{pod=\"gpu-a-1\"}'")
    assert not browser.complaints()


def test_losses_are_said_with_their_share(server: PageServer, browser: Browser) -> None:
    """Marks of lost and cut samples stand in a line over the graph, which isn't there without them."""
    browser.open(explore(server))
    assert browser.js("document.querySelector('#losses').hidden")
    server.flames[profiles.CPU, "inference-server"] = profiles.flame(profiles.LOST_STACKS)
    browser.open(explore(server))
    said = browser.text("#losses")
    assert f"{10_000 / (WHOLE + 160):.2f} % of these samples were lost" in said
    assert "[lost: ring full]" in said
    assert f"{6_000 / (WHOLE + 160):.2f} % of these samples have stacks that were cut" in said


def test_picture_is_exported(server: PageServer, browser: Browser) -> None:
    """PNG of all rows, also those below the edge of the window."""
    browser.open(explore(server, service="deep"))
    browser.js("""window.saved = new Promise(done => { const make = URL.createObjectURL; URL.createObjectURL = blob => {
        const reader = new FileReader(); reader.onload = () => done(reader.result); reader.readAsDataURL(blob)
        return make.call(URL, blob) } }), 0""")
    browser.js("document.querySelector('[data-export=png]').click()")
    kind, _, data = str(browser.js("saved")).partition(",")
    png = base64.b64decode(data)
    assert kind == "data:image/png;base64"
    assert int.from_bytes(png[20:24]) > 15_000


def test_a_token_is_asked_for_and_sent_with_everything(browser: Browser) -> None:
    """401 shows the field; a wrong token is said, the right one opens the page, its news and its suggestions."""
    with PageServer() as server:
        server.token = "s3cret"
        browser.open(explore(server))
        assert browser.data("state") == "error"
        for token in ("wrong", "s3cret"):
            browser.until("document.querySelector('[name=token]')")
            browser.js("document.querySelector('[name=token]').focus()")
            browser.type(token)
            browser.key("Enter", "\r")
            if token == "wrong":
                browser.until("document.querySelector('[role=status]').innerText.includes('This token isn\\'t accepted')")
        browser.until(f"document.querySelector('{FLAME}').dataset.state == 'ready'")
        browser.until("document.querySelector('#live').dataset.feed == 'live'")
        assert browser.js("Object.keys(localStorage).length + document.cookie.length") == 0
        browser.open(explore(server))
        assert browser.data("state") == "ready"
