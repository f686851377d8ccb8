import numpy as np
import pandas as pd
import pytest
from mentions import mentions
from sklearn.preprocessing import StandardScaler

from data_prep.base.errors import InputError
from stforecast.data.scaling import Scaler, fit_scaler, warn_of_wild

SERIES = np.array([[1.0, 10.0], [3.0, 10.0], [np.nan, 40.0], [99.0, 99.0]])


def test_each_cell_has_its_own_mean_and_population_std():
    scaler = fit_scaler(SERIES, slice(0, 3))
    np.testing.assert_allclose(scaler.mean, [2, 20])
    np.testing.assert_allclose(scaler.std, [1, np.sqrt(200)])
    z = scaler.transform(SERIES)
    np.testing.assert_allclose(z[:, 0], [-1, 1, np.nan, 97])


def test_one_scale_for_all_cells():
    scaler = fit_scaler(SERIES, slice(0, 2), scope="global")
    np.testing.assert_allclose(scaler.mean, [6])
    np.testing.assert_allclose(scaler.std, [np.sqrt((25 + 9 + 16 + 16) / 4)])
    np.testing.assert_allclose(scaler.transform(SERIES)[0], [-5 / scaler.std[0], 4 / scaler.std[0]])


def test_it_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    series = rng.lognormal(size=(50, 4))
    series[rng.random(series.shape) < 0.2] = np.nan
    reference = StandardScaler().fit(series[:30])
    np.testing.assert_allclose(
        fit_scaler(series, slice(0, 30)).transform(series), reference.transform(series)
    )


@pytest.mark.parametrize("scope", ["cell", "global"])
def test_rows_after_the_training_part_change_nothing(scope):
    changed = SERIES.copy()
    changed[3] = [np.nan, -1e9]
    for part in ("mean", "std"):
        before, after = (
            getattr(fit_scaler(s, slice(0, 3), scope), part) for s in (SERIES, changed)
        )
        np.testing.assert_array_equal(before, after)
    changed[2, 1] = 0
    assert not np.array_equal(
        fit_scaler(changed, slice(0, 3), scope).mean, fit_scaler(SERIES, slice(0, 3), scope).mean
    )


def test_a_constant_cell_becomes_zero():
    # The std of three times 0.1 is 1.4e-17 in floating point, not 0.
    constant = np.full((4, 2), 0.1)
    scaler = fit_scaler(constant, slice(0, 3))
    np.testing.assert_array_equal(scaler.std, [1, 1])
    np.testing.assert_allclose(scaler.transform(constant), 0, atol=1e-12)


def test_single_precision_does_not_blur_the_mean():
    series = np.full((200_000, 2), 1000.1, dtype=np.float32)
    assert fit_scaler(series, slice(0, 200_000)).mean[0] == pytest.approx(
        float(np.float32(1000.1)), rel=1e-9
    )


def test_inverse_takes_predictions_back_to_their_units():
    scaler = fit_scaler(SERIES, slice(0, 3))
    z = np.zeros((2, 5, 3))
    z[1] = 1.0
    y_hat = scaler.inverse(z, cell_axis=0)
    np.testing.assert_allclose(y_hat[0], 2)
    np.testing.assert_allclose(y_hat[1], 20 + np.sqrt(200))
    np.testing.assert_allclose(scaler.inverse(scaler.transform(SERIES), cell_axis=1), SERIES)


def test_saved_arrays_give_the_same_scaler():
    scaler = Scaler.from_state(fit_scaler(SERIES, slice(0, 3)).state())
    np.testing.assert_array_equal(
        scaler.transform(SERIES), fit_scaler(SERIES, slice(0, 3)).transform(SERIES)
    )


@pytest.mark.parametrize("scope", ["cell", "global"])
def test_a_cell_never_observed_is_named(scope):
    series = np.ones((5, 3))
    series[:3, 1] = np.nan
    with pytest.raises(InputError, match=r"1 cell .*3 .*: 5060;") as e:
        fit_scaler(series, slice(0, 3), scope, cells=[4456, 5060, 5061])
    # A published set's prepare has no --cells.
    assert "of a cube by open_cube(path).drop_sel(cell=[…]).to_netcdf(new) in Python" in str(
        e.value
    )
    fit_scaler(series, slice(0, 4), scope)


def test_many_cells_never_observed_are_counted():
    with pytest.raises(InputError, match=r"8 cells?.*: 0, 1, 2, 3, 4, …;"):
        fit_scaler(np.full((5, 8), np.nan), slice(0, 3))


@pytest.mark.parametrize("fit", [slice(0, 0), slice(0, 5), slice(3, 2), slice(-1, 2)])
def test_the_steps_to_fit_must_lie_in_the_series(fit):
    with pytest.raises(InputError, match=rf"steps {fit.start} to {fit.stop - 1} .*4"):
        fit_scaler(SERIES, fit)


def test_a_scaler_may_be_fitted_on_steps_in_the_middle():
    middle = fit_scaler(SERIES, slice(1, 3))
    alone = fit_scaler(SERIES[1:3], slice(0, 2))
    np.testing.assert_array_equal(middle.mean, alone.mean)
    np.testing.assert_array_equal(middle.std, alone.std)


def test_an_unknown_scope_lists_the_known():
    with pytest.raises(InputError, match="cell, global"):
        fit_scaler(SERIES, slice(0, 3), scope="city")


def test_other_cells_are_refused():
    with pytest.raises(InputError, match=r"2 cells, .*0 .*\(3, 2, 2\)"):
        fit_scaler(SERIES, slice(0, 3)).inverse(np.zeros((3, 2, 2)), cell_axis=0)


def test_normal_readings_within_half_a_day_of_a_fault_are_counted_as_such(caplog):
    values = 100 + 50 * np.sin(2 * np.pi * np.arange(24 * 40)[:, None] / 24) + np.zeros((1, 2))
    scaler = fit_scaler(values, slice(0, 24 * 30), day=24)
    values[-24:-19, 1] *= 50  # five hours in another unit
    times = pd.date_range("2024-05-01", periods=len(values), freq="h")
    warn_of_wild(scaler, values, times, np.array(["a", "b"]), "records")
    n = int(np.isnan(scaler.believed(values)).sum())
    assert n > 5
    assert f"records: {n} readings" in caplog.text
    assert mentions(caplog.text, f"({n - 5}", "normal", "outliers='keep'")
    caplog.clear()
    values[-24:, 1], values[-5, 1] = values[-24:, 0], 1e6
    warn_of_wild(scaler, values, times, np.array(["a", "b"]), "records")
    assert mentions(caplog.text, "records: 1 ")
