"""A page that begins with the coming span: what it says, and how it is drawn and printed."""

import base64
import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from report_pages import write_report

from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.groups import read_groups
from stforecast.forecasting.outlook import Outlook, make_outlook
from stforecast.plots.cell_map import find_places
from stforecast.report.sections.coming import coming, exceedances, time_text, unfounded
from stforecast.report.tables import Arrays, Table
from stforecast.report.write import ReportPage

CELLS = ("calm", "busy", "between")


@pytest.fixture(scope="module")
def town():
    hours = pd.date_range("2024-03-01", periods=24 * 14, freq="h")
    noise = np.random.default_rng(0).normal(size=(len(hours), 3))
    wave = np.sin(2 * np.pi * hours.hour.to_numpy() / 24)[:, None]
    table = pd.DataFrame((10 + 4 * wave + noise) * [1, 3, 2], hours, CELLS)
    settings = {"split": "days:8,3,3", "horizon": 6, "intervals": "normalised"}
    forecaster = Forecaster("seasonal_day", **settings).fit(table)
    return forecaster, forecaster.read(table)


@pytest.fixture(scope="module")
def town_ahead(town):
    forecaster, series = town
    tested = forecaster.test_forecasts()
    return series, make_outlook(forecaster, series, threshold=30.0, tested=tested)


@pytest.fixture
def page_of_groups(town, tested, tmp_path):
    """A page with groups and explanations, and its outlook."""
    forecaster, series = town
    members = tmp_path / "members.csv"
    members.write_text("cell,site\ncalm,x\nbusy,x\nbetween,y\n")
    found = make_outlook(
        forecaster, series, threshold=30.0, tested=forecaster.test_forecasts(),
        groups=read_groups(str(members), series),
    )  # fmt: skip
    y = np.random.default_rng(0).normal(size=(3, 48, 1)) + 10
    run = tested("a", y + 1, y, naive=y + 2, data="town.nc", cells=np.array(CELLS))
    made = ReportPage()
    made.add_outlook(run, series, found, forecaster.model_)
    made.add_forecasts([run], "raw_mae")
    return made.write(tmp_path / "groups.html", "Forecast"), found


@pytest.fixture
def page(tested, town_ahead, tmp_path):
    y = np.random.default_rng(0).normal(size=(3, 48, 1)) + 10
    run = tested("a", y + 1, y, naive=y + 2, data="town.nc", cells=np.array(CELLS))
    return write_report([run], tmp_path / "report.html", metric="raw_mae", ahead=town_ahead)


def test_cells_that_will_exceed_come_first_the_likeliest_first(page, tested, town_ahead):
    text = page.read_text()
    order = ["The coming 6 hours</h2>", ">Plan, the most probable", "How good it was lately</h2>"]
    assert sorted(order, key=text.index) == order
    assert "Telecom" not in text
    plan = town_ahead[1].plan
    assert plan["probability"].idxmax() == "busy"
    assert text.index('data-cell="busy"') < text.index('data-cell="between"')


def test_a_cell_above_its_threshold_is_named_where_its_probability_is_unknown(town_ahead, tested):
    series, found = town_ahead
    plan = found.plan.copy()
    plan.loc["busy", "probability"] = np.nan
    y = np.ones((3, 4, 1))
    made = ReportPage()
    run = tested("a", y, y, data="x.nc", cells=np.array(CELLS))
    made.add_outlook(run, series, type(found)(found.forecast, found.interval, plan, None))
    (table,) = made.sections[0].tables
    assert table.rows[-1]["cell"] == "busy"
    assert "Forecast above, without bounds: busy." in table.notes


def test_the_plan_has_the_bounds_of_each_cell_and_no_column_twice(town, town_ahead, tested):
    found, y = town_ahead[1], np.ones((3, 4, 1))
    made = ReportPage()
    run = tested("a", y, y, data="x.nc", cells=np.array(CELLS))
    made.add_outlook(run, *town_ahead)
    row = made.sections[0].tables[-1].rows[0]
    assert [*row] == [
        "cell", "probability", "peak", "peak at", "bounds then", "headroom", "time above",
    ]  # fmt: skip
    at = found.plan.loc["busy", "peak_time"]
    lower, upper = (bound.loc[at, "busy"] for bound in found.interval)
    shown = [float(text) for text in row["bounds then"].split(" to ")]
    np.testing.assert_allclose(shown, [lower, upper], rtol=0.005)


