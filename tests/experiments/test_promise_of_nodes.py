"""A federation as documented, with default settings, and what its server can compute. Slow."""

import dataclasses
import importlib.util

import pandas as pd
import pytest
import torch
from node_link import NodeLink

from data_prep.cube import open_cube
from experiments import federation_demo
from experiments.benchmarks import disclosure
from experiments.benchmarks.inversion import SPLIT, Victims, closeness, weekly_guess, z_scores
from stforecast.data.series import as_series
from stforecast.federated.nodes.disclosure import with_secure_sums
from stforecast.federated.nodes.masker import SUM
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.secure_sum import SecureSum
from stforecast.federated.uploads.masking import SecureSums
from stforecast.flower.server_app import serve
from stforecast.flower.settings import RunSettings
from stforecast.forecasting.config import resolve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.attack("disclosure"),
    pytest.mark.skipif(not importlib.util.find_spec("cryptography"), reason="needs flower"),
]

SHARES = {"north": (0, 9), "centre": (9, 17), "south": (17, 25)}
"""Cells of three nodes, 25 as of Milan's centre."""

DAYS, CELLS = 20, 25
"""Training is then 14 days, of which sums of products tell all readings of one cell."""

MARGIN = 0.2
"""Share of readings that an attack may find beyond a guess: a sum tells the mean of its cells, and
a cell may be like that."""


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """What the server learns in the first round, all messages that it got, and the city's table."""
    out = tmp_path_factory.mktemp("nodes")
    cubes = federation_demo.make_cubes(out, SHARES, DAYS)
    # Later rounds send sums of networks, which take minutes.
    config = resolve("fedlean", service="internet", split=SPLIT, rounds=1, device="cpu")
    run = RunSettings(config, CELLS, Patience(1, 60, 0.01), str(out / "s"), secure=SecureSums())
    run = with_secure_sums(run, insisted=False, fewest_given=False)
    assert run.secure
    firsts = [first for first, _ in SHARES.values()]
    places = zip(cubes, firsts, strict=True)
    link = NodeLink(
        run, {i: {"data": str(p), "first-client": n} for i, (p, n) in enumerate(places)}
    )
    sums, sound = [], SecureSum.run

    def noted(of_sum):
        nodes, found = sound(of_sum)
        sums.append((len(nodes), found))
        return nodes, found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureSum, "run", noted)
        serve(link, run)
    with open_cube(out / "city.nc") as cube:
        table = cube["internet"].transpose("time", "cell").load().to_pandas()
    times = pd.to_datetime(table.index).tz_localize("UTC")
    zone = as_series(out / "city.nc", "internet", run.chosen.window).time_zone
    return sums, link.sent, pd.DataFrame(table.to_numpy(), times.tz_convert(zone))


def attackers_view(learned):
    """The windows as the server knows them, with the sum in place of what cells sent."""
    sums, _, table = learned
    victims = Victims.of(table, "fedlean", 1)
    total = {n.removeprefix("upload/"): t for n, t in sums[0][1].items() if "upload/" in n}
    of_cell = float(victims.samples.sizes[0])
    own = {n: (t / of_cell)[None] for n, t in total.items()}
    for n, t in victims.sent.items():
        torch.testing.assert_close(t.double().sum(0), own[n][0], rtol=1e-3, atol=1e-3)
    vars(victims)["sent"] = own
    return victims, dataclasses.replace(disclosure.products_of(victims, [0]), cells=CELLS)


def test_the_server_gets_masked_sums_over_all_three_nodes_alone(learned):
    sums, messages, _ = learned
    assert all(nodes == len(SHARES) for nodes, _ in sums)
    values = [m.payload for m in messages if "task" not in m.about and m.payload]
    assert values
    assert all(set(payload) == {SUM} for payload in values)
    # Masks are uniform integers of 64 bits; sums of z-scores would be far below.
    bits = torch.cat([payload[SUM] for payload in values]).double().abs().log2()
    assert float((bits > 56).double().mean()) > 0.9


def test_no_attack_finds_readings_of_a_cell(learned):
    """Linear equations are the strongest attack that ends in minutes for 25 cells.

    One that was given all products of readings finds more (`experiments.benchmarks.rotation`).
    """
    victims, products = attackers_view(learned)
    truth, guess = victims.readings, weekly_guess(victims.readings)
    mean = products.mean_reading(guess.mean(1, keepdim=True))
    assert closeness(mean, truth.mean(1, keepdim=True))["within .1"] > 0.9  # The attack works.
    near, guessed = (
        ((x - truth).abs() < 0.1).double().mean(0)
        for x in (z_scores(mean).expand(-1, CELLS), guess)
    )
    assert float((near - guessed).max()) < MARGIN
