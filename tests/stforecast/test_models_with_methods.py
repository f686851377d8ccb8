"""Every model of stacked layers can be trained by every method, ours and others'."""

import numpy as np
import pytest

from stforecast import Forecaster
from stforecast.config import options_type
from stforecast.federated.method import methods
from stforecast.models import MODELS

JOINT = {"graph_wavenet"}
"""Models that read all cells at once."""


@pytest.mark.parametrize("model", sorted(MODELS.keys() - JOINT))
@pytest.mark.parametrize("method", methods("stforecast"))
def test_a_round_leaves_finite_forecasts_of_the_whole_horizon(table, method, model):
    settings = {
        "split": "days:7,1,2",
        "rounds": 2,
        "device": "cpu",
        "horizon": 3,
        "calendar": "none",
    }
    own = set(MODELS[model].Options.__dataclass_fields__)
    settings |= {"hidden_size": 4} if "hidden_size" in own else {}
    settings |= {"extra_lags": ""} if model.startswith("dual") else {}
    settings |= {"warmup_epochs": 1} if hasattr(options_type(method), "warmup_epochs") else {}
    forecaster = Forecaster(method, model=model, **settings).fit(table)
    forecast = forecaster.predict(table)
    assert forecast.shape == (3, 3)
    assert np.isfinite(forecast).all(axis=None)
    assert (forecaster.rounds_["train_loss"] > 0).all()
