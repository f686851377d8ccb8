"""Partitions of cells: what each divides, how much clients then differ, and what is refused."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import jensenshannon

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.data.clients import Partition, partition_cells
from stforecast.data.partition import CELL_PARTITIONS, parse_partition
from stforecast.data.partition.base import level_classes, mean_weeks
from stforecast.data.partition.heterogeneity import Heterogeneity, mean_divergence
from stforecast.data.partition.values import shape_classes
from stforecast.data.series import as_series
from stforecast.forecasting.config import resolve

N_CELLS = 40


@pytest.fixture(scope="module")
def city():
    """Three weeks of 40 cells: every second is busy at night, and levels grow with the number."""
    hours = pd.date_range("2024-01-01", periods=21 * 24, freq="h")
    phase = np.where(np.arange(N_CELLS) % 2, np.pi, 0.0)
    daily = 1 + 0.8 * np.sin(2 * np.pi * hours.hour.to_numpy()[:, None] / 24 + phase)
    level = np.arange(1, N_CELLS + 1)
    series = as_series(pd.DataFrame(daily * level, hours))
    places = np.stack([np.linspace(9.0, 9.4, N_CELLS), np.full(N_CELLS, 45.0)], axis=1)
    operators = np.array(["One", "Two"] * (N_CELLS // 2))
    return dataclasses.replace(series, locations=places, columns={"operator": operators})


def differences(series, text, seeds=range(5)):
    """Mean divergences over seeds."""
    divided = [partition_cells(text, series, seed=seed) for seed in seeds]
    bits = [Heterogeneity.of(series, clients).bits() for clients in divided]
    return pd.DataFrame(bits).mean()


@pytest.mark.parametrize(
    "text",
    ["iid:5", "dirichlet:5:by=none", "dirichlet:5", "dirichlet:5:by=shape:classes=2",
     "dirichlet:5:by=place", "dirichlet:5:by=operator", "kmeans:5", "grid:1x5"],
)  # fmt: skip
def test_each_cell_has_one_of_the_clients_by_the_seed_alone(city, text):
    first, again, other = (partition_cells(text, city, seed=seed) for seed in (1, 1, 2))
    assert len(first) == 5
    assert first.sizes.sum() == N_CELLS
    assert first.labels == again.labels
    assert (first.labels == other.labels) is not parse_partition(text).drawn


def test_a_low_concentration_makes_clients_differ_in_what_is_divided(city):
    even, apart = (f"dirichlet:4:concentration={c}" for c in (1000, 0.1))
    assert differences(city, apart)["levels"] > 3 * differences(city, even)["levels"]
    of_shape = ":by=shape:classes=2"
    even, apart = differences(city, even + of_shape), differences(city, apart + of_shape)
    assert apart["profiles"] > 3 * even["profiles"]


def test_classes_are_even_by_level_and_clusters_of_curves_by_shape(city):
    assert np.bincount(level_classes(city, 5)).tolist() == [8] * 5
    assert (np.diff(level_classes(city, 5)) >= 0).all()
    found = shape_classes(city, 2)
    assert len(set(found[::2])) == len(set(found[1::2])) == 1
    assert found[0] != found[1]


def test_clients_of_one_column_are_those_of_its_values_at_a_very_low_concentration(city):
    divided = partition_cells("dirichlet:2:concentration=0.001:by=operator", city, seed=3)
    assert divided.labels == [f"client {1 + i % 2}" for i in range(N_CELLS)]


def test_iid_clients_differ_by_one_cell_and_skewed_ones_by_many(city):
    assert sorted(partition_cells("iid:7", city).sizes) == [5, 5, 6, 6, 6, 6, 6]
    sizes = [
        partition_cells("dirichlet:4:by=none:min_cells=2", city, seed=s).sizes for s in range(5)
    ]
    assert min(map(min, sizes)) >= 2
    assert max(np.ptp(of) for of in sizes) > 5


def test_values_after_the_training_part_do_not_count(city):
    values = city.values.copy()
    values[14 * 24 :] = np.random.default_rng(0).random((7 * 24, N_CELLS))
    changed = dataclasses.replace(city, values=values)
    for text in ("dirichlet:4", "dirichlet:4:by=shape"):
        of = [partition_cells(text, series, 14 * 24, 1).labels for series in (city, changed)]
        assert of[0] == of[1]


def test_divergences_are_those_of_an_independent_library():
    rows = np.random.default_rng(1).dirichlet(np.ones(6), 4)
    rows[0, 0] = 0.0
    rows[0] /= rows[0].sum()
    expected = np.mean([jensenshannon(row, rows.mean(0), 2) ** 2 for row in rows])
    assert mean_divergence(rows) == pytest.approx(expected, rel=1e-12)
    apart = mean_divergence(np.eye(2))
    assert 0.3 < apart < 1  # Two clients without anything in common, each against the mean.


def test_equal_clients_do_not_differ_and_values_may_be_negative(city):
    whole = Heterogeneity.of(city, Partition.from_labels(["all"] * N_CELLS))
    assert whole.bits() == {"profiles": 0.0, "levels": 0.0}
    assert whole.weeks.sum() == pytest.approx(1)
    assert whole.counts.tolist() == [[8] * 5]
    cold = dataclasses.replace(city, values=city.values - 30)
    bits = Heterogeneity.of(cold, partition_cells("operator", cold)).bits()
    assert 0 < bits["profiles"] < 1


def test_a_mean_week_has_the_means_of_hours_or_of_days(city):
    weeks = mean_weeks(city)
    assert weeks.shape == (N_CELLS, 168)
    np.testing.assert_allclose(weeks[3, :24], city.values[:24, 3])
    days = as_series(pd.DataFrame({"a": np.arange(14.0)}, pd.date_range("2024-01-01", periods=14)))
    np.testing.assert_allclose(mean_weeks(days), [np.arange(7) + 3.5])
    gap = as_series(pd.DataFrame({"a": [1.0, np.nan, 3.0]}, city.times[:3]))
    np.testing.assert_allclose(mean_weeks(gap)[0, :4], [1, 2, 3, 2])  # Its mean where it has none.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlet", "dirichlet .*clients;"),
        ("dirichlet:0", "clients is 0"),
        ("dirichlet:4:concentration=0", "concentration is 0"),
        ("dirichlet:4:alpha=0.1", ".* 'alpha'; "),
        ("iid:4:9", ".* '9'; "),
        ("grid:4", "tiles is '4'"),
    ],
)
def test_texts_that_are_no_partition_are_refused_before_data_are_read(text, message):
    with pytest.raises(InputError, match=re.escape(f"clients is '{text}': ") + message):
        resolve("fedavg", clients=text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iid:41", "40 cells for 41 clients"),
        ("dirichlet:41", "40 cells .*41 clients .*1 "),
        ("dirichlet:20:concentration=0.01:min_cells=2", "200 draws .*than 0"),
        ("dirichlet:4:by=owner", "level, shape, place, none .*: operator"),
    ],
)
def test_impossible_divisions_are_refused_with_their_numbers(city, text, message):
    with pytest.raises(InputError, match=message):
        partition_cells(text, city)


def test_a_partition_that_forgets_a_cell_is_named(city, monkeypatch):
    kind = CELL_PARTITIONS["iid"]
    monkeypatch.setattr(kind, "deal", lambda self, series, rng: ["a"])
    with pytest.raises(InputError, match=r"iid: deal .*1 "):
        partition_cells("iid:4", city)


def test_a_fit_divides_the_cells_by_its_seed(cube):
    settings = {"split": "days:7,1,2", "service": "internet", "rounds": 1, "hidden_size": 4}
    fitted = {
        seed: Forecaster("fedavg", clients="iid:2", seed=seed, **settings).fit(cube)
        for seed in (1, 2, 3)
    }
    for seed, forecaster in fitted.items():
        expected = partition_cells("iid:2", as_series(cube[["internet"]]), seed=seed)
        assert forecaster.data_.clients.labels == expected.labels
    assert len({tuple(f.data_.clients.labels) for f in fitted.values()}) > 1
