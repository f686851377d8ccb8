from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from data_prep.base.errors import InputError
from stforecast.bench.charts import draw_ranks
from stforecast.bench.drawing import ONE_COLUMN, TWO_COLUMNS
from stforecast.bench.statistics.estimate import Ranking, rank

LONG = "a method with a rather long name (global, hidden_size=64)"


def ranking_of(ranks, difference=1.0):
    return Ranking(np.array(ranks), 20, 0.01, difference, "error")


def lines(fig, gid):
    return [line for line in fig.axes[0].lines if line.get_gid() == gid]


def place_of(fig, text):
    (found,) = (t for t in fig.axes[0].texts if t.get_text() == text)
    return found.get_position()[0]


def named(fig):
    """First words of the names at the left and at the right, from the top."""
    middle = place_of(fig, "2")
    texts = [t for t in fig.axes[0].texts if "\N{NO-BREAK SPACE}" in t.get_text()]
    texts.sort(key=lambda text: text.get_position()[1])
    sides = [[t for t in texts if (t.get_position()[0] < middle) == left] for left in (True, False)]
    return [[text.get_text().split("\N{NO-BREAK SPACE}")[0] for text in side] for side in sides]


def test_the_best_is_at_the_left_and_the_worst_on_top_of_the_right():
    fig = draw_ranks(ranking_of([3.0, 1.5, 1.0, 4.5, 5.0]), list("abcde"))
    assert named(fig) == [["c", "b", "a"], ["e", "d"]]
    assert place_of(fig, "1") < place_of(fig, "5")


def test_bars_span_the_groups_and_the_ruler_the_critical_difference():
    fig = draw_ranks(ranking_of([1.0, 1.5, 2.2, 4.0], 0.8), list("abcd"))
    unit = place_of(fig, "2") - place_of(fig, "1")
    ranks = [1 + (line.get_xdata() - place_of(fig, "1")) / unit for line in lines(fig, "bar")]
    np.testing.assert_allclose(ranks, [[1, 1.5], [1.5, 2.2]], atol=0.05)
    # Bars that touch stand at different levels.
    assert len({line.get_ydata()[0] for line in lines(fig, "bar")}) == 2
    (ruler,) = lines(fig, "critical difference")
    assert np.ptp(ruler.get_xdata()) == pytest.approx(0.8 * unit)


def test_methods_that_all_differ_have_no_bars():
    assert lines(draw_ranks(ranking_of([1.0, 2.0, 3.0], 0.5), list("abc")), "bar") == []


@pytest.mark.quick(5)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [ONE_COLUMN, TWO_COLUMNS])
@pytest.mark.parametrize(("n", "n_clients"), [(2, 9), (3, 2), (3, 50), (25, 30), (60, 100)])
def test_nothing_overlaps_or_leaves_the_figure(n, n_clients, width):
    errors = np.random.default_rng(0).random((n_clients, n)) + np.linspace(0, 1, n)
    ranking = rank(errors) if n > 2 else ranking_of([1.25, 1.75], 0.6)
    names = [f"{LONG} {i}" if i % 3 else f"m{i}" for i in range(n)]
    fig = draw_ranks(ranking, names, width)
    renderer = FigureCanvasAgg(fig).get_renderer()
    fig.draw(renderer)
    texts = [text.get_window_extent(renderer) for text in fig.axes[0].texts]
    assert not [pair for pair in combinations(texts, 2) if pair[0].overlaps(pair[1])]
    drawn = texts + [line.get_window_extent(renderer) for line in fig.axes[0].lines]
    assert min(box.x0 for box in drawn) >= 0
    assert min(box.y0 for box in drawn) >= 0
    assert max(box.x1 for box in drawn) <= fig.bbox.x1
    assert max(box.y1 for box in drawn) <= fig.bbox.y1


def test_short_names_leave_room_for_the_axis():
    short, long = (
        draw_ranks(ranking_of([1.0, 2.0, 3.0]), names) for names in (["a", "b", "c"], [LONG] * 3)
    )
    assert place_of(short, "3") - place_of(short, "1") > place_of(long, "3") - place_of(long, "1")


def test_a_name_for_each_rank():
    with pytest.raises(InputError, match="2 names for 3 "):
        draw_ranks(ranking_of([1.0, 2.0, 3.0]), ["a", "b"])
