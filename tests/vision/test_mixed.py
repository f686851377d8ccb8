"""Image clients with different networks, against each network alone."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from waiting import Killed, killed_after

from data_prep.base.errors import InputError
from stforecast.federated.core.population import Population
from vision.config import resolve
from vision.learner import Learner, method_for_images
from vision.methods import METHODS
from vision.models.mixed import MixedImageOptions, MixedImages
from vision.results import UnfinishedImageRun, run_images

CONV, RES = "convnet:channels=4:feature_size=8", "resnet:width=2"
TINY = {
    "clients": 4, "rounds": 2, "size": 8, "feature_size": 8, "share": 0.3, "batch_size": 16,
    "workers": 1,
}  # fmt: skip
OWN = {"gldp": {"epochs": 2, "share_body": False}}
OF_MIXED = {"fedgh", "fedproto", "fedtgp", "lg_fedavg", "pfpl", "solo"}
"""Methods that need no equal encoders, whatever their settings."""
TRAINED = [name for name, method in METHODS.items() if "batch_size" not in method.unread]


def fitted(method, model="mixed", **settings):
    return Learner(method, model=model, **{**TINY, **OWN.get(method, {}), **settings}).fit()


def tensors(learner):
    clients = learner.fitted()[1].clients
    return {**clients.params, **clients.buffers}


def of_kind(learner, kind):
    """The tensors of the encoder of that number and of the head, by the names that it has alone."""
    prefix, others = f"encoder.encoders.{kind}.", ("encoder.encoders", "encoder.kind")
    found = {n.replace(prefix, "encoder."): t for n, t in tensors(learner).items()}
    return {n: t for n, t in found.items() if not n.startswith(others)}


@pytest.mark.quick(3)
@pytest.mark.parametrize("method", ["pfpl", "gldp", "fedproto", "fedtgp", "fedgh"])
def test_with_one_model_for_all_it_is_that_model(method):
    mixed, alone = fitted(method, models=CONV), fitted(method, "convnet", channels=4)
    found, expected = of_kind(mixed, 0), tensors(alone)
    assert found.keys() == expected.keys()
    assert all(torch.equal(t, expected[name]) for name, t in found.items())
    assert torch.equal(mixed.counts_.right, alone.counts_.right)


def test_a_client_trains_its_own_model_as_if_alone():
    """All clients begin with the head of the first model, so this holds for its clients."""
    for channels in (2, 4):
        first = f"convnet:channels={channels}:feature_size=8"
        found = of_kind(fitted("solo", models=f"{first}, {RES}"), 0)
        for name, t in tensors(fitted("solo", "convnet", channels=channels)).items():
            torch.testing.assert_close(found[name][::2], t[::2])


def test_a_client_changes_no_other_encoder():
    """Weight decay does not either, nor do the running statistics move."""
    mixed = fitted("pfpl", models=f"{CONV}, {RES}", cohort=4, weight_decay=0.1)
    assert mixed.rounds_["bytes_up"].iloc[-1] == 4 * 10 * (4 * 8 + 1)
    for kind in range(2):
        trained = {n: t for n, t in tensors(mixed).items() if f".encoders.{kind}." in n}
        assert any("running_mean" in name for name in trained)
        for name, t in trained.items():
            assert torch.equal(t[1 - kind], t[3 - kind]), name
            assert not torch.equal(t[kind], t[1 - kind]), name


def test_clients_together_are_each_by_itself():
    """In one pass, with batch normalisation in training: features, gradients and statistics."""
    options = MixedImageOptions(models=f"{CONV}, {RES}", feature_size=8)
    population = Population(lambda: MixedImages((1, 8, 8), 3, options), seed=2)
    x = torch.randint(256, (4, 6, 1, 8, 8), generator=torch.Generator().manual_seed(1)).byte()
    kinds = torch.tensor([1, 0, 1, 0])

    def passed(ids):
        params = {n: t.requires_grad_() for n, t in population.parameters(len(ids)).items()}
        buffers = population.buffers(len(ids)) | {"encoder.kind": kinds[ids]}
        features = population.encode({**params, **buffers}, x[ids])
        grads = torch.autograd.grad(features.square().sum(), params.values(), allow_unused=True)
        pairs = zip(params.values(), grads, strict=True)
        found = [torch.zeros_like(p) if g is None else g for p, g in pairs]
        return [features, *found, *buffers.values()]

    population.train()
    together = passed(torch.arange(4))
    apart = zip(*(passed(torch.tensor([i])) for i in range(4)), strict=True)
    for whole, parts in zip(together, apart, strict=True):
        torch.testing.assert_close(whole, torch.cat(parts))


@pytest.mark.quick(2)
@pytest.mark.parametrize("method", ["pfpl", "gldp"])
def test_a_run_that_was_killed_equals_one_that_was_not(method, tmp_path):
    settings = {
        **TINY, "model": "mixed", "models": f"{CONV}, {RES}", "rounds": 3, "checkpoint_every": 1,
        **OWN.get(method, {}),
    }  # fmt: skip
    run_images(method, tmp_path / "whole", settings)
    with pytest.raises(Killed):
        run_images(method, tmp_path / "killed", settings, after_round=killed_after(2))
    UnfinishedImageRun.resume(tmp_path / "killed")
    one, other = (
        load_file(tmp_path / run / "model" / "state.safetensors") for run in ("whole", "killed")
    )
    assert one.keys() == other.keys()
    assert all(np.array_equal(t, other[name]) for name, t in one.items())


def test_a_saved_learner_predicts_the_same(tmp_path):
    learner = fitted("pfpl", models=f"{CONV}, {RES}")
    loaded, images = Learner.load(learner.save(tmp_path)), learner.images.images[:40]
    for client in range(4):
        assert (loaded.predict(images, client) == learner.predict(images, client)).all()


def test_it_is_said_who_has_which_model(caplog):
    with caplog.at_level("INFO"):
        fitted("pfpl", models=f"{CONV}, resnet:width=4", rounds=1)
    assert f"{CONV}: 2 clients with 8 features" in caplog.messages
    assert "resnet:width=4: 2 clients with 8 features, mapped from 16 by a linear layer" in (
        caplog.messages
    )


@pytest.mark.quick(4)
@pytest.mark.parametrize("method", TRAINED)
def test_methods_that_send_encoders_are_refused(method):
    config = resolve(method, model="mixed")
    if method in OF_MIXED:
        method_for_images(config, (1, 8, 8), 10)
        return
    with pytest.raises(InputError, match=r"models differ|frozen backbone"):
        method_for_images(config, (1, 8, 8), 10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"models": "convnet, convnet"}, "different models"),
        ({"models": "convnet, lenet"}, "unknown model 'lenet'"),
        ({"models": "convnet, mixed"}, "mixed distinguishes"),
        ({"models": "convnet:width=3"}, "convnet 'width'"),
        ({"method": "gldp"}, "differ; .*share_body=False"),
    ],
)
def test_what_cannot_work_is_refused_before_training(settings, message):
    with pytest.raises(InputError, match=message):
        Learner(**{"method": "pfpl", "model": "mixed", **TINY, **settings}).fit()
