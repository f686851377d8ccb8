"""Mistakes in somebody's method or model: each is named, and none changes a number in silence."""

import numpy as np
import pytest
import torch
from mentions import mentions
from torch import nn

from data_prep.base.errors import InputError
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.method import Method
from stforecast.federated.core.options import NoOptions
from stforecast.federated.core.population import PerClient, Population, SplitModel
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.uploads.uplink import Uplink
from stforecast.forecasting.task import ForecastTask
from stforecast.methods import METHODS


def received_in_place(self, cohort, batch, payload):
    for t in payload.values():
        t.mul_(0.9)
    return FedAvg.local_loss(self, cohort, batch, payload)


def remembering(memory):
    def init(self, clients, sizes, seed):
        clients.memory["seen"] = memory
        return FedAvg.init(self, clients, sizes, seed)

    return init


def adding(self, cohort):
    cohort.memory["fresh"] = torch.ones(len(cohort), 2)
    return FedAvg.upload(self, cohort)


MISTAKES = {
    "upload: found NoneType, expected a dictionary": {"upload": lambda self, cohort: None},
    "upload: 'n' is of the type float": {"upload": lambda self, cohort: {"n": 3.0}},
    r"upload: 'n' has the shape \(\), expected \(2, …\)": {
        "upload": lambda self, cohort: {"n": torch.tensor(3.0)}
    },
    r"upload: 'n' has the shape \(1, 4\), expected \(2, …\)": {
        "upload": lambda self, cohort: {"n": torch.zeros(1, 4)}
    },
    "broadcast: 'encoder.0.weight' has the shape": {"broadcast": lambda self, server, to: server},
    "aggregate: 'beta' is of the type float": {
        "aggregate": lambda self, server, of, uploads: {**server, "beta": 3.0}
    },
    r"aggregate: '.*' has the shape \(1, .*\), expected that of the state before, \(": {
        "aggregate": lambda self, server, of, uploads: {
            name: t.mean(0, keepdim=True) for name, t in uploads.items()
        }
    },
    "init: 'log' is of the type dict": {"init": lambda self, clients, sizes, seed: {"log": {}}},
    "clients.memory after init: 'seen' is of the type list": {"init": remembering([0, 0])},
    r"clients.memory after init: 'seen' has the shape \(3,\)": {
        "init": remembering(torch.zeros(3))
    },
    r"the clients' 'fresh' has the shape \(2, 2\) after a round, and not": {"upload": adding},
    r"the loss has the shape \(2, 4\), expected \(2,\)": {
        "local_loss": lambda self, cohort, batch, payload: FedAvg.local_loss(
            self, cohort, batch, payload
        )[:, None].expand(2, 4)
    },
    "clients change '.*' of the server in place": {"local_loss": received_in_place},
    r"predict: found the shape \(2, 1, 2\), expected \(2, 8\) at the start": {
        "predict": lambda self, *given: FedAvg.predict(self, *given).mean(1, keepdim=True)
    },
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_in_a_method_is_named(federate, message):
    method = type("Mistaken", (FedAvg,), {"name": "", **MISTAKES[message]})
    with pytest.raises(InputError, match=message):
        federate(method, (8, 8)).run_round()


def test_what_a_method_keeps_on_itself_is_told(federate, caplog):
    def aggregate(self, server, of, uploads):
        self.rounds = getattr(self, "rounds", 0) + 1
        return FedAvg.aggregate(self, server, of, uploads)

    federate(type("Forgetful", (FedAvg,), {"name": "", "aggregate": aggregate})).run()
    assert caplog.text.count("changes its attribute rounds in a round") == 1


def noisy_start(self, clients, sizes, seed):
    return {n: t + torch.rand(()) for n, t in FedAvg.init(self, clients, sizes, seed).items()}


def noisy_loss(self, cohort, batch, payload):
    return FedAvg.local_loss(self, cohort, batch, payload) * np.random.rand()  # noqa: NPY002


@pytest.mark.parametrize("changed", [{"init": noisy_start}, {"local_loss": noisy_loss}])
def test_draws_from_a_global_generator_are_told(federate, caplog, changed):
    federate(type("Noisy", (FedAvg,), {"name": "noisy", **changed})).run()
    assert caplog.text.count("noisy draws from a global generator of torch or NumPy") == 1


def test_an_aggregate_that_is_not_finite_is_named(federate):
    def aggregate(self, server, of, uploads):
        return {n: t / 0 for n, t in FedAvg.aggregate(self, server, of, uploads).items()}

    federation = federate(type("Endless", (FedAvg,), {"name": "endless", "aggregate": aggregate}))
    with pytest.raises(InputError, match=r"'.*' from endless's aggregate"):
        federation.run()


def test_steps_that_record_no_loss_are_told(federate, caplog):
    def local_update(self, cohort, payload):
        self.receive(cohort, payload)
        return self.upload(cohort)

    federate(type("Silent", (FedAvg,), {"name": "silent", "local_update": local_update})).run()
    assert mentions(caplog.text, "round 1: silent", "loss")


def test_uploads_that_no_aggregate_reads_are_refused(federate):
    sending = {"name": "", "upload": lambda self, cohort: dict(cohort.params)}
    with pytest.raises(InputError, match="no aggregate"):
        federate(type("Sending", (Method,), sending)).run_round()


@pytest.mark.parametrize("shape", [(2, 5, 1), (2, 5), (2, 5, 7)])
def test_a_forecast_of_another_shape_is_refused(shape):
    task = ForecastTask(24, window=WindowSpec(horizon=6))
    batch = {"y": torch.zeros(2, 5, 6), "mask": torch.ones(2, 5, 6, dtype=torch.bool)}
    for function in (task.loss, task.score):
        with pytest.raises(InputError, match=r"shape .*\(2, 5, 6\)"):
            function(torch.zeros(shape), batch)


def test_layers_without_a_client_axis_are_named():
    with pytest.raises(InputError, match=r"encoder \(Linear\) .*axis"):
        Population(lambda: SplitModel(nn.Linear(3, 5), ClientLinear(5, 2)))


def test_a_model_needs_neither_options_nor_a_summary():
    assert (SplitModel.summary, SplitModel.Options()) == ("", NoOptions())


class Gain(nn.Module):
    """A factor, of which each client has a single value."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return x * self.factor


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("settings", [{"clip_gradients": 0.5}, {"uplink": Uplink(clip=1, bits=8)}])
def test_a_parameter_may_be_a_scalar(federate, name, settings):
    encoder = nn.Sequential(ClientLinear(3, 5), PerClient(Gain()))
    model = SplitModel(encoder, ClientLinear(5, 2))
    federation = federate(METHODS[name], build=lambda: model, **settings)
    federation.run()
    assert all(t.isfinite().all() for t in federation.state.flat().values())
