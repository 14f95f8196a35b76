"""YAML text with lines, references to the environment and overrides."""

import pytest

from otelprof.config.document import override, parse
from otelprof.errors import ConfigError


def mistakes(document):
    with pytest.raises(ConfigError) as caught:
        document.raise_mistakes()
    return caught.value.lines


def test_a_document_knows_the_line_of_each_key():
    document = parse("a: 1\nb:\n  c: [1,\n    2]\n", "x.yaml")

    assert document.root == {"a": 1, "b": {"c": [1, 2]}}
    assert [document.line(path) for path in ("a", "b", "b.c", "b.c.1", "b.c.1.nothing", "z")] == [1, 2, 3, 4, 4, 0]


def test_a_reference_alone_takes_the_type_of_its_value_and_a_quoted_one_stays_a_text():
    env = {"PORT": "4317", "ON": "true", "HOST": "h"}
    document = parse('a: ${env:PORT}\nb: "${env:PORT}"\nc: ${env:HOST}:${env:PORT}\nd: ${ON}\ne: $$5 $x\n', "x", env)

    assert document.root == {"a": 4317, "b": "4317", "c": "h:4317", "d": True, "e": "$5 $x"}


def test_a_default_stands_in_for_an_unset_or_empty_variable():
    document = parse("a: ${env:NOT:-5s}\nb: ${env:EMPTY:-x}\nc: ${env:NOT:-}\n", "x", {"EMPTY": ""})

    assert document.root == {"a": "5s", "b": "x", "c": None}
    document.raise_mistakes()


def test_an_unset_variable_and_an_unknown_source_are_mistakes():
    lines = mistakes(parse("a: ${env:NOT}\nb: ${file:/etc/passwd}\nc: ${1x}\n", "x.yaml", {}))

    assert lines[0] == "x.yaml:1: a: the environment variable NOT isn't set; set it, or write ${env:NOT:-default}"
    assert [line.split(":")[1] for line in lines] == ["1", "2", "3"]


def test_a_value_from_the_environment_cannot_bring_yaml_structure():
    document = parse("a: ${env:EVIL}\n", "x", {"EVIL": "{b: 1}"})

    assert document.root == {"a": "{b: 1}"}


def test_a_key_that_stands_twice_is_a_mistake():
    assert mistakes(parse("a:\n  b: 1\n  b: 2\n", "x.yaml")) == ("x.yaml:3: a.b: stands twice (first in line 2)",)


def test_merge_keys_and_anchors_work():
    document = parse("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n", "x")

    assert document.root["use"] == {"x": 1, "y": 3}


@pytest.mark.parametrize(
    "text", ["a: [", "a: b: c", "\t- x", "a: !!python/object:os.system x", "\x00", "- 1\n- 2", "just text"]
)
def test_what_is_no_mapping_in_yaml_is_one_line(text):
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml").raise_mistakes()

    assert len(caught.value.lines) == 1
    assert caught.value.lines[0].startswith("x.yaml:")
    assert "\n" not in caught.value.lines[0]


def test_a_bomb_of_aliases_is_refused_in_bounded_time():
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))

    with pytest.raises(ConfigError, match="too many"):
        parse(text, "x.yaml")


@pytest.mark.parametrize("text", ["a: " + "[" * 5000, "a: &a [*a]", "a: " + "{b: " * 300 + "1" + "}" * 300])
def test_deep_and_endless_nesting_is_refused(text):
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml").raise_mistakes()

    assert len(caught.value.lines) == 1


def test_overrides_set_and_make_keys_with_yaml_values():
    document = parse("a: {b: 1}\n", "x")
    override(document, ["a.b=2", "a.c.d=[x, 1]", "e=5s", "a.f="])

    assert document.root == {"a": {"b": 2, "c": {"d": ["x", 1]}, "f": None}, "e": "5s"}
    document.raise_mistakes()


def test_a_wrong_override_is_a_mistake():
    document = parse("a: 1\n", "x")
    override(document, ["a", "=1", "a.b=1", "c=[", "d..e=1"])

    assert len(mistakes(document)) == 5
