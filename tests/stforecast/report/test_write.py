import base64
import gzip
import html
import json
import re

import numpy as np
import pytest
from report_pages import write_report

from data_prep.base.errors import InputError
from stforecast.report.section import Chart, Picture, Section, looks
from stforecast.report.tables import DataSheet, RunsSheet, Table
from stforecast.report.write import ReportPage, try_report

RNG = np.random.default_rng(0)
Y = RNG.normal(size=(3, 72, 2)) + 5
NAME = "<b>a & $x$</b></script>"


@pytest.fixture
def runs(tested):
    return [tested(NAME, Y + 0.1, Y, naive=Y + 1), tested("worse", Y + 0.5, Y, naive=Y + 1)]


def numbers(page):
    packed = re.search('id="numbers">([^<]*)<', page)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_a_page_needs_no_network_and_escapes_names(runs, tmp_path):
    page = write_report(runs, tmp_path / "new" / "report.html", title="A & B").read_text()
    assert "<title>A &amp; B</title>" in page
    assert html.escape(NAME, quote=False) in html.unescape(page).replace(
        NAME, html.escape(NAME, quote=False)
    )
    assert NAME not in page
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert "default-src 'none'" in page


def test_methods_are_sorted_by_error(runs, tmp_path):
    page = write_report(runs[::-1], tmp_path / "report.html", metric="raw_mae").read_text()
    (task,) = numbers(page)["tasks"]
    assert [method["name"] for method in task["methods"]] == [NAME, "worse"]
    best, worse = task["curves"]["ahead"]["of"]
    np.testing.assert_allclose(best, 0.1, rtol=1e-5)
    np.testing.assert_allclose(worse, 0.5, rtol=1e-5)
    np.testing.assert_allclose(task["curves"]["ahead"]["naive"], 1.0, rtol=1e-5)


@pytest.mark.repeats
def test_a_method_that_diverged_is_drawn_without_numbers(tested, runs, tmp_path):
    broken = Y.copy()
    broken[1] = np.inf
    wild = tested("wild", broken, Y, naive=Y + 1)
    page = write_report([wild, *runs], tmp_path / "report.html", metric="raw_mae").read_text()
    assert numbers(page)["tasks"][0]["methods"][-1]["name"] == "wild"
    assert "wild diverged" in page


def plain_section(name):
    plots = [
        Chart("By round.", "round", "%", [{"method": 1, "x": [1, 2], "y": [3.0, 4.0]}]),
        Chart("By class.", "class", "%", [{"method": 0, "x": ["0", "1"], "y": [3.0, 4.0]}]),
        Chart("Of clients.", "%", "share", [{"method": 0, "y": [3.0, 4.0]}]),
    ]
    return Section(
        name,
        ["a is best."],
        [Table("Leaderboard", [{"method": "a", "accuracy, %": "61.2"}])],
        {"methods": looks({"a": 0, "b": 1}), "plots": [vars(plot) for plot in plots]},
        picture=Picture("Who has what", "data:image/png;base64,", "Images by client."),
        data=DataSheet({"images": "8"}),
        runs=RunsSheet(None, Table("All settings", []), {"a": "stforecast vision run"}, "torch 2"),
    )


def test_sections_without_cells_are_tasks_like_those_of_forecasts(runs, tmp_path, browser):
    written = ReportPage()
    written.sections.append(plain_section("digits"))
    page = written.write(tmp_path / "plain.html", "Images compared")
    text = page.read_text()
    assert "<p>1 task, written" in text
    assert text.count(">digits<") == 1
    assert "61.2" in text
    browser.open(page)
    assert browser.problems == []
    assert browser.run("document.querySelectorAll('.chart .main-svg').length") >= 3
    browser.run("document.querySelector('.switches button:last-child').click()")
    drawn = "document.querySelector('[data-chart=\"0\"]').data.length"
    assert browser.run(drawn) == 0
    written.add_forecasts(runs)
    both = written.write(tmp_path / "both.html", "Runs compared")
    assert "<p>2 tasks, written" in both.read_text()
    browser.open(both)
    assert browser.problems == []


def test_several_tasks_have_a_table_over_all(tested, runs, tmp_path):
    others = [
        tested(run.label, run.forecasts()["y_hat"], Y, naive=Y + 1, service="sms") for run in runs
    ]
    page = write_report([*runs, *others], tmp_path / "report.html").read_text()
    assert "All 2 tasks together" in page
    assert len(numbers(page)["tasks"]) == 2


def test_nothing_is_written_without_runs(tmp_path):
    with pytest.raises(InputError, match="no runs"):
        write_report([], tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_a_benchmark_goes_on_without_its_report(tested, tmp_path, caplog):
    other = tested("other", Y[:, 1:], Y[:, 1:])
    out = tmp_path / "report.html"
    assert try_report(lambda: write_report([tested("one", Y, Y), other], out), out) is None
    assert "report.html: not written" in caplog.text
    assert not out.exists()
