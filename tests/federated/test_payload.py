import pytest
import torch

from stforecast.federated.payload import concatenate, floats_per_client, total_bytes

MESSAGE = {
    "weight": torch.arange(12.0).view(2, 3, 2),
    "counter": torch.tensor([7, 8]),
    "half": torch.ones(2, 5, dtype=torch.float16),
}


def test_values_of_one_client():
    assert floats_per_client(MESSAGE) == 6 + 1 + 5
    assert floats_per_client({}) == 0


def test_bytes_are_those_of_each_dtype():
    assert total_bytes(MESSAGE) == 12 * 4 + 2 * 8 + 10 * 2
    assert total_bytes({}) == 0


def test_a_message_to_all_is_counted_once_for_each():
    assert total_bytes({"weight": torch.zeros(1, 3).expand(100, 3)}) == 100 * 3 * 4


def test_concatenating_keeps_the_order_of_the_cohorts():
    parts = [{name: t[i : i + 1] for name, t in MESSAGE.items()} for i in (1, 0)]
    joined = concatenate(parts)
    assert joined["counter"].tolist() == [8, 7]
    torch.testing.assert_close(joined["weight"], MESSAGE["weight"].flip(0))
    assert concatenate([MESSAGE]) == MESSAGE
    assert concatenate([{}, {}]) == {}


def test_cohorts_that_send_different_things_are_refused():
    with pytest.raises(ValueError):
        concatenate([{"a": torch.zeros(1)}, {"a": torch.zeros(1), "b": torch.zeros(1)}])
