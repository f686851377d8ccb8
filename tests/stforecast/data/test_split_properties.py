"""Properties of splits by the clock, for any series, step, horizon and lags."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from stforecast.data.clock import Calendar
from stforecast.data.splits import make_split
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import input_windows

STEPS = st.sampled_from(["5min", "7min", "1h", "90min", "1D"]).map(pd.Timedelta)
LONGEST_LAG, LONGEST_PERIOD = 72, 24


@dataclass
class Case:
    """A series whose parts are long enough for all lags of `specs`.

    `spans` are the steps of training, validation (may be empty) and test; `n_steps` is the length
    of the series and `horizon` that of the windows.
    """

    spans: tuple[range, range, range]
    n_steps: int
    step: pd.Timedelta
    horizon: int

    @property
    def times(self):
        return pd.date_range("2013-11-01 05:00", periods=self.n_steps, freq=self.step)

    def split(self, text, spec):
        return make_split(text, self.n_steps, self.step, spec, self.times)

    @property
    def shares(self):
        return "time:" + ",".join(f"{len(span)}/{self.n_steps}" for span in self.spans)

    @property
    def dates(self):
        time = [*self.times, self.times[-1] + self.step]
        kept = [span for span in self.spans if span]
        return "dates:" + ",".join(f"{time[s.start]}/{time[s.stop]}" for s in kept)


@st.composite
def cases(draw, gaps):
    horizon = draw(st.integers(1, 24))
    most = 9 if gaps else 0
    begin, before, between, after = (draw(st.integers(0, most)) for _ in range(4))
    enough = LONGEST_LAG + LONGEST_PERIOD + horizon
    train = range(begin, begin + enough + draw(st.integers(0, 50)))
    length = draw(st.just(0) | st.integers(horizon, horizon + 50))
    validation = range(train.stop + before, train.stop + before + length)
    test = range(validation.stop + between, validation.stop + between + horizon + length)
    return Case((train, validation, test), test.stop + after, draw(STEPS), horizon)


@st.composite
def specs(draw, horizon):
    return WindowSpec(
        closeness=draw(st.integers(1, 12)),
        periods=draw(st.integers(0, 3)),
        period=draw(st.integers(1, LONGEST_PERIOD)),
        extra_lags=draw(st.sampled_from(["", "1-3", "30"])),
        horizon=horizon,
    )


def targets(starts, horizon):
    return set((starts[:, None] + np.arange(horizon)).ravel().tolist())


def check(case, text, spec, other):
    """The parts hold exactly the windows whose targets lie in their spans, whatever the lags."""
    split, same = case.split(text, spec), case.split(text, other)
    training, validation, test = case.spans
    assert targets(split.validation, case.horizon) == set(validation)
    assert targets(split.test, case.horizon) == set(test)
    for part in ("validation", "test"):
        np.testing.assert_array_equal(getattr(split, part), getattr(same, part))
    assert targets(split.train, case.horizon) <= set(training)
    assert split.train[-1] + case.horizon == training.stop
    assert split.fit == same.fit == slice(training.start, training.stop)
    check_inputs(case, split, spec)


def check_inputs(case, split, spec):
    """Inputs come from before the first target: the value of a step is its number plus one."""
    values = np.arange(1.0, case.n_steps + 1)[:, None]
    calendar = Calendar(case.times[0], case.step)
    for starts in (split.train, split.validation, split.test):
        x = input_windows(values, starts, spec, calendar)
        assert (x.max(axis=-1, initial=0.0) <= starts).all()
        core = x[0, :, : len(spec.lags)]
        np.testing.assert_array_equal(core, starts[:, None] + 1 - np.array(spec.lags))


@given(st.data())
def test_shares_of_the_time(data):
    case = data.draw(cases(gaps=False))
    check(case, case.shares, *(data.draw(specs(case.horizon)) for _ in range(2)))


@given(st.data())
def test_intervals_of_time(data):
    case = data.draw(cases(gaps=True))
    check(case, case.dates, *(data.draw(specs(case.horizon)) for _ in range(2)))


@given(
    st.sampled_from(["2013-10-27", "2014-03-30"]),
    st.integers(12, 60).map(lambda hours: pd.Timedelta(hours=hours)),
    st.sampled_from(["5min", "20min", "1h"]).map(pd.Timedelta),
    st.integers(0, 5 * 60),
)
def test_a_date_is_found_where_the_clock_changes(day, before, step, minute):
    n_steps = 4 * pd.Timedelta("1D") // step
    start = pd.Timestamp(day) - before
    times = Calendar(start, step, "Europe/Rome").local_times(np.arange(n_steps))
    date = pd.Timestamp(day) + pd.Timedelta(minutes=minute)
    spec = WindowSpec(closeness=3, periods=0, period=4)
    text = f"dates:{times[0]}/{times[0] + pd.Timedelta('8h')},{date}/{times.max() + step}"
    test = make_split(text, n_steps, step, spec, times).test
    assert times[test[0]] >= date
    assert (times[: test[0]] < date).all()
    assert test[-1] == n_steps - 1
