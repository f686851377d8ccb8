import pytest
import torch

from data_prep.errors import InputError
from stforecast.task import ForecastTask, LossOptions

BATCH = {
    "y": torch.tensor([[[0.0, 0.0], [0.0, 9.0]]]),
    "mask": torch.tensor([[[True, True], [True, False]]]),
}
PREDICTION = torch.tensor([[[0.2, -3.0], [0.5, 0.0]]])


def test_the_huber_loss_is_squared_inside_and_linear_outside():
    task = ForecastTask(4, LossOptions("huber", 0.5))
    expected = (0.2**2 / 2 + 0.5 * (3 - 0.25) + 0.5**2 / 2) / 3
    assert task.loss(PREDICTION, BATCH).tolist() == pytest.approx([expected])


def test_rounds_are_judged_by_the_squared_error_whatever_is_minimised():
    expected = [[0.04 + 9.0, 0.25]]
    for options in (LossOptions(), LossOptions("huber")):
        error, count = ForecastTask(4, options).score(PREDICTION, BATCH)
        torch.testing.assert_close(error, torch.tensor(expected))
        assert count.tolist() == [[2, 1]]


@pytest.mark.parametrize("wrong", [{"loss": "mae"}, {"huber_delta": 0.0}])
def test_impossible_losses_are_refused(wrong):
    with pytest.raises(InputError):
        LossOptions(**wrong)
