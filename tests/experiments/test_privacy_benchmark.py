"""The benchmark of differential privacy: its noise, and the attack that it stops."""

import math

import pandas as pd
import pytest
import torch

from experiments.benchmarks import privacy
from experiments.benchmarks.frame import Results
from experiments.benchmarks.inversion import Victims, closeness
from stforecast.federated.uploads.masking import SecureSums
from stforecast.federated.uploads.uplink import Uplink, epsilon

pytest.importorskip("dp_accounting")


def table(cells):
    """Return two weeks of hourly readings of cells that share a day, with noise of their own."""
    rng = torch.Generator().manual_seed(0)
    day = torch.arange(24 * 14)[:, None] * 2 * torch.pi / 24
    values = 50 + 10 * day.sin() + 5 * torch.randn(24 * 14, cells, generator=rng)
    times = pd.date_range("2024-01-01", periods=24 * 14, freq="h")
    return pd.DataFrame(values.numpy(), times, [f"c{i}" for i in range(cells)])


@pytest.mark.parametrize("wanted", privacy.EPSILONS)
def test_the_noise_has_the_epsilon_that_a_run_reports(wanted):
    std = privacy.deviation(wanted)
    uplink = Uplink("gaussian", noise_std=std, clip=privacy.CLIP)
    assert epsilon(uplink, 1) == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("cells", [4, 10, 900])
def test_shares_of_cells_add_up_to_the_noise_of_their_nodes(cells):
    nodes = min(cells, privacy.NODES)
    of_nodes = nodes / SecureSums().threshold(nodes)
    assert cells * privacy.noise_share(cells) ** 2 == pytest.approx(of_nodes)


def test_noise_that_nodes_share_stops_the_attack_on_their_sum():
    """Also the least noise, of a strength that the attacker knows; it finds all without any."""
    victims = Victims.of(table(9), "fedlean", 1)
    least = privacy.deviation(max(privacy.EPSILONS))
    plain, noisy = (privacy.attack(victims, std) for std in (0.0, least))
    assert closeness(plain.found, plain.truth)["within .01"] > 0.99
    found, guess = (closeness(x, noisy.truth) for x in (noisy.found, noisy.guess))
    assert found["correlation"] < guess["correlation"] + 0.02


def test_a_column_for_each_number_of_cells_and_the_attack_on_what_a_server_sees():
    common = {"data": "milan", "sent": "the first round", "mse": 0.25}
    rows = [{**common, "cells": n, "noise": noise, "epsilon": e} for n in (10, 88) for noise, e in
            (("none", None), ("each cell's own", 8.0), ("shared by nodes", 8.0))]  # fmt: skip
    attacks = [
        {"sent": "attack", "epsilon": e, "within .1": x} for e, x in ((8, 0.25), (math.inf, 1))
    ]
    lines = privacy.privacy_table(pd.DataFrame(rows + attacks)).splitlines()
    assert "milan, 88 cells" in lines[0]
    assert [line.split("|")[-2].strip() for line in lines[2:]] == ["100 %", "-", "25 %"]


@pytest.mark.slow
def test_a_row_for_each_fit(monkeypatch, tmp_path):
    monkeypatch.setattr(privacy, "EPSILONS", (8,))
    monkeypatch.setattr(privacy, "ATTACKED", 2)
    paths = [tmp_path / f"{name}-table.csv" for name in "ab"]
    for path in paths:
        table(3).to_csv(path)
    results = Results(None)
    privacy.privacy(results, *paths, cells="2,3")
    errors = [row["mse"] for row in results.rows if "mse" in row]
    assert len(errors) == 2 * 2 * (len(privacy.YARDSTICKS) + 1 + 2)
    assert all(0 < error < math.inf for error in errors)
