import re
import socket
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.baselines import BASELINES
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.forecasting.config import read_by
from stforecast.forecasting.leaks import forecast_leaks

try:
    from chronos.chronos2 import Chronos2CoreConfig, Chronos2Model, Chronos2Pipeline
    from chronos.chronos_bolt import ChronosBoltModelForForecasting, ChronosBoltPipeline
    from transformers import T5Config, TimesFm2_5Config, TimesFm2_5ModelForPrediction
except Exception as e:
    pytest.skip(f"the extra peers is not installed ({e})", allow_module_level=True)

SPEC = WindowSpec(closeness=3, periods=1, horizon=5, period=24)
HOURLY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))
TRAIN, TEST = np.arange(24, 80), np.arange(90, 100)
CHRONOS = {
    "context_length": 64, "input_patch_size": 8, "input_patch_stride": 8,
    "quantiles": [q / 10 for q in range(1, 10)], "use_reg_token": True,
}  # fmt: skip
SMALL = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
METHODS = {"bolt": "chronos", "chronos2": "chronos", "timesfm": "timesfm"}


def bolt():
    config = T5Config(
        **SMALL, dense_act_fn="relu", is_encoder_decoder=True, decoder_start_token_id=0,
        pad_token_id=0,
    )  # fmt: skip
    config.chronos_config = {**CHRONOS, "prediction_length": 8}
    config.chronos_pipeline_class = "ChronosBoltPipeline"
    config.architectures = ["ChronosBoltModelForForecasting"]
    return ChronosBoltModelForForecasting(config)


def chronos2():
    config = Chronos2CoreConfig(**SMALL)
    config.chronos_config = {**CHRONOS, "output_patch_size": 8, "max_output_patches": 2}
    config.chronos_pipeline_class = "Chronos2Pipeline"
    config.architectures = ["Chronos2Model"]
    return Chronos2Model(config)


def timesfm():
    config = TimesFm2_5Config(
        patch_length=8, context_length=64, horizon_length=16, num_hidden_layers=1, hidden_size=16,
        intermediate_size=32, head_dim=8, num_attention_heads=2, num_key_value_heads=2,
        output_quantile_len=16,
    )  # fmt: skip
    return TimesFm2_5ModelForPrediction(config)


@pytest.fixture(scope="module", params=[bolt, chronos2, timesfm])
def kind(request):
    return request.param.__name__


@pytest.fixture(scope="module")
def weights(kind, tmp_path_factory):
    """A folder of random weights in the layout of the released ones."""
    torch.manual_seed(0)
    model = globals()[kind]()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    folder = tmp_path_factory.mktemp(kind)
    model.save_pretrained(folder)
    return folder


def series():
    rng = np.random.default_rng(0)
    values = np.sin(2 * np.pi * np.arange(110) / 24)[:, None] * [0.5, 1.0]
    values = values + 0.1 * rng.normal(size=(110, 2))
    values[rng.random(values.shape) < 0.05] = np.nan
    return values


@pytest.fixture
def fitted(kind):
    def fit(weights, **options):
        method = BASELINES[METHODS[kind]]
        return method(method.Options(weights=str(weights), **options)).fit(
            series(), TRAIN, SPEC, HOURLY
        )

    return fit


def test_a_forecast_is_the_median_of_the_library(kind, weights, fitted):
    past = torch.tensor(series()[:95].T, dtype=torch.float32)
    if kind == "bolt":
        quantiles, _ = ChronosBoltPipeline.from_pretrained(weights).predict_quantiles(past, 5)
        expected = quantiles[..., 4]
    elif kind == "chronos2":
        quantiles, _ = Chronos2Pipeline.from_pretrained(weights).predict_quantiles(list(past), 5)
        expected = torch.cat(quantiles)[..., 4]
    else:
        model = TimesFm2_5ModelForPrediction.from_pretrained(weights)
        past = [torch.tensor(pd.Series(row.numpy()).interpolate()) for row in past]
        expected = model(past, truncate_negative=False).full_predictions[:, :5, 5].detach()
    y_hat = fitted(weights).predict(series(), np.array([95]), HOURLY)
    np.testing.assert_allclose(y_hat[:, 0], expected, atol=1e-4)


