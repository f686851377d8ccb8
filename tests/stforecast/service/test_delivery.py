"""What a delivery is, as a whole: believed, or held back with the way on."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
from in_service import DAYS, values, write
from mentions import mentions

from data_prep.cube import open_cube
from data_prep.sets.table import prepare
from stforecast.cli.main import main
from stforecast.service.delivery import Delivery, _in_another_unit, _named, _swapped, digit_of
from stforecast.service.expected import Expected, UsualDistance
from stforecast.service.folder import last_state, read_state
from stforecast.service.held import held_back
from stforecast.service.monitor import HELD as ALARM_OF_HELD
from stforecast.service.monitor import monitor
from stforecast.service.update import CODES, HELD, update

DAY = values().iloc[24 * DAYS : 24 * (DAYS + 1)]
PRESENT = pd.Timestamp("2024-02-12 03:00")


TWO_DAYS = values().iloc[24 * DAYS : 24 * (DAYS + 2)].copy()
TWO_DAYS.iloc[24:] *= 25


def moved(hours):
    return DAY.set_axis(DAY.index + pd.Timedelta(hours=hours))


def history(run):
    return read_state(last_state(run)).history["load"].to_numpy()


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("day", "kind", "reason"),
    [
        (DAY * 1000, "unit", "3 of 3 cells"),
        (DAY / 1024, "unit", "about 1/1"),
        (pd.concat([DAY[:16], DAY[16:] * 1000]), "unit", "not at"),
        (TWO_DAYS, "unit", "on day 2"),
        (DAY * 0 - 1, "constant", "readings are -1"),
        (DAY * 0, "constant", "readings are 0"),
        (DAY * 0 + 77, "constant", "readings are 77"),
        (DAY.iloc[::2], "cadence", "120 minutes"),
        (moved(24 * 30), "future", "ends at 2024-03-11 23:00:00"),
        (moved(5), "zone", "5 hours"),
        (DAY.set_axis(["c", "b", "a"], axis=1), "swapped", "a as c"),
    ],
)  # fmt: skip
def test_what_a_delivery_cannot_be_is_held_back_and_forecasts_go_on(
    service, tmp_path, day, kind, reason
):
    run, _ = service
    path = write(day.rename_axis("Station", axis=1).rename_axis("When"), tmp_path / "odd.csv")
    done = update(run, path, now=PRESENT)
    assert (done.action, done.about["kind"]) == (HELD, kind)
    assert reason in done.about["reason"]
    assert len(history(run)) == 24 * DAYS  # Nothing of it was taken.
    assert np.isfinite(done.forecast.to_numpy()).all()
    assert str(done.forecast.index[-1])[:10] >= "2024-02-11"  # The coming day is forecast.
    (held,) = held_back(run)
    with open_cube(held.kept) as kept:
        assert kept.sizes["time"] == len(day)  # Nothing of it is lost.
    watch = monitor(run, PRESENT)
    assert watch.code == ALARM_OF_HELD
    assert held.reason in watch.alarms[0]


def test_the_ways_on_take_it_and_release_what_was_held(service, tmp_path, capsys):
    run, day = service
    wrong = str(write(DAY * 1000, tmp_path / "kb.csv"))
    for options, action, level in (
        ([], HELD, None),
        (["--factor", "0.001"], "went on", 1),
        (["--accept"], "went on", 1000),
    ):
        with pytest.raises(SystemExit) as end:
            main(["update", str(run), "--new", wrong, *options])
        shown = capsys.readouterr()
        assert (end.value.code or 0) == CODES[action]
        assert json.loads(shown.out)["action"] == action
        assert bool(held_back(run)) == (action == HELD)
        if level:
            np.testing.assert_allclose(history(run)[-24:], level * DAY.to_numpy(), rtol=1e-6)
        else:
            assert "--factor 0.001" in shown.err
            assert "--accept" in shown.err
    # The right file of the same day releases it, too.
    update(run, wrong)
    update(run, day(DAYS))
    assert held_back(run) == []


@pytest.mark.parametrize(("factor", "found"), [(5, True), (0.2, True), (2, False), (0.4, False)])
def test_levels_of_many_cells_are_doubted_from_the_same_factor_up_and_down(factor, found):
    own = np.arange(1.0, 49).reshape(8, 6)
    times = pd.date_range("2024-02-10", periods=8, freq="h")
    expected = Expected(times, own, own, own, own > 0)
    doubt = _in_another_unit(
        Delivery(factor * own, expected, 0, 0, [], UsualDistance(0.1, 0.1), 1.0)
    )
    assert (doubt is not None) == found
    assert doubt is None or doubt.factor == 1.0  # No unit is near, so no factor is named.


@pytest.mark.parametrize("order", [[1, 0, 2, 3], [0, 1, 2, 3]])
def test_places_are_assigned_only_where_cells_are_nearer_to_what_others_had(order, monkeypatch):
    own = np.array([10.0, 30.0, 90.0, 200.0]) * np.ones((8, 1))
    times = pd.date_range("2024-02-10", periods=8, freq="h")
    expected = Expected(times, own, own / 50, own / 50, own > 0)
    off = own[:, order] + [3.0, -3.0, 0.0, 0.0]
    of = Delivery(off, expected, 0, 0, list("abcd"), UsualDistance(0.1, 0.1), 1.0)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    if order == sorted(order):  # Two cells are odd, but nearest to their own places.
        assert _swapped(of) is None
    else:
        with pytest.raises(ImportError):
            _swapped(of)


@pytest.mark.parametrize(
    ("order", "found"), [([1, 0, 2, 3], True), ([1, 2, 0, 3], True), ([1, 2, None, 3], False)]
)
def test_cells_change_places_with_each_other(order, found):
    """That one stopped, and others are as their neighbours were, is no exchange."""
    own = np.array([10.0, 25.0, 90.0, 200.0]) * np.ones((8, 1))
    times = pd.date_range("2024-02-10", periods=8, freq="h")
    expected = Expected(times, own, own / 50, own / 50, own > 0)
    seen = np.stack([own[:, i] if i is not None else own[:, 0] * 0 for i in order], axis=1)
    of = Delivery(seen, expected, 0, 0, list("abcd"), UsualDistance(1.0, 1.0), 1.0)
    assert (_swapped(of) is not None) == found


def test_corrections_of_old_days_by_one_factor_are_held_back(updated, tmp_path):
    run, day = updated
    update(run, day(DAYS + 1), now=PRESENT)
    before = history(run)
    old = values().iloc[24 * 5 : 24 * 7]
    done = update(run, write(1.5 * old, tmp_path / "old.csv"), now=PRESENT)
    assert (done.action, done.about["kind"]) == (HELD, "unit")
    assert mentions(done.about["reason"], "1.5 times", "records")
    np.testing.assert_array_equal(history(run), before)
    update(run, tmp_path / "old.csv", now=PRESENT, accept=True)
    # The right ones are nearer to what is usual.
    assert update(run, write(old, tmp_path / "right.csv"), now=PRESENT).action != HELD
    np.testing.assert_array_equal(history(run), before)


@pytest.mark.quick(3)
@pytest.mark.parametrize("factor", [0.3, 2.0])
def test_a_level_that_moved_is_believed(service, tmp_path, factor):
    run, _ = service
    done = update(run, write(DAY * factor, tmp_path / "moved.csv"))
    assert done.action == "went on"
    np.testing.assert_allclose(history(run)[-24:], factor * DAY.to_numpy(), rtol=1e-6)


def test_a_factor_that_is_none_is_refused(service, capsys):
    run, day = service
    for factor in ("0", "-1", "nan", "inf", "1e300", "1e-300"):
        with pytest.raises(SystemExit) as end:
            main(["update", str(run), "--new", str(day(DAYS)), "--factor", factor])
        assert end.value.code == 2
        assert "--factor" in capsys.readouterr().err


def test_a_held_delivery_is_judged_again_after_its_factor(service, tmp_path, capsys):
    run, _ = service
    wrong = str(write(DAY * 1000, tmp_path / "kb.csv"))
    for factor, way_on in (
        ("1000", "--factor 0.001; if it is right, give it again with --factor 1000 --accept"),
        ("1e-6", "--factor 0.001; if it is right, give it again with --factor 1e-06 --accept"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["update", str(run), "--new", wrong, "--factor", factor])
        assert end.value.code == CODES[HELD]
        assert way_on in capsys.readouterr().err
        with open_cube(held_back(run)[0].kept) as kept:  # As it was given.
            np.testing.assert_allclose(kept["load"], 1000 * DAY.to_numpy(), rtol=1e-6)
    right = str(write(DAY, tmp_path / "right.csv"))
    with pytest.raises(SystemExit):
        main(["update", str(run), "--new", right, "--factor", "1000"])
    assert "without --factor" in capsys.readouterr().err


def test_rows_that_are_missing_are_taken_as_such(service, tmp_path, capsys):
    run, _ = service
    path = str(write(DAY.iloc[::2], tmp_path / "odd.csv"))
    assert "with --accept" in update(run, path).about["remedy"]
    done = update(run, path, accept=True)
    assert "11 steps missing between its rows" in done.about["notes"]
    np.testing.assert_array_equal(history(run)[24 * DAYS :: 2], DAY.iloc[::2])


def test_shorter_steps_that_are_merged_otherwise_are_asked_about(service, tmp_path):
    run, _ = service
    halves = pd.concat([DAY / 2, (DAY / 2).shift(freq="30min")]).sort_index()
    halves = halves.rename_axis("When").rename_axis("Station", axis=1)
    path = write(halves, tmp_path / "halves.csv")
    remedy = update(run, path).about["remedy"]
    assert remedy.startswith("prepare it with --resample 60min, and --agg sum for counts")
    assert "--accept" not in remedy
    options = {"time": "When", "time_zone": "Europe/Rome", "clock": "local", "units": "GB"}
    options["time_format"] = "dayfirst"
    for agg, action in (("mean", HELD), ("sum", "went on")):
        cube = prepare(path, tmp_path / f"{agg}.nc", resample="60min", agg=agg, **options)
        done = update(run, cube)
        assert done.action == action
        if action == HELD:
            assert "shorter ones" in done.about["reason"]
            assert "--agg sum; " in done.about["remedy"]
    np.testing.assert_allclose(history(run)[-24:], DAY.to_numpy(), atol=0.02)


def test_of_near_factors_that_one_is_named_that_divides_all_readings():
    counts = np.array([[3.0, 5.0], [7.0, np.nan]])
    assert _named(1010.0, counts * 1024, 1.0)[0] == 1024
    assert _named(1020.0, counts * 1000, 1.0)[0] == 1000
    assert _named(1020.0, counts * 1024, 0.0)[0] == 1000  # Which one, no digit says.
    assert _named(1 / 59, counts / 60, 1.0)[0] == pytest.approx(1 / 60)
    assert _named(37.0, counts * 37, 1.0)[0] == 37
    assert [digit_of(counts / f) for f in (1, 10, 1000, 1024 * 3)] == [1, 0.1, 0.001, 0]
