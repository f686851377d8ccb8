"""Figures of what is inside a run of FUELS, against scipy and small matrices."""

import json
import shutil

import numpy as np
import pytest
from matplotlib.colors import to_hex
from safetensors.numpy import load_file, save_file
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax
from scipy.stats import spearmanr

import stforecast.forecasting.runs
from data_prep.base.errors import InputError
from data_prep.cube import write_cube
from stforecast.bench.drawing import panels
from stforecast.forecasting.results import ForecastRun
from stforecast.plots import PLOTS
from stforecast.plots.fuels import Divergences, _cluster_order, _draw, _verdict

divergence, draw_filter = PLOTS["divergence"], PLOTS["filter"]


@pytest.fixture(scope="module")
def trained(cube, tiny, tmp_path_factory):
    """A folder with a cube and a run of FUELS on it."""
    folder = tmp_path_factory.mktemp("fuels")
    path = write_cube(cube, folder / "town.nc")
    stforecast.forecasting.runs.run("fuels", path, folder / "run", {**tiny, "service": "internet"})
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run that a test may change, on a copy of the data."""
    folder = shutil.copytree(trained, tmp_path / "copy")
    path = folder / "run" / "run.json"
    data = str(folder / "town.nc")
    about = json.loads(path.read_text()) | {"data": data, "data_path": data}
    path.write_text(json.dumps(about))
    return ForecastRun.open(folder / "run")


def arrays(run):
    return load_file(run.folder / "model" / "state.safetensors")


def jsd(distributions):
    """By scipy, of all pairs of rows: nats a value."""
    p = [softmax(row.astype(float)) for row in distributions]
    return np.array([[jensenshannon(a, b) ** 2 / len(a) for b in p] for a in p])


def training_part(table):
    """z-scores `(steps, cells)` of the first seven days of the small town, without the package."""
    values = table.to_numpy()[: 7 * 24].copy()
    values[100, 1] = np.nan
    z = (values - np.nanmean(values, axis=0)) / np.nanstd(values, axis=0)
    return np.where(np.isnan(z), 0.0, z)


def pictures(fig):
    return [np.asarray(ax.images[0].get_array()) for ax in fig.axes[:2]]


def test_divergences_of_prototypes_and_data_are_scipys(run, table):
    prototypes, data = pictures(divergence([run], clients="11,22,33"))
    expected = jsd(arrays(run)["server/prototypes"].reshape(3, -1))
    np.testing.assert_allclose(prototypes, expected, rtol=1e-4, atol=1e-13)
    assert prototypes.max() > 1e-9
    np.testing.assert_allclose(data, jsd(training_part(table).T), rtol=1e-5, atol=1e-12)
    assert data.max() > 1e-6


@pytest.mark.repeats
def test_the_title_compares_all_pairs_even_if_some_are_drawn(run, table):
    a, b = (
        values[np.triu_indices(3, 1)] for values in pictures(divergence([run], clients="11,22,33"))
    )
    assert np.ptp(b) > 0
    rho = spearmanr(a, b).statistic
    same = np.mean((a <= np.median(a)) == (b <= np.median(b)))
    fig = divergence([run], clients="11,33")
    assert fig.get_suptitle() == (
        f"3 pairs: rank correlation (Spearman) {rho:.2f},\n{same:.0%} on the same side of both "
        "thresholds"
    )
    assert pictures(fig)[0].shape == (2, 2)


def test_colours_part_at_the_threshold(run):
    fig = divergence([run])
    saved = arrays(run)["server/threshold"].item()
    centres = [ax.images[0].norm.vcenter for ax in fig.axes[:2]]
    data = pictures(fig)[1]
    assert centres == pytest.approx([saved, np.median(data[np.triu_indices(3, 1)])])


def test_the_threshold_of_the_data_is_the_runs_quantile(run):
    run.about["settings"]["beta"] = 1.0
    fig = divergence([run])
    assert fig.axes[1].images[0].norm.vcenter == pytest.approx(pictures(fig)[1].max())


def test_both_panels_have_the_same_clients_in_the_order_given(run):
    fig = divergence([run], clients="33, 11")
    for ax in fig.axes[:2]:
        assert [t.get_text() for t in ax.get_xticklabels()] == ["33", "11"]
        assert [t.get_text() for t in ax.get_yticklabels()] == ["33", "11"]
    whole = pictures(divergence([run], clients="11,22,33"))
    for small, large in zip(pictures(fig), whole, strict=True):
        assert small[0, 1] == large[2, 0]


def test_by_default_clients_that_are_alike_stand_together():
    group = np.array([0, 1, 2, 1, 0, 2, 0])
    values = np.where(group[:, None] == group, 0.1, 1.0) + 0.01 * np.abs(group[:, None] - group)
    np.fill_diagonal(values, 0)
    order = _cluster_order(values)
    assert sorted(order) == list(range(7))
    assert np.count_nonzero(np.diff(group[order])) == 2


def test_the_verdict_by_hand():
    a = np.zeros((4, 4))
    a[np.triu_indices(4, 1)] = [1, 2, 3, 4, 5, 6]
    b = np.zeros((4, 4))
    b[np.triu_indices(4, 1)] = [2, 1, 30, 4, 50, 60]
    one, other = Divergences("a", a, 3), Divergences("b", b, 4)
    expected = f"{spearmanr([1, 2, 3, 4, 5, 6], [2, 1, 5, 3, 6, 7]).statistic:.2f}"
    text = _verdict(one, other)
    assert text == (
        f"6 pairs: rank correlation (Spearman) {expected},\n67% on the same side of both thresholds"
    )
    assert "undefined" in _verdict(one, Divergences("c", np.zeros((4, 4)), 0))


@pytest.mark.parametrize("threshold", [0.0, pytest.param(1e-9, marks=pytest.mark.repeats), 2.0])
def test_any_threshold_can_be_drawn(threshold):
    fig, (ax,) = panels(3.5, 2)
    _draw(fig, ax, Divergences("a", np.array([[0.0, 2.0], [2.0, 0.0]]), threshold), [0, 1])
    fig.draw_without_rendering()
    assert ax.images[0].norm(threshold) == pytest.approx(0.5)


@pytest.mark.repeats
@pytest.mark.parametrize("width", [3.5, 7.16])
def test_titles_do_not_overlap(run, width):
    for fig in (divergence([run], width=width), draw_filter([run], width=width)):
        fig.draw_without_rendering()
        titles = [ax.title.get_window_extent() for ax in fig.axes if ax.get_title()]
        top = fig.bbox.height
        if width < 4 and fig.get_suptitle():
            top = fig._suptitle.get_window_extent().y0
        assert all(box.y1 <= top for box in titles)


@pytest.mark.parametrize("plot", [divergence, draw_filter])
@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"method": "fedavg"}, "a run of fedavg; this figure needs one of fuels"),
        ({"inter": False, "intra": False}, "int(er|ra) is False; this figure needs a run with"),
    ],
)
def test_runs_that_lack_what_is_drawn(run, plot, about, message):
    run.about["settings"].update(about)
    with pytest.raises(InputError, match=message):
        plot([run])


@pytest.mark.parametrize("plot", [divergence, draw_filter])
def test_several_runs_are_refused_and_one_given_twice_is_not(run, trained, plot):
    plot([run, run])
    with pytest.raises(InputError, match="is of one run, 2 were given"):
        plot([run, ForecastRun.open(trained / "run")])


@pytest.mark.parametrize("plot", [divergence, draw_filter])
@pytest.mark.parametrize("name", ["state.safetensors", "forecaster.json"])
@pytest.mark.parametrize("content", [None, b"", b"{}"])
def test_a_model_that_cannot_be_read(run, plot, name, content):
    path = run.folder / "model" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"model: cannot be read .* needs the model that the run"):
        plot([run])


def test_unknown_clients_are_refused(run):
    with pytest.raises(InputError, match=r"no client '7' among the 3 of .*: 11, 22, 33"):
        divergence([run], clients="11,7")
    with pytest.raises(InputError, match=r"no client '7' among the 3 of .*: 11, 22, 33"):
        draw_filter([run], client="7")


def test_data_that_are_gone_or_have_changed(run, cube):
    path = run.folder.parent / "town.nc"
    path.unlink()
    with pytest.raises(InputError, match=r"its data, .*town.nc, are missing; restore them"):
        divergence([run])
    write_cube(cube.isel(time=slice(0, 239)), path)
    with pytest.raises(InputError, match="10 days are 240 steps, the series has 239"):
        divergence([run])
    path.unlink()
    write_cube(cube.isel(cell=[0, 2]), path)
    with pytest.raises(InputError, match="1 of the 3 cells that the model was fitted on are miss"):
        divergence([run])
    changed = cube.copy(deep=True)
    changed["internet"][5, 0] += 1
    path.unlink()
    write_cube(changed, path)
    with pytest.raises(InputError, match="have changed since; run it again"):
        divergence([run])


def test_two_clients_are_too_few(run):
    path = run.folder / "model" / "forecaster.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cells": [11, 22]}))
    with pytest.raises(InputError, match="2 clients, expected at least 3"):
        divergence([run])


W = np.array([[-0.25, 0.5, 1.0], [0.0, -1.0, 0.25], [-0.5, 0.75, 0.25]], dtype=np.float32)


@pytest.fixture
def filtered(run):
    """The run with a small W for its second client."""
    state = arrays(run)
    state["clients/params/filter"] = np.stack([-W, W, np.abs(W)])
    save_file(state, run.folder / "model" / "state.safetensors")
    run.about["settings"]["closeness"] = 2
    run.about["window"]["period"] = 3
    return run


def circles(ax):
    """Place (row, column) of each circle: diameter and colour."""
    found = {}
    for group in ax.collections:
        if type(group).__name__ == "EllipseCollection":
            color = to_hex(group.get_facecolor()[0])
            for (x, y), d in zip(group.get_offsets(), group.get_widths(), strict=True):
                found[int(y), int(x)] = (d, color)
    return found


def test_the_area_of_a_circle_is_its_weight_and_the_colour_its_sign(filtered):
    (ax,) = draw_filter([filtered], client="22").axes
    drawn = circles(ax)
    assert len(drawn) == 9
    areas = np.array([[drawn[b, i][0] ** 2 for i in range(3)] for b in range(3)])
    np.testing.assert_allclose(areas / areas.max(), np.abs(W), rtol=1e-6)
    assert np.sqrt(areas.max()) == pytest.approx(0.95)
    colors = {place: color for place, (_, color) in drawn.items()}
    assert {p for p, c in colors.items() if c == colors[0, 1]} == {
        tuple(p) for p in np.argwhere(W > 0).tolist()
    }
    assert ax.yaxis_inverted()


def test_squares_show_what_is_left_out(filtered):
    (ax,) = draw_filter([filtered], client="22").axes
    alpha = ax.images[0].get_array()[..., 3]
    np.testing.assert_array_equal(alpha > 0, W <= 0)


def test_the_figure_of_a_filter_says_what_is_left_out_and_where(filtered):
    fig = draw_filter([filtered], client="22")
    (ax,) = fig.axes
    legend = fig.legends[0]
    assert " ".join(legend.get_title().get_text().split()) == (
        "Left out: 67% of the diagonal, 25% of the rest of the band, 50% beyond it"
    )
    assert [t.get_text() for t in legend.get_texts()] == [
        "above 0: a negative",
        "not above 0: left out",
        "inputs overlap: |b − i| < 2",
    ]
    assert ax.get_title().startswith("W of client 22 after round ")
    assert ax.get_title().endswith("largest |W| 1")


def test_the_band_ends_between_the_diagonals(filtered):
    (ax,) = draw_filter([filtered]).axes
    (band,) = [c for c in ax.collections if "overlap" in c.get_label()]
    corners = {tuple(c) for c in band.get_paths()[0].vertices.tolist()}
    assert corners == {(-0.5, -2.0), (2.5, 1.0), (2.5, 4.0), (-0.5, 1.0)}


def test_inputs_of_long_slots_overlap_in_fewer_rows(filtered):
    """Rows of three slots of four steps: the two closeness inputs of neighbours do not overlap."""
    filtered.about["window"]["period"] = 12
    (ax,) = draw_filter([filtered]).axes
    assert [c.get_label() for c in ax.collections if "overlap" in c.get_label()] == [
        "inputs overlap: |b − i| < 1"
    ]


def test_without_closeness_there_is_no_band(filtered):
    filtered.about["settings"]["closeness"] = 0
    fig = draw_filter([filtered], client="22")
    assert not [c for c in fig.axes[0].collections if "overlap" in c.get_label()]
    assert "band" not in fig.legends[0].get_title().get_text()


@pytest.mark.parametrize(
    ("split", "name"),
    [("days:7,1,2", "slot of the period"), ("steps:0.7,0.1,0.2", "place in the batch")],
)
def test_rows_are_slots_if_training_begins_at_slot_0(filtered, split, name):
    filtered.about["settings"]["split"] = split
    (ax,) = draw_filter([filtered]).axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == (f"shifted sample i, {name}", f"sample b, {name}")


def test_a_filter_that_is_not_trained_is_refused(filtered):
    filtered.about["settings"]["filter_train"] = False
    with pytest.raises(InputError, match="filter_train is False; this figure needs"):
        draw_filter([filtered])
