"""The generated pages say what the code says."""

from pathlib import Path

import pytest

from otelprof import reference
from otelprof.config.units import Duration
from otelprof.counters import CATALOGUE

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("name", "written"), [("configuration.md", reference.configuration), ("counters.md", reference.counters)]
)
def test_a_generated_page_is_up_to_date(name, written):
    assert (DOCS / name).read_text(encoding="utf-8") == written(), f"run `python -m otelprof.reference` and commit docs/{name}"


def test_every_counter_has_a_meaning_and_a_name_of_ours():
    for metric in CATALOGUE.values():
        assert metric.meaning
        assert metric.name.startswith("otelprof_")
        assert metric.name.endswith("_total") == (metric.kind.value == "counter")


@pytest.mark.parametrize(
    ("hint", "words"),
    [(Duration, "duration"), (Path | None, "path"), (tuple[int, ...], "list of number"), (dict[str, str], "mapping of text")],
)
def test_types_have_words(hint, words):
    assert reference.type_name(hint) == words
