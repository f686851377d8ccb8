"""Figures of errors by variant and by setting, read back from their axes."""

import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from data_prep.base.errors import InputError
from stforecast.bench.curves import as_curves
from stforecast.bench.drawing import save_figure
from stforecast.federated.runs.run_folder import write_csv
from stforecast.forecasting.results import METRIC_COLUMNS, ForecastRun
from stforecast.plots import PLOTS

bars, sweep = PLOTS["bars"], PLOTS["sweep"]


@pytest.fixture
def make_run(tmp_path):
    """Writes a run folder without training: `error` on test by `best`, ten times as much by `last`,
    a hundred times as much everywhere else."""

    def make(error=1.0, method="fuels", label=None, **settings):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        out.mkdir()
        about = {
            "settings": {"method": method, "select": "best", "seed": 1, **settings},
            "data": "milan.nc",
            "service": "internet",
            "units": "1",
            "lines": {},
        }
        (out / "run.json").write_text(json.dumps(about | ({"label": label} if label else {})))
        rows = [
            (client, horizon, split, selection, metric)
            for client in ("7", "all")
            for horizon in ("1", "all")
            for split in ("validation", "test")
            for selection in ("last", "best")
            for metric in ("mse", "mae")
        ]
        table = pd.DataFrame(rows, columns=["client", "horizon", "split", "selection", "metric"])
        values = {
            ("all", "all", "test", "best", "mse"): error,
            ("all", "all", "test", "last", "mse"): 10 * error,
        }
        table["value"] = [values.get(row, 100 * error) for row in rows]
        write_csv(table.reindex(columns=list(METRIC_COLUMNS)), out / "metrics.csv")
        return ForecastRun.open(out)

    return make


def texts(ax):
    return [text.get_text() for text in ax.texts]


def legend_texts(fig):
    return [text.get_text() for text in fig.legends[0].get_texts()]


def line(ax, label):
    (found,) = [one for one in ax.lines if one.get_label() == label]
    return found


def band(ax, place=0):
    """Low and high edge of a band by x."""
    corners = ax.collections[place].get_paths()[0].vertices
    edges = pd.DataFrame(corners, columns=["x", "y"]).groupby("x")["y"]
    return {x: (low, high) for x, low, high in zip(*_columns(edges), strict=True)}


def _columns(edges):
    low, high = edges.min(), edges.max()
    return low.index, low, high


def test_bars_are_means_with_the_lowest_on_top(make_run):
    runs = [make_run(5.0, label="w/o W", seed=s) for s in (1, 2)]
    runs += [make_run(e, seed=i) for i, e in enumerate((1.0, 2.0, 6.0))]
    runs[1].about["settings"]["device"] = "cuda"
    (ax,) = bars(runs).axes
    assert [bar.get_width() for bar in ax.patches] == [3, 5]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["fuels (3 runs)", "w/o W (2 runs)"]
    assert [to_hex(bar.get_facecolor()) for bar in ax.patches] == [
        curve.color for curve in reversed(as_curves(runs))
    ]
    assert ax.yaxis_inverted()
    assert ax.get_xlim()[0] == 0


def test_whiskers_are_one_standard_deviation_of_a_sample(make_run):
    errors = [0.1, 0.2, 0.6]
    runs = [make_run(e, seed=i) for i, e in enumerate(errors)]
    (ax,) = bars([*runs, make_run(0.5, "solo")]).axes
    (whiskers,) = ax.collections
    (((low, _), (high, _)),) = whiskers.get_segments()
    spread = pd.Series(errors).std()
    assert [low, high] == pytest.approx([0.3 - spread, 0.3 + spread])
    assert texts(ax) == ["0.300 ± 0.265", "0.500"]
    assert ax.get_xlabel() == "test MSE of z-scores\n(mean ± std over seeds)"


def test_single_runs_have_no_whiskers_and_do_not_mention_seeds(make_run):
    (ax,) = bars([make_run(2.0)]).axes
    assert not len(ax.collections)
    assert (texts(ax), ax.get_xlabel()) == (["2.00"], "test MSE of z-scores")


def test_bars_of_another_metric_or_kept_model(make_run):
    (ax,) = bars([make_run(2.0)], metric="mae").axes
    assert [bar.get_width() for bar in ax.patches] == [200]
    (ax,) = bars([make_run(2.0, select="last")]).axes
    assert [bar.get_width() for bar in ax.patches] == [20]


@pytest.mark.parametrize(
    ("reference", "x", "label"), [("fuels", 2.5, "fuels: 2.5"), ("0.88", 0.88, "0.88")]
)
def test_a_reference_is_a_bar_or_a_number(make_run, reference, x, label):
    fig = bars(
        [make_run(2.0, seed=1), make_run(3.0, seed=2), make_run(4.0, "solo")], reference=reference
    )
    assert line(fig.axes[0], label).get_xdata() == [x, x]
    assert legend_texts(fig) == [label]


def test_a_bar_without_a_finite_error_says_so(make_run):
    runs = [make_run(np.nan, seed=1), make_run(3.0, seed=2), make_run(4.0, "solo")]
    assert texts(bars(runs).axes[0]) == ["4.00", "not finite"]
    with pytest.raises(InputError, match=r"reference 'fuels' .* finite"):
        bars(runs, reference="fuels")
    with pytest.raises(InputError, match="a finite mse"):
        bars(runs[:2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "mea"}, "'mea'; .*: mae, mse"),
        ({"reference": "solo"}, "'solo' .*: fuels"),
        ({"reference": "nan"}, "'nan' .*finite"),
    ],
)
def test_bars_refuse_what_is_not_there(make_run, options, message):
    with pytest.raises(InputError, match=message):
        bars([make_run()], **options)


