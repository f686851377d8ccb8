"""TiRex-2 and Toto 2.0 through packages of the same interface, as theirs need weights."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

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

SPEC = WindowSpec(closeness=3, periods=1, horizon=5, period=24)
HOURLY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))
TRAIN, TEST = np.arange(24, 80), np.arange(90, 100)
LEVELS = torch.arange(-4.0, 5.0)


def read(folder):
    """Return the one weight and the settings of a folder; refuse other weights, as theirs do."""
    tensors = load_file(f"{folder}/model.safetensors")
    if tensors.keys() != {"scale"}:
        raise RuntimeError(f"unexpected keys {sorted(tensors)}")
    settings = json.loads(Path(folder, "config.json").read_text())
    return float(tensors["scale"]), SimpleNamespace(**settings)


@dataclass
class TimeseriesType:
    target: torch.Tensor
    past_covariates: torch.Tensor | None
    future_covariates: torch.Tensor | None


class TiRex:
    def __init__(self, scale):
        self.scale = scale

    def forecast(self, timeseries, prediction_length):
        """Return the mean of the known readings, scaled, `(1, 9, prediction_length)` of each."""
        return [
            (self.scale * of.target.nanmean() + LEVELS[None, :, None]).expand(
                1, 9, prediction_length
            )
            for of in timeseries
        ]


def load_model(folder, device):
    assert device == "cpu"
    return TiRex(read(folder)[0])


class Toto2Model(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, folder, local_files_only):
        assert local_files_only
        model = cls()
        model.scale, model.config = read(folder)
        return model

    def forecast(self, inputs, horizon):
        """Return the mean of the known readings, scaled, `(9, windows, 1, horizon)`."""
        target, mask, ids = (inputs[name] for name in ("target", "target_mask", "series_ids"))
        assert target.shape[-1] % self.config.patch_size == 0
        assert not target.isnan().any()
        assert mask.dtype == torch.bool
        assert ids.shape == target.shape[:-1]
        mean = (target * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
        return (self.scale * mean + LEVELS[:, None, None, None]).expand(9, len(mean), 1, horizon)


@pytest.fixture(params=["tirex", "toto"])
def name(request, monkeypatch):
    for package, parts in (
        ("tirex2", {"load_model": load_model, "TimeseriesType": TimeseriesType}),
        ("toto2", {"Toto2Model": Toto2Model}),
    ):
        module = ModuleType(package)
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, package, module)
    return request.param


@pytest.fixture
def weights(tmp_path):
    folder = tmp_path / "weights"
    folder.mkdir()
    save_file({"scale": torch.tensor(2.0)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"patch_size": 8}))
    return folder


def series():
    values = np.random.default_rng(0).normal([1.0, 3.0], size=(110, 2))
    values[[70, 89, 94], [0, 1, 0]] = np.nan
    return values


def fit(name, **options):
    method = BASELINES[name]
    return method(method.Options(context=20, **options)).fit(series(), TRAIN, SPEC, HOURLY)


def test_a_forecast_is_the_median_of_the_library(name, weights):
    found = fit(name, weights=str(weights)).predict(series(), np.array([95]), HOURLY)
    known = pd.DataFrame(series()[:95])
    if name == "tirex":
        expected = known[-20:].mean()  # Missing readings stay missing.
    else:
        expected = known.interpolate()[-16:].mean()  # Two whole patches.
    expected = np.repeat(expected.to_numpy()[:, None], 5, axis=1)
    np.testing.assert_allclose(found[:, 0], 2 * expected, rtol=1e-5)


def test_batches_change_nothing(name, weights):
    one, many = (
        fit(name, weights=str(weights), batch=n).predict(series(), TEST, HOURLY) for n in (3, 256)
    )
    np.testing.assert_allclose(one, many, atol=1e-6)


def test_the_environment_names_the_folder(name, weights, monkeypatch):
    with pytest.raises(InputError, match=r"no weights; .*config\.json"):
        fit(name)
    monkeypatch.setenv(f"STFORECAST_WEIGHTS_{name.upper()}", str(weights))
    assert np.isfinite(fit(name).predict(series(), TEST, HOURLY)).all()


def test_a_saved_forecaster_needs_the_same_weights(name, weights, tmp_path):
    table = pd.DataFrame(series(), pd.date_range("2013-11-01", periods=110, freq="h"), ["a", "b"])
    settings = {"split": "steps:0.6,0.1,0.3", "weights": str(weights)}
    forecaster = Forecaster(name, **settings).fit(table)
    folder = forecaster.save(tmp_path / "saved")
    pd.testing.assert_frame_equal(Forecaster.load(folder).predict(table), forecaster.predict(table))
    save_file({"scale": torch.tensor(3.0)}, weights / "model.safetensors")
    with pytest.raises(InputError, match="other weights"):
        Forecaster.load(folder)


def test_other_weights_are_refused(name, weights):
    save_file({"other": torch.tensor(2.0)}, weights / "model.safetensors")
    with pytest.raises(InputError, match=r"\(unexpected keys"):
        fit(name, weights=str(weights))


@pytest.mark.parametrize(("method", "package"), [("tirex", "tirex2"), ("toto", "toto2")])
def test_a_missing_package_is_named(method, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    expected = rf"^{method} needs the package {package} .*; pip install {method}-2$"
    with pytest.raises(InputError, match=expected):
        BASELINES[method]()