def test_that_no_cell_may_pass_is_said(town, tested):
    forecaster, series = town
    calm = make_outlook(
        forecaster, series, threshold=1e4, tested=forecaster.test_forecasts()
    )  # fmt: skip
    y, made = np.ones((3, 4, 1)), ReportPage()
    made.add_outlook(tested("a", y, y, data="x.nc", cells=np.array(CELLS)), series, calm)
    assert "in none of 3 cells; none has a probability of 1% or more" in made.sections[0].claims[1]
    titles = [value["title"] for value in made.sections[0].charts["values"]]
    assert not any("probability" in title for title in titles), "a map of one colour"


def test_steps_at_times_of_day_without_any_value_are_counted(town):
    _, series = town
    values = series.values.copy()
    values[np.isin(series.times.hour, [0, 1])] = np.nan
    ahead = pd.date_range(series.times[-1], periods=7, freq="h")[1:]
    assert unfounded(series, ahead) == ()
    (said,) = unfounded(dataclasses.replace(series, values=values), ahead)
    assert said.startswith("2 of 6 steps ")


def test_a_group_is_drawn_as_the_sum_of_its_cells(browser, page_of_groups):
    page, found = page_of_groups
    browser.open(page)
    browser.run("document.querySelector('button.open[data-cell=\"site x\"]').click()")
    chart = "document.querySelector('#section-0 [data-chart=series]')"
    assert browser.run(f"{chart}.querySelector('.gtitle').textContent") == "site x"
    drawn = {
        name: browser.run(f"{chart}.data.find(t => t.name === '{name}').y")
        for name in ("forecast", "threshold")
    }
    expected = found.forecast[["calm", "busy"]].sum(axis=1)
    np.testing.assert_allclose(drawn["forecast"], expected, rtol=1e-3)
    assert drawn["threshold"] == [60, 60]
    assert browser.run("document.querySelector('#section-0 .chosen').style.display") == "none"
    assert "No parts of site x" in browser.run("document.querySelector('.about-why').textContent")
    assert browser.problems == []


def test_bars_explain_the_chosen_cell_and_step(browser, town, page_of_groups):
    forecaster, series = town
    page, _ = page_of_groups
    browser.open(page)
    parts = forecaster.explain("busy", series)
    table = parts.read.drop(columns=["mean of the history", "usual at this time of the week"])
    bars = "document.querySelector('[data-chart=why]').data[0].x"
    step = int(parts.forecast.argmax())
    np.testing.assert_allclose(browser.run(bars), table.iloc[step], rtol=1e-3, atol=1e-4)
    browser.run(
        "(() => { const s = document.querySelector('select.step'); s.value = 2;"
        " s.dispatchEvent(new Event('change')); })()"
    )
    np.testing.assert_allclose(browser.run(bars), table.iloc[1], rtol=1e-3, atol=1e-4)
    said = browser.run("document.querySelector('.about-why').textContent")
    assert float(said.rsplit(" ", 1)[1].rstrip(".")) == pytest.approx(parts.forecast.iloc[1], 0.005)
    assert browser.problems == []


def test_the_forecast_is_drawn_before_the_load_event(browser, page):
    browser.ask("Page.navigate", url=page.resolve().as_uri())
    browser.until("document.readyState === 'complete' && !!document.querySelector('footer')")
    names = browser.run(
        "document.querySelector('#section-0 [data-chart=series]').data.map(t => t.name)"
    )
    assert names[1:] == ["bounds", "observed", "forecast", "threshold"]
    assert browser.run("document.querySelector('#section-0 input.cell').value") == "busy"
    chart = "document.querySelector('#section-0 [data-chart=series]')"
    assert browser.run(f"{chart}.layout.xaxis.tickangle") == 0  # Turned labels hide the legend.
    edge = "one => one.getBoundingClientRect().toJSON()"
    ticks = browser.run(f"[...{chart}.querySelectorAll('.xtick text')].map({edge})")
    assert all(a["right"] < b["left"] for a, b in itertools.pairwise(ticks))
    assert browser.run("document.querySelectorAll('#section-2 .main-svg').length") > 0
    assert browser.problems == []


