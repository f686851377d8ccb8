"""Renewal of a saved model: what is trained, on what, and what stays."""

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.update import split_before

SETTINGS = {"split": "days:4,1,1", "horizon": 3}
TINY = {**SETTINGS, "periods": 0, "rounds": 2, "hidden_size": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def saved(table, tmp_path_factory):
    """Forecasters of the first six days by method, as saved and loaded again."""

    def make(method, **further):
        settings = {**(SETTINGS if method in ("ridge", "fedlean") else TINY), **further}
        fitted = Forecaster(method, **settings).fit(table.iloc[: 24 * 6])
        return fitted, Forecaster.load(fitted.save(tmp_path_factory.mktemp(method)))

    return make


def test_ridge_trained_further_is_fitted_to_all_but_the_trial(saved, table):
    _, loaded = saved("ridge")
    further = loaded.update(table, days=2)
    # The same fit to what was known before the trial, with the first scaling.
    cut = table.iloc[: 24 * 8]
    again = loaded.update(pd.concat([cut, table.iloc[24 * 8 :] * 0 + 7]), days=2)
    a, b = (f.model_.predictor.state() for f in (further, again))
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])
    old = loaded.model_.predictor.state()
    assert any(not np.array_equal(a[name], old[name]) for name in a)
    np.testing.assert_array_equal(further.model_.scaler.mean, loaded.model_.scaler.mean)
    assert further.model_.trained_on["last"] == str(table.index[24 * 8 - 1])


@pytest.mark.quick(5)
@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedrep", "fuels", "solo"])
def test_a_loaded_model_goes_on_as_the_fitted_one(saved, table, method):
    fitted, loaded = saved(method, optimizer_state="round") if method != "fuels" else saved(method)
    further = [f.update(table, days=2) for f in (fitted, loaded)]
    assert further[1].model_.predictor.round == loaded.model_.predictor.round + 3
    found = [f.predict(table) for f in further]
    assert np.isfinite(found[0]).to_numpy().all()
    if method != "fuels":  # Whose memory of prototypes a saved model lacks.
        pd.testing.assert_frame_equal(*found)


@pytest.mark.repeats
def test_fedlean_trained_further_solves_its_map_anew(saved, table):
    _, loaded = saved("fedlean")
    further = loaded.update(table, days=2)
    old, new = (f.model_.predictor.snapshot.server["map"] for f in (loaded, further))
    assert not np.allclose(old, new)
    # The network goes on from its weights: after few small steps it is still near them.
    for name, t in loaded.model_.predictor.snapshot.server.items():
        if name.startswith("encoder"):
            assert (further.model_.predictor.snapshot.server[name] - t).norm() < t.norm()


def test_bounds_alone_are_calibrated(saved, table):
    _, loaded = saved("ridge", intervals="conformal", outliers="keep")
    wide = table.copy()
    # In the trial all is as it was, but for steps of ten deviations: bounds must hold these.
    rng = np.random.default_rng(1)
    wide.iloc[-48:] += 10 * table.std().to_numpy() * rng.choice([-1, 1], size=(48, 3))
    calibrated = loaded.update(wide, "calibrated", days=2)
    widths = [
        (f.predict_interval(table).upper - f.predict_interval(table).lower).to_numpy().mean()
        for f in (loaded, calibrated)
    ]
    assert 3 * widths[0] < widths[1] < np.inf
    pd.testing.assert_frame_equal(calibrated.predict(table), loaded.predict(table))


@pytest.mark.parametrize("how", ["calibrated", "trained further", "trained anew"])
def test_bounds_of_a_counter_that_is_silent_in_the_trial_stay(saved, table, how):
    _, loaded = saved("ridge", intervals="normalised")
    silent = table.copy()
    silent.iloc[-72:, 1] = np.nan  # In the validation part of one trained anew, too.
    was, renewed = loaded.model_, loaded.update(silent, how, days=2).model_
    for name in ("radius", "most"):
        old, new = (getattr(m.calibration, name)[1] * m.scaler.std[1] for m in (was, renewed))
        np.testing.assert_allclose(new, old, rtol=1e-9)
        assert np.isfinite(getattr(renewed.calibration, name)).all()


def test_trained_anew_is_a_fit_whose_test_part_is_the_trial(saved, table):
    _, loaded = saved("ridge")
    anew = loaded.update(table, "trained anew", days=2)
    parts = anew.data_.parts()
    assert parts["test"] == {"first": str(table.index[-48]), "last": str(table.index[-1])}
    assert parts["validation"]["first"] == str(table.index[-72])
    fitted = Forecaster("ridge", **{**SETTINGS, "split": "time:168/240,24/240,48/240"}).fit(table)
    pd.testing.assert_frame_equal(anew.predict(table), fitted.predict(table))
    assert split_before(anew.data_.series, 48) == "time:168/240,24/240,48/240"


def test_what_cannot_be(saved, table):
    _, loaded = saved("ridge")
    with pytest.raises(InputError, match="unknown how"):
        loaded.update(table, "trained more")
    with pytest.raises(InputError, match=r"days \(trial_days of service.toml\)"):
        loaded.update(table.iloc[:80], days=2)
