"""The page in a real Chromium."""

import numpy as np
import pandas as pd
import pytest
from report_pages import write_report

from data_prep.cube import make_cube, write_cube
from stforecast.bench.drawing import TWO_COLUMNS, panels, png_address
from stforecast.federated.runs.run_folder import write_csv
from stforecast.forecasting.results import ROUND_COLUMNS
from stforecast.plots.losses import LOSSES
from stforecast.report.section import Picture, Section
from stforecast.report.write import ReportPage

CELLS = np.array([5060, 5061, 5160, 5161])
NAME = "<b>best & $x$"
RNG = np.random.default_rng(0)
Y = RNG.normal(size=(4, 96, 1)) + 10


@pytest.fixture(scope="module")
def made(request):
    """Fixtures of one test cannot make a page for the whole module."""
    return {}


@pytest.fixture
def page(tested, tmp_path, made):
    if "page" not in made:
        data = write_cube(
            make_cube(
                {"internet": np.ones((4, 4))}, pd.date_range("2013-11-01", periods=4, freq="h"),
                CELLS, title="t", source="doi:10.7910/DVN/EGZHFV", license="none", units="MB",
                time_zone="Europe/Rome",
            ),
            tmp_path / "cube.nc",
        )  # fmt: skip
        noise = RNG.normal(size=Y.shape) * np.array([1.0, 2.0, 3.0, 4.0])[:, None, None]
        runs = [
            tested(name, Y + size * noise, Y, naive=Y + 1, data=str(data), cells=CELLS, units="MB")
            for name, size in ((NAME, 0.1), ("a worse one", 0.2), ("the worst", 0.3))
        ]
        made["page"] = write_report(runs, tmp_path / "report.html", metric="raw_mae")
    return made["page"]


def first_column(browser):
    return browser.run(
        "[...document.querySelectorAll('tbody')[0].rows].map(r => r.cells[0].innerText)"
    )


def heading(browser):
    return browser.run("document.querySelector('[data-chart=series] .gtitle').textContent")


