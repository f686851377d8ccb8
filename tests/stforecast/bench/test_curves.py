"""Curves are told apart, and a mean is drawn in its band."""

import numpy as np
import pandas as pd
import pytest

from data_prep.errors import InputError
from stforecast.bench.curves import COLORS, as_curves, point_look
from stforecast.bench.drawing import add_legend, legend_point, panels


def test_no_two_of_twelve_curves_look_the_same(throw):
    curves = as_curves([throw(f"m{i}") for i in range(12)])
    assert len({(c.color, c.line["linestyle"]) for c in curves}) == 12
    assert len({point_look(i) for i in range(12)}) == 12
    assert point_look(len(COLORS), "xy") == (COLORS[0], "y")


def test_nothing_cannot_be_drawn():
    with pytest.raises(InputError, match="no runs to draw"):
        as_curves([])


def test_a_mean_stands_in_a_band_of_one_deviation(throw):
    (curve,) = as_curves([throw(seed=1), throw(seed=2)])
    _, (ax,) = panels(3.5, 2.0)
    curve.draw_mean(ax, pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 2.0]}, index=[5, 6]))
    assert ax.lines[0].get_ydata().tolist() == [2, 2]
    assert ax.lines[0].get_label() == "fair (2 runs)"
    corners = ax.collections[0].get_paths()[0].vertices
    assert corners[corners[:, 0] == 5][:, 1].min() == pytest.approx(2 - np.sqrt(2))
    assert corners[corners[:, 0] == 6][:, 1].max() == pytest.approx(2)


def test_one_number_has_no_band(throw):
    (curve,) = as_curves([throw()])
    _, (ax,) = panels(3.5, 2.0)
    curve.draw_mean(ax, pd.DataFrame({"a": [1.0, 2.0]}))
    assert not len(ax.collections)


def test_a_legend_begins_with_points_that_are_no_artists():
    fig, axes = panels(3.5, 2.0, 2, n_columns=3)
    axes[1].plot([1, 2], label="line")
    add_legend(fig, points=[legend_point("class", COLORS[0], "o")])
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["class", "line"]
    assert len(fig.axes) == 2
