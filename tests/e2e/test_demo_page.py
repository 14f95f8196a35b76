"""`otelprof up --demo` as a stranger meets it: one command, then the kernel under its Python line on the page, growing."""

import json
import os
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import page_browser
from tests.e2e.page_browser import Browser
from tests.e2e.programs import Program, fetch, free_port, otelprof, wait_for

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "demo.png"
LAUNCHES = "gpu:gpu_kernel_launches:count:gpu:count"
PATH = ["model_forward", "attention", "scaled_dot_product_attention", "[cuda] cudnn_flash_attn_kernel"]
SELECTOR = '{service_name="inference-server"}'

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kernel,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0, reason="missing: root, to attach BPF programs"),
    pytest.mark.skipif(page_browser.program() is None, reason="missing: Chromium"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a running `up --demo`."""
    work = tmp_path_factory.mktemp("up")
    address = f"127.0.0.1:{free_port()}"
    command = [
        otelprof(),
        "up",
        "--demo",
        "--listen",
        address,
        "--grpc-listen",
        "127.0.0.1:0",
        "--data-dir",
        str(work / "data"),
    ]
    with Program([*command, "--store", "memory"], work, "up", {"XDG_CACHE_HOME": str(work / "cache")}) as up:
        wait_for(lambda: fetch(f"http://{address}/readyz")[0] == 200, 60, up)
        wait_for(lambda: PATH[-1] in names(f"http://{address}"), 30, up)
        yield f"http://{address}"


def flame(url: str) -> dict[str, list[Any]]:
    """The flame graph of the demo's launches."""
    query = urllib.parse.urlencode({"type": LAUNCHES, "query": SELECTOR, "from": 0, "until": 1 << 42})
    status, body = fetch(f"{url}/api/v1/flamegraph?{query}")
    return json.loads(body) if status == 200 else {"names": [], "kinds": [], "levels": []}


def names(url: str) -> list[Any]:
    """All names in it."""
    return flame(url)["names"]


def paths(graph: dict[str, list[Any]]) -> Iterator[list[str]]:
    """The Python and CUDA frames of every path, root first, by the nesting of its bars; native ones stand between them."""
    rows: list[list[tuple[int, int, int]]] = []
    for level in graph["levels"]:
        at, row = 0, []
        values = iter(level)
        for gap, total, _own, name in zip(values, values, values, values, strict=True):
            at += gap
            row.append((at, at + total, name))
            at += total
        rows.append(row)
    for depth, row in enumerate(rows):
        for begin, end, name in row:
            above = [next(n for b, e, n in level if b <= begin and end <= e) for level in rows[:depth]]
            yield [graph["names"][n] for n in (*above, name) if graph["kinds"][n] in ("python", "cuda")]


def test_the_kernel_hangs_under_the_python_line_that_launched_it(url: str) -> None:
    found = list(paths(flame(url)))
    deepest = [path for path in found if path and path[-1] == PATH[-1]]
    assert deepest
    assert all(path[-len(PATH) :] == PATH for path in deepest)


def test_every_kernel_has_its_name_from_the_first_launch_on(url: str) -> None:
    assert not [name for name in names(url) if str(name).startswith("[cuda] kernel@")]


def test_the_page_shows_it_and_grows_by_itself(url: str, tmp_path: Path) -> None:
    """UPDATE_SCREENSHOTS=1 writes the README's picture, docs/demo.png."""
    query = urllib.parse.urlencode({"type": LAUNCHES, "query": SELECTOR, "python": 1})
    with Browser() as browser:
        browser.theme("dark")
        browser.resize(1280, 720, 2)
        browser.open(f"{url}/explore?{query}")
        before = int(browser.data("total"))
        assert before > 0
        browser.until(f"Number(document.querySelector('[data-testid=flamegraph]').dataset.total) > {before}")
        browser.settle()
        picture = PICTURE if os.environ.get("UPDATE_SCREENSHOTS") else tmp_path / "demo.png"
        browser.screenshot(picture)
        assert not browser.complaints()
    assert picture.stat().st_size > 20_000


FAULTS = {
    "a storm of tiny kernels": [
        ("Profile", "GPU kernel launches"),
        ("row", "[cuda] elementwise_copy_kernel"),
        ("link", "copy_element"),
        ("text", "pad_batch"),
    ],
    "a slow tokenizer": [("menu", "Python only"), ("row", "merge_pair"), ("text", "tokenize")],
    "a wait in a loop": [
        ("Profile", "Waits for the GPU"),
        ("row", "[cuda] cuStreamSynchronize"),
        ("link", "item"),
        ("text", "sample_tokens"),
    ],
}
CLICKS = {"Profile": 2, "menu": 2, "row": 1, "link": 1, "text": 0}
FIND = {
    "Profile": "[...document.querySelectorAll('#type option')].find(e => e.text == WORDS)",
    "menu": "[...document.querySelectorAll('#options label')].find(e => e.textContent.startsWith(WORDS))",
    "row": "[...document.querySelectorAll('#functions .row-around')].find(e => e.closest('tr').innerText.startsWith(WORDS))",
    "link": "[...document.querySelectorAll('#function-head .neighbours button')].find(e => e.innerText == WORDS)",
    "text": "document.querySelector('#function-head .neighbours')?.innerText.includes(WORDS)",
}
ACT = {"Profile": "e.selected = true; e.closest('select').dispatchEvent(new Event('change'))", "text": "0"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_by_the_words_on_the_page(url: str, fault: str) -> None:
    """From the page of the service within six clicks: the function that is at fault, and under whom it runs."""
    steps = FAULTS[fault]
    assert sum(CLICKS[kind] for kind, _ in steps) <= 6
    with Browser() as browser:
        browser.open(f"{url}/explore?{urllib.parse.urlencode({'query': SELECTOR})}")
        for kind, words in steps:
            found = FIND[kind].replace("WORDS", json.dumps(words))
            browser.until(found, 60)
            browser.js(f"(e => {{ {ACT.get(kind, 'e.click()')} }})({found})")
        assert not browser.complaints()
