"""Tables on the wall clock of a zone with daylight saving time, and days of a zone."""

import logging

import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.readers.options import TableOptions
from data_prep.readers.steps import from_frame
from data_prep.sets.table import read

ROME = {"time_zone": "Europe/Rome", "clock": "local"}
SPRING = pd.date_range("2024-03-29", "2024-04-02", freq="h", tz="Europe/Rome", inclusive="left")
AUTUMN = pd.date_range("2024-10-25", "2024-10-29", freq="15min", tz="Europe/Rome", inclusive="left")
NAN = np.nan


def wide(times, cells=("a", "b")):
    """Return numbered rows, on the wall clock of times with a zone."""
    values = np.arange(len(times) * len(cells), dtype=float).reshape(len(times), -1)
    return pd.DataFrame(values, index=times.tz_localize(None), columns=list(cells))


def utc(times):
    return times.tz_convert("UTC").tz_localize(None).to_numpy()


@pytest.mark.parametrize(
    "times", [SPRING, AUTUMN, AUTUMN[::4]], ids=["spring", "quarters", "autumn"]
)
@pytest.mark.parametrize("latest_first", [False, True])
def test_the_wall_clock_becomes_utc(times, latest_first):
    df = wide(times)
    ds = from_frame(df[::-1] if latest_first else df, options=TableOptions(**ROME))
    np.testing.assert_array_equal(ds["time"], utc(times))
    np.testing.assert_array_equal(ds["value"], df)
    assert (ds.attrs["clock"], ds.attrs["time_zone"]) == ("utc", "Europe/Rome")


@pytest.mark.parametrize("by", ["time", "cell"])
def test_hours_of_each_cell_of_a_long_table_are_told_apart(by):
    df = wide(AUTUMN[::4])
    long = df.rename_axis("time").reset_index().melt("time", var_name="cell")
    if by == "time":
        rows = np.arange(len(long)).reshape(2, -1).T.ravel()
        long = long.iloc[rows].reset_index(drop=True)
    ds = read(long, **ROME, duplicates="sum")
    np.testing.assert_array_equal(ds["time"], utc(AUTUMN[::4]))
    np.testing.assert_array_equal(ds["value"], df)


def test_a_time_that_the_clock_skips_is_refused():
    even = pd.date_range("2024-03-29", "2024-04-02", freq="h", tz="UTC")
    message = (
        "row 50: time 2024-03-31 02:00:00 does not exist in Europe/Rome, whose clock skips it when "
        "daylight saving time begins; correct it .*its time zone is Etc/GMT-1"
    )
    with pytest.raises(InputError, match=message):
        from_frame(wide(even), options=TableOptions(**ROME))
    fixed = TableOptions(time_zone="Etc/GMT-1", clock="local")
    expected = even - pd.Timedelta("1h")
    np.testing.assert_array_equal(from_frame(wide(even), options=fixed)["time"], utc(expected))


def test_times_that_are_not_in_order_cannot_be_told_apart():
    df = wide(AUTUMN[::4])
    message = "shows an hour twice, as daylight saving time ends; only rows in the order of time"
    for wrong in (df.sample(frac=1, random_state=0), pd.concat([df, df[51:52]])):
        with pytest.raises(InputError, match=message):
            from_frame(wrong, options=TableOptions(**ROME, duplicates="sum"))


def test_an_hour_that_is_there_once_is_a_gap(caplog):
    times = AUTUMN[::4]
    df = wide(times)
    once = df[~df.index.duplicated()]
    message = "shows 2024-10-27 02:00:00 twice, as daylight saving time ends, but the table has it"
    with pytest.raises(InputError, match=message):
        from_frame(once, options=TableOptions(**ROME))
    ds = from_frame(once, options=TableOptions(**ROME, allow_gaps=True))
    np.testing.assert_array_equal(np.isnan(ds["value"][:, 0]), df.index.duplicated())
    assert "left as NaN" in caplog.text
    np.testing.assert_array_equal(
        from_frame(df[:51], options=TableOptions(**ROME))["time"], utc(times[:51])
    )


def test_gaps_are_named_on_the_wall_clock():
    with pytest.raises(InputError, match=r"2024-03-31 01:00:00\+01:00 .*row .*04:00"):
        from_frame(wide(SPRING.delete(50)), options=TableOptions(**ROME))


@pytest.mark.parametrize("step", ["1D", "6h", "2h"])
def test_steps_that_are_even_on_the_wall_clock_only_stay_there(step):
    times = pd.date_range("2024-03-29", "2024-04-02", freq=step)
    ds = from_frame(wide(times), options=TableOptions(**ROME))
    np.testing.assert_array_equal(ds["time"], times)
    assert ds.attrs["clock"] == "local"


