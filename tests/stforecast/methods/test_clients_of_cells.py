"""Contract of every method: clients that hold several cells."""

import json

import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.cube import write_cube
from stforecast import Forecaster
from stforecast.forecasting.config import read_by
from stforecast.forecasting.runs import run
from stforecast.methods import METHODS

SETTINGS = {"split": "days:7,1,2", "rounds": 2, "device": "cpu", "model": "linear", "seed": 3}
OWN = {
    "fedtrees": {"closeness": 3, "extra_lags": "", "depth": 2, "rounds": 6, "min_samples": 20},
    "fedlean": {"model": "mlp", "hidden_size": 4, "extra_lags": "2-6"},
    "fedda": {"warmup_epochs": 2},
    "fedda_clusters": {"warmup_epochs": 2},
}
ALONE = ("solo", "fedavg", "fedprox", "scaffold", "lg_fedavg", "fednova")
"""Methods whose only client trains by plain steps."""
DIVIDED = [name for name, method in METHODS.items() if not method.pooled]
"""Methods that read the setting `clients`."""


def settings(method, **others):
    return {**read_by(method, SETTINGS), **OWN.get(method, {}), **others}


def fitted(method, data, **others):
    return Forecaster(method, **settings(method, **others)).fit(data)


def forecasts(method, data, **others):
    return fitted(method, data, **others).test_forecasts()["y_hat"].to_numpy()


@pytest.fixture(scope="module")
def owned(cube, tmp_path_factory):
    """The town's cube, with an operator of two cells that are not side by side, and one of one."""
    return cube[["internet"]].assign_coords(
        operator=("cell", ["A", "B", "A"]), itself=("cell", ["x", "y", "z"])
    )


@pytest.mark.quick(6)
@pytest.mark.sampled(6)
@pytest.mark.parametrize("method", DIVIDED)
def test_one_cell_a_client_is_the_same_bit_for_bit(method, owned):
    np.testing.assert_array_equal(
        forecasts(method, owned), forecasts(method, owned, clients="itself")
    )


@pytest.mark.quick(6)
@pytest.mark.parametrize("method", ALONE)
def test_one_client_of_all_cells_is_central_training(method, owned):
    np.testing.assert_allclose(
        forecasts(method, owned, clients="all"), forecasts("central", owned), rtol=1e-5
    )


@pytest.mark.quick(5)
@pytest.mark.sampled(6)
@pytest.mark.parametrize("method", DIVIDED)
def test_unequal_clients_forecast_every_cell_and_are_saved(method, owned, tmp_path):
    forecaster = fitted(method, owned, clients="operator")
    y_hat = forecaster.test_forecasts()["y_hat"]
    assert y_hat.sizes["cell"] == 3
    assert np.isfinite(y_hat).all()
    expected = forecaster.predict(owned)
    loaded = Forecaster.load(forecaster.save(tmp_path / "model"))
    pd.testing.assert_frame_equal(loaded.predict(owned), expected)
    assert loaded.model_.clients.labels == forecaster.model_.clients.labels


TWICE = [m for m in DIVIDED if m not in ("fedtrees", "fedpac", "protoridge")]
"""Methods of means: the trees' penalties are of sums, FedPAC's variances fall with samples, and
ProtoRidge's groups are drawn by sample."""


@pytest.mark.quick(5)
@pytest.mark.sampled(6)
@pytest.mark.parametrize("method", TWICE)
def test_a_client_that_holds_its_cell_twice_trains_as_if_once(method, table):
    once = table.iloc[:, :2]
    twice = pd.concat([once, once.set_axis([111, 122], axis=1)], axis=1)
    drawn = {"fuels": {"shift": 1.0}, "fedlean": {"dropout": 0.0}}  # They are drawn by sample.
    others = drawn.get(method, {})
    expected = forecasts(method, once, clients="cell", **others)
    found = forecasts_of(method, twice, ["a", "b", "a", "b"], **others)
    for rows in (found[:2], found[2:]):
        np.testing.assert_allclose(rows, expected, rtol=1e-3)


def forecasts_of(method, table, owners, **others):
    from stforecast import open_cube

    cube = open_cube(table)
    owned = cube.assign_coords(operator=("cell", owners))
    return forecasts(method, owned, clients="operator", **others)


CELLS = {
    "stid": {"dropout": 0.0, "embed_size": 3, "identity_size": 3, "calendar": "day"},
    "graph_wavenet": {
        "blocks": 1, "channels": 4, "skip_channels": 32, "end_channels": 32, "dropout": 0.0,
    },
}  # fmt: skip


