import io
import re

import numpy as np
import pytest
from PIL import Image

from data_prep.errors import InputError
from experiments.docs import (
    EMPTY,
    GUIDE,
    METHODS,
    MOST_BYTES,
    PARTS,
    RESULTS,
    gather,
    guided,
    shrunk,
    updated,
)


def test_the_page_of_methods_is_what_the_registries_say():
    text = METHODS.read_text()
    assert all(f"<!-- {name}: generated -->" in text for name in PARTS)
    assert updated(text) == text, "run: python -m experiments.docs"


def test_the_guide_is_what_the_results_say():
    text = GUIDE.read_text()
    assert "<!-- skill: generated -->" in text
    assert guided(text, RESULTS.read_text()) == text, "run: python -m experiments.docs"


def test_a_stale_part_is_replaced():
    stale = "a\n<!-- methods: generated -->\noutdated text\n<!-- methods: end -->\nb"
    fresh = updated(stale)
    assert "outdated" not in fresh
    assert "`fuels`" in fresh
    assert fresh.startswith("a\n<!--")
    assert fresh.endswith("-->\nb")
    assert updated(fresh) == fresh


@pytest.fixture
def results(tmp_path):
    """Writes what a benchmark leaves behind."""

    def make(name, title):
        folder = tmp_path / "results" / name
        (folder / "figures").mkdir(parents=True)
        Image.new("RGB", (40, 30), "red").save(folder / "figures" / "a-cdf.png")
        (folder / "table.md").write_text(f"# {title}\n\ntable\n\n![a-cdf](figures/a-cdf.png)\n")
        return folder

    return make


def test_benchmarks_are_gathered_on_one_page(results, tmp_path):
    page = tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    gather([results("one", "First"), results("two", "Second, too")], page)
    text = page.read_text()
    assert text == (
        "# Results\n\n<!-- results: generated -->\n"
        "- [First](#one)\n- [Second, too](#two)\n\n"
        '<a id="one"></a>\n\n## First\n\ntable\n\n![a-cdf](figures/one-a-cdf.png)\n\n'
        '<a id="two"></a>\n\n## Second, too\n\ntable\n\n![a-cdf](figures/two-a-cdf.png)\n'
        "<!-- results: end -->\n"
    )
    figures = {path.name for path in (page.parent / "figures").iterdir()}
    assert figures == {"one-a-cdf.png", "two-a-cdf.png"}
    page.write_text(text.replace("# Results\n", "# Results\n\nWho wins\n"))
    (tmp_path / "results" / "one" / "table.md").write_text("# Changed\n\nnumbers\n")
    gather([results("three", "Third"), tmp_path / "results" / "one"], page)
    again = page.read_text()
    assert "Who wins" in again
    assert "First" not in again
    assert re.findall("^## (.*)$", again, re.M) == ["Changed", "Second, too", "Third"]
    assert "- [Changed](#one)\n- [Second, too](#two)\n- [Third](#three)\n" in again


def test_benchmarks_of_one_title_are_told_apart(results, tmp_path):
    page = tmp_path / "results.md"
    gather([results("hour", "Backtest"), results("day", "Backtest"), results("x", "Other")], page)
    assert "- [Backtest: hour](#hour)\n- [Backtest: day](#day)\n- [Other](#x)\n" in page.read_text()


def test_what_the_numbers_show_is_listed_with_links(results, tmp_path):
    page = tmp_path / "results.md"
    parts = [
        f"<!-- {n}: generated -->\nstale\n<!-- {n}: end -->" for n in ("claims", "image claims")
    ]
    page.write_text("\n".join([EMPTY, *parts]))
    folders = [results("one", "First"), results("two", "Second"), results("three", "Third")]
    said = [
        "On milan, **a** has a lower error.",
        "On digits, choosing from all classes, **b** leads.",
    ]
    for folder, text in zip(folders, said, strict=False):
        (folder / "table.md").write_text(f"# {folder.name}\n\n| a |\n\n{text}\n")
    gather(folders, page)
    assert page.read_text().endswith(
        f"<!-- claims: generated -->\n**[one](#one)**\n\n- {said[0]}\n<!-- claims: end -->\n"
        "<!-- image claims: generated -->\n"
        f"**[two](#two)**\n\n- {said[1]}\n<!-- image claims: end -->"
    )


def test_what_is_no_benchmark_is_refused(results, tmp_path):
    page = tmp_path / "results.md"
    with pytest.raises(
        InputError, match=r"table.md: no table here \(found nothing\); give folders"
    ):
        gather([tmp_path], page)
    folder = results("one", "First")
    with pytest.raises(InputError, match="same name"):
        gather([folder, folder], page)
    page.write_text("# Mine\n")
    with pytest.raises(InputError, match="has no line <!-- results: generated -->"):
        gather([folder], page)
    assert page.read_text() == "# Mine\n"


def test_a_figure_shrinks_until_it_is_small_enough(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (700, 900, 3), dtype=np.uint8)
    path = tmp_path / "a.png"
    Image.fromarray(noise).save(path)
    small = shrunk(path)
    assert len(small) <= MOST_BYTES
    with Image.open(io.BytesIO(small)) as image:
        assert image.width < 900
        assert image.width / image.height == pytest.approx(9 / 7, rel=0.02)
    Image.new("RGB", (900, 700), "red").save(path)
    with Image.open(io.BytesIO(shrunk(path))) as image:
        assert image.size == (900, 700)
