import logging
import random

import numpy as np
import pytest

from data_prep.base.errors import InputError
from data_prep.sets.telecom_italia.cells import Selection, sample_cells

KNOWN = np.array([1, 2, 3, 5, 8, 13])


def chosen(text: str) -> list[int]:
    return Selection("milan", text).choose(KNOWN).tolist()


def test_ids_and_ranges_are_sorted_and_unique(caplog):
    caplog.set_level(logging.INFO)
    assert chosen(" 5, 1-3,5") == [1, 2, 3, 5]
    assert not caplog.records
    assert chosen("2 - 4") == [2, 3]
    assert "2 - 4, 2 occur and 1" in caplog.text
    assert chosen("not:2-8") == [1, 13]


@pytest.mark.parametrize("text", ["", "1,", "a", "1-", "-3", "1-2-3", "1.5", "1;2", "٣", "1,9-3"])
def test_what_is_no_list_is_refused(text):
    with pytest.raises(InputError, match=r"milan.*cell '.*'.* 6 .*ranges"):
        chosen(text)


def test_sample_follows_the_rule_of_the_fedda_code():
    known = list(range(1, 10_001))
    random.seed(7)
    expected = sorted(random.sample(known, 100))
    random.seed(99)
    state = random.getstate()
    assert sample_cells(np.array(known[::-1]), 100, seed=7).tolist() == expected
    assert random.getstate() == state


@pytest.mark.parametrize("n", [0, -1, 7])
def test_a_sample_larger_than_the_data_is_refused(n):
    with pytest.raises(InputError, match=f" {n} cells; .* 1 to 6"):
        Selection("milan", sample=n).choose(KNOWN)


def test_all_cells_unless_asked():
    assert Selection("milan").choose(KNOWN).tolist() == KNOWN.tolist()


def test_sample_is_drawn_from_the_grid_where_there_is_one():
    grid = np.arange(100, 110)
    assert set(Selection("milan", sample=3).choose(KNOWN, grid)) <= set(grid)
    assert set(Selection("milan", sample=3).choose(KNOWN)) <= set(KNOWN)


def test_ids_that_do_not_occur_are_refused():
    with pytest.raises(InputError, match=r"milan.*cell '4'.* 6"):
        chosen("3,4")
    with pytest.raises(InputError, match=r"milan.*cell '9-12'"):
        chosen("9-12")


def test_cells_and_sample_exclude_each_other():
    with pytest.raises(InputError, match="both given"):
        Selection("milan", "1", 2)
