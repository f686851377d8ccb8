"""A small town whose days are written as tables, for tests of runs in service."""

import numpy as np
import pandas as pd

DAYS = 21
"""Days of the run; more follow."""

RULE = """
[update]
check_days = 2
trial_days = 4
rest_days = 2
further_days = 0
anew_days = 0
error_tolerance = 0.5
coverage_tolerance = 0.5
"""


def values(n_days=40, seed=3):
    """Wide table of three cells: a daily wave and noise."""
    hours = pd.date_range("2024-01-20", periods=24 * n_days, freq="h", name="When")
    rng = np.random.default_rng(seed)
    wave = 1 + 0.5 * np.sin(2 * np.pi * hours.hour.to_numpy() / 24)
    noise = 0.05 * rng.normal(size=(len(hours), 3))
    found = np.array([100.0, 50.0, 400.0]) * (wave[:, None] + noise)
    return pd.DataFrame(found.round(2), hours, pd.Index(["a", "b", "c"], name="Station"))


def write(wide, path):
    """Write a long table whose dates are day first, and whose numbers have a decimal comma."""
    long = wide.melt(ignore_index=False, value_name="load").reset_index()
    long["When"] = long["When"].dt.strftime("%d/%m/%Y %H:%M")
    long.to_csv(path, index=False, sep=";", decimal=",")
    return path
