from functools import partial

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.fedavg_ft import FedAvgFT, FedAvgFTOptions

SIZES = (8, 13, 4)
SETTINGS = {
    "adam": {"optimizer": "adam", "weight_decay": 0.1},
    "sgd": {"optimizer": "sgd", "momentum": 0.5},
}


def tuned(**options):
    return partial(FedAvgFT, options=FedAvgFTOptions(**options))


@pytest.mark.repeats
def test_the_rounds_are_fedavgs(federate, module):
    settings = {"sizes": SIZES, "build": module, "shuffle": True, "participation": 0.7}
    runs = [federate(m, **settings) for m in (tuned(personal_epochs=2), FedAvg)]
    for federation in runs:
        federation.run()
    mine, avg = (f.state.flat() for f in runs)
    assert mine.keys() == avg.keys()
    assert all(torch.equal(mine[name], t) for name, t in avg.items())
    assert [r.bytes_up for r in runs[0].reports] == [r.bytes_up for r in runs[1].reports]


@pytest.mark.parametrize("part", ["all", "head"])
@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.repeats)])
def test_fine_tuning_is_training_alone_from_the_global_model(
    double, federate, alone, optimizers, optimizer, part
):
    """With new moments and the learning rate given, though the schedule's is small by then."""
    settings = SETTINGS[optimizer]
    method = tuned(personal_epochs=3, personal_lr=0.03, personal_part=part)
    federation = federate(method, SIZES, lr=0.05, schedule="cosine", **settings)
    federation.run()
    ready = federation.ready()
    for i, client in enumerate(alone(federation)):
        client.receive(federation.state.server)
        params = client.part("head." if part == "head" else "")
        optimiser = optimizers(params, lr=0.03, **settings)
        for batch in client.batches(epochs=3):
            for p in client.params.values():
                p.grad = None
            client.loss(batch).backward()
            optimiser.step()
        found = {name: t[i] for name, t in ready.clients.params.items()}
        torch.testing.assert_close(found, client.values(), **double)


@pytest.mark.repeats
def test_the_learning_rate_is_the_runs_by_default(federate):
    states = []
    for options in ({}, {"personal_lr": 0.02}, {"personal_lr": 0.002}):
        federation = federate(tuned(**options), SIZES, lr=0.02)
        federation.run()
        states.append(federation.ready().clients.params["head.weight"])
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_every_client_is_tuned_once_a_round_and_the_best_round_is_kept_as_tuned(
    federate, monkeypatch
):
    federation = federate(tuned(personal_epochs=2), SIZES, rounds=4)
    counted, personalise = [], federation.method.personalise

    def watched(cohort, payload):
        counted.extend(cohort.ids.tolist())
        personalise(cohort, payload)

    monkeypatch.setattr(federation.method, "personalise", watched)
    federation.run()
    assert sorted(counted) == sorted(4 * list(range(len(SIZES))))
    losses = [r.validation_loss for r in federation.reports]
    assert federation.evaluate(federation.validation, federation.best) == min(losses)
    assert len(counted) == 4 * len(SIZES)


def test_nobody_is_tuned_in_rounds_that_are_not_judged(federate, monkeypatch):
    federation = federate(FedAvgFT, SIZES, validated=False)
    monkeypatch.setattr(federation.method, "personalise", None)
    federation.run()


def test_each_view_predicts_with_its_model(federate, make_data):
    federation = federate(tuned(personal_epochs=2), SIZES)
    federation.run()
    population, ready, data = federation.method.population, federation.ready(), make_data((5, 5, 5))
    ((batch, own),) = predictions(federation.method, ready, data)
    ((_, shared),) = predictions(federation.method, ready, data, view="global")
    w = {name: t.expand(3, *t.shape) for name, t in ready.server.items()}
    for y_hat, model in ((own, ready.clients.params), (shared, w)):
        expected = population.decode(model, population.encode(model, batch["x"]))
        torch.testing.assert_close(y_hat, expected)
    assert not torch.allclose(own, shared)


@pytest.mark.repeats
def test_running_statistics_follow_in_a_copy(federate, module):
    federation = federate(tuned(), SIZES, build=module)
    federation.run()
    name = "encoder.module.2.num_batches_tracked"
    shared = int(federation.state.server[name])
    personal = federation.ready().clients.buffers[name].tolist()
    assert personal == [shared + size // 4 for size in SIZES]
    assert int(federation.state.server[name]) == shared


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"personal_epochs": 0}, "personal_epochs is 0.*positive"),
        ({"personal_lr": -1.0}, "personal_lr is -1.0.*positive"),
        ({"personal_part": "encoder"}, "personal_part is 'encoder'; .*all or head"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        FedAvgFTOptions(**options)
