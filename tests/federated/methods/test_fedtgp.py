import math
from functools import partial

import pytest
import torch
from reference_tgp import loss_by_hand, reference_server

from data_prep.base.errors import InputError
from stforecast.federated.core.state import Participants
from stforecast.federated.methods.fedproto import FedProto
from stforecast.federated.methods.fedtgp import (
    VECTORS,
    FedTGP,
    FedTGPOptions,
    margin_contrast,
    widest_gap,
)
from stforecast.federated.methods.solo import Solo

SIZES = (8, 13, 5)
N_KEYS, D = 4, 5


def tgp(**options):
    return partial(FedTGP, options=FedTGPOptions(**options))


def of(*ids):
    return Participants(torch.tensor(ids), torch.full((len(ids),), 8), round=0)


def test_two_keys_by_hand(double):
    """P = 0 and 3, P̂ = 1 and 5: distances 1, 5 and 2, 2."""
    prototypes, held = torch.tensor([[[0.0], [3.0]]]), torch.tensor([[True, True]])
    made = torch.tensor([[1.0], [5.0]])
    first = math.log1p(math.exp(-(5 - (1 + 0.5))))
    second = math.log1p(math.exp(-(2 - (2 + 0.5))))
    found = margin_contrast(prototypes, held, made, 0.5)
    torch.testing.assert_close(found, torch.tensor((first + second) / 2), **double)


def test_the_loss_is_that_of_each_prototype(double):
    g = torch.Generator().manual_seed(0)
    prototypes, made = torch.randn(3, N_KEYS, D, generator=g), torch.randn(N_KEYS, D, generator=g)
    held = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0]]).bool()
    found, expected = (f(prototypes, held, made, 1.5) for f in (margin_contrast, loss_by_hand))
    torch.testing.assert_close(found, expected, **double)


def test_the_margin_is_the_largest_distance_of_means(double):
    g = torch.Generator().manual_seed(0)
    prototypes = torch.randn(3, N_KEYS, D, generator=g)
    held = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0]]).bool()
    means = [prototypes[0, 0], prototypes[:, 1].mean(0), prototypes[1, 2]]
    expected = max((a - b).norm() for a in means for b in means)
    assert widest_gap(prototypes, held) == pytest.approx(float(expected))
    assert widest_gap(prototypes, held & torch.tensor([0, 1, 0, 0]).bool()) == 0


@pytest.mark.parametrize("margin", [0.3, 100.0])
def test_the_server_steps_down_the_loss(double, federate, margin):
    federation = federate(tgp(margin=margin, server_epochs=7, server_lr=0.2), SIZES)
    g = torch.Generator().manual_seed(0)
    sent = {
        "prototypes": torch.randn(3, N_KEYS, D, generator=g),
        "known": torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0]]).bool(),
    }
    server = federation.state.server
    expected = reference_server(server, sent["prototypes"], sent["known"], margin, 7, 0.2)
    after = federation.method.aggregate(server, of(0, 1, 2), sent)
    torch.testing.assert_close(after["prototypes"], expected, **double)
    assert after["known"].tolist() == [True, True, True, False]
    assert not torch.equal(after[VECTORS], server[VECTORS])


def test_clients_are_those_of_fedproto(double, federate):
    """Given the same global prototypes, a round of the clients is the same."""
    runs = [federate(m, SIZES) for m in (tgp(lam=2.0), partial(FedProto))]
    shared = {"prototypes": torch.ones(N_KEYS, D), "known": torch.ones(N_KEYS, dtype=torch.bool)}
    object.__setattr__(runs[1].method.options, "lam", 2.0)
    uploads = []
    for federation in runs:
        federation.state.server.update(shared)
        federation.trainer.train(torch.arange(3))
        uploads.append(federation.state.clients.params)
    torch.testing.assert_close(uploads[0], uploads[1], **double)


@pytest.mark.repeats
def test_prototypes_move_apart(federate):
    federation = federate(tgp(), SIZES, rounds=6)
    federation.run()
    server = federation.state.server
    assert torch.pdist(server["prototypes"]).min() > 0.1


@pytest.mark.repeats
def test_without_their_weight_clients_train_alone(federate, module):
    runs = [federate(m, SIZES, build=module) for m in (tgp(lam=0.0), Solo)]
    for federation in runs:
        federation.run()
    flat = [f.state.clients.flat() for f in runs]
    torch.testing.assert_close(flat[0], flat[1], rtol=0, atol=0)


def test_it_sends_which_keys_it_has_and_not_how_often(federate):
    federation, sent = federate(FedTGP, SIZES), []
    upload = federation.method.upload
    federation.method.upload = lambda cohort: sent.append(upload(cohort)) or sent[-1]
    federation.train.tensors["slot"][0] = 2
    federation.run()
    first = next(message for message in sent if len(message["known"]) == 1)
    assert {tuple(message) for message in sent} == {("prototypes", "known")}
    assert first["known"].tolist() == [[False, False, True, False]]
    n_bytes = 3 * (4 * N_KEYS * D + N_KEYS)
    assert [(r.bytes_down, r.bytes_up) for r in federation.reports] == [
        (0, n_bytes),
        (n_bytes, n_bytes),
        (n_bytes, n_bytes),
    ]


@pytest.mark.parametrize(
    "options", [{"lam": -1.0}, {"margin": -1.0}, {"server_epochs": 0}, {"server_lr": 0.0}]
)
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError, match=f"{next(iter(options))} is"):
        FedTGPOptions(**options)
