"""Clients train alike wherever they are, and samples stay with them."""

import logging

import pytest
import torch
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.fedper import FedPer
from stforecast.federated.uploads.uplink import Uplink

SIZES = (8, 12, 8, 12, 8)
SOME = slice(2, 5)


def part(data, rows):
    return ClientData({name: t[rows].clone() for name, t in data.tensors.items()}, data.sizes[rows])


@pytest.mark.parametrize("method", [FedAvg, FedPer])
@pytest.mark.parametrize("uplink", [Uplink(), Uplink(noise="laplace", bits=8)])
def test_some_of_the_clients_train_as_all_do(federate, method, uplink):
    """What is random has their number in the whole federation for a key."""
    federation = federate(method, SIZES, shuffle=True, cohort_size=1, uplink=uplink)
    everyone = federation.trainer
    few = Trainer(
        federation.method, part(federation.train, SOME),
        seed=1, cohort_size=1, uplink=uplink, first=SOME.start, n_clients=len(SIZES),
    )  # fmt: skip
    few.receive(federation.state.server, 0)
    all_of_them, some = everyone.train(torch.arange(5)), few.train(torch.arange(3))
    assert few.numbers == range(2, 5)
    for name, t in some.upload.items():
        assert torch.equal(t, all_of_them.upload[name][SOME])
    for name, t in few.state.clients.params.items():
        assert torch.equal(t, everyone.state.clients.params[name][SOME])
    assert some.like == all_of_them.like
    assert some.bytes_up * 5 == all_of_them.bytes_up * 3


def test_a_method_that_would_send_samples_is_stopped(federate):
    class Careless(FedAvg):
        name = ""

        def upload(self, cohort):
            return {"x": cohort.data.tensors["x"]}

    with pytest.raises(ValueError, match="samples as 'x'"):
        federate(Careless, (8, 8)).run_round()


@pytest.mark.parametrize(("first", "n_clients"), [(3, 5), (-1, 5)])
def test_numbers_outside_the_federation_are_refused(federate, first, n_clients):
    made = federate(FedAvg, (8, 8, 8))
    with pytest.raises(InputError, match=rf"3 clients .*number {first}"):
        Trainer(made.method, made.train, first=first, n_clients=n_clients)


def test_a_copy_is_the_trainers_no_more_and_uses_the_memory_of_an_older_one(federate):
    trainer = federate(FedAvg).trainer
    old = trainer.copy(trainer.state)
    before = {name: t.clone() for name, t in old.flat().items()}
    trainer.train(torch.arange(3))
    torch.testing.assert_close(old.flat(), before, rtol=0, atol=0)
    new = trainer.copy(trainer.state, into=old)
    assert not new.clients.moments
    for name, t in new.clients.params.items():
        assert torch.equal(t, trainer.state.clients.params[name])
        assert t.data_ptr() == old.clients.params[name].data_ptr()


def test_states_in_files_are_named_in_the_log(federate, caplog):
    caplog.set_level(logging.INFO)
    needed = federate(FedAvg).trainer.predicted_memory()
    assert federate(FedAvg, memory=needed.total).trainer._store is None
    stored = federate(FedAvg, memory=needed.total - 1).trainer
    assert mentions(caplog.text, "states", f"{stored._store.folder}")
