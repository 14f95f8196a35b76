"""Selectors in PromQL's form select what Prometheus would, and everything else is an error in one line."""

import time

import pytest

from otelprof.backend.selector import parse_selector, select
from otelprof.errors import MalformedInput

LABELS = {"service_name": "shop", "thread_name": "pool-1", "__name__": "process_cpu"}

SELECTED = [
    ("", True),
    ("{}", True),
    ('{service_name="shop"}', True),
    ('{service_name="shop",}', True),
    ('{ service_name = "shop" , thread_name =~ "pool-.*" }', True),
    ("{service_name='shop'}", True),
    ("{service_name=`shop`}", True),
    ('{"service.name"="shop"}', True),
    ('{service.name="shop"}', True),
    ('{service_name!="shop"}', False),
    ('{service_name=~"sho"}', False),
    ('{service_name=~"sho."}', True),
    ('{service_name=~"s.*|x"}', True),
    ('{service_name!~"s.*"}', False),
    ('{missing=""}', True),
    ('{missing!=""}', False),
    ('{missing=~".*"}', True),
    ("process_cpu", True),
    ('process_cpu{service_name="shop"}', True),
    ('{"process_cpu"}', True),
    ("memory", False),
    ('{service_name="sh\\u006fp"}', True),
    ('{service_name="sh\\x6fp"}', True),
]


@pytest.mark.parametrize(("selector", "selected"), SELECTED)
def test_a_selector_selects(selector: str, selected: bool) -> None:
    assert select(parse_selector(selector), LABELS) is selected


WRONG = [
    "{",
    "}",
    "{service_name}",
    '{service_name="shop"',
    '{service_name=="shop"}',
    '{service_name="shop" thread_name="x"}',
    '{,service_name="shop"}',
    '{service_name=~"("}',
    '{service_name=~"(?=x)"}',
    '{service_name="unclosed}',
    '{a="1"}{b="2"}',
    "{" + 'a="b",' * 65 + "}",
    '{a=~"' + "x" * 1001 + '"}',
    "x" * 20_000,
    '{a="b"} or {c="d"}',
]


@pytest.mark.parametrize("selector", WRONG, ids=range(len(WRONG)))
def test_what_is_no_selector_is_an_error_of_one_line(selector: str) -> None:
    with pytest.raises(MalformedInput) as caught:
        parse_selector(selector)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400


def test_no_pattern_takes_long() -> None:
    matchers = parse_selector('{a=~"(a*)*(a|aa)+$"}')
    before = time.process_time()
    assert not select(matchers, {"a": "a" * 100_000 + "b"})
    assert time.process_time() - before < 5  # a backtracking engine wouldn't end in a lifetime