@pytest.mark.parametrize("clock", ["local", "utc"])
@pytest.mark.parametrize("times", [SPRING, AUTUMN], ids=["spring", "autumn"])
def test_days_are_those_of_the_zone(times, clock):
    df = pd.DataFrame({"a": 1.0}, index=times.tz_localize(None) if clock == "local" else utc(times))
    options = {"time_zone": "Europe/Rome", "clock": clock, "resample": "1D", "agg": "sum"}
    ds = from_frame(df, options=TableOptions(**options))
    days = times.tz_localize(None).normalize()
    counts = pd.Series(1.0, days).groupby(level=0).sum()
    np.testing.assert_array_equal(ds["time"], counts.index)
    np.testing.assert_array_equal(ds["value"][:, 0], counts)
    assert len(counts.unique()) == 2
    assert ds.attrs["clock"] == "local"
    cut = from_frame(df.drop(df.index[3]), options=TableOptions(**options))
    np.testing.assert_array_equal(cut["value"][:, 0], [NAN, *counts[1:]])


def test_shorter_steps_begin_with_the_hours_of_the_zone(caplog):
    caplog.set_level(logging.WARNING)
    times = pd.date_range("2024-03-29", "2024-03-30", freq="10min", inclusive="left")
    options = TableOptions(time_zone="Asia/Kolkata", resample="1h", agg="sum")
    ds = from_frame(pd.DataFrame({"a": 1.0}, index=times), options=options)
    assert ds["time"].dt.minute.values.tolist() == [30] * 25
    assert np.isnan(ds["value"][[0, -1], 0]).all()
    assert (ds["value"][1:-1, 0] == 6).all()
    six = TableOptions(**ROME, resample="6h", agg="sum")
    ds = from_frame(wide(SPRING), options=six)
    assert ds["time"].dt.hour.values[:2].tolist() == [23, 5]
    assert mentions(caplog.text, "360 minutes", "Europe/Rome")


def test_times_without_an_offset_in_a_given_zone_are_told_to_be_utc(caplog):
    """Who means the wall clock sees the first time in both."""
    df = wide(SPRING[:24])
    from_frame(df, options=TableOptions(time_zone="Europe/Rome"))
    assert "2024-03-29 00:00:00 is 2024-03-29 01:00:00 in Europe/Rome" in caplog.text
    caplog.clear()
    from_frame(df, options=TableOptions(**ROME))
    from_frame(df, options=TableOptions())
    assert "read as UTC" not in caplog.text


@pytest.mark.parametrize("n_days", [30, 100], ids=["no change", "a change"])
def test_days_of_a_zone_stay_on_its_clock(n_days):
    """In UTC a day is an hour shorter where daylight saving time begins."""
    days = pd.date_range("2024-02-01", periods=n_days, freq="D", tz="Europe/Rome")
    df = wide(days).set_axis(days)
    ds = from_frame(df)
    np.testing.assert_array_equal(ds["time"], days.tz_localize(None))
    np.testing.assert_array_equal(ds["value"], df)
    assert (ds.attrs["clock"], ds.attrs["time_zone"]) == ("local", "Europe/Rome")
    texts = df.set_axis(days.map(lambda day: day.isoformat()))
    if n_days > 30:
        with pytest.raises(InputError, match="its clock"):
            from_frame(texts)
    named = from_frame(texts, options=TableOptions(time_zone="Europe/Rome"))
    np.testing.assert_array_equal(named["time"], ds["time"])


@pytest.mark.parametrize(
    "times",
    [
        pd.date_range("2024-02-01", periods=100, freq="D", tz="UTC"),
        pd.date_range("2024-02-01", periods=100, freq="D", tz="Asia/Shanghai"),
        SPRING,
    ],
    ids=["UTC", "no daylight saving time", "hours"],
)
def test_other_times_with_a_zone_are_in_utc(times):
    ds = from_frame(wide(times).set_axis(times))
    np.testing.assert_array_equal(ds["time"], utc(times))
    assert ds.attrs["clock"] == "utc"


@pytest.mark.parametrize(("step", "late"), [("1h", 4), ("10min", 9), ("3598s", 4)])
def test_the_advice_for_times_that_are_a_little_late_keeps_their_step(step, late):
    n = np.arange(50)
    times = pd.Timestamp("2024-03-01") + n * pd.Timedelta(step) + pd.to_timedelta(n * n % late, "s")
    advice = "resample='10min'" if step == "10min" else "resample='1h'"
    with pytest.raises(InputError, match=advice):
        from_frame(wide(times))


@pytest.mark.parametrize(("times", "said"), [(SPRING, True), (SPRING[:24], False)])
def test_offsets_that_change_are_told_of_unless_the_zone_is_known(times, said, caplog):
    """Hours of UTC move against those of the place, whose rhythm a model learns."""
    texts = wide(times).set_axis(times.map(lambda time: time.isoformat()))
    named = from_frame(texts, options=TableOptions(time_zone="Europe/Rome"))
    assert not caplog.messages
    np.testing.assert_array_equal(from_frame(texts)["time"], named["time"])
    found = "the DataFrame: times have the offsets +01:00, +02:00, as where a clock changes"
    assert (found in caplog.text) == said
