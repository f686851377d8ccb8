"""Days replayed through `stforecast update`."""

import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from experiments.benchmarks.__main__ import main
from experiments.benchmarks.replay import DAILY, draw_replay, replay_table

TRAIN, DAYS = 12, 3


@pytest.fixture
def wide(tmp_path):
    """A wide table of hours of two cells, and a third that is mostly missing."""
    hours = pd.date_range("2024-05-01", periods=24 * (TRAIN + DAYS), freq="h", name="time")
    rng = np.random.default_rng(0)
    values = 10 + np.sin(2 * np.pi * hours.hour.to_numpy() / 24)[:, None] + rng.random((360, 3))
    table = pd.DataFrame(values.round(3), hours, ["b", "a", "gone"])
    table.iloc[:200, 2] = np.nan
    table.to_csv(tmp_path / "wide.csv")
    return table


def type_in(folder, ways, method="seasonal_day", out="out", minutes=0, days=DAYS):
    words = ["replay", folder / "wide.csv", "--train-days", TRAIN, "--days", days]
    words += ["--method", method, "--ways", ways, "--name", "town", "--out", folder / out]
    words += ["--minutes", minutes]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    return ended.value.code


@pytest.mark.repeats
def test_who_repeats_the_day_errs_as_the_day_before_in_every_way(wide, tmp_path, capsys):
    ways = ("update", "never", DAILY)
    assert not type_in(tmp_path, ",".join(ways))
    rows = pd.read_csv(tmp_path / "out" / "replay.csv")
    assert rows["way"].tolist() == [way for way in ways for _ in range(DAYS)]
    known = rows[rows["n"] > 0]
    assert set(known["n"]) == {2 * 24}, "a cell that is mostly missing is left out"
    days = [str(day.date()) for day in wide.index[24 * (TRAIN + 1) :: 24]]
    assert [of["day"].tolist() for _, of in known.groupby("way")] == [days] * 3
    kept = wide[["a", "b"]]
    expected = (kept - kept.shift(24)).abs().groupby(kept.index.normalize()).mean().mean(axis=1)
    for name in ("mae", "naive"):
        np.testing.assert_allclose(known[name], [*expected.loc[days]] * 3)
    assert known["coverage"].between(0, 1).all()
    assert "below the day before" in capsys.readouterr().out
    assert not type_in(tmp_path, "never")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "out" / "replay.csv"), rows)
    assert replay_table(rows).count("\n") == 4
    long = pd.concat([rows[rows["n"] > 0]] * 7).sort_values("way", kind="stable", ignore_index=True)
    long["mae"] = long["naive"]  # Without what rounding adds.
    assert replay_table(long).count(" 0 [0, 0] ") == len(ways) - 1, "all repeat the day before"
    long.loc[long["way"] == "never", "mae"] *= 2
    assert " 100 [100, 100] " in replay_table(long)
    upper, lower = draw_replay(long).axes
    for axes in (upper, lower):
        assert [len(line.get_xdata()) for line in axes.lines] == [2, 2, 2, 2]
    np.testing.assert_allclose(upper.lines[1].get_ydata(), 1.0, rtol=0.2)  # after "never"


def test_a_table_that_ends_before_the_replay_is_refused(wide, tmp_path, capsys):
    wide.iloc[: 24 * TRAIN].to_csv(tmp_path / "wide.csv")
    assert type_in(tmp_path, DAILY)
    assert f"after {TRAIN} days" in capsys.readouterr().err


@pytest.mark.slow
def test_a_replay_goes_on_after_its_last_day(wide, tmp_path, capsys):
    ways, results = f"update,{DAILY}", tmp_path / "out" / "replay.csv"
    for day in range(4):
        assert not type_in(tmp_path, ways, minutes=1e-9, days=2)
        assert len(pd.read_csv(results)) == day + 1
    assert not type_in(tmp_path, ways, out="at-once", days=2)
    both = [pd.read_csv(tmp_path / out / "replay.csv") for out in ("out", "at-once")]
    pd.testing.assert_frame_equal(*(rows.drop(columns="cpu_seconds") for rows in both))
    both[0].iloc[:1].to_csv(results, index=False)
    assert type_in(tmp_path, ways, days=2)
    assert mentions(capsys.readouterr().err, "2 updates,", "1 days")
