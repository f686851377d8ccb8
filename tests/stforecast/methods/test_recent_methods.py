"""Methods with networks on the features: with every model of windows, in which they have a size."""

import numpy as np
import pytest
import torch
from cut_windows import cut_windows
from recent_methods import RECENT

from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.population import Population, feature_width
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation
from stforecast.forecasting.task import ForecastTask, client_data
from stforecast.methods import METHODS
from stforecast.models import MODELS

SPEC = WindowSpec(closeness=4, periods=2, period=6, horizon=2)
WINDOWED = [name for name in MODELS if name not in ("graph_wavenet", "mixed")]


@pytest.fixture(scope="module")
def windows():
    """Two periods of windows for each of two clients."""
    steps = np.arange(SPEC.max_lag + 2 * SPEC.period + 1)
    series = np.random.default_rng(0).normal(size=(len(steps), 2)).astype(np.float32)
    starts = steps[SPEC.max_lag : -1]
    return client_data(cut_windows(series, starts, SPEC))


@pytest.mark.parametrize("model", WINDOWED)
def test_the_width_of_features_is_that_of_the_encoders_output(windows, model):
    population = Population(lambda: MODELS[model](SPEC))
    features = population.encode(population.parameters(2), windows.tensors["x"])
    assert feature_width(population) == features.shape[-1]


@pytest.mark.quick(5)
@pytest.mark.sampled(6)
@pytest.mark.parametrize("model", WINDOWED)
@pytest.mark.parametrize("name", RECENT)
def test_they_run_with_every_model(windows, name, model):
    population = Population(lambda: MODELS[model](SPEC))
    training = Training(rounds=2, batch_size=SPEC.period)
    federation = Federation(METHODS[name](population, ForecastTask(SPEC.period), training), windows)
    federation.run()
    assert federation.state.round == 2
    assert all(torch.isfinite(t).all() for t in federation.state.flat().values())
