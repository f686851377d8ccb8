"""Figures that compare methods, against numbers worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.comparison.names import error_name
from stforecast.data.partition.heterogeneity import Heterogeneity
from stforecast.plots import PLOTS
from stforecast.plots.comparisons import skill_map
from stforecast.plots.division import division

hours, horizon, ranks = PLOTS["hours"], PLOTS["horizon"], PLOTS["critical-difference"]
heatmap, cells, predictions = PLOTS["heatmap"], PLOTS["cells"], PLOTS["predictions"]

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
    assert below.get_xlabel() == "hour of the day, local time"
    assert top.get_ylabel() == "test MAE of internet"


@pytest.mark.repeats
def test_busy_hours_are_shaded_in_both_panels(tested):
    for ax in hours([tested("a", BUSY + 1, BUSY, zone="Europe/Rome")]).axes:
        spans = [p for p in ax.patches if p.get_label() == "busy hours"]
        assert [(p.get_x(), p.get_x() + p.get_width()) for p in spans] == [(8.5, 20.5)]
    assert ax.get_xlabel() == "hour of the day, local time (Europe/Rome)"


def test_hours_of_a_flat_load_have_one_error(tested):
    fig = hours([tested("a", np.ones((1, 24, 1)), np.zeros((1, 24, 1)))])
    assert list(labelled(fig.axes[0])) == ["a: other 1.00"]


@pytest.mark.repeats
def test_the_lowest_error_in_busy_hours_comes_first(tested):
    runs = [tested(name, BUSY + off, BUSY) for name, off in (("c", 3), ("a", 1), ("b", 2))]
    assert [name[0] for name in labelled(hours(runs).axes[0])] == ["a", "b", "c"]


def test_hours_refuse_runs_with_other_targets(tested):
    other = tested("b", BUSY, BUSY, start="2013-12-04")
    with pytest.raises(InputError, match="different targets"):
        hours([tested("a", BUSY, BUSY), other])


@pytest.mark.parametrize("change", [{"y": BUSY + 1}, {"units": "GB"}])
def test_figures_refuse_observed_values_and_units_that_compare_refuses(tested, change):
    other = tested("b", BUSY, **{"y": BUSY, **change})
    with pytest.raises(InputError, match="different targets"):
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


@pytest.mark.repeats
def test_horizon_sorts_by_the_mean_error(tested):
    runs = [tested(name, *steps(e, e)) for name, e in (("c", 3), ("a", 1), ("b", 2))]
    assert legend_texts(horizon(runs)) == ["a", "b", "c"]


@pytest.mark.repeats
def test_one_step_names_the_time_ahead_and_seasonal_naive(tested):
    y_hat, y = steps(2)
    fig = horizon([tested("b", y_hat, y, naive=y + 3), tested("a", y_hat - 1, y, naive=y + 3)])
    (ax,) = fig.axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b"]
    assert ax.get_xlabel() == "test MAE of internet, 1 h ahead"
    assert labelled(ax)["seasonal naive: 3"].get_xdata()[0] == 3


@pytest.mark.quick(2)
@pytest.mark.parametrize("errors", [(3,), (3, 3)])
def test_a_method_that_is_seasonal_naive_is_drawn_once(tested, errors):
    y_hat, y = steps(*errors)
    runs = [tested("a", y_hat - 1, y, naive=y_hat), tested("seasonal_day", y_hat, y, naive=y_hat)]
    assert not any("seasonal naive" in label for label in labelled(horizon(runs).axes[0]))


@pytest.mark.repeats
def test_seasonal_naive_of_other_targets_is_not_drawn(tested):
    y_hat, y = steps(1, 2)
    later = tested("b", y_hat, y, naive=y, start="2013-12-01")
    assert legend_texts(horizon([tested("a", y_hat, y, naive=y), later])) == ["a", "b"]


def by_cell(*errors):
    """Targets of 0 and forecasts with these errors at each cell: `y_hat, y`."""
    y = np.zeros((len(errors), 3, 1))
    return y + np.array(errors, dtype=float)[:, None, None], y


def heat_rows(ax):
    """Texts of a heat map, by the name of the row."""
    names = [text.get_text() for text in ax.get_yticklabels()]
    found = {name: {} for name in names}
    for text in ax.texts:
        column, row = text.get_position()
        found[names[row]][column] = text.get_text()
    return {name: [row[c] for c in sorted(row)] for name, row in found.items()}


def test_a_heat_map_of_several_data_sets_shows_skill_and_what_was_not_run(tested):
    la = {"data": "la.nc", "service": "speed"}
    runs = []
    for name, here, there in (("a", 4, 6), ("b", 1, None), ("c", 2, 2)):
        y_hat, y = steps(here)
        runs.append(tested(name, y_hat, y, naive=y + 2))
        if there:
            y_hat, y = steps(there)
            runs.append(tested(name, y_hat, y, naive=y + 4, **la))
    fig = heatmap(runs, metric="raw_mae")
    ax = fig.axes[0]
    assert heat_rows(ax) == {"b": ["+50.0", "–"], "c": ["0.0", "+50.0"], "a": ["-100", "-50.0"]}
    assert [text.get_text() for text in ax.get_xticklabels()] == ["milan", "la"]
    (image,) = ax.images
    np.testing.assert_allclose(image.get_array().data[1:], [[0, 50], [-100, -50]])
    assert image.get_array().mask.tolist() == [[False, True], [False, False], [False, False]]
    assert image.norm.vmin == -image.norm.vmax == -100
    label = "skill against seasonal naive in MAE of traffic, 1 h ahead, %"
    assert fig.axes[1].get_xlabel() == label


@pytest.mark.repeats
def test_a_heat_map_of_one_data_set_has_a_column_for_each_time_ahead(tested):
    def run(name, *errors, **more):
        y_hat, y = steps(*errors)
        return tested(name, y_hat, y, naive=y + 5, **more)

    runs = [run("far", 1, 5), run("near", 2, 2), run("near", 2, 4, seed=2)]
    ax, scale = heatmap(runs, metric="raw_mae").axes
    assert heat_rows(ax) == {
        "near": ["+60.0", "+40.0", "+50.0"], "far": ["+80.0", "0.0", "+40.0"]
    }  # fmt: skip
    heads = [text.get_text() for text in ax.get_xticklabels()]
    assert heads == ["1 h ahead", "2 h ahead", "up to 2 h ahead"]
    np.testing.assert_allclose(ax.images[0].get_array(), [[60, 40, 50], [80, 0, 40]], atol=1e-6)
    assert scale.get_xlabel() == "skill against seasonal naive in MAE of internet, %"


@pytest.mark.repeats
def test_texts_of_a_heat_map_differ_from_their_colour_in_brightness(tested):
    runs = [tested(str(e), *steps(e), naive=steps(5)[0]) for e in (1, 3, 5, 7, 9)]
    ax = heatmap(runs, metric="raw_mae").axes[0]
    image = ax.images[0]
    colours = image.to_rgba(image.get_array())[..., :3].mean(axis=2)
    for text in ax.texts:
        column, row = text.get_position()
        assert abs(colours[row, column] - (text.get_color() == "white")) > 0.4


def test_only_numbers_that_differ_from_0_have_a_sign():
    ax = skill_map(pd.DataFrame([[-0.04, 0.04, -0.06, 100.4]]), "MAE").axes[0]
    assert [text.get_text() for text in ax.texts] == ["0.0", "0.0", "-0.1", "+100"]


def test_the_colour_bar_of_weeks_has_0_without_a_sign():
    weeks = np.array([[1.0, 1.02], [1.0, 0.98]])
    fig = division(Heterogeneity(weeks, np.ones((2, 3))), ["a", "b"])
    fig.draw_without_rendering()
    texts = [text.get_text() for text in fig.axes[-1].get_yticklabels()]
    assert "0 %" in texts
    assert not {"+0 %", "-0 %"} & {*texts}


def test_a_heat_map_of_an_unknown_metric(tested):
    with pytest.raises(InputError, match="unknown metric 'mea'"):
        heatmap([tested("a", *steps(1))], metric="raw_mea")


@pytest.mark.repeats
def test_cells_are_points_at_ratios_to_seasonal_naive(tested):
    y_hat, y = by_cell(1, 8, 4)
    far = tested("far", y_hat, y, naive=y + 2)
    near = [tested("near", y_hat / 4, y, seed=1), tested("near", y_hat / 2, y, seed=2)]
    (ax,) = cells([far, *near], metric="raw_mae").axes
    found = labelled(ax)
    np.testing.assert_allclose(found["far"].get_xdata(), [0.5, 2, 4])
    np.testing.assert_allclose(found["near (2 runs)"].get_xdata(), np.array([3, 12, 24]) / 16)
    assert (np.diff(found["far"].get_ydata()) < 0).all()  # The highest ratio is on top.
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["near (2 runs)", "far"]
    assert [text.get_text() for text in ax.texts] == [
        "lower in 67% of cells\nhighest: 101, 102, 100",
        "lower in 33% of cells\nhighest: 101, 102, 100",
    ]
    label = "test MAE of internet of a cell, divided by that of seasonal naive"
    assert ax.get_xlabel() == label


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "raw_mea"}, "seasonal naive|'mea'"),
        ({}, "seasonal naive"),
    ],
)
def test_cells_refuse_what_is_not_there(tested, options, message):
    runs = [tested(name, *by_cell(1, 2)) for name in "ab"]
    with pytest.raises(InputError, match=message):
        cells(runs, **options)


def rank_names(fig):
    gap = "\N{NO-BREAK SPACE}" * 2
    return {text.get_text() for text in fig.axes[0].texts if gap in text.get_text()}


@pytest.mark.repeats
def test_ranks_are_over_the_clients_of_all_data_sets(tested):
    gap = "\N{NO-BREAK SPACE}" * 2
    here = {"a": (1, 1), "b": (2, 2), "c": (3, 3), "only here": (4, 4)}
    there = {"a": (1, 3), "b": (2, 2), "c": (3, 1)}
    runs = [tested(name, *by_cell(*e)) for name, e in here.items()]
    runs += [tested(name, *by_cell(*e), data="la.nc") for name, e in there.items()]
    fig = ranks(runs, metric="raw_mae")
    assert rank_names(fig) == {f"a{gap}1.50", f"b{gap}2.00", f"c{gap}2.50"}
    note = fig.legends[0].get_title().get_text().replace("\n", " ")
    assert note.startswith("rank: mean over 4 clients of the rank by test MAE")
    assert note.endswith("Not ranked: only here")


@pytest.mark.repeats
def test_ablations_are_not_ranked(tested):
    runs = [tested(name, *by_cell(i, i)) for i, name in enumerate("abc")]
    runs.append(tested("w/o x", *by_cell(9, 9), about={"table": "ablations"}))
    fig = ranks(runs)
    assert len(rank_names(fig)) == 3
    assert fig.legends[0].get_title().get_text().endswith("Not ranked: w/o x")


def test_ranks_need_three_methods(tested):
    runs = [tested(name, *by_cell(1, 2)) for name in "ab"]
    with pytest.raises(InputError, match=r"2 main .*2 .*3"):
        ranks(runs)


def test_ranks_of_an_unknown_metric(tested):
    with pytest.raises(InputError, match=r"metric 'mea'; .*: mse, raw_mae"):
        ranks([tested(name, *by_cell(1, 2)) for name in "abc"], metric="mea")


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("mase", "MASE"),
        ("rmsse", "RMSSE"),
        ("scaled_pinball", "scaled pinball"),
        ("coverage", "coverage (share)"),
        ("raw_smape", "SMAPE (share)"),
        ("raw_rmse", "RMSE of internet (MB)"),
        ("raw_mse", "MSE of internet (MB²)"),
        ("raw_bias", "bias of internet (MB)"),
        ("crps", "CRPS of z-scores"),
    ],
)
def test_scaled_errors_have_no_unit(tested, metric, name):
    assert error_name(metric, [tested("a", BUSY, BUSY, units="MB")]) == name


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("attrs", "drawn"),
    [({}, -2), ({"lower_limit": 0.0}, 0), ({"upper_limit": -3.0}, -3)],
)
def test_forecasts_are_drawn_as_predict_gives_them(tested, attrs, drawn):
    y_hat, y = steps(-2)
    (ax,) = predictions([tested("a", y_hat, y, attrs=attrs)]).axes
    assert labelled(ax)["a"].get_ydata().tolist() == [drawn] * 3


def test_the_front_joins_methods_that_send_less_or_have_less_error(make_run):
    sends = {"fuels": (2.0, 20), "fedavg": (3.0, 30), "fedrep": (1.0, 100)}
    runs = [
        make_run(method, scores=(error, 9.0), rounds=((1.0, 5, 1), (1.0, 5, floats)))
        for method, (error, floats) in sends.items()
    ]
    runs += [make_run("ridge", scores=(4.0, 9.0), federated=False, rounds=())]
    fig = PLOTS["pareto"]([*runs, make_run("central", scores=(0.5, 9.0))])
    (ax,) = fig.axes
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [(0, 4.0), (20, 2.0), (100, 1.0)])
    np.testing.assert_allclose(labelled(ax)["fedavg: 30, 3"].get_xydata(), [(30, 3.0)])
    assert "records: central" in fig.legends[0].get_title().get_text()
