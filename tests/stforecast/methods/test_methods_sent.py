"""How much a client sends in a round with the model of the FUELS paper (its Table 1)."""

import numpy as np
import pytest
from cut_windows import cut_windows

from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.population import Population
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation
from stforecast.forecasting.task import ForecastTask, client_data
from stforecast.methods import METHODS
from stforecast.models.dual import DualGRU

MODEL = 100_737
PROTOTYPES = 24 * 2 * 128


@pytest.fixture(scope="module")
def hourly():
    """A day of windows for each of two clients."""
    spec = WindowSpec(period=24)
    steps = np.arange(spec.max_lag + spec.period)
    series = np.random.default_rng(0).normal(size=(len(steps), 2)).astype(np.float32)
    return client_data(cut_windows(series, steps[spec.max_lag :], spec, with_next=True))


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [
        ("fedavg", MODEL, MODEL),
        ("fedadam", MODEL, MODEL),
        ("fedavg_ft", MODEL, MODEL),
        ("fedbn", MODEL, MODEL),
        ("feddyn", MODEL, MODEL),
        ("fednova", MODEL + 1, MODEL),
        ("fedper", MODEL - 129, MODEL - 129),
        ("fedprox", MODEL, MODEL),
        ("lg_fedavg", 129, 129),
        ("scaffold", 2 * MODEL, 2 * MODEL),
        # Table 1 prints 100,737 here too, which would be the head as well.
        ("fedrep", MODEL - 129, MODEL - 129),
        # Prototypes and the samples behind each go up; which of them there are is told in bytes.
        ("fedproto", PROTOTYPES + 24, PROTOTYPES + 24 / 4),
    ],
)
def test_values_sent_by_a_client_in_a_round(hourly, name, up, down):
    spec = WindowSpec(period=24)
    population = Population(lambda: DualGRU(spec))
    method = METHODS[name](population, ForecastTask(spec.period), Training())
    federation = Federation(method, hourly)
    federation.run_round()
    report = federation.run_round()
    assert (report.bytes_up, report.bytes_down) == (2 * 4 * up, 2 * 4 * down)


def test_the_dual_gru_has_an_encoder_of_100608_values():
    parameters = Population(lambda: DualGRU(WindowSpec(period=24))).parameters(1)
    encoder = sum(t.numel() for name, t in parameters.items() if name.startswith("encoder."))
    assert encoder == MODEL - 129 == 100_608
