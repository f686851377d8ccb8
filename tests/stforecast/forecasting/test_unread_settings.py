"""Settings that a method, its data or its other settings leave unread are refused."""

import numpy as np
import pytest

import vision.config
from data_prep.base.errors import InputError
from stforecast.baselines import BASELINES
from stforecast.forecasting.config import check_read, read_by, resolve, unread
from stforecast.forecasting.forecaster import Forecaster
from stforecast.methods import METHODS
from vision.learner import Learner
from vision.methods import METHODS as IMAGE_METHODS

OTHER = {
    "clients": "all", "newest_first": True, "extra_lags": "30", "calendar": "day",
    "impute": "ffill", "epochs": 2, "batch_size": 12, "lr": 0.01, "schedule": "cosine",
    "optimizer": "sgd", "optimizer_state": "round", "momentum": 0.5, "weight_decay": 0.1,
    "clip_gradients": 0.01, "participation": 0.5, "shuffle": True, "drop_last": False,
    "noise": "laplace", "noise_std": 0.1, "clip": 0.5, "bits": 8, "robust": "median",
    "loss": "mae", "model": "mlp", "select": "last", "device": "cpu",
}  # fmt: skip
"""Values unlike the defaults of settings that some method does not read."""


def test_an_option_that_does_nothing_is_refused_with_those_that_read_it():
    with pytest.raises(InputError, match=r"ridge .*device; .*fedavg"):
        Forecaster("ridge", device="auto")
    with pytest.raises(InputError, match=r"ridge.*rounds"):
        Forecaster("ridge", rounds=resolve("ridge").training.rounds)
    with pytest.raises(InputError, match=r"solo .*bits; .*fedavg"):
        Forecaster("solo", bits=8)
    with pytest.raises(InputError, match=r"central.*clients"):
        Forecaster("central", clients="all")
    with pytest.raises(InputError, match=r"fedtrees.*normalise"):
        Forecaster("fedtrees", normalise="none")  # An option of its model, which is not trained.
    with pytest.raises(InputError, match=r"chance.*lr"):
        Learner("chance", lr=0.1)


@pytest.mark.parametrize(
    ("given", "asks", "condition"),
    [
        ({"momentum": 0.5}, {"optimizer": "sgd"}, "optimizer is sgd"),
        ({"full_start": False}, {"participation": 0.5}, "participation .*below 1"),
        ({"huber_delta": 1.0}, {"loss": "huber"}, "loss is huber"),
        ({"quantiles": "0.1,0.5,0.9"}, {"intervals": "conformal"}, "there are intervals"),
        ({"noise_std": 0.5}, {"noise": "laplace"}, "there is noise"),
        ({"privacy_delta": 1e-6}, {"noise": "gaussian", "clip": 1.0}, "noise .*gaussian .*clip"),
        ({"robust_trim": 0.3}, {"robust": "trimmed"}, "robust .*trimmed"),
        ({"refit_rounds": 2}, {"refit": "daily"}, "refit .*never"),
        ({"input_steps": 2}, {"inputs": "sms"}, "inputs.*services"),
    ],
)
def test_a_setting_needs_the_setting_that_it_belongs_to(given, asks, condition):
    (name,) = given
    with pytest.raises(InputError, match=rf"{name} .*only if .*{condition}"):
        Forecaster("fedavg", **given)
    check_read("fedavg", {**given, **asks})


def test_a_folder_of_images_is_read_for_data_with_files_only():
    with pytest.raises(InputError, match=r"images .*data .*folder"):
        Learner("fedavg", images="mine")
    with pytest.raises(InputError, match="images is"):
        Learner("fedavg", images="mine", data="digits8x8+syn-generated")
    for data in ("folder", "digits8x8+mnist"):
        vision.config.check_read("fedavg", {"images": "mine", "data": data})


@pytest.mark.parametrize("method", sorted({**METHODS, **BASELINES}))
def test_records_of_all_settings_are_read_again(method):
    flat = resolve(method).flat()
    assert resolve(**read_by(method, flat)) == resolve(method)
    check_read(method, {n: v for n, v in read_by(method, flat).items() if n != "method"})
    assert "seed" in read_by(method, flat)


@pytest.mark.parametrize("method", sorted(IMAGE_METHODS))
def test_records_of_image_runs_are_read_again(method):
    flat = vision.config.resolve(method).flat()
    read = vision.config.read_by(method, flat)
    assert vision.config.resolve(**read) == vision.config.resolve(method)


@pytest.mark.quick(3)
@pytest.mark.parametrize("method", ["last_value", "ridge", "solo", "central", "fedtrees"])
def test_what_a_method_does_not_read_changes_nothing(method, table):
    """Given all at once, behind the check, such settings leave every forecast as it was."""
    own = {"split": "days:7,1,2", "periods": 1}
    own |= {"rounds": 2} if method in METHODS else {}
    own |= {"extra_lags": ""} if method == "fedtrees" else {}
    ignored = {n: v for n, v in OTHER.items() if unread(method, {n: v}).get(n) == ""}
    assert ignored
    if method in METHODS:
        ignored.pop("robust", None)  # A federation refuses rules that it cannot use, too.
    one, other = Forecaster(method, **own), Forecaster(method, **own)
    other.asked = resolve(method, **own, **ignored)
    found = [f.fit(table).test_forecasts()["y_hat"].to_numpy() for f in (one, other)]
    np.testing.assert_array_equal(*found)
