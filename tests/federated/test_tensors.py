import pytest
import torch

from stforecast.federated.core.tensors import joined, total_bytes

MESSAGE = {
    "weight": torch.arange(12.0).view(2, 3, 2),
    "counter": torch.tensor([7, 8]),
    "half": torch.ones(2, 5, dtype=torch.float16),
}


def test_bytes_are_those_of_each_dtype():
    assert total_bytes(MESSAGE) == 12 * 4 + 2 * 8 + 10 * 2
    assert total_bytes({}) == 0


def test_a_message_to_all_is_counted_once_for_each():
    assert total_bytes({"weight": torch.zeros(1, 3).expand(100, 3)}) == 100 * 3 * 4


@pytest.mark.parametrize("cohorts", [[[7, 9]], [[7], [9]], [[9], [7]], [[9, 7]]])
def test_payloads_of_cohorts_are_joined_in_order_of_ids(cohorts):
    rows = {7: 0, 9: 1}
    parts = [
        (torch.tensor(ids), {name: t[[rows[i] for i in ids]] for name, t in MESSAGE.items()})
        for ids in cohorts
    ]
    ids, payload = joined(parts)
    assert ids.tolist() == [7, 9]
    torch.testing.assert_close(payload, MESSAGE, rtol=0, atol=0)


def test_ids_of_two_cohorts_may_alternate():
    a, b = (torch.tensor(ids) for ids in ([1, 4, 8], [2, 5]))
    ids, payload = joined([(a, {"x": 10 * a}), (b, {"x": 10 * b})])
    assert ids.tolist() == [1, 2, 4, 5, 8]
    assert payload["x"].tolist() == [10, 20, 40, 50, 80]


def test_who_sends_nothing_is_joined_to_nothing():
    assert joined([(torch.tensor([0]), {}), (torch.tensor([1]), {})])[1] == {}


def test_cohorts_that_send_different_things_are_refused():
    one, other = {"a": torch.zeros(1)}, {"a": torch.zeros(1), "b": torch.zeros(1)}
    with pytest.raises(ValueError):
        joined([(torch.tensor([0]), one), (torch.tensor([1]), other)])
