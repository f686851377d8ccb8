import socket
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.baselines import BASELINES
from stforecast.baselines.chronos import Chronos, ChronosOptions
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.forecasting.config import read_by
from stforecast.forecasting.leaks import forecast_leaks

try:
    from chronos.chronos_bolt import ChronosBoltModelForForecasting, ChronosBoltPipeline
    from transformers import T5Config
except Exception as e:
    pytest.skip(f"the extra peers is not installed ({e})", allow_module_level=True)

SPEC = WindowSpec(closeness=3, periods=1, horizon=5, period=24)
HOURLY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))
TRAIN, TEST = np.arange(24, 80), np.arange(90, 100)
BOLT = {
    "context_length": 64, "prediction_length": 8, "input_patch_size": 8, "input_patch_stride": 8,
    "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A folder of random weights with the layout of Chronos-Bolt."""
    torch.manual_seed(0)
    config = T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dense_act_fn="relu",
        is_encoder_decoder=True, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    config.chronos_config, config.chronos_pipeline_class = BOLT, "ChronosBoltPipeline"
    config.architectures = ["ChronosBoltModelForForecasting"]
    model = ChronosBoltModelForForecasting(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    folder = tmp_path_factory.mktemp("bolt")
    model.save_pretrained(folder)
    return folder


def series():
    rng = np.random.default_rng(0)
    values = np.sin(2 * np.pi * np.arange(110) / 24)[:, None] * [0.5, 1.0]
    values = values + 0.1 * rng.normal(size=(110, 2))
    values[rng.random(values.shape) < 0.05] = np.nan
    return values


def fitted(weights, **options):
    options = ChronosOptions(weights=str(weights), **options)
    return Chronos(options).fit(series(), TRAIN, SPEC, HOURLY)


def test_a_forecast_is_the_median_of_the_library(weights):
    pipeline = ChronosBoltPipeline.from_pretrained(weights)
    past = torch.tensor(series()[:95].T, dtype=torch.float32)
    expected, _ = pipeline.predict_quantiles(past, 5, [0.1, 0.5])
    y_hat = fitted(weights).predict(series(), np.array([95]), HOURLY)
    np.testing.assert_allclose(y_hat[:, 0], expected[..., 1], atol=1e-4)


def test_batches_change_nothing(weights):
    one, many = (fitted(weights, batch=n).predict(series(), TEST, HOURLY) for n in (3, 256))
    np.testing.assert_allclose(one, many, atol=1e-4)


def test_forecasts_read_nothing_from_their_start_on(weights):
    assert forecast_leaks(fitted(weights), series(), TEST, SPEC, HOURLY) == []


def test_a_saved_forecaster_forecasts_the_same_with_the_same_weights_only(weights, tmp_path):
    hours = pd.date_range("2013-11-01", periods=110, freq="h")
    table = pd.DataFrame(series(), hours, pd.Index(["a", "b"]))
    settings = {"split": "steps:0.6,0.1,0.3", "periods": 0, "weights": str(weights)}
    forecaster = Forecaster("chronos", **read_by("chronos", settings)).fit(table)
    folder = forecaster.save(tmp_path)
    pd.testing.assert_frame_equal(Forecaster.load(folder).predict(table), forecaster.predict(table))
    config = weights / "config.json"
    text = config.read_text()
    config.write_text(text + " ")
    try:
        with pytest.raises(InputError, match="holds other weights than those"):
            Forecaster.load(folder)
    finally:
        config.write_text(text)


def test_the_network_is_not_used(weights, monkeypatch):
    def refuse(*args):
        pytest.fail("the network was asked for")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    fitted(weights).predict(series(), TEST, HOURLY)


def test_pickled_weights_are_not_read(weights, tmp_path):
    (tmp_path / "config.json").write_text((weights / "config.json").read_text())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"model\.safetensors does not exist"):
        fitted(tmp_path)


def test_weights_that_are_none_are_told(weights, tmp_path):
    with pytest.raises(InputError, match=r"^chronos: no weights; give weights, a folder"):
        fitted("")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes((weights / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match="cannot be read as a Chronos-Bolt model"):
        fitted(tmp_path)


def test_it_stops_at_the_time_limit(weights):
    expected = r"^chronos: stopped by its time limit of 1e-06 s after 5 of 20 windows; raise"
    with pytest.raises(InputError, match=expected):
        fitted(weights, batch=5, time_limit=1e-6).predict(series(), TEST, HOURLY)


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "chronos", None)
    with pytest.raises(InputError, match=r"^chronos needs .*; pip install 'stforecast\[peers\]'$"):
        BASELINES["chronos"]()
