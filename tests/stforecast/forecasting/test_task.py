import pytest
import torch
from sklearn.metrics import mean_pinball_loss

from data_prep.base.errors import InputError
from stforecast.forecasting.task import ForecastTask, LossOptions, pinball_loss

BATCH = {
    "y": torch.tensor([[[0.0, 0.0], [0.0, 9.0]]]),
    "mask": torch.tensor([[[True, True], [True, False]]]),
}
PREDICTION = torch.tensor([[[0.2, -3.0], [0.5, 0.0]]])


def test_the_huber_loss_is_squared_inside_and_linear_outside():
    task = ForecastTask(4, LossOptions("huber", 0.5))
    expected = (0.2**2 / 2 + 0.5 * (3 - 0.25) + 0.5**2 / 2) / 3
    assert task.loss(PREDICTION, BATCH).tolist() == pytest.approx([expected])


def test_rounds_are_scored_by_the_squared_error_whatever_is_minimised():
    expected = [[0.04 + 9.0, 0.25]]
    for options in (LossOptions(), LossOptions("huber"), LossOptions("mae")):
        error, count = ForecastTask(4, options).score(PREDICTION, BATCH)
        torch.testing.assert_close(error, torch.tensor(expected))
        assert count.tolist() == [[2, 1]]


@pytest.mark.parametrize("wrong", [{"loss": "mean"}, {"huber_delta": 0.0}])
def test_impossible_losses_are_refused(wrong):
    with pytest.raises(InputError):
        LossOptions(**wrong)


def test_the_absolute_error_is_masked_and_averaged():
    task = ForecastTask(4, LossOptions("mae"))
    assert task.loss(PREDICTION, BATCH).tolist() == pytest.approx([(0.2 + 3 + 0.5) / 3])


def test_the_pinball_loss_weighs_both_sides_by_their_level():
    options = LossOptions("quantile", quantiles="0.1,0.5,0.9")
    # One target of 1.0, masked but for it: quantiles 0, 3 and 1.5.
    batch = {"y": torch.tensor([[[1.0, 7.0]]]), "mask": torch.tensor([[[True, False]]])}
    prediction = torch.tensor([[[0.0, 3.0, 1.5, 9.0, 9.0, 9.0]]])
    expected = (0.1 * 1 + 0.5 * 2 + 0.1 * 0.5) / 3
    task = ForecastTask(4, options)
    assert task.loss(prediction, batch).tolist() == pytest.approx([expected])
    total, count = task.score(prediction, batch)
    assert (total.item(), count.item()) == (pytest.approx(expected), 1)


def test_the_pinball_loss_is_scikit_learns():
    y, q = torch.randn(50), torch.randn(50, 3)
    levels = (0.2, 0.5, 0.8)
    expected = [
        mean_pinball_loss(y, q[:, k], alpha=level) for k, level in enumerate(levels)
    ]  # fmt: skip
    assert pinball_loss(q, y, levels).mean().item() == pytest.approx(sum(expected) / 3, rel=1e-5)


@pytest.mark.parametrize("text", ["0.5,0.1", "0.1,0.5,0.8", "0,0.5,1", "a", "0.1,0.9", ""])
def test_quantiles_come_in_pairs_around_the_median(text):
    with pytest.raises(InputError, match=r"quantiles is .*0\.05,0\.5,0\.95"):
        LossOptions("quantile", quantiles=text)
