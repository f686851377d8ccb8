"""What a page must have for all readers, as far as its text says it: a browser is not needed."""

import itertools
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from report_pages import write_report

from stforecast.data.series import as_series
from stforecast.forecasting.groups import Groups
from stforecast.forecasting.sleep import Sleep, plan_sleep
from stforecast.report.write import PAGE, ReportPage

CONTRAST = 4.5
"""Least contrast of a text, by WCAG 2.2 (AA)."""


class Elements(HTMLParser):
    """Elements of a page with their attributes and texts.

    Attributes:
        found: name, attributes, text inside, and whether a label is around, of each.
    """

    def __init__(self, text):
        super().__init__()
        self.found, self._open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        labelled = any(one[0] == "label" for one in self._open)
        one = [tag, dict(attrs), "", labelled]
        self.found.append(one)
        if tag not in ("meta", "img", "input", "link", "br"):
            self._open.append(one)

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for one in self._open:
            one[2] += data.strip()

    def named(self, *tags):
        return [one for one in self.found if one[0] in tags]


def write_sleep(out):
    """Write a page on two carriers, one of them asleep for two hours."""
    loads = np.array([[[5.0, 2.0, 1.0], [4.0, 4.0, 4.0]]]).repeat(8, axis=0)
    hours = pd.date_range("2024-03-04", periods=3, freq="h")
    where, cells = {"cell": ["a", "b"], "time": hours}, np.array(["a", "b"])
    paths = xr.DataArray(loads, where, ("path", "cell", "time"), "calls", {"units": "1"})
    site = Groups.of_columns({"site": ["x", "x"]}, cells)
    series = as_series(pd.DataFrame(loads[0].T, hours, cells))
    page = ReportPage()
    page.add(series=series, sleep=plan_sleep(paths, site, 7.0, Sleep(below=3, probability=0.8)))
    return page.write(out, "Sleep")


@pytest.fixture(params=["runs", "sleep"])
def page(request, tested, tmp_path):
    if request.param == "sleep":
        return Elements(write_sleep(tmp_path / "sleep.html").read_text())
    y = np.random.default_rng(0).normal(size=(3, 48, 1)) + 10
    runs = [tested(name, y + 1, y, naive=y + 2) for name in ("a", "b")]
    return Elements(write_report(runs, tmp_path / "report.html", metric="raw_mae").read_text())


def test_headings_go_down_one_level_at_a_time(page):
    levels = [int(tag[1]) for tag, *_ in page.named("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))


def test_what_can_be_used_has_a_name(page):
    for tag, attributes, text, labelled in page.named("select", "input", "button", "a"):
        assert labelled or text or attributes.get("aria-label"), (tag, attributes)
    for tag, attributes, *_ in page.found:
        if attributes.get("role") in ("region", "group"):
            assert attributes.get("aria-label"), (tag, attributes)
    assert all(attributes.get("alt") for _, attributes, *_ in page.named("img"))


def test_tables_have_captions_and_heads_with_a_scope(page):
    assert len(page.named("caption")) == len(page.named("table")) > 0
    assert all(text for *_, text, _ in page.named("caption"))
    assert {attributes["scope"] for _, attributes, *_ in page.named("th")} == {"col", "row"}


def test_the_page_has_a_language_a_title_and_places_to_go_to(page):
    ((_, attributes, *_),) = page.named("html")
    assert attributes["lang"] == "en"
    assert page.named("title")[0][2]
    ids = [attributes["id"] for _, attributes, *_ in page.found if "id" in attributes]
    assert len(set(ids)) == len(ids)
    targets = {of["href"][1:] for _, of, *_ in page.named("a") if of["href"].startswith("#")}
    targets |= {of["aria-labelledby"] for _, of, *_ in page.found if "aria-labelledby" in of}
    assert targets <= set(ids)
    assert len(page.named("main")) == 1


def luminance(colour):
    """Relative luminance of a colour such as #1b1f24, by WCAG."""
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # A known near miss.


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'])
def test_texts_are_dark_enough_on_their_background(theme):
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--(\w+): (#\w{6})", style.partition(theme)[2].partition("}")[0]))
    for text, back in itertools.product(("text", "faint", "link"), ("back", "panel")):
        assert contrast(colours[text], colours[back]) >= CONTRAST, (text, back)
    marks = re.findall(r"\.mark[.\w, ]* \{[^}]*background: (#\w{6})", style)
    assert len(marks) == 3
    assert all(contrast("#ffffff", mark) >= CONTRAST for mark in marks)
