"""States of counters, from readings that are made by hand."""

import numpy as np
import pandas as pd
import pytest

from stforecast.service.cells import _repeats, changed_at, find_states, repetitions
from stforecast.service.expected import Expected

DAY = 24
RNG = np.random.default_rng(0)
WAVE = 100 + 50 * np.sin(2 * np.pi * np.arange(28 * DAY) / DAY)
BUSY = np.round(WAVE + RNG.normal(0, 5, len(WAVE)))
NIGHTS = np.where(np.arange(len(WAVE)) % DAY < 8, 0.0, BUSY)
RARE = (RNG.random(len(WAVE)) < 0.1) * 1.0


def ending(values, end):
    return np.concatenate([values, np.broadcast_to(end, 20 if np.ndim(end) == 0 else len(end))])


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (ending(BUSY, 137.0), "stuck"),
        (ending(BUSY, 0.0), "zero"),
        (ending(BUSY, np.nan), "silent"),
        (ending(BUSY, [137.0] * 9 + [np.nan] * 3 + [137.0] * 9), "stuck"),
        (ending(BUSY, [137.0] * 11), None),  # Not twelve hours yet.
        (ending(NIGHTS, [0.0] * 12), None),  # It is so each night, for nearly as long.
        (ending(NIGHTS, [0.0] * 36), "zero"),
        (ending(RARE, 0.0), None),  # Nine of ten readings are 0.
        (ending(RARE, [0.0] * 24 * 14), "zero"),
    ],
)
def test_a_repetition_is_broken_if_the_history_says_so(values, found):
    last = [(end, kind) for _, end, kind in repetitions(values, 12, DAY)]
    assert last == ([(len(values), found)] if found else [])


def test_a_repetition_that_was_named_is_not_usual_later():
    values = np.concatenate([BUSY, np.zeros(40), BUSY, np.zeros(40)])
    spells = list(repetitions(values, 12, DAY))
    assert [end - begin for begin, end, _ in spells] == [40, 40]


def states(readings, rarity, expected=None, unbelieved=None):
    expected = np.broadcast_to(WAVE[:, None], readings.shape) if expected is None else expected
    wide = np.full(readings.shape, 20.0)
    times = pd.date_range("2024-01-01", periods=len(readings), freq="h")
    measure = Expected(times, expected, wide, wide, wide > 0)
    return find_states(readings, measure, rarity, DAY, 12, 1000, unbelieved)


def five_cells():
    rng = np.random.default_rng(1)
    readings = WAVE[:, None] + rng.normal(0, 5, (len(WAVE), 5))
    return readings, np.full(readings.shape, 2.0)


def test_a_wild_cell_is_named_and_its_readings_do_not_count():
    readings, rarity = five_cells()
    readings[-10:, 2] = RNG.uniform(500, 900, 10)
    rarity[-10:, 2] = 1e6
    found = states(readings, rarity)
    assert found.state.tolist() == ["", "", "wild", "", ""]
    assert found.since[2] == len(readings) - 10
    assert found.broken.sum() == found.broken[-10:, 2].sum() == 10


def test_what_befalls_all_cells_is_no_broken_counter():
    readings, rarity = five_cells()
    readings[-10:] *= 3
    rarity[-10:] = 1e6
    assert set(states(readings, rarity).state) == {""}


def test_what_the_model_does_not_believe_is_wild_whatever_other_cells_do():
    readings, rarity = five_cells()
    readings[-10:, :3] *= 1000
    rarity[-10:, :3] = 1e6
    unbelieved = np.zeros(readings.shape, dtype=bool)
    unbelieved[-10:, :3] = True
    found = states(readings, rarity, unbelieved=unbelieved)
    assert found.state.tolist() == ["wild"] * 3 + [""] * 2
    assert not found.broken.any()  # The model leaves them out, until it follows such a level.


def test_another_level_has_drifted_and_is_learnt():
    readings, rarity = five_cells()
    readings[-20:, 1] *= 3
    rarity[-20:, 1] = 1e6
    found = states(readings, rarity)
    assert found.state.tolist() == ["", "drifted", "", "", ""]
    assert not found.broken.any()


def test_wild_readings_are_taken_as_they_are_after_a_week():
    readings, rarity = five_cells()
    readings[-240:, 2] = RNG.uniform(500, 5000, 240)
    rarity[-240:, 2] = 1e6
    found = states(readings, rarity)
    assert found.broken[:, 2].sum() == 7 * DAY
    assert not found.broken[-24:].any()


def test_the_day_of_a_change_of_level_is_found():
    values = np.concatenate([BUSY, 3 * BUSY[: 5 * DAY]])
    assert changed_at(values, DAY) == 28 * DAY


def test_cells_without_a_long_repetition_are_not_searched():
    columns = [
        BUSY, np.where(np.arange(len(BUSY)) % 50 < 9, 5.0, BUSY), ending(BUSY, 137.0)[20:],
        ending(BUSY, np.nan)[20:], NIGHTS, np.concatenate([np.full(30, np.nan), BUSY[30:]]),
        ending(BUSY, [137.0] * 9 + [np.nan] * 3 + [137.0] * 9)[21:],
    ]  # fmt: skip
    found = _repeats(np.column_stack(columns), 12)
    assert found.tolist() == [False, False, True, True, False, True, True]
    assert not any(list(repetitions(of, 12, DAY)) for of in np.array(columns)[~found])
