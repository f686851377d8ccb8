"""Sums over groups of cells: which cells belong where, what they add up to, and their bounds."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.data.series import as_series
from stforecast.forecasting.groups import Groups, SumErrors, read_groups
from stforecast.forecasting.outlook import make_outlook

CELLS = np.array(["a", "b", "c", "d"])
SITES = Groups.of_columns({"site": ["x", "x", "x", "y"]}, CELLS)


def forecasts_of(errors):
    """Forecasts of 10 with normal errors `(cells, windows, horizon)`, and bounds of 90 %."""
    centre = np.full(errors.shape, 10.0)
    values = {
        "y": centre + errors,
        "y_hat": centre,
        "lower": centre - 1.645,
        "upper": centre + 1.645,
    }
    dims = ("cell", "time", "horizon")
    coords = {"cell": CELLS[: len(errors)]}
    return xr.Dataset({n: (dims, v) for n, v in values.items()}, coords, {"coverage": 0.9})


@pytest.mark.parametrize(("together", "factor"), [(True, 1.0), (False, 3**-0.5)])
def test_bounds_of_a_sum_are_as_wide_as_its_errors(together, factor):
    errors = np.random.default_rng(0).normal(size=(4, 3000, 2))
    if together:
        errors[:] = errors[:1]
    found = SumErrors.of(forecasts_of(errors), SITES)
    assert found.factor[0] == pytest.approx(np.full((2, 2), factor), rel=0.15)
    assert found.factor[1].tolist() == [[1.0, 1.0]] * 2  # A site of one cell has its bounds.
    assert found.coverage["site"] == pytest.approx(0.9, abs=0.01)


def test_what_is_missing_or_without_bounds_is_left_out_of_both_sides():
    errors = np.random.default_rng(0).normal(size=(4, 300, 1))
    tested = forecasts_of(errors)
    tested["y"][0, ::2] = np.nan
    tested["upper"][1] = np.inf
    sums = SumErrors.of(tested, SITES).forecasts
    of_site = sums.sel(cell="site x")
    assert of_site["y_hat"][:2, 0].values.tolist() == [10.0, 20.0]
    expected = errors[2, 150, 0], errors[0, 151, 0] + errors[2, 151, 0]
    assert (of_site["y"] - of_site["y_hat"])[:2, 0].values == pytest.approx(expected)


@pytest.fixture(scope="module")
def town():
    hours = pd.date_range("2024-03-01", periods=24 * 20, freq="h")
    noise = np.random.default_rng(0).normal(size=(len(hours), 4))
    wave = np.sin(2 * np.pi * hours.hour.to_numpy() / 24)[:, None]
    return pd.DataFrame((10 + 4 * wave + noise) * [1, 3, 2, 4], hours, CELLS)


@pytest.fixture(scope="module")
def fitted(town):
    settings = {"split": "days:8,4,8", "horizon": 6, "intervals": "normalised"}
    return Forecaster("seasonal_day", **settings).fit(town)


@pytest.fixture
def members(tmp_path):
    (tmp_path / "members.csv").write_text("cell,site\na,x\nb,x\nc,x\nd,y\nelsewhere,z\n")
    return str(tmp_path / "members.csv")


def test_levels_add_up_as_written(fitted, town, members):
    series = fitted.read(town)
    groups = read_groups(members, series)
    thresholds = {"a": 20.0, "b": 50.0, "c": 40.0, "d": 70.0, "site y": 60.0}
    found = make_outlook(
        fitted, series, threshold=thresholds, tested=fitted.tested(), groups=groups
    )
    long = found.long().pivot(index="time", columns=["level", "cell"], values="value")
    assert (long["cell"].round(5).sum(axis=1).round(4) == long["all", "all"].round(4)).all()
    assert (long["site"].sum(axis=1).round(9) == long["all", "all"].round(9)).all()
    plan = found.plan_table().set_index(["level", "cell"])
    assert plan.loc[("site", "x"), "threshold"] == 110
    assert plan.loc[("site", "y"), "threshold"] == 60  # Its own goes before its cells'.
    assert plan.loc[("all", "all"), "probability"] >= 0
    lower, upper = found.sums.interval
    assert (lower <= found.sums.forecast).all(axis=None)
    added = (found.interval.upper - found.interval.lower).sum(axis=1)
    assert (upper - lower)["all"].mean() < added.mean()


def test_from_python_as_from_the_command(fitted, town, members, tmp_path):
    forecast, interval = fitted.predict_groups(members, town)
    assert forecast.columns.tolist() == ["site x", "site y", "all"]
    assert (interval.lower <= interval.upper).all(axis=None)
    saved = Forecaster.load(fitted.save(tmp_path / "model"))
    again, none = saved.predict_groups(members, town)
    pd.testing.assert_frame_equal(again, forecast)
    assert none is None  # A saved model has no tested forecasts.


def test_a_cell_without_a_forecast_is_left_out_of_its_sums():
    table = pd.DataFrame([[1.0, np.nan, 2.0, np.nan]], columns=CELLS)
    assert SITES.sum_table(table).iloc[0].fillna(-1).tolist() == [3.0, -1.0, 3.0]


def test_columns_of_a_cube_are_levels(town):
    series = as_series(town, None)
    with pytest.raises(InputError, match=r"^group 'site': .* has no columns by cell; give a CSV"):
        read_groups("site", series)
    columns = {"site": np.array(["x", "x", "y", "y"]), "city": np.array(["m"] * 4)}
    object.__setattr__(series, "columns", columns)
    found = read_groups("site, city", series)
    assert found.labels == ["site x", "site y", "city m"]  # One that holds all is the total.
    with pytest.raises(InputError, match=r"'town'; .* site"):
        read_groups("town", series)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cell,site\na,x\nb,x\nc,x\n", r"m\.csv: 1 cell without a site: d; name one"),
        ("cell,site\na,x\na,y\n", r"m\.csv: more than one line of cell a; keep one"),
        ("cell\na\n", r"m\.csv: no column of a level, only cells; give a CSV"),
        ("site\nx\n", r"m\.csv: no column 'cell', found site; give a CSV"),
    ],
)
def test_a_table_that_does_not_say_where_a_cell_belongs_is_refused(town, tmp_path, text, expected):
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(InputError, match=expected):
        read_groups(str(tmp_path / "m.csv"), as_series(town, None))


def test_sums_of_speeds_mean_nothing(town):
    town = town.copy()
    town.attrs = {"service": "speed", "units": "km/h"}
    series = as_series(town, None)
    object.__setattr__(series, "units", "km/h")
    with pytest.raises(InputError, match=r"sums of value \(km/h\) mean nothing; leave them out"):
        read_groups("site", series)


def test_expected_steps_have_the_decimals_of_probabilities(fitted, town):
    found = make_outlook(fitted, fitted.read(town), threshold=60.0, tested=fitted.tested())
    steps = found.plan["expected_steps_above"]
    assert steps.tolist() == steps.round(4).tolist()
    assert steps["a"] == 0  # Its values are below 20.
