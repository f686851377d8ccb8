"""Factors between units of data."""

import pytest

from data_prep.base.errors import InputError
from data_prep.readers.units import factor


@pytest.mark.parametrize(
    ("of", "to", "wanted"),
    [
        ("GB", "MB", 1000), ("MB", "GB", 1 / 1000), ("GiB", "MiB", 1024), ("B", "bit", 8),
        ("KB", "kB", 1), ("Mbps", "Mbit/s", 1), ("MB/s", "Mbit/s", 8), ("TB", "B", 1e12),
    ],
)  # fmt: skip
def test_volumes_and_rates_have_factors(of, to, wanted):
    assert factor(of, to) == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize(("of", "to"), [("GB", "MB/s"), ("1", "GB"), ("mph", "km/h"), ("", "B")])
def test_other_units_have_none(of, to):
    with pytest.raises(InputError, match="no factor is known from"):
        factor(of, to)
