"""Clients with different models, against each model alone."""

import pandas as pd
import pytest
import torch

from data_prep.base.errors import InputError
from data_prep.cube import make_cube
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
        ({"models": "mlp, mlp"}, "models is 'mlp, mlp'"),
        ({"models": "mlp, gru"}, "unknown model 'gru'"),
        ({"models": "mlp, stid"}, "stid .*cells"),
        ({"models": "mlp:hidden=8"}, "mlp 'hidden'"),
        ({"models": "mlp:inputs=sms"}, "service 'sms'; .*none"),
        ({"models": "mlp:hidden_size=big"}, "hidden_size is 'big'"),
        ({"method": "fedavg"}, "fedavg .*whole"),
        ({"method": "fedamp"}, "fedamp .*whole"),
        ({"method": "central"}, "central .*whole"),
    ],
)
def test_what_cannot_work_is_refused_before_training(settings, message, hourly):
    with pytest.raises(InputError, match=message):
        fitted(hourly, **settings)


def test_a_file_of_clients_that_does_not_fit_is_refused(hourly, tmp_path):
    file = owners(tmp_path, *["linear", "mlp"] * 3)
    with pytest.raises(InputError, match=r"'linear', .*mlp"):
        fitted(hourly, models="mlp", clients=file)
    with pytest.raises(InputError, match=r"column .*mlp"):
        fitted(hourly, model="mlp", clients=file)
    with pytest.raises(InputError, match=r"client a .*''"):
        fitted(hourly, clients=owners(tmp_path, "", *["mlp"] * 5))


@pytest.fixture(scope="module")
def with_services(hourly):
    """The six cells with two further services; every other cell has no sms."""
    values, rng = hourly.to_numpy(), torch.Generator().manual_seed(5)
    sms, call = (values + torch.randn(values.shape, generator=rng).numpy() for _ in range(2))
    sms[:, 1::2] = float("nan")
    about = {"title": "", "source": "", "license": "", "units": "MB", "time_zone": "UTC"}
    cube = {"internet": values, "sms": sms, "call": call}
    return make_cube(cube, hourly.index, hourly.columns.to_numpy(), **about)


@pytest.mark.parametrize(("own", "inputs"), [("none", ""), ("call", "call"), ("call+sms", None)])
def test_a_client_with_fewer_inputs_is_the_smaller_model_of_them(own, inputs, with_services):
    """What the others read changes nothing for it, whatever its place among the models."""
    settings = {"service": "internet", "split": "days:6,2,2", "calendar": "day", "device": "cpu"}
    settings |= {"rounds": 2, "horizon": 2, "closeness": 3, "input_steps": 2}
    services = "sms,call"
    own_model = f"mlp:hidden_size=8:inputs={own}"
    alone = Forecaster(
        "solo", model="mlp", hidden_size=8, inputs=services if inputs is None else inputs,
        **{k: v for k, v in settings.items() if inputs != "" or k != "input_steps"},
    )  # fmt: skip
    mixed = Forecaster(
        "solo", model="mixed", models=f"{own_model}, mlp", inputs=services, **settings
    )
    found, expected = (f.fit(with_services).predict(with_services) for f in (mixed, alone))
    for cell in "ace":
        torch.testing.assert_close(*(torch.tensor(t[cell].to_numpy()) for t in (found, expected)))


def test_a_cell_without_the_service_takes_part(with_services):
    """A third model has no use for further services, and would refuse them."""
    models = "mlp:hidden_size=8, dual_gru:hidden_size=4:inputs=none"
    forecaster = Forecaster(
        "fedproto", model="mixed", models=models, inputs="sms", service="internet", **SETTINGS
    ).fit(with_services)
    assert forecaster.predict(with_services).notna().all(axis=None)
    assert forecaster.rounds_["bytes_up"].iloc[-1] == 6 * 4 * 24 * (32 + 1)


def test_new_cells_have_no_model_to_take(hourly):
    forecaster = fitted(hourly)
    with pytest.raises(InputError, match="have different"):
        forecaster.adapt(hourly.rename(columns={"a": "z"}))