def test_batches_change_nothing(weights, fitted):
    one, many = (fitted(weights, batch=n).predict(series(), TEST, HOURLY) for n in (3, 256))
    np.testing.assert_allclose(one, many, atol=1e-4)


def test_forecasts_read_nothing_from_their_start_on(weights, fitted):
    assert forecast_leaks(fitted(weights), series(), TEST, SPEC, HOURLY) == []


def test_a_saved_forecaster_forecasts_the_same_with_the_same_weights_only(kind, weights, tmp_path):
    hours = pd.date_range("2013-11-01", periods=110, freq="h")
    table = pd.DataFrame(series(), hours, pd.Index(["a", "b"]))
    settings = {"split": "steps:0.6,0.1,0.3", "periods": 0, "weights": str(weights)}
    method = METHODS[kind]
    forecaster = Forecaster(method, **read_by(method, settings)).fit(table)
    folder = forecaster.save(tmp_path)
    pd.testing.assert_frame_equal(Forecaster.load(folder).predict(table), forecaster.predict(table))
    config = weights / "config.json"
    text = config.read_text()
    config.write_text(text + " ")
    try:
        with pytest.raises(InputError, match="other weights"):
            Forecaster.load(folder)
    finally:
        config.write_text(text)


def test_the_network_is_not_used(weights, fitted, monkeypatch):
    def refuse(*args):
        pytest.fail("the network was asked for")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    fitted(weights).predict(series(), TEST, HOURLY)


def test_pickled_weights_are_not_read(weights, fitted, tmp_path):
    (tmp_path / "config.json").write_text((weights / "config.json").read_text())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"model\.safetensors; weights"):
        fitted(tmp_path)


def test_weights_that_are_none_are_told(kind, weights, fitted, tmp_path):
    with pytest.raises(InputError, match="no weights"):
        fitted("")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes((weights / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"as .*(Chronos|TimesFM)"):
        fitted(tmp_path)


def test_it_stops_at_the_time_limit(weights, fitted):
    expected = r"stopped by its time limit of 1e-06 s after 5 of 20 windows; raise"
    with pytest.raises(InputError, match=expected):
        fitted(weights, batch=5, time_limit=1e-6).predict(series(), TEST, HOURLY)


@pytest.mark.parametrize(
    ("method", "package"), [("chronos", "chronos"), ("timesfm", "transformers")]
)
def test_a_missing_package_names_its_extra(method, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"^{method} .*'stforecast\[peers\]'$"):
        BASELINES[method]()


def test_a_horizon_beyond_the_models_is_refused(tmp_path):
    timesfm().save_pretrained(tmp_path)
    method = BASELINES["timesfm"]
    longer = WindowSpec(closeness=3, periods=1, horizon=17, period=24)
    with pytest.raises(InputError, match=r"timesfm .*16 .*horizon"):
        method(method.Options(weights=str(tmp_path))).fit(series(), TRAIN, longer, HOURLY)


@pytest.mark.parametrize(
    ("method", "build"), [("chronos", timesfm), ("timesfm", bolt), ("timesfm", chronos2)]
)
def test_weights_of_another_model_are_refused(method, build, tmp_path):
    """Its loader would give what is missing random values."""
    build().save_pretrained(tmp_path)
    method = BASELINES[method]
    expected = f"cannot be read as {method.kinds} \\(its architecture is .*; give the folder of one"
    with pytest.raises(InputError, match=expected):
        method(method.Options(weights=str(tmp_path))).fit(series(), TRAIN, SPEC, HOURLY)


def test_incomplete_weights_are_refused(tmp_path):
    timesfm().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = min(tensors)
    del tensors[name]
    save_file(tensors, path, {"format": "pt"})
    method = BASELINES["timesfm"]
    with pytest.raises(InputError, match=rf"model\.safetensors has no {re.escape(name)}"):
        method(method.Options(weights=str(tmp_path))).fit(series(), TRAIN, SPEC, HOURLY)