def test_a_sweep_is_a_mean_in_a_band_over_seeds(make_run):
    runs = [
        make_run(e, tau=tau, seed=seed)
        for tau, errors in {0.1: (4.0, 6.0), 0.02: (1.0, 2.0)}.items()
        for seed, e in enumerate(errors)
    ]
    fig = sweep(runs)
    (ax,) = fig.axes
    assert line(ax, "fuels").get_xydata().tolist() == [[0.02, 1.5], [0.1, 5]]
    spread = np.sqrt(0.5)
    assert band(ax) == {
        0.02: pytest.approx((1.5 - spread, 1.5 + spread)),
        0.1: pytest.approx((5 - 2 * spread, 5 + 2 * spread)),
    }
    assert ax.get_xlabel() == "tau"
    assert ax.get_ylabel() == "test MSE of z-scores\n(mean ± std over seeds)"
    assert ax.get_xscale() == "linear"


def test_the_default_is_marked_where_it_lies_among_the_values(make_run):
    fig = sweep([make_run(tau=t) for t in (0.01, 0.1)])
    assert line(fig.axes[0], "default: 0.02").get_xdata() == [0.02, 0.02]
    fig = sweep([make_run(tau=t) for t in (0.1, 0.5)])
    assert legend_texts(fig) == ["fuels"]
    assert fig.legends[0].get_title().get_text() == "Default, not in this range: 0.02"


def test_defaults_of_model_and_training_are_known(make_run):
    fig = sweep([make_run(hidden_size=h) for h in (64, 256)])
    assert legend_texts(fig) == ["fuels", "default: 128"]
    fig = sweep([make_run(participation=p) for p in (0.5, 1.0)])
    assert legend_texts(fig) == ["fuels", "default: 1"]


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ((0.02, 2.0), "linear"),
        ((0.02, 2.1), "log"),
        ((0.0, 1.0), "linear"),
        ((0.0, 0.01, 5.0), "symlog"),
        ((-5.0, 0.01), "symlog"),
    ],
)
def test_values_over_more_than_two_decades_are_on_a_logarithmic_axis(make_run, values, scale):
    (ax,) = sweep([make_run(rho=v) for v in values]).axes
    assert ax.get_xscale() == scale
    if scale != "linear":
        assert ax.get_xticks().tolist() == list(values)


def test_each_method_is_a_line_whatever_its_label(make_run):
    runs = [make_run(t, tau=t, label=f"tau {t}") for t in (1.0, 2.0)]
    runs += [make_run(3 * t, tau=t, inter=False) for t in (1.0, 2.0)]
    runs += [make_run(7.0, "solo", label="alone")]
    runs[0].about["settings"]["inter"] = runs[1].about["settings"]["inter"] = True
    fig = sweep(runs, setting="tau")
    (ax,) = fig.axes
    assert line(ax, "fuels (inter True)").get_xydata().tolist() == [[1, 1], [2, 2]]
    assert line(ax, "fuels (inter False)").get_xydata().tolist() == [[1, 3], [2, 6]]
    assert list(line(ax, "solo, has no tau").get_ydata()) == [7, 7]


def test_a_value_without_a_finite_error_is_a_gap_that_the_legend_names(make_run):
    fig = sweep([make_run(t, tau=x) for t, x in ((1.0, 0.1), (np.nan, 0.2), (3.0, 0.3))])
    y = line(fig.axes[0], "fuels, not finite everywhere").get_ydata()
    np.testing.assert_array_equal(y, [1, np.nan, 3])


@pytest.mark.parametrize(
    ("one", "other", "setting", "message"),
    [
        ({"tau": 1.0}, {"tau": 1.0}, None, "no number"),
        ({"tau": 1.0, "rho": 1.0}, {"tau": 2.0, "rho": 2.0}, None, "tau, rho;"),
        ({"tau": 1.0, "rho": 1.0}, {"tau": 2.0, "rho": 2.0}, "tau", "no .*tau"),
        ({"tau": 1.0}, {"tau": 1.0}, "tau", "no .*tau"),
        ({"tau": 1.0}, {"tau": 2.0}, "tua", "'tua'; .*tau"),
        ({"split": "fuels"}, {"split": "fedda"}, "split", "split is 'fuels'"),
        ({"inter": True}, {"inter": False}, "inter", "inter is True"),
        ({"seed": 1}, {"seed": 2}, "seed", "seed is 1"),
        ({"tau": 1.0}, {}, "tau", "lacks .*fuels"),
    ],
)
def test_a_sweep_refuses_runs_that_make_no_line(make_run, one, other, setting, message):
    with pytest.raises(InputError, match=message):
        sweep([make_run(**one), make_run(**other)], setting=setting)


@pytest.mark.quick(2)
@pytest.mark.parametrize("width", [3.5, 7.16])
def test_labels_lie_inside_the_figure(make_run, tmp_path, width):
    runs = [make_run(1.0, tau=t, seed=s) for t in (0.02, 0.1) for s in (1, 2)]
    for fig in (bars(runs, reference="1", width=width), sweep(runs, width=width)):
        assert save_figure(fig, tmp_path / "f.png").stat().st_size > 5000
        (ax,) = fig.axes
        box = ax.get_tightbbox()
        assert box.x0 >= -1
        assert box.x1 <= fig.bbox.width + 1
        assert box.y1 <= fig.bbox.height + 1
