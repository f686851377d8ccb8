"""Curves are told apart, and a mean is drawn in its band."""

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.bench.curves import COLORS, HOMES, as_curves, label_places, labels_of, point_look
from stforecast.bench.drawing import Look, add_legend, legend_point, looking, panels


def test_no_two_of_twelve_curves_look_the_same(throw):
    curves = as_curves([throw(f"m{i}") for i in range(12)])
    assert len({(c.color, c.line["linestyle"]) for c in curves}) == 12
    assert len({point_look(i) for i in range(12)}) == 12
    assert point_look(len(COLORS), "xy") == (COLORS[0], "y")


def test_a_known_method_has_one_look_in_any_company():
    for name, place in HOMES.items():
        others = [(other, other) for other in HOMES if HOMES[other] != place]
        assert label_places([*others, (name, name), ("a", "a")])[name] == place
    assert label_places([("fedavg linear", "fedavg")]) == {"fedavg linear": HOMES["fedavg"]}
    both = label_places([("a variant", "fedavg"), ("fedavg", "fedavg")])
    assert both["fedavg"] == HOMES["fedavg"] != both["a variant"]


def test_labels_have_one_look_in_any_order_and_six_have_six_colours(throw):
    runs = [throw(name) for name in ("b", "fedlean", "w/o x", "e", "solo, day", "a")]
    looks = {curve.group.name: (curve.color, curve.dash) for curve in as_curves(runs)}
    assert {c.group.name: (c.color, c.dash) for c in as_curves(runs[::-1])} == looks
    assert len({color for color, _ in looks.values()}) == 6


def test_settings_of_one_method_share_its_colour_beside_other_methods(throw):
    fuels = [throw("fuels", tau=tau) for tau in (0.1, 0.2, 0.5, 0.6, 0.7, 0.8)]
    curves = as_curves([*fuels, throw("fedavg")])
    assert {c.color for c in curves if c.group.base == "fuels"} == {COLORS[2]}
    assert len({c.dash for c in curves if c.group.base == "fuels"}) == 6
    assert len({c.color for c in as_curves(fuels)}) == 6


def test_some_of_the_runs_look_as_among_all(throw):
    runs = [throw(f"m{i}") for i in range(12)]
    with looking(Look(among=labels_of(runs))):
        looks = [(c.color, c.dash) for c in as_curves(runs)]
        assert [(c.color, c.dash) for c in as_curves(runs[4:9])] == looks[4:9]


def test_the_only_curve_in_colour_keeps_its_colour(throw):
    for curve in as_curves([throw(f"m{i}") for i in range(9)]):
        assert (curve.alone.color, curve.alone.line["linestyle"]) == (curve.color, "-")


def test_nothing_cannot_be_drawn():
    with pytest.raises(InputError, match="no runs"):
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
