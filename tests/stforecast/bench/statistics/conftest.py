"""Sums of errors and how to divide them."""

import numpy as np
import pytest

from stforecast.bench.statistics.estimate import ErrorSums


@pytest.fixture(scope="session")
def mean():
    def divide(total, weight):
        return np.divide(total, weight, out=np.full(total.shape, np.nan), where=weight > 0)

    return divide


@pytest.fixture(scope="session")
def make_sums():
    """Makes sums from errors `(seeds, clients, days)`, NaN where nothing was observed."""

    def make(errors, n_targets=1.0):
        errors = np.array(errors, dtype=float)
        weight = np.where(np.isnan(errors), 0.0, n_targets)
        return ErrorSums(np.where(np.isnan(errors), 0.0, errors) * weight, weight)

    return make
