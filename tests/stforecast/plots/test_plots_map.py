"""The map is read back from its panels."""

import numpy as np
import pytest

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.bench.drawing import save_figure
from stforecast.forecasting.config import read_by
from stforecast.plots import PLOTS

draw = PLOTS["map"]


@pytest.fixture(scope="module")
def fitted(cube, tmp_path_factory):
    """Two forecasters of cells with places, the first with intervals."""
    placed = cube.assign_coords(lon=("cell", [9.1, 9.2, 9.3]), lat=("cell", [45.4, 45.54, 45.4]))
    settings = {"service": "internet", "split": "days:7,1,2"}
    return [
        Forecaster("ridge", intervals="conformal", **read_by("ridge", settings)).fit(placed),
        Forecaster("last_value", **read_by("last_value", settings)).fit(placed),
    ]


def colours(ax):
    return next(np.asarray(c.get_array()) for c in ax.collections if c.get_array() is not None)


def test_each_cell_has_the_colour_of_its_error(fitted):
    fig = draw(fitted)
    errors = (
        fitted[0]
        .evaluate()
        .query(
            "split == 'test' and selection == 'best' and metric == 'raw_mae' and horizon == 'all'"
        )
    )
    by_cell = errors[errors["client"] != "all"]["value"]
    best, other = fig.axes[:2]
    assert best.get_title(loc="left").startswith("ridge: mean ")
    assert other.get_title(loc="left").startswith("last_value: mean ")
    np.testing.assert_allclose(colours(best), by_cell, rtol=1e-5)
    x = best.collections[-1].get_offsets()[:, 0]
    assert (np.diff(x) > 0).all()  # West is left.


def test_cells_without_places_cannot_be_drawn(table):
    forecaster = Forecaster("last_value", split="days:7,1,2").fit(table)
    with pytest.raises(InputError, match="no locations"):
        draw(forecaster)


@pytest.mark.parametrize("n", [3, 5])
def test_titles_of_several_lines_end_below_the_note_at_the_top(fitted, tmp_path, n):
    names = [f"a method with a name that takes three lines, number {i} of some" for i in range(n)]
    fig = draw(dict.fromkeys(names, fitted[1]))
    save_figure(fig, tmp_path / "map.png", "test part 2013-11-10 to 2013-11-11")
    fig.draw_without_rendering()
    note = fig._suptitle.get_window_extent()
    for ax in fig.axes[:n]:
        assert ax.get_title(loc="left").count("\n") == 2
        assert ax._left_title.get_window_extent().y1 < note.y0
