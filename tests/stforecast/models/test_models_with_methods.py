"""Every model of stacked layers can be trained by every method, ours and others'."""

import numpy as np
import pytest

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.forecasting.config import defaults, options_type, read_by
from stforecast.methods import METHODS
from stforecast.models import MODELS

JOINT = {"graph_wavenet"}
"""Models that read all cells at once."""
TRAINING = [name for name, method in METHODS.items() if "model" not in method.unread]
"""Methods that train a model."""
OF_MIXED = {"fedgh", "fedpm", "fedproto", "fedtgp", "fuels", "lg_fedavg", "solo"}
"""Methods that do not need equal encoders."""


@pytest.mark.quick(6)
@pytest.mark.sampled(12)
@pytest.mark.parametrize("model", sorted(MODELS.keys() - JOINT))
@pytest.mark.parametrize("method", TRAINING)
def test_a_round_leaves_finite_forecasts_of_the_whole_horizon(table, method, model):
    settings = {
        "split": "days:7,1,2",
        "rounds": 2,
        "device": "cpu",
        "horizon": 3,
        "calendar": "none",
    }
    own = set(MODELS[model].Options.__dataclass_fields__)
    smaller = {"hidden_size": 4, "width": 8, "decoder_layers": 1, "epochs": 1}
    settings |= {name: n for name, n in smaller.items() if name in own | {"epochs"}}
    reads_a_week = "extra_lags" in defaults(method)
    settings |= {"extra_lags": ""} if model.startswith("dual") or reads_a_week else {}
    # The inner steps of pFedMe at its default diverge on a transformer.
    settings |= {"personal_lr": 0.01} if (method, model) == ("pfedme", "patch_transformer") else {}
    settings |= {"warmup_epochs": 1} if hasattr(options_type(method), "warmup_epochs") else {}
    unfitted = Forecaster(method, model=model, **read_by(method, settings))
    if model == "mixed" and method not in OF_MIXED:
        with pytest.raises(InputError, match="whole models"):
            unfitted.fit(table)
        return
    forecaster = unfitted.fit(table)
    forecast = forecaster.predict(table)
    assert forecast.shape == (3, 3)
    assert np.isfinite(forecast).all(axis=None)
    assert (forecaster.rounds_["train_loss"] > 0).all()


@pytest.mark.quick(3)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("model", sorted(MODELS.keys() - JOINT))
def test_mixed_precision_changes_forecasts_by_its_rounding_only(table, model, monkeypatch):
    monkeypatch.setattr("stforecast.federated.engine.trainer.bfloat16_pays", lambda *_: True)
    settings = {"split": "days:7,1,2", "rounds": 2, "device": "cpu", "calendar": "none"}
    method = "lg_fedavg" if model == "mixed" else "fedavg"
    full, mixed = (
        Forecaster(method, model=model, mixed_precision=p, **settings).fit(table)
        for p in ("no", "bf16")
    )
    forecasts = [f.predict(table).to_numpy() for f in (full, mixed)]
    assert (forecasts[0] != forecasts[1]).any()
    np.testing.assert_allclose(*forecasts, rtol=0.02, atol=0.02 * np.ptp(table.to_numpy()))
    losses = [f.rounds_["train_loss"].to_numpy() for f in (full, mixed)]
    np.testing.assert_allclose(*losses, rtol=0.02)