def test_an_hour_that_the_clock_shows_twice_is_drawn_twice():
    hours = pd.date_range("2013-10-20", periods=7 * 24 + 3, freq="h", tz="Europe/Rome")
    table = pd.DataFrame({"a": np.arange(len(hours)) % 5.0}, hours)
    forecaster = Forecaster("last_value", split="days:5,1,1", horizon=6).fit(table)
    series = forecaster.read(table)
    places = xr.Dataset(coords={"cell": ["a"]})
    found = coming(
        series, make_outlook(forecaster, series), find_places(places, None), Arrays(), 999
    )
    times = found.charts["series"]["times"]
    assert [time[11:] for time in times[-8:-3]] == ["01:00", "02:00", "02:30", "03:00", "04:00"]
    assert found.charts["clock"].endswith("twice has the width of one")


@pytest.mark.parametrize("highest", [99.0, np.inf])
def test_a_forecast_of_one_step_is_seen(browser, town_ahead, tested, tmp_path, highest):
    series, found = town_ahead
    y = np.ones((3, 4, 1))
    run = tested("a", y, y, naive=y + 2, data="x.nc", cells=np.array(CELLS))
    bounds = [table.iloc[:1].copy() for table in found.interval]
    bounds[1]["busy"] = highest
    plan = found.plan.assign(peak_time=found.forecast.index[0])
    one = type(found)(found.forecast.iloc[:1], type(found.interval)(*bounds), plan, None)
    page = write_report([run], tmp_path / "one.html", metric="raw_mae", ahead=(series, one))
    browser.open(page)
    trace = "document.querySelector('#section-0 [data-chart=series]').data[3]"
    assert browser.run(f"{trace}.mode") == "markers"
    low, centre = (float(of["busy"].iloc[0]) for of in (bounds[0], found.forecast))
    drawn = [browser.run(f"{trace}.error_y.{name}[0]") for name in ("array", "arrayminus")]
    assert drawn[0] == pytest.approx(highest - centre if np.isfinite(highest) else 0, rel=0.01)
    assert drawn[1] == pytest.approx(centre - low, rel=0.01)
    assert ("1 cell with infinite bounds" in page.read_text()) == np.isinf(highest)
    assert browser.problems == []


