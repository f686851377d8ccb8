import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_prep.base.errors import InputError
from experiments.docs import RESULTS
from experiments.site.results import (
    INDEX,
    MOST_BYTES,
    NAMES,
    contents,
    gather,
    pages,
    replaced,
    sections_of,
    shrunk,
    with_answers,
    with_sections,
    wrapped,
)
from vision.cli.claims import HEADING

PAPERS = RESULTS.parent / "papers"

PAGE = """# Page

<!-- benchmarks: {names} -->

words

<!-- claims: generated -->
<!-- claims: end -->

<!-- results: generated -->
<!-- results: end -->
"""


@pytest.fixture
def benchmark(tmp_path):
    """Writes what a benchmark leaves behind."""

    def make(name, title, text="table"):
        folder = tmp_path / "runs" / name
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), "red").save(folder / "figures" / "a-cdf.png")
        (folder / "table.md").write_text(f"# {title}\n\n{text}\n\n![a-cdf](figures/a-cdf.png)\n")
        return folder

    return make


@pytest.fixture
def results(tmp_path):
    """A folder of two pages and an index."""
    folder = tmp_path / "docs" / "results"
    folder.mkdir(parents=True)
    (folder / INDEX).write_text(
        "# Results\n\n<!-- contents: generated -->\n<!-- contents: end -->\n"
    )
    for name, names in {"one": "one, both*", "two": "two*"}.items():
        text = PAGE.format(names=names).replace("# Page", f"# Page {name}")
        (folder / f"{name}.md").write_text(text)
    return folder


def test_benchmarks_are_gathered_on_the_pages_that_name_them(benchmark, results):
    gather(
        [benchmark("one", "First"), benchmark("two_x", "Second"), benchmark("both", "Third")],
        results,
    )
    assert (results / "one.md").read_text() == (
        "# Page one\n\n<!-- benchmarks: one, both* -->\n\nwords\n\n"
        "<!-- claims: generated -->\n\n<!-- claims: end -->\n\n<!-- results: generated -->\n"
        '<a id="one"></a>\n\n## First\n\ntable\n\n![a-cdf](../figures/one-a-cdf.png)\n\n'
        '<a id="both"></a>\n\n## Third\n\ntable\n\n![a-cdf](../figures/both-a-cdf.png)\n'
        "<!-- results: end -->\n"
    )
    assert "- [Page one](one.md)\n    - [First](one.md#one)\n    - [Third](one.md#both)\n" in (
        (results / INDEX).read_text()
    )
    assert {path.name for path in (results.parent / "figures").iterdir()} == {
        "one-a-cdf.png", "two_x-a-cdf.png", "both-a-cdf.png",
    }  # fmt: skip


def test_other_tables_and_words_of_a_page_are_kept(benchmark, results):
    gather([benchmark("one", "First"), benchmark("both", "Second")], results)
    gather([benchmark("one", "Changed"), benchmark("both2", "Third")], results)
    text = (results / "one.md").read_text()
    assert "\nwords\n" in text
    assert re.findall("^## (.*)$", text, re.M) == ["Changed", "Second", "Third"]


def test_benchmarks_of_one_title_are_told_apart_by_their_data_or_names(benchmark, results):
    about = "**milan, calls**: 25 cells, 3 folds of 3 days, 1 step ahead, z-scores"
    gather([benchmark("one", "Backtest", about), benchmark("both", "Backtest")], results)
    gather([benchmark("both", "Backtest"), benchmark("both2", "Other")], results)
    titles = ["Backtest: milan, 25 cells, 1 step ahead", "Backtest: both", "Other"]
    assert re.findall("^## (.*)$", (results / "one.md").read_text(), re.M) == titles


