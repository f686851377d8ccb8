"""What a node adds up, by hand."""

import pytest
import torch
from mentions import mentions

from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.nodes.summing import (
    FARTHEST_NORM,
    bounded,
    means_of,
    rows_with_mean,
    summand_weights,
    weighted_sums,
)

UPLOAD = {"w": torch.tensor([[1.0, 2.0], [4.0, 8.0]]), "steps": torch.tensor([3, 6])}
LIKE = {"w": ["float32", 2], "steps": ["int64"]}
SIZES = torch.tensor([1, 3])


@pytest.mark.parametrize(
    ("sums", "mean", "steps"), [("samples", [3.25, 6.5], 5), ("clients", [2.5, 5.0], 4)]
)
def test_the_mean_is_weighted_as_the_server_would_and_has_the_upload_s_types(sums, mean, steps):
    weights = summand_weights(sums, SIZES)
    means = means_of(weighted_sums(UPLOAD, weights), LIKE, float(weights.sum()))
    assert means["w"].tolist() == [mean]
    assert means["w"].dtype == torch.float32
    assert means["steps"].tolist() == [steps]


def test_rows_are_equal_or_grow_with_samples_and_have_the_same_mean():
    means = {"w": torch.tensor([[2.0, 4.0]])}
    assert rows_with_mean(means, SIZES)["w"].tolist() == [[2.0, 4.0]] * 2
    grown = rows_with_mean(means, SIZES, grows=True)["w"]
    assert grown.tolist() == [[1.0, 2.0], [3.0, 6.0]]
    assert grown.mean(0).tolist() == [2.0, 4.0]


def test_a_client_far_from_the_others_counts_with_the_largest_usual_norm():
    upload = {"w": torch.tensor([[3.0, 4.0], [0.0, 5.0], [300.0, 400.0]]), "n": torch.arange(3)}
    found, rows = bounded(upload, torch.ones(3), grows=False)
    assert rows == [2]
    torch.testing.assert_close(
        found["w"], torch.tensor([[3.0, 4.0], [0.0, 5.0], [3.0, 4.0]]) * torch.tensor(
            [[1.0], [1.0], [FARTHEST_NORM]]
        )
    )  # fmt: skip
    assert found["n"] is upload["n"]


def test_sums_over_samples_are_compared_per_sample():
    upload = {"w": torch.tensor([[1.0], [1.0], [50.0]])}
    assert bounded(upload, torch.tensor([1, 1, 50]), grows=True)[1] == []
    assert bounded(upload, torch.tensor([1, 1, 2]), grows=True)[1] == [2]


@pytest.mark.parametrize("values", [[[0.0], [0.0], [9.0]], [[1.0], [900.0]]])
def test_without_a_usual_norm_nothing_is_bounded(values):
    upload = {"w": torch.tensor(values)}
    assert bounded(upload, torch.ones(len(values)), grows=False) == (upload, [])


def test_a_node_bounds_its_own_client_and_names_it(federate, split, logged, monkeypatch):
    federation = federate(FedAvg, (8,) * 4, rounds=1)
    federation.method.upload = lambda cohort: {
        n: t * torch.where(cohort.ids == 2, 1e6, 1.0).view(-1, *[1] * (t.ndim - 1))
        for n, t in FedAvg.upload(federation.method, cohort).items()
    }
    coordinator, _ = split(federation, (4,))
    coordinator.run()
    assert mentions(logged(), "round 1:", "clients 2 ")
    assert all(t.abs().max() < 100 for t in coordinator.server.state.server.values())
