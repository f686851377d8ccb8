"""Figures that compare methods, against numbers worked out by hand."""

import numpy as np
import pytest

from data_prep.errors import InputError
from stforecast.plots import PLOTS

hours, horizon = PLOTS["hours"], PLOTS["horizon"]

DAY = np.arange(24.0)[None, :, None]
BUSY = np.where((DAY >= 8) & (DAY < 20), 3.0, 1.0)


def labelled(ax):
    """Lines of a panel with an entry in the legend, by label."""
    return {x.get_label(): x for x in ax.lines if not x.get_label().startswith("_")}


def legend_texts(fig):
    return [text.get_text() for text in fig.legends[0].get_texts()]


def test_hours_draw_errors_above_the_load(tested):
    runs = [
        tested("far", BUSY + 2, BUSY),
        tested("near", BUSY + 1, BUSY, seed=1),
        tested("near", BUSY + np.where(BUSY == 3, 3, 1), BUSY, seed=2),
    ]
    fig = hours(runs)
    top, below = fig.axes
    names = ["near (2 runs): busy 2.00, other 1.00", "far: busy 2.00, other 2.00"]
    assert set(labelled(top)) == set(names)
    np.testing.assert_allclose(labelled(top)[names[0]].get_ydata(), (BUSY.ravel() + 1) / 2)
    np.testing.assert_allclose(labelled(top)[names[1]].get_ydata(), np.full(24, 2.0))
    np.testing.assert_allclose([bar.get_height() for bar in below.containers[0]], BUSY.ravel())
    assert labelled(below)["its mean"].get_ydata()[0] == 2
    assert below.get_xlabel() == "hour of local time"
    assert top.get_ylabel() == "test MAE of internet"


def test_busy_hours_are_shaded_in_both_panels(tested):
    for ax in hours([tested("a", BUSY + 1, BUSY, zone="Europe/Rome")]).axes:
        spans = [p for p in ax.patches if p.get_label() == "busy hours"]
        assert [(p.get_x(), p.get_x() + p.get_width()) for p in spans] == [(8.5, 20.5)]
    assert ax.get_xlabel() == "hour of local time (Europe/Rome)"


def test_hours_of_a_flat_load_have_one_error(tested):
    fig = hours([tested("a", np.ones((1, 24, 1)), np.zeros((1, 24, 1)))])
    assert list(labelled(fig.axes[0])) == ["a: other 1.00"]


def test_the_lowest_error_in_busy_hours_comes_first(tested):
    runs = [tested(name, BUSY + off, BUSY) for name, off in (("c", 3), ("a", 1), ("b", 2))]
    assert [name[0] for name in labelled(hours(runs).axes[0])] == ["a", "b", "c"]


def test_hours_refuse_runs_with_other_targets(tested):
    other = tested("b", BUSY, BUSY, start="2013-12-04")
    with pytest.raises(InputError, match="tested on different targets; draw those of one data"):
        hours([tested("a", BUSY, BUSY), other])


def test_hours_of_an_unknown_metric(tested):
    with pytest.raises(InputError, match="unknown metric 'mea'"):
        hours([tested("a", BUSY, BUSY)], metric="raw_mea")


def steps(*errors):
    """Targets of 0 and forecasts with these errors at each step ahead: `y_hat, y`."""
    y = np.zeros((1, 3, len(errors)))
    return y + np.array(errors, dtype=float), y


@pytest.mark.parametrize(
    ("minutes", "x", "label"),
    [(5, [5, 10, 15], "minutes ahead"), (60, [1, 2, 3], "hours ahead")],
)
def test_horizon_counts_minutes_or_hours(tested, minutes, x, label):
    y_hat, y = steps(1, 2, 4)
    fig = horizon([tested("a", y_hat, y, naive=y + 3, step_minutes=minutes)])
    (ax,) = fig.axes
    naive = labelled(ax)["seasonal naive"]
    np.testing.assert_allclose(naive.get_xydata(), [[x[0], 3], [x[1], 3], [x[2], 3]])
    (drawn,) = (line for line in ax.lines if line is not naive)
    np.testing.assert_allclose(drawn.get_xydata(), [[x[0], 1], [x[1], 2], [x[2], 4]])
    assert ax.get_xlabel() == label


def test_horizon_sorts_by_the_mean_error(tested):
    runs = [tested(name, *steps(e, e)) for name, e in (("c", 3), ("a", 1), ("b", 2))]
    assert legend_texts(horizon(runs)) == ["a", "b", "c"]


def test_one_step_names_the_time_ahead_and_seasonal_naive(tested):
    y_hat, y = steps(2)
    fig = horizon([tested("b", y_hat, y, naive=y + 3), tested("a", y_hat - 1, y, naive=y + 3)])
    (ax,) = fig.axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b"]
    assert ax.get_xlabel() == "test MAE of internet, 60 min ahead"
    assert labelled(ax)["seasonal naive: 3"].get_xdata()[0] == 3


def test_seasonal_naive_of_other_targets_is_not_drawn(tested):
    y_hat, y = steps(1, 2)
    later = tested("b", y_hat, y, naive=y, start="2013-12-01")
    assert legend_texts(horizon([tested("a", y_hat, y, naive=y), later])) == ["a", "b"]
