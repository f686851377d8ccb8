"""Training of the pretrained network on simulated traffic."""

import numpy as np
import pytest

from experiments import pretrain
from stforecast.baselines import pretrained


@pytest.mark.parametrize("day", [12, 24, 288])
def test_simulated_traffic_is_scaled_and_has_gaps(day):
    series = pretrain.traffic(np.random.default_rng(0), day, n_cells=40, days=14)
    assert series.shape == (14 * day, 40)
    np.testing.assert_allclose(np.nanmean(series, axis=0), 0, atol=1e-6)
    spread = np.nanstd(series, axis=0)
    assert ((spread < 1 + 1e-6) & ((spread > 1 - 1e-6) | (spread == 0))).all()
    assert 0.01 < np.isnan(series).mean() < 0.5


def test_holidays_are_like_sundays():
    """Without noise, a day that follows Sunday's profile has its values."""
    draw = pretrain.CellDraws(np.random.default_rng(3), 200)
    week = pretrain.weekly_profile(draw, 24)
    log = np.log(np.tile(week, (1, 2)) + 1e-4)
    plain = log.copy()
    pretrain.disturb(draw, log, week, 24)
    changed = (log != plain).reshape(200, 14, 24)
    alike = [
        np.allclose(log[c].reshape(14, 24)[d], plain[c].reshape(14, 24)[6])
        for c, d in zip(*np.nonzero(changed.any(-1)), strict=True)
    ]
    assert 0 < sum(alike) < len(alike)


def test_a_few_steps_write_weights_that_forecast(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "STEPS_OF_DAY", {12: 1})
    monkeypatch.setattr(pretrain, "CELLS", 8)
    out = tmp_path / "few.npz"
    monkeypatch.setattr("sys.argv", ["pretrain", "--steps", "3", "--width", "4", "--out", str(out)])
    pretrain.main()
    with np.load(out) as file:
        arrays = dict(file)
    assert set(pretrained.Pretrained.learned) <= set(arrays)
    assert pretrained.Perceptron.from_arrays(arrays).hidden.weight.shape == (4, 4)
    shipped = pretrained.trained_arrays()
    assert {n: a.ndim for n, a in arrays.items()} == {n: a.ndim for n, a in shipped.items()}
    assert arrays["window.weight"].shape[1] == shipped["window.weight"].shape[1]
