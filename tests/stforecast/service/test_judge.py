"""Anomalies of the last day, and that broken counters are not learnt."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from in_service import DAYS, values, write

from data_prep.cube import open_cube
from stforecast.cli.main import main
from stforecast.service.folder import BROKEN, ServiceState, UpdateStanding, last_state
from stforecast.service.judge import COLUMNS, _neighbours
from stforecast.service.monitor import ANOMALIES, monitor
from stforecast.service.update import update

MORNING = pd.Timestamp("2024-02-12 03:00")
"""After the second new day."""


def day(n):
    return values().iloc[24 * (DAYS + n) : 24 * (DAYS + n + 1)].copy()


@pytest.fixture
def known(town_updated, tmp_path):
    """A run after its first day."""
    return shutil.copytree(town_updated, tmp_path / "run", symlinks=True)


def test_anomalies_have_what_was_expected_and_who_else_is_odd(known, tmp_path):
    odd = day(1)
    odd.iloc[12:14, 0] *= 4
    odd.iloc[13, 2] *= 4
    update(known, write(odd, tmp_path / "odd.csv"))
    watch = monitor(known, MORNING)
    found = pd.read_csv(known / "service" / ANOMALIES)
    assert list(found) == list(COLUMNS)
    first = found.set_index("cell").loc["a"]
    assert (first["begin"], first["end"]) == ("2024-02-11 12:00:00", "2024-02-11 14:00:00")
    assert (first["hours"], first["readings"], first["neighbours"], first["of"]) == (2, 2, 1, 2)
    assert first["lower"] < first["expected"] < first["upper"] < first["seen"]
    assert first["expected"] == pytest.approx(first["seen"] / 4, rel=0.3)
    assert first["one_in"] >= 1000
    assert set(found["cell"]) == {"a", "c"}
    assert watch.n_judged == 72
    assert watch.as_json()["anomalies"] == 2


def test_right_days_have_no_anomalies_and_all_cells_are_fine(known, tmp_path):
    update(known, write(day(1), tmp_path / "right.csv"))
    watch = monitor(known, MORNING)
    assert len(watch.anomalies) == 0
    assert set(watch.cells["state"]) == {""}


def test_what_is_broken_is_kept_and_not_learnt_until_it_is_corrected(known, tmp_path):
    path = write(day(1).assign(b=51.25).rename_axis("Station", axis=1), tmp_path / "stuck.csv")
    notes = update(known, path).about["notes"]
    assert any("1 cell stuck: b since 2024-02-11 00:00; its readings count as" in n for n in notes)
    with open_cube(last_state(known) / "history.nc") as ds:
        assert np.isnan(ds["load"].to_numpy()[-24:, 1]).all()
        assert np.isfinite(ds["load"].to_numpy()[:, [0, 2]]).all()
    table = pd.read_csv(last_state(known) / BROKEN)
    assert table["reading"].tolist() == [51.25] * 24
    # Seen again from what was kept, on the next day, too.
    update(known, write(day(2), tmp_path / "right.csv"))
    assert len(pd.read_csv(last_state(known) / BROKEN)) == 24
    update(known, write(day(1), tmp_path / "corrected.csv"))
    assert len(pd.read_csv(last_state(known) / BROKEN)) == 0
    with open_cube(last_state(known) / "history.nc") as ds:
        expected = values().iloc[: 24 * (DAYS + 3)].to_numpy()
        np.testing.assert_array_equal(ds["load"].to_numpy(), expected[-ds.sizes["time"] :])


@pytest.mark.quick(2)
@pytest.mark.parametrize("spoilt", [lambda d: d.assign(a=d.a * 1000, b=d.b * 1000), lambda d: -d])
def test_readings_that_the_model_does_not_believe_are_named_and_missing(known, tmp_path, spoilt):
    """Half of the cells in another unit, or all readings negative."""
    given = spoilt(day(1)).rename_axis("Station", axis=1)
    notes = update(known, write(given, tmp_path / "odd.csv")).about["notes"]
    who = [cell for cell in given if (given[cell] != day(1)[cell]).any()]
    said = f"{len(who)} cells wild: a since 2024-02-11 00:00"
    assert any(said in n and "their readings count as missing" in n for n in notes)
    watch = monitor(known, MORNING)
    assert any(said in alarm for alarm in watch.alarms)
    cells = watch.cells.set_index("cell")
    assert cells["missing"][cells["state"] == "wild"].tolist() == [1.0] * len(who)
    assert cells["missing"].sum() == len(who)


@pytest.mark.quick(3)
@pytest.mark.parametrize("hours", [5, 6, 8])
def test_all_hours_of_a_fault_that_lasts_until_now_are_missing(known, tmp_path, hours):
    """Also the first, which the model believes by itself, and those after them."""
    right, odd = (day(1).rename_axis("Station", axis=1) for _ in range(2))
    odd.iloc[-hours:, 2] = 4000.0
    forecasts = []
    for days in ((right, day(2)), (odd, day(2))):
        run = shutil.copytree(known, tmp_path / f"run-{len(forecasts)}", symlinks=True)
        for i, records in enumerate(days):
            update(run, write(records.rename_axis("Station", axis=1), tmp_path / f"{i}.csv"))
            table = pd.read_csv(last_state(run) / "forecast.csv")
            forecasts.append(table.groupby("cell")["load"].mean())
    with open_cube(last_state(run) / "history.nc") as ds:
        missing = np.isnan(ds["load"].to_numpy()[-48:-24])
    if hours >= 6:  # A quarter of a day makes a state.
        assert missing[-hours:, 2].all()
        assert missing.sum() == hours
    for spoilt, reference in zip(forecasts[2:], forecasts[:2], strict=True):
        np.testing.assert_allclose(spoilt[["a", "b"]], reference[["a", "b"]], rtol=0.01)
        np.testing.assert_allclose(spoilt["c"], reference["c"], rtol=0.15)


def test_only_broken_counters_have_an_exit_code_of_their_own(known, tmp_path, capsys):
    path = known / "service.toml"
    path.write_text(path.read_text() + "[monitor]\ncells_share = 0.5\nmost_mase = 0\n")
    update(known, write(day(1).assign(b=0.0).rename_axis("Station", axis=1), tmp_path / "0.csv"))
    with pytest.raises(SystemExit) as end:
        main(["monitor", str(known), "--now", "2024-02-12T03:00"])
    assert end.value.code == 21
    found = json.loads(capsys.readouterr().out)
    assert found["alarms"] == ["1 cell zero: b since 2024-02-11 00:00"]
    since = "2024-02-11 00:00:00"
    assert found["cells"] == [{"cell": "b", "state": "zero", "since": since}]


def test_neighbours_are_the_nearest_cells():
    cells = list("abcdefghijkl")

    def state(n, **places):
        issued = xr.Dataset(coords={"cell": cells[:n], **places})
        return ServiceState(xr.Dataset(), issued, UpdateStanding(1.0, "", ""), pd.DataFrame())

    places = {"lon": ("cell", np.arange(12) / 100), "lat": ("cell", np.zeros(12))}
    found = _neighbours(state(12, **places))
    assert set(found[0]) == set(range(1, 9))
    assert set(found[6]) == {2, 3, 4, 5, 7, 8, 9, 10}
    assert _neighbours(state(3)).tolist() == [[1, 2], [0, 2], [0, 1]]
