from pathlib import Path

import numpy as np

from stforecast.comparison.names import by_task

Y = np.zeros((1, 2, 1))


def test_tasks_are_named_by_what_distinguishes_them(tested):
    long = np.zeros((1, 2, 12))
    runs = [
        tested("a", Y, Y),
        tested("a", Y, Y, seed=2),
        tested("b", Y, Y),
        tested("a", long, long),
        tested("a", Y, Y, data="la.nc", service="speed"),
    ]
    found = by_task(runs)
    assert {name: [group.label for group in groups] for name, groups in found.items()} == {
        "milan, 1 h ahead": ["a (2 runs)", "b"],
        "milan, up to 12 h ahead": ["a"],
        "la, 1 h ahead": ["a"],
    }


def test_a_cube_is_one_task_however_its_path_was_typed(tested):
    runs = [tested(str(path), Y, Y, data=str(path)) for path in ("x.nc", Path("x.nc").resolve())]
    assert list(by_task(runs)) == ["x"]


def test_equal_names_of_data_are_told_apart_by_their_paths(tested):
    runs = [tested("a", Y, Y, data=path) for path in ("x/milan.nc", "y/milan.nc")]
    assert list(by_task(runs)) == ["milan, x/milan.nc", "milan, y/milan.nc"]