def test_what_the_numbers_show_is_listed_with_links(benchmark, results):
    said = "On milan, **a** has a lower error than " + "others, " * 30 + "and b."
    gather([benchmark("one", "First", f"| a |\n\n{said}"), benchmark("both", "Second")], results)
    listed = (results / "one.md").read_text().partition("<!-- claims: end -->")[0]
    assert "**[First](#one)**\n\n- On milan" in listed
    assert said in " ".join(listed.split())
    assert "Second" not in listed
    assert max(map(len, listed.splitlines())) <= 100


def test_answers_to_claims_stand_on_the_papers_page_too(benchmark, results):
    paper = results.parent / "papers" / "one.md"
    paper.parent.mkdir()
    paper.write_text("# Paper\n\n<!-- answers: generated -->\nold\n<!-- answers: end -->\nwords\n")
    table = (
        "| {} | of | here | answer |\n|---|---|---|---|\n| first | {} | a [1, 2] | holds |\n"
        "| second | - | not run | cannot be told here |\n\nnote"
    )
    folders = [
        benchmark("one", "First", table.format(HEADING, "milan [1]")),
        benchmark("both", "Second", table.format(HEADING, "city")),
    ]
    gather(folders, results)
    assert paper.read_text() == (
        "# Paper\n\n<!-- answers: generated -->\n"
        f"| {HEADING} | of | here | answer |\n|---|---|---|---|\n"
        "| first | [milan [1]](../results/one.md#one) | a [1, 2] | **holds** |\n"
        "|  | [city](../results/one.md#both) | a [1, 2] | **holds** |\n"
        "| second | - | not run | **cannot be told here** |\n"
        "<!-- answers: end -->\nwords\n"
    )


def test_the_papers_pages_answer_as_the_tables_do():
    answered = [page for page in PAPERS.glob("*.md") if "<!-- answers: gen" in page.read_text()]
    assert {page.stem for page in answered} == {"gldp", "fedta", "pfpl"}
    for page in answered:
        text = page.read_text()
        assert with_answers(text, RESULTS / page.name) == text, f"{page.name}: answers"
        answers = ("**holds**", "**does not hold**", "**cannot be told here**")
        assert sum(map(text.count, answers)) > 3


def test_long_lines_are_wrapped_but_not_tables_or_code():
    row, code, words = "| " + "a " * 80 + "|", "    " + "b " * 80, "- " + "c " * 80
    text = wrapped(f"{row}\n\n{code}\n\n{words}\n- d")
    assert row in text
    assert code in text
    assert [line[:3] for line in text.splitlines()[-3:]] == ["- c", "  c", "- d"]
    assert wrapped(text) == text


def test_what_is_no_benchmark_is_refused(benchmark, results, tmp_path):
    folder = benchmark("one", "First")
    with pytest.raises(InputError, match="same name"):
        gather([folder, folder], results)
    with pytest.raises(
        InputError, match=r"^new: no page names this .* \(one.md, two.md\); name it"
    ):
        gather([benchmark("new", "Fourth")], results)
    (results / "three.md").write_text(PAGE.format(names="*"))
    with pytest.raises(InputError, match=r"^one: pages name this benchmark"):
        gather([folder], results)
    (folder / "table.md").unlink()
    with pytest.raises(
        InputError, match=r"table.md: no table here \(found nothing\); give folders"
    ):
        gather([folder], results)


def test_the_pages_are_as_they_would_be_written_today():
    every = pages(RESULTS)
    assert len(every) > 5
    for page in every:
        text = page.read_text()
        assert with_sections(text, {}) == text, f"{page.name}: sections"
        assert all(wrapped(section) == section for section in sections_of(text).values())
        assert len(NAMES.findall(text)) == 1
        for figure in re.findall(r"\(\.\./(figures/.*?)\)", text):
            assert (RESULTS.parent / figure).is_file()
    index = (RESULTS / INDEX).read_text()
    assert replaced(index, "contents", lambda: contents(RESULTS)) == index
    nav = (Path(__file__).parents[3] / "mkdocs.yml").read_text()
    assert all(f"results/{page.name}" in nav for page in every)


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
