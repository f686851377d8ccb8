"""Tables by steps ahead and of intervals, from runs that were really made."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from result_tables import results_table

from data_prep.base.errors import InputError
from stforecast.bench.grid_file import parse_published
from stforecast.comparison.errors import busy_hours
from stforecast.comparison.further_tables import refit_notes
from stforecast.comparison.names import shown_steps
from stforecast.forecasting.config import read_by
from stforecast.forecasting.results import ForecastRun
from stforecast.forecasting.runs import run

SETTINGS = {"service": "internet", "split": "days:6,1,3", "horizon": 4}


@pytest.fixture(scope="module")
def ridge(town, tmp_path_factory):
    """A run with intervals, refitted daily."""
    out = tmp_path_factory.mktemp("horizons") / "ridge"
    return run("ridge", town, out, {**SETTINGS, "intervals": "conformal", "refit": "daily"})


@pytest.fixture(scope="module")
def naive(town, tmp_path_factory):
    return run(
        "last_value",
        town,
        tmp_path_factory.mktemp("horizons") / "naive",
        read_by("last_value", SETTINGS),
    )


def table(text, heading):
    """Rows of the table that follows a heading, each by column."""
    lines = text[text.index(heading) :].split("\n\n")[1].splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


@pytest.mark.parametrize(
    ("horizon", "steps"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (12, [3, 6, 12])]
)
def test_a_quarter_half_and_all_of_the_horizon_are_shown(horizon, steps):
    assert shown_steps(horizon) == steps


def test_errors_stand_by_time_ahead_and_their_mean(ridge, naive):
    text = results_table([ridge, naive], {})
    assert "RMSE is not" in text
    rows = table(text, "Errors by time ahead, in MB")
    assert [row["method"] for row in rows] == ["ridge", "last_value"]
    ds = naive.forecasts()
    error = (ds.y_hat - ds.y).to_numpy()
    by_step = np.nanmean(np.abs(error), axis=(0, 1))
    root = np.sqrt(np.nanmean(error**2, axis=(0, 1)))
    share = 100 * np.nanmean(np.abs(error / ds.y.to_numpy()), axis=(0, 1))
    shown = {"1 h": 0, "2 h": 1, "4 h": 3}
    for heading, i in shown.items():
        assert float(rows[1][f"MAE, {heading}"]) == pytest.approx(by_step[i], rel=1e-3)
        assert float(rows[1][f"RMSE, {heading}"]) == pytest.approx(root[i], rel=1e-3)
        assert float(rows[1][f"MAPE, %, {heading}"]) == pytest.approx(share[i], rel=1e-3)
    assert float(rows[1]["MAE, mean of 4"]) == pytest.approx(by_step.mean(), rel=1e-3)
    assert float(rows[1]["RMSE, mean of 4"]) == pytest.approx(root.mean(), rel=1e-3)


def test_published_errors_have_rows_of_their_own(ridge):
    horizons = {"internet": {"DCRNN": {"60": 2.77, "mean": 3.03}}}
    published = parse_published(
        {"source": "a paper", "note": "the same data", "horizons": horizons}, ["ridge"], [None]
    )
    text = results_table([ridge], {}, published)
    _, row = table(text, "Errors by time ahead")
    assert (row["method"], row["MAE, 1 h"], row["MAE, 2 h"]) == ("DCRNN*", "2.77", "-")
    assert row["MAE, mean of 4"] == "3.03"
    assert "\\* printed" in text


@pytest.mark.parametrize(
    ("horizons", "message"),
    [
        ({"sms": {"DCRNN": {"15": "low"}}}, "label.*minutes"),
        ({"call": {"DCRNN": {"15": 2.7}}}, "service 'call'; .*sms"),
    ],
)
def test_published_errors_that_do_not_fit_are_refused(horizons, message):
    with pytest.raises(InputError, match=f"published.horizons.*{message}"):
        parse_published({"source": "a paper", "horizons": horizons}, ["ridge"], ["sms"])


def test_the_table_of_intervals_is_of_the_kept_model_alone(ridge, tmp_path):
    """With the names of the best and last round swapped, and the other one kept, it is the same."""
    folder = shutil.copytree(ridge.folder, tmp_path / "last")
    about, metrics = json.loads((folder / "run.json").read_text()), ridge.metrics()
    about["settings"]["select"] = "last"
    (folder / "run.json").write_text(json.dumps(about))
    metrics["selection"] = metrics["selection"].map({"best": "last", "last": "best"})
    metrics.to_csv(folder / "metrics.csv", index=False)
    found, expected = (
        table(results_table([one], {}), "Intervals on the test part")
        for one in (ForecastRun.open(folder), ridge)
    )
    assert found == expected


def test_intervals_have_a_table_with_the_worst_served_client(ridge, naive):
    rows = table(results_table([ridge, naive], {}), "Intervals on the test part")
    assert [row["method"] for row in rows] == ["ridge"]
    ds = ridge.forecasts()
    inside = ((ds.lower <= ds.y) & (ds.y <= ds.upper)).where(ds.y.notnull())
    clients = inside.mean(["time", "horizon"]).to_numpy()
    assert rows[0]["for"] == "90%"
    assert float(rows[0]["coverage"]) == pytest.approx(float(inside.mean()), abs=1e-3)
    expected = " – ".join(f"{q:.3f}" for q in np.quantile(clients, [0, 0.5, 1]))
    assert rows[0]["lowest – median – highest client"] == expected
    by_step = inside.mean(["time", "cell"])
    assert float(rows[0]["lowest step"]) == pytest.approx(float(by_step.min()), abs=1e-3)
    zone, steps = ds.attrs["time_zone"], np.arange(ds.sizes["horizon"])
    first = ds.indexes["time"].tz_localize("UTC").tz_convert(zone)
    hours = np.stack([(first + step * pd.Timedelta("1h")).hour for step in steps], axis=1)
    peak = inside.to_numpy()[:, np.isin(hours, busy_hours(ds))]
    assert float(rows[0]["peak hours"]) == pytest.approx(np.nanmean(peak), abs=1e-3)
    below, above = ((ds.y < ds.lower).sum(), (ds.y > ds.upper).sum())
    n = float(ds.y.notnull().sum())
    assert float(rows[0]["below bounds"]) == pytest.approx(float(below) / n, rel=1e-3)
    assert float(rows[0]["above bounds"]) == pytest.approx(float(above) / n, rel=1e-3)


def test_refits_are_told_with_their_cost(ridge, naive):
    assert (
        results_table([ridge, naive], {})
        .splitlines()[-1]
        .startswith("ridge: 2 refits (daily) with all data before each in ")
    )
    assert "refit" not in results_table([naive], {})


def test_the_traffic_of_refits_is_told_with_that_of_all_rounds():
    rounds = pd.DataFrame({"bytes_up": [8e6, 7e6], "bytes_down": [1e6, 1e6]})
    refits = pd.DataFrame({"bytes_up": [4e6], "bytes_down": [3e6], "seconds": [0.2]})
    run = SimpleNamespace(rounds=lambda: rounds, refits=lambda: refits, settings={"refit": "once"})
    row = SimpleNamespace(name="a", view="", group=SimpleNamespace(runs=[run, run]), first=run)
    (note,) = refit_notes([row])
    assert "1 refit (once)" in note
    assert note.endswith("in 0.2 s; with all rounds, 19.0 MB up and 5.0 MB down")


def test_one_step_ahead_needs_no_such_table(make_run):
    assert "Errors by time ahead" not in results_table([make_run()], {})
