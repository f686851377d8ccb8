"""The parts of the documentation site; `make docs` builds all of it, strictly."""

import re

import click
import pytest
from markdown import markdown

from experiments.docs import ROOT
from experiments.site.forecasts import skill_figure, skill_table
from experiments.site.hooks import PAGES, moved_links, on_page_content, with_docstrings
from experiments.site.measured import read_benchmark
from experiments.site.references import commands_page, options_page
from experiments.site.tutorials import refreshed
from stforecast.cli.main import cli


def skills(steps, first, second):
    """A benchmark of two methods with these skills."""
    section = [
        f"**milan, internet**: 9 cells, 3 folds of 3 days, {steps} ahead, z-scores",
        [{"method": "fedlean", "runs": 3}, {"method": "trees", "runs": 3, "pools": "yes"}],
        [
            {"method": "fedlean", "skill in MSE, %": first, "rank": 1.0},
            {"method": "trees", "skill in MSE, %": second, "p": 0.1, "rank": 2.0},
        ],
    ]
    return read_benchmark({"title": "A", "parts": section})


def walk(command, path):
    yield path
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            yield from walk(command.get_command(ctx, name), f"{path} {name}")


@pytest.fixture(scope="module")
def page():
    return commands_page()


def test_every_command_has_a_section(page):
    headings = set(re.findall(r"^#+ (stforecast .*)$", page, re.M))
    assert headings == set(walk(cli, "stforecast")) - {"stforecast"}


def test_options_of_later_sections_are_tabulated(page):
    run = page.partition("## stforecast run")[2].partition("\n## ")[0]
    assert "**Options of fedlean**" in run
    assert "<td><code>--rounds INTEGER</code></td>" in run
    assert "<code>--data PATH</code></td><td>Cube written by prepare.  [required]" in run


def test_methods_have_their_own_defaults_and_ranges():
    fuels = options_page().partition("### fuels\n")[2].partition("\n### ")[0]
    assert fuels.startswith("\nExchanges hourly prototypes")
    assert "<code>--tau FLOAT</code></td><td>Temperature" in fuels
    assert "[default: 0.02; x&gt;0]" in fuels


def test_links_of_root_files_lead_to_pages():
    for name in PAGES:
        links = re.findall(r"\]\(([^)#]+)", moved_links((ROOT / name).read_text()))
        for link in (link for link in links if "://" not in link):
            assert link in PAGES.values() or (ROOT / "docs" / link).exists(), f"{name}: {link}"


def test_equations_become_mathml_and_nothing_else_changes():
    text = "A line with $x < 1$ and `$y$`.\n\n$$\\frac{a}{b}$$\n"
    html = markdown(
        text,
        extensions=["pymdownx.arithmatex"],
        extension_configs={"pymdownx.arithmatex": {"generic": True}},
    )
    page = on_page_content(html)
    assert "arithmatex" not in page
    assert re.search(r'<math[^>]* display="inline">.*<mo>&#x0003C;</mo>', page)
    assert re.search(r'<math[^>]* display="block">.*<mfrac>', page)
    assert "<code>$y$</code>" in page


def test_a_page_shows_a_docstring_from_its_words_on():
    page = 'a\n<!-- docstring of experiments.site.hooks from "Files of the root" -->\nb'
    text = with_docstrings(page)
    assert text.startswith("a\nFiles of the root")
    assert text.endswith("\nb")


def test_a_docstring_without_these_words_is_named():
    with pytest.raises(ValueError, match=r"experiments\.docs has no 'Nowhere said'"):
        with_docstrings('<!-- docstring of experiments.docs from "Nowhere said" -->')


def lines_of(table):
    """The lines of a Markdown table without what only aligns its columns."""
    narrow = [re.sub(r" *\| *", " | ", line).strip() for line in table.splitlines()]
    return [re.sub(r"-{3,}", "---", line) for line in narrow]


def test_skill_is_tabulated_best_method_first():
    benchmarks = {
        "who_wins_a": skills("1 step", 10.0, 32.4),
        "who_wins_b": skills("24 steps", 3.6, 4.4),
    }
    assert lines_of(skill_table(benchmarks, "page.md")) == [
        "| data | trees † | fedlean |",
        "| --- | --- | --- |",
        "| [milan, 9 cells, 1 step ahead](page.md#who_wins_a) | **32** | 10 |",
        "| [milan, 9 cells, 24 steps ahead](page.md#who_wins_b) | **4** | **4** |",
    ]
    assert skill_figure(benchmarks).startswith(b"\x89PNG")


def test_outputs_of_a_tutorial_are_written_and_cut(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (
        "```toml\n# a.toml\nx = 1\n```\n```python\nprint(open('a.toml').read())\nx = 5\n```\n"
        "```text\nold\n…\n```\nthen\n```python\nprint(x)\n```\n```text\n```\n"
        "```sh\nstforecast predict nowhere --history a --out b.csv   # refused\n```\n```text\n```\n"
    )
    fresh = refreshed(page)
    assert "```text\n# a.toml\n…\n```\nthen" in fresh
    assert "```text\n5\n```" in fresh
    assert re.search(r"```text\nstforecast: .*nowhere", fresh)


@pytest.mark.parametrize("line", ["stforecast list methods   # refused", "stforecast list nothing"])
def test_a_command_that_ends_otherwise_than_a_tutorial_says_is_named(line):
    with pytest.raises(RuntimeError, match=re.escape(line)):
        refreshed(f"```sh\n{line}\n```\n")
