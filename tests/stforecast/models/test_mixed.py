"""Clients with different models, against each model alone."""

import pandas as pd
import pytest
import torch

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.federated.core.state import State

SETTINGS = {"rounds": 2, "horizon": 2, "split": "days:6,2,2", "closeness": 3, "device": "cpu"}
SMALL, LARGE = "mlp:hidden_size=8:dropout=0.2", "mlp:hidden_size=16"


@pytest.fixture(scope="module")
def hourly():
    """Ten days of six cells, each with its own daily shape."""
    hours = pd.date_range("2024-01-01", periods=240, freq="h")
    noise = torch.randn(240, 6, generator=torch.Generator().manual_seed(3)).numpy()
    shape = {c: 10 + (hours.hour * (i + 2)) % 24 for i, c in enumerate("abcdef")}
    return pd.DataFrame(shape, index=hours) + noise


def fitted(table, method="solo", model="mixed", **settings):
    return Forecaster(method, model=model, **SETTINGS, **settings).fit(table)


@pytest.mark.quick(3)
@pytest.mark.parametrize("method", ["fedproto", "fuels", "lg_fedavg"])
def test_with_one_model_for_all_it_is_that_model(method, hourly):
    mixed = fitted(hourly, method, models="mlp").predict()
    pd.testing.assert_frame_equal(mixed, fitted(hourly, method, "mlp").predict(), check_exact=True)


@pytest.mark.parametrize(
    ("first", "second", "alone"),
    [
        (SMALL, LARGE, {"hidden_size": 8, "dropout": 0.2}),
        (LARGE, SMALL, {"hidden_size": 16}),
    ],
)
def test_a_client_trains_its_own_model_as_if_alone(first, second, alone, hourly):
    """All clients begin with the head of the first model, so this holds for its clients."""
    mixed = fitted(hourly, models=f"{first}, {second}").predict()
    by_itself = fitted(hourly, model="mlp", **alone).predict()
    own = list("ace")
    torch.testing.assert_close(
        torch.tensor(mixed[own].to_numpy()), torch.tensor(by_itself[own].to_numpy())
    )


def state_of(forecaster) -> State:
    return forecaster.model_.predictor.snapshot


def test_a_client_sends_prototypes_and_changes_no_other_encoder(hourly):
    forecaster = fitted(hourly, "fedproto", models=f"{SMALL}, linear, dual_gru:hidden_size=4")
    assert forecaster.rounds_["bytes_up"].iloc[-1] == 6 * 4 * 24 * (32 + 1)
    params = state_of(forecaster).clients.params
    for turn in range(3):
        own = {n: t for n, t in params.items() if n.startswith(f"encoder.encoders.{turn}.")}
        assert own
        for t in own.values():
            others = [t[i] for i in range(6) if i % 3 != turn]
            assert all(torch.equal(other, others[0]) for other in others)
            assert not torch.equal(t[turn], others[0])


def owners(folder, *models):
    lines = [f"{c},{c},{m}" for c, m in zip("abcdef", models, strict=True)]
    (folder / "owners.csv").write_text("\n".join(["cell,client,model", *lines]))
    return str(folder / "owners.csv")


def test_the_file_of_clients_chooses_the_models(hourly, tmp_path):
    file = owners(tmp_path, "linear", "linear", "mlp", "linear", "mlp", "mlp")
    forecaster = fitted(hourly, models="mlp, linear", clients=file)
    assert state_of(forecaster).clients.buffers["encoder.kind"].tolist() == [1, 1, 0, 1, 0, 0]
    loaded = Forecaster.load(forecaster.save(tmp_path / "model"), device="cpu")
    pd.testing.assert_frame_equal(
        loaded.predict(hourly), forecaster.predict(hourly), check_exact=True
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"models": "mlp, mlp"}, "models is 'mlp, mlp'; name different models"),
        ({"models": "mlp, gru"}, "unknown model 'gru'"),
        ({"models": "mlp, stid"}, "stid distinguishes cells; leave it out of models"),
        ({"models": "mlp:hidden=8"}, "unknown setting of mlp 'hidden'"),
        ({"models": "mlp:hidden_size=big"}, "hidden_size is 'big'"),
        ({"method": "fedavg"}, "fedavg exchanges whole models or pools data, but the clients'"),
        ({"method": "fedamp"}, "fedamp exchanges whole models"),
        ({"method": "central"}, "central exchanges whole models or pools data"),
    ],
)
def test_what_cannot_work_is_refused_before_training(settings, message, hourly):
    with pytest.raises(InputError, match=message):
        fitted(hourly, **settings)


def test_a_file_of_clients_that_does_not_fit_is_refused(hourly, tmp_path):
    file = owners(tmp_path, *["linear", "mlp"] * 3)
    with pytest.raises(InputError, match="'linear', which is not among mlp; name it in models"):
        fitted(hourly, models="mlp", clients=file)
    with pytest.raises(InputError, match="has a column model, but the model of all is mlp"):
        fitted(hourly, model="mlp", clients=file)
    with pytest.raises(InputError, match="client a has the model ''; name one in its lines"):
        fitted(hourly, clients=owners(tmp_path, "", *["mlp"] * 5))


def test_new_cells_have_no_model_to_take(hourly):
    forecaster = fitted(hourly)
    with pytest.raises(InputError, match="clients have different models; train again"):
        forecaster.adapt(hourly.rename(columns={"a": "z"}))
