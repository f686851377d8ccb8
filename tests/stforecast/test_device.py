"""A dry run of every method on a device with the rules of a GPU (`tests/pretended_device.py`)."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from pretended_device import PretendedDevice

from stforecast import Forecaster
from stforecast.forecasting.config import defaults, options_type, read_by
from stforecast.methods import METHODS
from stforecast.models import MODELS

WAITS = {
    "fedala": {"int(passes.max())": "once a round, to learn no mixture that no client needs"},
    "fedtrees": {"": "a round is one level of a tree, and its local update has no steps"},
}
"""Lines at which clients in training wait for the device, and why."""

WAITS_OF_MODELS = {"mixed": {"kind": "in each step, for the encoders that a cohort has"}}

JOINT = {"graph_wavenet"}
"""Models that read all cells at once."""


@contextmanager
def training_on(device, monkeypatch, method):
    """Let runs compute on a device; the list of its waits in clients' training is filled."""
    waits, local_update = [], METHODS[method].local_update

    def watched(self, cohort, payload):
        before = len(device.waits)
        upload = local_update(self, cohort, payload)
        waits.extend(device.waits[before:])
        return upload

    with monkeypatch.context() as patch, device:
        patch.setattr(
            "stforecast.forecasting.trained_method.pick_device", lambda _: torch.device(device.name)
        )
        patch.setattr(METHODS[method], "local_update", watched)
        yield waits


def settings_of(method, model):
    settings = {"split": "days:7,1,2", "rounds": 2, "horizon": 3, "calendar": "none"}
    settings |= {"extra_lags": ""} if "extra_lags" in defaults(method) else {}
    if method == "fedtrees":
        return settings
    own = set(MODELS[model].Options.__dataclass_fields__)
    settings |= {"model": model, **({"hidden_size": 4} if "hidden_size" in own else {})}
    quick = {"warmup_epochs": 1}
    return settings | (quick if hasattr(options_type(method), "warmup_epochs") else {})


def trained(table, method, settings):
    forecaster = Forecaster(method, **read_by(method, settings)).fit(table)
    return forecaster.rounds_, forecaster.predict(table)


@pytest.mark.quick(3)
@pytest.mark.sampled(10)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_runs_on_a_device_and_its_training_never_waits(table, method, monkeypatch):
    same_on_a_device(table, method, settings_of(method, "mlp"), monkeypatch)


@pytest.mark.quick(2)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", sorted(MODELS.keys() - JOINT - {"mlp"}))
def test_a_model_runs_on_a_device_and_its_training_never_waits(table, model, monkeypatch):
    method = "lg_fedavg" if model == "mixed" else "fedavg"
    settings = settings_of(method, model) | {"rounds": 1}
    same_on_a_device(table, method, settings, monkeypatch, WAITS_OF_MODELS.get(model, {}))


def same_on_a_device(table, method, settings, monkeypatch, of_model=()):
    allowed = {*WAITS.get(method, {}), *of_model}
    expected = trained(table, method, settings | {"device": "cpu"})
    with training_on(PretendedDevice(), monkeypatch, method) as waits:
        found = trained(table, method, settings)
    assert not [line for line in waits if not any(known in line for known in allowed)]
    for one, other in zip(found, expected, strict=True):
        one, other = (t.drop(columns="seconds", errors="ignore") for t in (one, other))
        np.testing.assert_allclose(one, other, rtol=1e-3)  # The CPU's kernels round otherwise.