def test_on_paper_nothing_is_cut_and_the_colours_stay(browser, page):
    browser.open(page, dark=True)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    browser.ask("Emulation.setEmulatedMedia", media="print")
    browser.ask(
        "Emulation.setDeviceMetricsOverride",
        width=703, height=1000, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    wide = "[...document.querySelectorAll('table, .main-svg, .legend')].filter(one => "
    wide += "one.getBoundingClientRect().right > 703).length"
    assert browser.run(wide) == 0
    bar = "getComputedStyle(document.querySelector('.legend .bar')).printColorAdjust"
    assert browser.run(bar) == "exact"
    assert browser.run("document.documentElement.dataset.theme") == "light"
    # As on a page with many cells, whose map comes before the table.
    first = "document.querySelector('.plan {}')"
    browser.run(f"{first.format('.of-cell')}.append({first.format('.map')})")
    top, bottom = (
        browser.run(f"{first.format(of)}.getBoundingClientRect().{side}")
        for of, side in ((".map", "top"), ("table", "bottom"))
    )
    assert top >= bottom
    browser.run("dispatchEvent(new Event('afterprint'))")
    browser.ask("Emulation.setEmulatedMedia", media="")
    assert browser.run("document.documentElement.dataset.theme") == "dark"
    printed = browser.ask("Page.printToPDF")["data"]
    assert base64.b64decode(printed).startswith(b"%PDF")
    assert browser.problems == []


def test_without_a_threshold_the_busiest_cell_comes_first(town_ahead, tested):
    series, found = town_ahead
    plan = found.plan[["busy_hour", "busy_hour_mean", "peak", "peak_time"]]
    y = np.ones((3, 4, 1))
    run = tested("a", y, y, data="x.nc", cells=np.array(CELLS))
    made = ReportPage()
    made.add_outlook(run, series, type(found)(found.forecast, None, plan, None))
    assert [table.caption for table in made.sections[0].tables] == ["Plan"]
    assert made.sections[0].tables[0].rows[0]["cell"] == "busy"
    assert "Highest forecast" in made.sections[0].claims[1]
    assert "lower" not in made.sections[0].charts["series"]


def test_a_long_reason_is_wrapped(browser, town_ahead, tested, tmp_path):
    run = tested("a", np.ones((3, 4, 1)), np.ones((3, 4, 1)), data="x.nc", cells=np.array(CELLS))
    made = ReportPage()
    made.add_outlook(run, *town_ahead)
    rows = [{"model": "went on", "why": "as its errors have grown " * 20}]
    made.sections[0] = dataclasses.replace(made.sections[0], tables=(Table("Updates", rows),))
    browser.open(made.write(tmp_path / "page.html", "A page", ""))
    wide = "[...document.querySelectorAll('.scroll')].some(s => s.scrollWidth > s.clientWidth)"
    assert not browser.run(wide)


def test_texts_of_times_sort_as_the_times_do():
    texts = [time_text(time) for time in pd.date_range("2023-12-20 22:00", periods=200, freq="7h")]
    assert texts == sorted(texts)
    assert time_text(pd.NaT) == "-"


def spans_of(series, values, chances=None, sums=None, **attrs):
    """The section on four hours of two cells with thresholds of 10 and 20."""
    times = pd.date_range("2024-03-15 21:00", periods=4, freq="h")
    table = pd.DataFrame(values, times, ["a", "b"])
    table.attrs = attrs
    chances = None if chances is None else pd.DataFrame(chances, times, ["a", "b"])
    plan = pd.DataFrame({"threshold": [10.0, 20.0]}, ["a", "b"])
    return exceedances(Outlook(table, None, plan, chances, sums=sums), series)


def test_spans_above_the_threshold_are_listed_the_most_probable_first(town):
    values = np.array([[11, 9], [10, 21], [12, 25], [13, np.nan]])
    chances = np.array([[0.6, 0.1], [0.5, 0.55], [0.7, 0.9], [0.8, np.nan]])
    found = spans_of(town[1], values, chances)
    (table,) = found.tables
    assert table.opens == "cell"
    assert [[*row.values()] for row in table.rows] == [
        ["b", "90.0 %", "2024-03-15 Fri 22:00", "2024-03-16 Sat 00:00", "2", "25", "20"],
        ["a", "80.0 %", "2024-03-15 Fri 23:00", "2024-03-16 Sat 01:00", "2", "13", "10"],
        ["a", "60.0 %", "2024-03-15 Fri 21:00", "2024-03-15 Fri 22:00", "1", "11", "10"],
    ]


def test_spans_of_speeds_are_below_and_without_bounds_the_longest_is_first(town):
    values = np.array([[9, 25], [12, 19], [12, 18], [12, 30]])
    found = spans_of(town[1], values, service="speed", units="km/h")
    assert found.name == "Spans below the threshold"
    assert [[*row.values()][-2:] for row in found.tables[0].rows] == [["18", "20"], ["9", "10"]]
    assert "highest probability" not in found.tables[0].columns


def test_without_a_span_or_a_threshold_there_is_no_list(town, town_ahead):
    assert spans_of(town[1], np.zeros((4, 2))) is None
    series, found = town_ahead
    plan = found.plan.drop(columns="threshold")
    assert exceedances(dataclasses.replace(found, plan=plan), series) is None


def test_spans_of_groups_come_first(town):
    values, limits = np.full((4, 2), 30.0), {"threshold": [50.0]}
    index = pd.Index(["site x"])
    of_group = pd.DataFrame([[40], [60], [40], [40]], pd.date_range("2024-03-15", periods=4), index)
    sums = Outlook(of_group, None, pd.DataFrame(limits, index), None)
    first, then = spans_of(town[1], values, sums=sums).tables
    assert [row["group"] for row in first.rows] == ["site x"]
    assert [row["cell"] for row in then.rows] == ["a", "b"]


def test_a_click_in_a_section_without_charts_draws_the_cell(browser, page):
    browser.open(page)
    opened = "document.querySelector('#section-0 input.cell')"
    browser.run(f"({opened}.value = 'calm', {opened}.dispatchEvent(new Event('change')))")
    browser.run("document.querySelector('#section-1 button.open').click()")
    assert browser.run(f"{opened}.value") == "busy"
    title = "document.querySelector('#section-0 [data-chart=series] .gtitle').textContent"
    assert browser.run(title) == "cell busy"
    assert browser.problems == []