@pytest.mark.quick(2)
@pytest.mark.parametrize("model", CELLS)
def test_a_client_does_not_depend_on_the_number_of_cells_of_others(model, owned):
    """Operator B holds one cell, A two: B's tables are padded, and nothing of them is used."""
    ordered = owned.isel(cell=[1, 0, 2]).assign_coords(cell=[1, 2, 3])  # B is the first in both.
    options = {**CELLS[model], "model": model, "clients": "operator"}
    both = forecasts("solo", ordered, **options)
    alone = forecasts("solo", ordered.isel(cell=[0]), **options)
    np.testing.assert_allclose(both[:1], alone, rtol=1e-4)


def test_a_graph_model_reads_cells_of_its_client_only(table):
    from stforecast import open_cube

    owned = open_cube(table).assign_coords(operator=("cell", ["A", "B", "A"]))
    graph = {"model": "graph_wavenet", **CELLS["graph_wavenet"]}
    forecaster = fitted("fedavg", owned, clients="operator", **graph)
    before = forecaster.predict(table)
    other = table.copy()
    other.iloc[-1, 0] *= 1.5
    moved = (forecaster.predict(other) != before).to_numpy()[0]
    assert moved[[0, 2]].all()
    assert not moved[1]
    last = forecaster.model_.predictor.snapshot
    shared = [name.removeprefix("server/") for name in last.flat() if name.startswith("server/")]
    assert shared
    assert not any(word in name for name in shared for word in ("source", "target", "graphs"))


@pytest.mark.parametrize("method", ["fedda", "fedda_clusters"])
def test_methods_that_cannot_carry_a_model_of_cells_say_so(method, owned):
    with pytest.raises(InputError, match=f"{method}'s server"):
        fitted(method, owned, clients="operator", model="stid")


def test_a_pooled_method_refuses_the_setting(owned):
    with pytest.raises(InputError, match=r"central.*clients"):
        fitted("central", owned, clients="operator")


def test_a_reference_forecaster_reads_it_for_the_errors_of_clients_only(owned):
    alone, divided = (
        Forecaster("seasonal_day", split="days:7,1,2", clients=clients).fit(owned)
        for clients in ("cell", "operator")
    )
    assert divided.test_forecasts().equals(alone.test_forecasts())
    assert set(divided.evaluate(by="client")["client"]) == {"A", "B", "all"}


def test_errors_of_a_client_are_those_of_its_cells_together(owned):
    forecaster = fitted("fedavg", owned, clients="operator")
    by_cell, by_client = (
        forecaster.evaluate(by=by)
        .query("metric == 'mse' and split == 'test' and selection == 'last' and horizon == 'all'")
        .set_index("client")["value"]
        for by in ("cell", "client")
    )
    assert set(by_client.index) == {"A", "B", "all"}
    assert by_client["A"] == pytest.approx(by_cell[["11", "33"]].mean())
    assert by_client["B"] == pytest.approx(by_cell["22"])
    assert by_client["all"] == pytest.approx(by_cell["all"])
    with pytest.raises(InputError, match=r"by 'operator'; .*: cell, client"):
        forecaster.evaluate(by="operator")


def test_weights_are_numbers_of_samples(owned):
    """After one step, FedAvg's global model is the mean of the clients', weighted by cells."""
    plain = {"optimizer": "sgd", "lr": 0.01, "rounds": 1, "batch_size": 168 - 24, "periods": 0}
    average, own = (
        fitted(method, owned, clients="operator", closeness=3, **plain)
        ._evaluations["last"]
        .model.predictor.snapshot
        for method in ("fedavg", "solo")
    )
    for name, t in own.clients.params.items():
        weighted = (2 * t[0] + t[1]) / 3
        np.testing.assert_allclose(average.server[name], weighted, rtol=1e-5, atol=1e-7)


def test_a_run_tells_of_its_clients_and_the_roads_that_are_cut(owned, tmp_path, caplog):
    caplog.set_level("INFO")
    roads = np.array([[1.0, 0.5, 0.5], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    cube = owned.assign_coords(cell_to=owned["cell"].to_numpy())
    cube["adjacency"] = (("cell", "cell_to"), roads)
    path = write_cube(cube, tmp_path / "town.nc")
    run("fedavg", path, tmp_path / "run", settings("fedavg", clients="operator"))
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["cells_of_clients"] == {"A": 2, "B": 1}
    assert about["roads"] == {"roads": 3, "cut": 1, "cut_weight": 0.25}
    assert mentions(caplog.text, "2 clients", "1 to 2")
    assert mentions(caplog.text, "1 of 3", "(25.0%")
    table = pd.read_csv(tmp_path / "run" / "clients.csv")
    assert set(table["client"]) == {"A", "B", "all"}
