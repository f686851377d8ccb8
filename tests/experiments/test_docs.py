import pytest

from experiments.docs import BENCHMARKS, GUIDE, METHODS, PARTS, guided, updated
from experiments.site.markdown import replaced
from stforecast.methods import METHODS as FORECASTS
from vision.methods import METHODS as IMAGES


def test_the_page_of_methods_is_what_the_registries_say():
    text = METHODS.read_text()
    assert all(f"<!-- {name}: generated -->" in text for name in PARTS)
    assert updated(text) == text, "run: python -m experiments.docs"


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("sent", [n for n, m in FORECASTS.items() if not m.pooled]),
        (
            "images sent",
            [n for n, m in IMAGES.items() if m.__module__.startswith("vision.methods.")],
        ),
    ],
)
def test_every_method_has_a_row_of_what_it_sends(part, expected):
    table = METHODS.read_text().partition(f"<!-- {part}: generated -->")[2].partition("<!--")[0]
    rows = [row.split("|")[1].strip(" `") for row in table.strip().splitlines()[2:]]
    assert rows == expected, "run: python -m experiments.docs"


@pytest.mark.slow
def test_what_methods_send_is_what_was_measured():
    text = METHODS.read_text()
    assert updated(text, measured=True) == text, "run: python -m experiments.docs"


def test_the_guide_is_what_the_results_say():
    text = GUIDE.read_text()
    assert "<!-- skill: generated -->" in text
    assert guided(text) == text, "run: python -m experiments.docs"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_what_is_told_of_a_benchmark_is_what_was_measured(name):
    page, make = BENCHMARKS[name]
    text = page.read_text()
    assert f"<!-- {name}: generated -->" in text
    assert replaced(text, name, make) == text, "run: python -m experiments.docs"


def test_a_stale_part_is_replaced():
    stale = "a\n<!-- methods: generated -->\noutdated text\n<!-- methods: end -->\nb"
    fresh = updated(stale)
    assert "outdated" not in fresh
    assert "`fuels`" in fresh
    assert fresh.startswith("a\n<!--")
    assert fresh.endswith("-->\nb")
    assert updated(fresh) == fresh
