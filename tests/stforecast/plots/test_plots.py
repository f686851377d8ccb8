"""Figures are read back from their axes and compared with numbers worked out by hand."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.text import Text
from small_files import write_netcdf

import stforecast.plots
from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.bench.curves import as_curves
from stforecast.bench.drawing import panels, save_figure
from stforecast.federated.runs.run_folder import write_csv
from stforecast.forecasting.results import METRIC_COLUMNS, ForecastRun
from stforecast.plots import PLOTS
from stforecast.plots.comparisons import cdf
from stforecast.plots.forecasts import predictions
from stforecast.plots.losses import communication, rounds
from stforecast.plots.times import horizon

ROUNDS = pd.DataFrame(
    {
        "round": [1, 2, 3],
        "train_loss": [9.0, 8.0, 7.0],
        "train_task_loss": [3.0, 2.0, 1.0],
        "validation_loss": [4.0, 3.0, 2.5],
        "bytes_down": [0, 100, 100],
        "bytes_up": [50, 50, 50],
        "participants": [1, 1, 1],
        "failed": [0, 0, 0],
    }
)
START = np.datetime64("2013-11-25", "ns")
HOUR = np.timedelta64(1, "h")


@pytest.fixture
def make_run(tmp_path):
    """Writes a run folder without training: two cells, four hours, two steps ahead."""

    def make(
        name="fuels",
        *,
        y=((1, 2, 3, 4), (50, 60, 70, 80)),
        offset=1.0,
        errors=(1.0, 3.0),
        by_step=(1.0, 2.0),
        history=ROUNDS,
        data="data/milan.nc",
        service="internet",
        units="1",
        start=START,
        attrs=None,
        label=None,
        folder=None,
        **settings,
    ):
        out = tmp_path / (folder or f"{name}-{len(list(tmp_path.iterdir()))}")
        settings = {"method": name, "select": "best", "seed": 1, **settings}
        about = {"settings": settings, "label": label or name, "data": data, "service": service}
        about |= {"units": units, "lines": {}}
        out.mkdir(parents=True)
        (out / "run.json").write_text(json.dumps(about))
        write_csv(history, out / "rounds.csv")
        write_csv(metrics_table(errors, by_step), out / "metrics.csv")
        write_forecasts(out, np.array(y, dtype=float), offset, len(by_step), start, units, attrs)
        return ForecastRun.open(out)

    return make


def metrics_table(errors, by_step):
    """Test errors of clients and of steps; other selections and splits hold 99."""
    clients = [(str(i), "all", e) for i, e in enumerate(errors)]
    steps = [("all", str(i + 1), e) for i, e in enumerate(by_step)]
    rows = [
        (c, h, split, selection, metric, value if (split, selection) == ("test", "best") else 99.0)
        for c, h, value in [*clients, *steps, ("all", "all", 77.0)]
        for split in ("validation", "test")
        for selection in ("last", "best")
        for metric in ("mse", "raw_mae", "raw_mse", "raw_wape")
    ]
    columns = ["client", "horizon", "split", "selection", "metric", "value"]
    return pd.DataFrame(rows, columns=columns).reindex(columns=list(METRIC_COLUMNS))


def write_forecasts(out, y, offset, n_steps, start, units, attrs):
    """Step h ahead is forecast `offset * h` too high."""
    steps = np.arange(1, n_steps + 1)
    dims = ("cell", "time", "horizon")
    targets = np.stack([np.roll(y, 1 - h, axis=1) for h in steps], axis=-1)
    ds = xr.Dataset(
        {
            "y": (dims, targets, {"units": units}),
            "y_hat": (dims, targets + offset * steps, {"units": units}),
        },
        coords={
            "cell": np.arange(len(y)) + 100,
            "time": start + np.arange(y.shape[1]) * HOUR,
            "horizon": steps,
        },
        attrs=attrs or {},
    )
    write_netcdf(ds, out / "forecasts.nc")


def lines(ax):
    """Labelled lines of a panel: label to (x, y)."""
    found = {}
    for line in ax.lines:
        if not line.get_label().startswith("_"):
            found.setdefault(line.get_label(), []).append(
                (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist())
            )
    return found


def legend_texts(fig):
    return [text.get_text() for text in fig.legends[0].get_texts()]


def note(fig):
    return fig.legends[0].get_title().get_text()


def seeds(make_run, **changes):
    return [make_run(seed=s, **{k: v[s - 1] for k, v in changes.items()}) for s in (1, 2)]


def test_runs_that_differ_in_seed_and_device_are_one_curve(make_run):
    runs = [make_run(seed=1, device="cpu"), make_run(seed=2, device="cuda"), make_run("solo")]
    fuels, solo = as_curves(runs)
    assert (fuels.group.label, fuels.group.runs) == ("fuels (2 runs)", tuple(runs[:2]))
    assert [fuels.group.run_label(r) for r in fuels.group.runs] == [
        "fuels (seed 1)",
        "fuels (seed 2)",
    ]
    assert solo.group.label == "solo"
    assert fuels.color != solo.color


def test_a_run_given_twice_counts_once(make_run):
    run = make_run()
    assert [len(c.group.runs) for c in as_curves([run, run])] == [1]


def test_names_say_the_settings_that_differ_between_equal_labels_only(make_run):
    runs = [
        make_run(tau=0.1, rho=5, beta=1),
        make_run(tau=0.1, rho=2, beta=1),
        make_run(tau=0.5, rho=2, beta=1),
        make_run("fedavg"),
    ]
    assert [c.group.name for c in as_curves(runs)] == [
        "fuels (tau 0.1, rho 5)",
        "fuels (tau 0.1, rho 2)",
        "fuels (tau 0.5)",
        "fedavg",
    ]


def test_names_say_data_and_service_whenever_there_are_several(make_run):
    runs = [make_run(), make_run("solo", data="x/trentino.nc"), make_run(service="sms")]
    names = [c.group.name for c in as_curves(runs)]
    assert names == ["fuels (milan, internet)", "solo (trentino, internet)", "fuels (milan, sms)"]


def test_names_say_the_path_if_nothing_else_differs(make_run):
    runs = [make_run(data="a/milan.nc"), make_run(data="b/milan.nc")]
    assert [c.group.name for c in as_curves(runs)] == ["fuels (a/milan.nc)", "fuels (b/milan.nc)"]


def test_a_service_named_in_the_settings_or_found_is_the_same(make_run):
    runs = [make_run(), make_run(service="internet", seed=2)]
    runs[0].about["settings"]["service"] = None
    runs[1].about["settings"]["service"] = "internet"
    assert len(as_curves(runs)) == 1


@pytest.mark.repeats
def test_no_two_of_two_dozen_curves_look_alike(make_run):
    curves = as_curves([make_run(str(i)) for i in range(24)])
    assert len({(c.color, c.line["linestyle"]) for c in curves}) == 24


@pytest.mark.parametrize("plot", PLOTS.values(), ids=PLOTS)
def test_no_runs(plot):
    with pytest.raises(InputError, match="no runs"):
        plot([])


COMPARISONS = ("hours", "heatmap", "cells", "critical-difference", "map")
DEMANDING = ("sweep", "intervals", "calibration", *COMPARISONS)
ANY_RUNS = {k: v for k, v in PLOTS.items() if k not in DEMANDING}


@pytest.mark.quick(2)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("plot", ANY_RUNS.values(), ids=ANY_RUNS)
def test_every_plot_draws_one_run_and_two_curves(plot, make_run, tmp_path):
    runs = [make_run(), make_run("fedavg", label="a label as long as a line of text, " * 4)]
    for i in (1, 2):
        fig = plot(runs[:i], width=3.5)
        assert isinstance(fig, Figure)
        assert save_figure(fig, tmp_path / f"{i}.png").stat().st_size > 5000


def test_predictions_draw_observed_and_forecast_in_units(make_run):
    runs = [make_run(units="mph", service="speed"), make_run("solo", units="mph", service="speed")]
    fig = predictions(runs)
    low, high = fig.axes
    times = (START + np.arange(4) * HOUR).tolist()
    assert lines(low) == {
        "observed": [(times, [1, 2, 3, 4])],
        "fuels": [(times, [2, 3, 4, 5])],
        "solo": [(times, [2, 3, 4, 5])],
    }
    assert lines(high)["observed"] == [(times, [50, 60, 70, 80])]
    titles = [ax.get_title(loc="left") for ax in fig.axes]
    assert titles == ["cell 100, lowest mean", "cell 101, highest mean"]
    assert low.get_ylabel() == "speed (mph)"
    assert high.get_xlabel() == "time on the data's clock, 2013"
    assert legend_texts(fig) == ["observed", "fuels", "solo"]
    assert low.lines[0].get_color() == "black"


def test_predictions_of_a_later_step_stand_at_the_time_they_are_for(make_run):
    fig = predictions([make_run()], horizon=2, cells="101")
    assert lines(fig.axes[0])["fuels"] == [
        ((START + np.arange(1, 5) * HOUR).tolist(), [62, 72, 82, 52])
    ]


def test_predictions_of_seeds_share_colour_and_entry(make_run):
    fig = predictions(seeds(make_run, offset=(1.0, 3.0)), cells="100")
    values = [y for _, y in lines(fig.axes[0])["fuels (2 runs)"]]
    assert values == [[2, 3, 4, 5], [4, 5, 6, 7]]
    assert legend_texts(fig) == ["observed", "fuels (2 runs)"]


def test_predictions_leave_gaps_where_nothing_was_observed(make_run):
    y = [[1, np.nan, 3, 4], [np.nan] * 4, [5, 5, 5, 5]]
    fig = predictions([make_run(y=y), make_run("solo", y=y)])
    assert [ax.get_title(loc="left")[:8] for ax in fig.axes] == ["cell 100", "cell 102"]
    ((_, values),) = lines(fig.axes[0])["observed"]
    np.testing.assert_array_equal(values, [1, np.nan, 3, 4])


@pytest.mark.repeats
def test_default_cells_are_spread_over_the_ranks_of_the_mean(make_run):
    means = [[m] * 4 for m in (30, 0, 60, 20, 50, 10, 40)]
    titles = [ax.get_title(loc="left") for ax in predictions([make_run(y=means)]).axes]
    assert titles == [
        "cell 101, lowest mean",
        "cell 103, mean at quantile 0.33",
        "cell 106, mean at quantile 0.67",
        "cell 102, highest mean",
    ]
    (only,) = predictions([make_run(y=[[1, 2, 3]])]).axes
    assert only.get_title(loc="left") == "cell 100"


def test_predictions_draw_the_named_cells_in_order(make_run):
    fig = predictions([make_run()], cells="101, 100")
    assert [ax.get_title(loc="left") for ax in fig.axes] == ["cell 101", "cell 100"]


def test_predictions_of_some_hours(make_run):
    ((times, values),) = lines(predictions([make_run()], hours=2).axes[0])["observed"]
    assert (len(times), values) == (2, [1, 2])


def test_predictions_join_test_parts_that_overlap(make_run):
    later = make_run("solo", y=[[3, 4, 5, 6], [70, 80, 90, 100]], start=START + 2 * HOUR)
    panel = lines(predictions([make_run(), later], cells="100").axes[0])
    assert panel["observed"] == [((START + np.arange(6) * HOUR).tolist(), [1, 2, 3, 4, 5, 6])]
    assert panel["solo"] == [((START + np.arange(2, 6) * HOUR).tolist(), [4, 5, 6, 7])]


@pytest.mark.parametrize(("clock", "label"), [("utc", "time (UTC)"), ("local", "local time")])
def test_predictions_name_the_clock(make_run, clock, label):
    fig = predictions([make_run(attrs={"clock": clock})])
    assert fig.axes[-1].get_xlabel() == f"{label}, 2013"


def test_dates_carry_both_years_at_new_year(make_run):
    fig = predictions([make_run(start=np.datetime64("2013-12-31T22", "ns"))])
    assert fig.axes[-1].get_xlabel().endswith("2013–2014")


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "other",
    [
        {"service": "sms", "y": ((1, 2, 3, 9), (50, 60, 70, 80))},
        {"data": "metr-la.nc", "start": START + 100 * HOUR},
        {"y": ((1, 2, 3, np.nan), (50, 60, 70, 80))},
    ],
)
def test_predictions_refuse_runs_on_other_data(make_run, other):
    with pytest.raises(InputError, match=r"fuels-1 .*data .*fuels-0 "):
        predictions([make_run(), make_run(**other)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cells": "100,7"}, "'7' .*2 .*: 100, 101"),
        ({"horizon": 3}, "3 steps .*1 to 2"),
        ({"hours": 0}, "hours is 0"),
    ],
)
def test_predictions_refuse_what_is_not_there(make_run, options, message):
    with pytest.raises(InputError, match=message):
        predictions([make_run()], **options)


def test_predictions_refuse_a_cell_that_one_run_lacks(make_run):
    smaller = make_run("solo", y=[[1, 2, 3, 4]], folder="solo")
    with pytest.raises(InputError, match=r"solo: .*101"):
        predictions([make_run(), smaller])


@pytest.mark.parametrize(
    ("y", "message"), [([[np.nan] * 4], "nothing was observed"), ([[1.0]], "single test window")]
)
def test_predictions_refuse_what_makes_no_line(make_run, y, message):
    with pytest.raises(InputError, match=message):
        predictions([make_run(y=y)])


def test_cdf_rises_by_one_client_at_each_error(make_run):
    fig = cdf([make_run(errors=(4.0, 1.0, 2.0, 3.5))])
    (ax,) = fig.axes
    label = "fuels: median 2.75, mean 2.62"
    assert lines(ax) == {label: [([0, 1, 2, 3.5, 4], [0, 0.25, 0.5, 0.75, 1])]}
    assert ax.lines[0].get_xydata().tolist() == [[2.75, 0.5]]
    assert ax.lines[1].get_drawstyle() == "steps-post"
    assert ax.get_xlim()[0] == 0
    assert (ax.get_xlabel(), ax.get_ylabel()) == (
        "test MSE of z-scores, per client",
        "share of clients",
    )
    assert legend_texts(fig) == [label]


def test_the_area_left_of_a_cdf_is_the_mean_error(make_run):
    (ax,) = cdf([make_run(errors=(4.0, 1.0, 2.0, 3.5))]).axes
    ((x, y),) = lines(ax).popitem()[1]
    assert np.dot(1 - np.array(y[:-1]), np.diff(x)) == pytest.approx(10.5 / 4)


def test_cdf_pools_the_clients_of_seeds(make_run):
    (ax,) = cdf(seeds(make_run, errors=((1.0, 3.0), (2.0, 6.0)))).axes
    assert lines(ax) == {
        "fuels (2 runs): median 2.5, mean 3": [([0, 1, 2, 3, 6], [0, 0.25, 0.5, 0.75, 1])]
    }


def test_cdf_reports_clients_without_an_error(make_run):
    (ax,) = cdf([make_run(errors=(1.0, np.nan, 3.0)), make_run("solo", errors=(np.inf,) * 3)]).axes
    assert lines(ax) == {
        "fuels: median 2, mean 2 (1 of 3 clients have no finite error)": [([0, 1, 3], [0, 0.5, 1])],
        "solo (3 of 3 clients have no finite error)": [([0], [0])],
    }


def test_cdf_of_no_error_at_all(make_run):
    with pytest.raises(InputError, match=r"no .*mse"):
        cdf([make_run(errors=(np.nan, np.nan))])


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("mse", "MSE of z-scores"),
        ("raw_mae", "MAE of speed (mph)"),
        ("raw_mse", "MSE of speed (mph²)"),
        ("raw_wape", "WAPE (share)"),
    ],
)
def test_errors_are_labelled_with_their_units(make_run, metric, label):
    (ax,) = cdf([make_run(units="mph", service="speed")], metric=metric).axes
    assert ax.get_xlabel() == f"test {label}, per client"


def test_units_that_differ_are_not_named(make_run):
    runs = [make_run(), make_run(units="mph", service="speed", data="metr-la.nc")]
    (ax,) = cdf(runs, metric="raw_mae").axes
    assert ax.get_xlabel() == "test MAE of traffic (own units), per client"
    assert lines(ax).keys() == {
        "fuels (milan, internet): median 2, mean 2",
        "fuels (metr-la, speed): median 2, mean 2",
    }


@pytest.mark.parametrize("plot", [cdf, horizon])
def test_an_unknown_metric_is_refused_with_the_known_ones(make_run, plot):
    with pytest.raises(InputError, match=r"fuels-0: .*'mea'; .*: mse, raw_mae"):
        plot([make_run()], metric="mea")


def test_errors_are_of_the_selection_in_the_settings(make_run):
    (ax,) = cdf([make_run(select="last")]).axes
    ((x, _),) = lines(ax).popitem()[1]
    assert x == [0, 99, 99]


def test_communication_adds_up_bytes_of_both_ways(make_run):
    fig = communication([make_run()])
    (ax,) = fig.axes
    assert lines(ax) == {"fuels": [([50, 200, 350], [3, 2, 1])]}
    assert ax.get_xscale() == "log"
    assert ax.get_ylabel() == "training MSE of z-scores"
    assert note(fig) == ""


def test_bytes_have_human_units(make_run):
    (ax,) = communication([make_run(history=ROUNDS * [1, 1, 1, 1, 5e6, 5e6, 1, 1])]).axes
    texts = [ax.xaxis.get_major_formatter()(v) for v in (500, 2e4, 5e6, 1e9)]
    assert texts == ["500 B", "20 kB", "5 MB", "1 GB"]


def test_each_panel_of_bytes_has_ticks_for_what_it_shows(make_run):
    """Losses of two kinds have a panel each, and bytes may differ by orders of magnitude."""
    far = make_run("a", history=ROUNDS * [1, 1, 1, 1, 1e6, 1e6, 1, 1])
    near = make_run("b", loss="huber", history=ROUNDS * [1, 1, 1, 1, 1, 1, 1, 1])
    for ax in communication([make_run("c"), far, near]).axes:
        low, high = ax.get_xlim()
        assert sum(low <= tick <= high for tick in ax.get_xticks()) >= 2


def test_methods_that_send_nothing_are_level_lines(make_run):
    silent = ROUNDS.assign(bytes_down=0, bytes_up=0)
    (ax,) = communication([make_run(), make_run("solo", history=silent)]).axes
    assert lines(ax)["solo, sends nothing"] == [([0, 1], [1, 1])]


def test_runs_without_rounds_are_named(make_run):
    runs = [
        make_run("ridge", history=ROUNDS[:0]),
        make_run(),
        make_run("boost", history=ROUNDS[:0]),
    ]
    expected = "Not drawn, as they have no training loss: ridge, boost"
    fig = communication(runs)
    assert note(fig) == expected
    assert legend_texts(fig) == ["fuels"]
    assert note(rounds(runs)) == expected.replace("training", "training or validation")
    assert fig.axes[0].lines[0].get_color() == as_curves(runs)[1].color


def test_a_seed_without_a_finite_loss_is_named(make_run):
    runs = seeds(make_run, history=(ROUNDS, ROUNDS.assign(train_task_loss=np.nan)))
    assert note(communication(runs)) == "Not drawn, as they have no training loss: fuels (seed 2)"


def test_communication_needs_a_run_that_sends(make_run):
    with pytest.raises(InputError, match="a training loss"):
        communication([make_run(history=ROUNDS[:0]), make_run("solo", history=ROUNDS[:0])])


def test_rounds_draw_both_losses_of_every_seed(make_run):
    fig = rounds(seeds(make_run, history=(ROUNDS, ROUNDS[:2])))
    training, validation = fig.axes
    assert lines(training) == {"fuels (2 runs)": [([1, 2, 3], [3, 2, 1]), ([1, 2], [3, 2])]}
    assert lines(validation) == {"fuels (2 runs)": [([1, 2, 3], [4, 3, 2.5]), ([1, 2], [4, 3])]}
    assert validation.get_ylabel() == "validation MSE of z-scores"
    assert validation.get_xlabel() == "round"
    assert legend_texts(fig) == ["fuels (2 runs)"]


def test_rounds_without_a_validation_part_are_one_panel(make_run):
    fig = rounds([make_run(history=ROUNDS.assign(validation_loss=np.nan))])
    assert [ax.get_ylabel() for ax in fig.axes] == ["training MSE of z-scores"]
    assert note(fig) == "Not drawn, as they have no validation loss: fuels"


def test_a_single_round_is_numbered_in_whole_numbers(make_run):
    fig = rounds([make_run(history=ROUNDS[:1])])
    assert fig.axes[0].get_xticks().tolist() == [0, 1, 2]


def test_rounds_need_rounds(make_run):
    with pytest.raises(InputError, match="has rounds"):
        rounds([make_run(history=ROUNDS[:0])])


@pytest.mark.parametrize(("n", "scale"), [(40, "linear"), (41, "log")])
def test_many_more_rounds_than_others_stand_on_a_logarithmic_axis(make_run, n, scale):
    some = [make_run(label=str(k), history=pd.concat([ROUNDS[:1]] * k)) for k in (2, n)]
    assert {ax.get_xscale() for ax in PLOTS["rounds"](some).axes} == {scale}


def test_horizon_draws_the_pooled_error_of_each_step(make_run):
    fig = horizon([make_run(by_step=(1.0, 2.0, 4.0)), make_run("solo", by_step=(3.0,))])
    (ax,) = fig.axes
    assert [line.get_xydata().tolist() for line in ax.lines] == [[[1, 1], [2, 2], [3, 4]], [[1, 3]]]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("steps ahead", "test MAE of internet")
    assert legend_texts(fig) == ["fuels", "solo"]


def test_horizon_of_seeds_is_a_mean_between_whiskers(make_run):
    (ax,) = horizon(seeds(make_run, by_step=((1.0, 2.0), (3.0, 8.0)))).axes
    (mean,) = ax.lines
    assert mean.get_xydata().tolist() == [[1, 2], [2, 5]]
    (whiskers,) = ax.collections
    assert [s.tolist() for s in whiskers.get_segments()] == [[[1, 1], [1, 3]], [[2, 2], [2, 8]]]


@pytest.mark.repeats
def test_horizon_of_seeds_that_are_equal_has_whiskers_of_no_length(make_run):
    errors = (0.7, 0.1)  # The mean of three times each is off by its rounding.
    (ax,) = horizon([make_run(seed=s, by_step=errors) for s in (1, 2, 3)]).axes
    (whiskers,) = ax.collections
    np.testing.assert_allclose([np.ptp(s[:, 1]) for s in whiskers.get_segments()], 0, atol=1e-15)


@pytest.mark.repeats
def test_horizon_names_curves_with_a_step_that_has_no_error(make_run):
    fig = horizon(seeds(make_run, by_step=((1.0, np.nan), (3.0, 8.0))))
    np.testing.assert_array_equal(fig.axes[0].lines[0].get_ydata(), [2, np.nan])
    assert legend_texts(fig) == ["fuels (2 runs), not finite everywhere"]


@pytest.mark.repeats
def test_one_step_ahead_is_a_bar_for_each_curve(make_run):
    runs = [*seeds(make_run, by_step=((2.0,), (4.0,))), make_run("solo", by_step=(5.0,))]
    (ax,) = horizon(runs).axes
    assert [bar.get_width() for bar in ax.patches] == [3, 5]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["fuels (2 runs)", "solo"]
    assert ax.get_xlabel() == "test MAE of internet"
    assert [text.get_text() for text in ax.texts] == ["3", "5"]
    assert ax.yaxis_inverted()


@pytest.mark.repeats
@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [3.5, 7.16])
@pytest.mark.parametrize("n_runs", [1, 4, 6])
def test_the_legend_fits_and_the_panels_keep_their_height(make_run, width, n_runs):
    labels = ["a method with quite a long label", *"bcdefg", "words " * 20]
    fig = rounds([make_run(m, label=m) for m in labels[-n_runs:]], width=width)
    fig.draw_without_rendering()
    box = fig.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= fig.bbox.width
    for ax in fig.axes:
        assert 1.3 < ax.get_window_extent().height / fig.dpi < 2.0
        assert ax.get_tightbbox().y0 > box.y1 - 1


@pytest.mark.parametrize(
    ("name", "start"), [("f.png", b"\x89PNG"), ("a/f.pdf", b"%PDF"), ("f.SVG", b"<?xml")]
)
def test_a_figure_is_written_in_the_format_of_its_extension(make_run, tmp_path, name, start):
    path = save_figure(cdf([make_run()]), tmp_path / name)
    content = path.read_bytes()
    assert content.startswith(start)
    assert b"/Type3" not in content


def test_a_png_has_200_dots_an_inch(make_run, tmp_path):
    path = save_figure(cdf([make_run()], width=3.5), tmp_path / "f.png")
    assert int.from_bytes(path.read_bytes()[16:20], "big") == 700


@pytest.mark.parametrize(
    ("name", "found"), [("f.jpeg", "extension '.jpeg'"), ("figure", "no extension")]
)
def test_other_extensions_are_refused_with_the_known_ones(make_run, tmp_path, name, found):
    with pytest.raises(InputError, match=rf"{name}: {found}, .* \.pdf, \.png, \.svg"):
        save_figure(cdf([make_run()]), tmp_path / name)


def test_a_figure_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "f.png"
    path.write_bytes(b"old")
    fig = Figure()
    fig.text(0.5, 0.5, r"$\nonsense$")
    with pytest.raises(ValueError, match="nonsense"):
        save_figure(fig, path)
    assert [p.name for p in tmp_path.iterdir()] == ["f.png"]
    assert path.read_bytes() == b"old"


@pytest.mark.repeats
def test_a_training_loss_that_is_no_mse_is_not_called_one(make_run):
    runs = [make_run("fuels"), make_run("fedlean", loss="huber")]
    fig = PLOTS["rounds"](runs)
    labels = [ax.get_ylabel() for ax in fig.axes]
    kinds = ["training MSE of z-scores", "training Huber loss of z-scores"]
    assert [label.replace("\n", " ") for label in labels] == [*kinds, "validation MSE of z-scores"]
    assert len(communication(runs).axes) == 2


@pytest.mark.repeats
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["communication", "rounds"])
@pytest.mark.parametrize("width", [3.5, 7.16])
def test_labels_of_losses_are_not_cut_with_many_methods(make_run, name, width):
    losses = ["mse", "huber", "mae"]
    runs = [make_run(f"method {i}", loss=losses[i % 3]) for i in range(9)]
    fig = PLOTS[name](runs, width=width)
    fig.draw_without_rendering()
    for ax in fig.axes:
        box = ax.yaxis.label.get_window_extent()
        assert box.y0 >= fig.legends[0].get_window_extent().y1
        assert box.y1 <= fig.bbox.y1


@pytest.mark.repeats
def test_more_than_six_methods_have_a_panel_each(make_run):
    runs = [make_run(name, offset=7.0 - i) for i, name in enumerate("abcdefg")]
    assert len(predictions(runs[:6]).axes) == 2
    fig = predictions(runs)
    titles = [ax.get_title(loc="left") for ax in fig.axes]
    assert titles == [f"{name}: MAE {i + 1}" for i, name in enumerate("gfedcba")]
    with pytest.raises(InputError, match=r"7 methods .*one"):
        predictions(runs, cells="100,101")


@pytest.mark.quick(2)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["cdf", "horizon", "rounds", "communication"])
def test_small_multiples_draw_one_method_in_colour_and_the_others_in_grey(make_run, name):
    runs = [make_run(f"method {i}") for i in range(7)]
    fig = PLOTS[name](runs, width=7.16)
    assert len(fig.axes) == 7
    for ax in fig.axes:
        colours = [line.get_color() for line in ax.lines if len(line.get_xdata()) > 1]
        assert colours.count("0.75") == 6
        assert len(set(colours)) == 2


def test_others_than_the_highlighted_are_grey(tested):
    y = np.zeros((2, 4, 1))
    runs = [tested(name, y + error, y) for name, error in (("b", 1), ("c", 2))]
    fig = cdf(runs, highlight="c")
    labels = fig.axes[0].get_legend_handles_labels()[1]
    assert [label[0] for label in labels] == ["b", "c"]
    assert [line.get_color() for line in fig.axes[0].lines if len(line.get_xdata()) > 1] == [
        "0.75", as_curves(runs)[1].color,
    ]  # fmt: skip
    with pytest.raises(InputError, match="highlight 'd'"):
        cdf(runs, highlight="d")


@pytest.mark.parametrize("named", ["ours, tuned", "b, ours, tuned", "ours, tuned,b"])
def test_a_highlighted_name_may_have_a_comma(make_run, named):
    fig = cdf([make_run(name) for name in ("ours, tuned", "b", "c")], highlight=named)
    colours = [line.get_color() for line in fig.axes[0].lines if len(line.get_xdata()) > 1]
    assert colours.count("0.75") == (1 if "b" in named else 2)


def test_figures_are_drawn_on_given_axes(make_run):
    """A figure of one panel uses the axes; one of several divides their place."""
    from matplotlib.figure import Figure

    own = Figure()
    left, right = own.subplots(1, 2)
    assert PLOTS["bars"](make_run("a"), ax=left) is own
    assert left.get_xlabel().startswith("test MSE")
    rounds([make_run("b")], ax=right)
    assert len(own.axes) == 3
    assert own.axes[1].get_ylabel() == "training MSE of z-scores"


@pytest.mark.repeats
def test_figures_take_forecasters_and_folders(make_run):
    times = pd.date_range("2024-01-01", periods=240, freq="h")
    data = pd.DataFrame({"a": np.arange(240) % 24 + np.arange(240) % 7}, times)
    forecaster = Forecaster("last_value", split="days:7,1,2").fit(data)
    fig = cdf({"fitted": forecaster, "run": make_run("a").folder})
    labels = fig.axes[0].get_legend_handles_labels()[1]
    assert sorted(label.split(" ")[0].split(":")[0] for label in labels) == ["fitted", "run"]
    assert len(stforecast.plots.predictions(forecaster).axes) == 1
    for thing in (3, forecaster.evaluate()):
        with pytest.raises(InputError, match="a fitted forecaster"):
            cdf([thing])


def test_a_span_of_local_time_is_drawn(make_run):
    """Times are UTC, one hour behind Rome in winter."""
    run = make_run(attrs={"clock": "utc", "time_zone": "Europe/Rome"})
    fig = predictions([run], start="2013-11-25 02:00", end="2013-11-25 04:00")
    drawn = fig.axes[0].lines[0].get_xdata()
    assert drawn.tolist() == [START + HOUR, START + 2 * HOUR] or len(drawn) == 2
    with pytest.raises(InputError, match="no target"):
        predictions([run], start="2014-01-01")
    with pytest.raises(InputError, match="time 'noon'"):
        predictions([run], end="noon")


@pytest.mark.repeats
def test_predictions_name_the_time_ahead(make_run):
    run = make_run()
    assert note(predictions([run], horizon=2)) == "step 2 ahead"
    run.about["step_minutes"] = 15.0
    assert note(predictions([run], horizon=2)) == "30 min ahead"


def test_ticks_are_in_local_time_where_the_zone_is_known(make_run):
    attrs = {"clock": "utc", "time_zone": "Europe/Rome"}
    (ax, _) = predictions([make_run(attrs=attrs, start=START + 21 * HOUR)]).axes
    ax.figure.draw_without_rendering()
    assert ax.figure.axes[-1].get_xlabel() == "local time (Europe/Rome), 2013"
    ticks = [text.get_text() for text in ax.figure.axes[-1].get_xticklabels()]
    # From 21:00 to 24:00 UTC is 22:00 to 01:00 in Rome.
    assert "26 Nov" in ticks
    assert ticks.index("26 Nov") == ticks.index("23:00") + (2 if "23:30" in ticks else 1)


NO_FORMULA = r"$\frac{1$ and $x$"


@pytest.mark.quick(2)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["cdf", "communication", "horizon", "predictions", "rounds"])
def test_texts_of_users_are_no_formulas(make_run, tmp_path, name):
    names = {"label": NO_FORMULA, "service": NO_FORMULA, "units": NO_FORMULA}
    fig = PLOTS[name]([make_run(**names), make_run("fedavg", **names)])
    save_figure(fig, tmp_path / "figure.svg")
    drawn = [text for text in fig.findobj(Text) if NO_FORMULA in text.get_text()]
    assert drawn
    assert not any(text.get_parse_math() for text in drawn)


@pytest.mark.repeats
def test_powers_of_ten_stay_formulas(tmp_path):
    fig, (ax,) = panels(3, 2)
    ax.plot([1, 1000])
    ax.set_yscale("log")
    save_figure(fig, tmp_path / "figure.svg")
    assert all(label.get_parse_math() for label in ax.get_yticklabels())
    assert not ax.xaxis.label.get_parse_math()


def test_a_function_that_returns_no_figure_is_refused(tmp_path):
    with pytest.raises(InputError, match="found NoneType, expected a figure"):
        save_figure(None, tmp_path / "a.png")