def middle(browser, selector):
    box = f"document.querySelector('{selector}').getBoundingClientRect()"
    browser.run(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
    return browser.run(f"[{box}.x + {box}.width / 2, {box}.y + {box}.height / 2]")


def click(browser, selector):
    x, y = middle(browser, selector)
    for kind in ("mousePressed", "mouseReleased"):
        browser.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def press(browser, key):
    for kind in ("keyDown", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key)


def test_no_image_has_buttons_inside(browser, page):
    browser.open(page, changed=False)
    inside = "a, button, input, select, [tabindex]"
    charts = "[...document.querySelectorAll('[data-chart].js-plotly-plot')]"
    browser.until(f"{charts}.length > 0 && {charts}.every(c => c.querySelector('.modebar button'))")
    assert browser.run(f"{charts}.every(c => c.getAttribute('role') === 'group')")
    assert browser.run(f"document.querySelectorAll('[role=img] :is({inside})').length") == 0


def test_what_is_rare_is_told_as_one_in_so_many(browser, page):
    browser.open(page, changed=False)
    assert browser.run("[0, 1.32, 7.52, NaN].map((v) => short(v, 'log'))") == [
        "one in 1", "one in 21", "one in 33,000,000", "-",
    ]  # fmt: skip


def test_controls_and_charts_have_names(browser, page):
    browser.open(page, changed=False)
    nameless = """
      [...document.querySelectorAll('button, select, input, svg[tabindex], .chart')]
        .filter(one => one.checkVisibility())
        .filter(one => !(one.ariaLabel || one.textContent.trim() || one.labels?.length)).length
    """
    assert browser.run(nameless) == 0
    assert browser.problems == []


def test_tables_sort_up_and_down(browser, page):
    browser.open(page)
    assert first_column(browser) == [NAME, "a worse one", "the worst"]
    head = "thead th:nth-child(2)"
    click(browser, f"{head} button")
    assert browser.run(f"document.querySelector('{head}').ariaSort") == "ascending"
    click(browser, f"{head} button")
    assert browser.run(f"document.querySelector('{head}').ariaSort") == "descending"
    assert first_column(browser) == ["the worst", "a worse one", NAME]
    assert browser.problems == []


def test_tiles_fill_the_map(browser, tested, tmp_path):
    y = np.tile(Y, (2, 1, 1))[:6]
    run = tested("a run", y + 0.1, y, naive=y + 1, cells=np.array(list("abcdef")))
    browser.open(write_report([run], tmp_path / "report.html", metric="raw_mae"))
    width, height = browser.run(
        "(({ width, height }) => [width, height])("
        "document.querySelector('.plane svg').getBoundingClientRect())"
    )
    assert width / height == pytest.approx(3 / 2, abs=0.15), "three tiles beside, two below"


def test_a_click_on_the_map_changes_the_chart(browser, page):
    browser.open(page)
    assert heading(browser) == "cell 5161"  # the highest error
    drawn = "document.querySelector('[data-chart=series]').data[0].y.join()"
    before = browser.run(drawn)
    click(browser, '.shape[data-i="0"]')
    browser.until(
        "document.querySelector('[data-chart=series] .gtitle').textContent === 'cell 5060'"
    )
    assert browser.run(drawn) != before
    press(browser, "ArrowRight")
    assert heading(browser) == "cell 5061"
    press(browser, "ArrowUp")
    assert heading(browser) == "cell 5161"
    assert browser.run("document.querySelector('.said').textContent").startswith("Cell 5161, <b>")
    assert browser.problems == []


def test_a_worst_cell_opens_and_the_map_shows_another_value(browser, page):
    browser.open(page)
    click(browser, 'button.open[data-cell="5160"]')
    assert heading(browser) == "cell 5160"
    fills = "[...document.querySelectorAll('.shape')].map(s => s.style.fill).join()"
    before = browser.run(fills)
    browser.run(
        "(() => { const s = document.querySelector('select.value'); s.value = 2;"
        " s.dispatchEvent(new Event('change')); })()"
    )
    assert browser.run(fills) != before
    assert "seasonal naive" in browser.run("document.querySelector('.legend .title').textContent")
    assert browser.problems == []


def test_a_switch_hides_a_line_in_all_charts(browser, page):
    browser.open(page)
    lines = "document.querySelector('[data-chart=cdf]').data.map(t => t.meta)"
    click(browser, ".switches button:nth-child(2)")
    assert browser.run(lines) == [NAME, "the worst"]
    click(browser, ".switches button:nth-child(2)")
    assert browser.run(lines) == [NAME, "a worse one", "the worst"]
    assert browser.problems == []


@pytest.mark.parametrize("dark", [False, True])
def test_colours_follow_the_system_until_switched(browser, page, dark):
    browser.open(page, dark=dark)
    back = "getComputedStyle(document.body).backgroundColor"
    light = "rgb(255, 255, 255)"
    assert (browser.run(back) == light) == (not dark)
    click(browser, "#theme")
    assert (browser.run(back) == light) == dark
    assert browser.problems == []


def test_a_narrow_window_shows_all_without_moving_sideways(browser, page):
    browser.open(page, width=400)
    assert browser.run("document.documentElement.scrollWidth") <= 400
    assert browser.problems == []


def test_a_picture_keeps_its_size_in_a_narrow_window_and_scrolls(browser, tmp_path):
    figure, _ = panels(TWO_COLUMNS, 2.0)
    made = ReportPage()
    made.sections = [
        Section("Weeks", [], [], picture=Picture("Weeks", png_address(figure, 160), ""))
    ]
    browser.open(made.write(tmp_path / "page.html", "A page", "stforecast plan"), width=390)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert browser.run("document.querySelector('.picture img').clientWidth") > 700
    assert browser.run("document.querySelector('.picture .scroll').clientWidth") < 390
    assert browser.problems == []


def test_sensors_are_points_and_cells_without_places_are_sorted_tiles(browser, tested, tmp_path):
    sensors = tested("a", Y + 1, Y, naive=Y + 2, data="sensors.nc")
    with sensors.open_forecasts() as found:
        located = found.load().assign_coords(
            lon=("cell", [9.0, 9.1, 9.2, 9.3]), lat=("cell", [45.0, 45.1, 45.0, 45.1])
        )
    located.to_netcdf(sensors.folder / "forecasts.nc", engine="h5netcdf")
    size = np.array([1.0, 3.0, 2.0, 4.0])[:, None, None]
    tiles = tested("a", Y + size, Y, naive=Y + 2, data="tiles.nc")
    page = write_report([sensors, tiles], tmp_path / "report.html", metric="raw_mae")
    browser.open(page)
    assert browser.run("document.querySelectorAll('#section-0 circle.shape').length") == 4
    shapes = "[...document.querySelectorAll('#section-1 rect.shape')]"
    at = f"{shapes}.map(s => Number(s.getAttribute('x')))"
    x = browser.run(at)
    assert x[3] < x[1]  # the highest error first
    assert browser.problems == []


def test_losses_of_the_rounds_that_were_validated_are_joined(browser, tested, tmp_path):
    run = tested("a", Y + 1, Y, naive=Y + 2, data="x.nc")
    rounds = pd.DataFrame(1.0, range(3), list(ROUND_COLUMNS)).assign(round=[1, 2, 3])
    validated = LOSSES["validation"]
    write_csv(rounds.assign(**{validated: [3.0, np.nan, 2.0]}), run.folder / "rounds.csv")
    browser.open(write_report([run], tmp_path / "report.html", metric="raw_mae"))
    trace = "document.querySelector('[data-chart=convergence]').data[0]"
    assert browser.run(f"{trace}.y") == [3, None, 2]
    assert browser.run(f"{trace}.connectgaps")
