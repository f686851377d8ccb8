"""The figure of calibration, read back from its axes."""

import shutil

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from small_files import write_netcdf

from data_prep.base.errors import InputError
from data_prep.cube import write_cube
from stforecast.comparison.errors import coverages
from stforecast.comparison.rows import joined_coverages
from stforecast.forecasting.results import ForecastRun
from stforecast.forecasting.runs import run
from stforecast.plots.times import calibration


@pytest.fixture(scope="module")
def made(cube, tmp_path_factory):
    """Runs with intervals of 50 % and 90 % by name, and one without."""

    town = write_cube(cube, tmp_path_factory.mktemp("town") / "town.nc")

    def make(name, method="ridge", **settings):
        out = tmp_path_factory.mktemp("calibration") / name
        shared = {"service": "internet", "split": "days:6,1,3", "horizon": 2}
        return run(method, town, out, {**shared, **settings})

    levels = {"quantiles": "0.05,0.25,0.5,0.75,0.95"}
    return {
        "fixed": make("fixed", intervals="conformal", **levels),
        "normalised": make("normalised", intervals="normalised", **levels),
        "none": make("none"),
    }


def inside(ds, which=""):
    found = (ds[f"lower{which}"] <= ds.y) & (ds.y <= ds[f"upper{which}"])
    return found.where(ds.y.notnull())


def test_every_pair_of_bounds_is_kept_with_its_coverage(made):
    ds = made["fixed"].forecasts()
    assert (ds.lower_50.attrs["coverage"], ds.upper.attrs["coverage"]) == (0.5, 0.9)
    assert ((ds.lower <= ds.lower_50) & (ds.lower_50 <= ds.y_hat)).all()
    assert ((ds.y_hat <= ds.upper_50) & (ds.upper_50 <= ds.upper)).all()
    found = coverages(ds)
    assert list(found) == [0.5, 0.9]
    for nominal, which in ((0.5, "_50"), (0.9, "")):
        expected = inside(ds, which).mean(["time", "horizon"])
        np.testing.assert_allclose(found[nominal].by_cell(), expected)


def test_coverages_are_drawn_by_level_and_hour(made):
    fig = calibration([made["fixed"], made["normalised"]])
    left, right = fig.axes
    ds = made["fixed"].forecasts()
    points = {line.get_label(): line for line in left.lines}
    fixed = next(line for label, line in points.items() if "conformal" in label)
    expected = [float(inside(ds, which).mean()) for which in ("_50", "")]
    np.testing.assert_allclose(fixed.get_ydata(), expected)
    bars = np.array([segment[:, 1] for segment in left.collections[0].get_segments()])
    by_cell = np.stack([inside(ds, w).mean(["time", "horizon"]) for w in ("_50", "")])
    np.testing.assert_allclose(bars, np.stack([by_cell.min(1), by_cell.max(1)], axis=1))
    first = ds.indexes["time"].tz_localize("UTC").tz_convert(ds.attrs["time_zone"])
    hours = np.stack([(first + h * pd.Timedelta("1h")).hour for h in range(2)], axis=1)
    at_noon = inside(ds).to_numpy()[:, hours == 12]
    line = next(line for line in right.lines if len(line.get_xdata()) == 24)
    assert line.get_ydata()[12] == pytest.approx(np.nanmean(at_noon))


def test_hours_without_targets_have_no_band(made, tmp_path):
    """Such as the nights of a metro, or a test part of half a day."""
    copy = tmp_path / "run"
    shutil.copytree(made["fixed"].folder, copy)
    ds = made["fixed"].forecasts()
    first = ds.indexes["time"].tz_localize("UTC").tz_convert(ds.attrs["time_zone"])
    ds["y"][:, (first.hour >= 9) & (first.hour < 15)] = np.nan
    write_netcdf(ds, copy / "forecasts.nc")
    _, right = calibration([ForecastRun.open(copy)]).axes
    band = next(c for c in right.collections if len(c.get_paths()[0].vertices) > 4)
    assert [np.ptp(path.vertices[:, 0]) for path in band.get_paths()] == [9, 8]


def test_percentages_at_the_ticks_are_exact(made):
    for ax in calibration([made["fixed"]]).axes:
        ax.figure.canvas.draw()
        for label in ax.get_yticklabels():
            found = float(label.get_text().rstrip("%"))
            assert found == pytest.approx(100 * label.get_position()[1])


def test_runs_of_several_seeds_are_pooled(made):
    once = joined_coverages([made["fixed"]])[0.9]
    twice = joined_coverages([made["fixed"], made["fixed"]])[0.9]
    np.testing.assert_allclose(twice.by_cell(), once.by_cell())
    assert twice.weight.sum() == 2 * once.weight.sum()


def test_a_run_without_intervals_is_named(made):
    with pytest.raises(InputError, match=r"none: .* intervals="):
        calibration([made["none"]])
    texts = [t.get_text() for t in calibration([made["fixed"], made["none"]]).findobj(Text)]
    assert any("intervals: ridge" in text for text in texts)
