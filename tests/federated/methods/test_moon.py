from functools import partial
from types import SimpleNamespace

import pytest
import torch
from reference_client import mean_by_size
from torch import nn
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.population import PerClient, SplitModel
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.moon import Moon, MoonOptions

SIZES = (8, 13, 5)


def moon(**options):
    return partial(Moon, options=MoonOptions(**options))


def features(client, values, batch):
    return torch.tanh(batch["x"] @ values["encoder.0.weight"] + values["encoder.0.bias"])


def contrast(z, near, far, temperature):
    """Eq. 3, sample by sample, as the cross-entropy of the first of two similarities."""
    pairs = [torch.stack([F.cosine_similarity(z, other, dim=-1)]) for other in (near, far)]
    logits = torch.cat(pairs).T / temperature
    return F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long))


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.repeats)])
def test_rounds_are_those_of_clients_trained_one_by_one(
    double, federate, alone, optimizers, optimizer
):
    federation = federate(
        moon(mu=2.0, temperature=0.3), SIZES, optimizer=optimizer, lr=0.05, participation=0.7
    )
    clients = alone(federation)
    own = [optimizers(c.params.values(), optimizer) for c in clients]
    server = clients[0].values()
    for _ in range(4):
        present = federation.participants().ids.tolist()
        federation.run_round()
        for i in present:
            client, former = clients[i], clients[i].values()
            client.receive(server)
            for batch in client.batches(epochs=2):
                near, far = (features(client, model, batch) for model in (server, former))
                loss = client.loss(batch) + 2.0 * contrast(
                    client.encode(batch["x"]), near, far, 0.3
                )
                own[i].zero_grad()
                loss.backward()
                own[i].step()
        server = mean_by_size([clients[i].values() for i in present], [SIZES[i] for i in present])
        torch.testing.assert_close(federation.state.server, server, **double)


def test_by_hand(double, federate):
    """Features (1, 0), those of the global model (0, 1), the former's (1, 0): log(1 + e^{1/τ})."""
    method = federate(moon(temperature=0.5)).method
    near, far = torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[1.0, 0.0]]])
    method.population.encode = lambda model, x: model["features"]
    method.population.decode = lambda model, z: torch.zeros(1, 1, 2)
    scratch = {"models": ({"features": near}, {"features": far})}
    cohort = SimpleNamespace(state={"features": far}, scratch=scratch, record=lambda *_: None)
    batch = {"x": far, "y": torch.zeros(1, 1, 2), "mask": torch.ones(1, 1, 2, dtype=torch.bool)}
    loss = method.local_loss(cohort, batch, {})
    torch.testing.assert_close(loss, torch.log1p(torch.tensor([2.0]).exp()))


def test_the_first_round_with_all_clients_is_fedavg(double, federate):
    first = [federate(m, SIZES) for m in (moon(mu=5.0), FedAvg)]
    for federation in first:
        federation.run_round()
    torch.testing.assert_close(first[0].state.server, first[1].state.server, **double)


def with_dropout():
    encoder = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.5))
    return SplitModel(PerClient(encoder), PerClient(nn.Linear(5, 2)))


def test_dropout_does_not_tell_equal_models_apart(double, federate):
    """In the first round the global and the former model are the same, so there is no gradient."""
    first = [federate(m, SIZES, build=with_dropout) for m in (moon(mu=5.0), FedAvg)]
    for federation in first:
        federation.run_round()
    torch.testing.assert_close(first[0].state.server, first[1].state.server, **double)


@pytest.mark.repeats
def test_without_the_term_it_is_fedavg(federate, module):
    runs = [federate(m, SIZES, build=module, participation=0.5) for m in (moon(mu=0), FedAvg)]
    for federation in runs:
        federation.run()
    torch.testing.assert_close(runs[0].state.flat(), runs[1].state.flat(), rtol=0, atol=0)


def test_the_frozen_models_change_no_running_statistics(federate, module):
    federation = federate(moon(), SIZES, build=module, epochs=1, rounds=1)
    federation.run_round()
    counts = [t for n, t in federation.state.clients.buffers.items() if n.endswith("_tracked")]
    assert [t.tolist() for t in counts] == [[2, 3, 1]]


@pytest.mark.parametrize("options", [{"mu": -1.0}, {"temperature": 0.0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError, match=f"{next(iter(options))} is"):
        MoonOptions(**options)
