import math
from functools import partial

import numpy as np
import pytest
import torch
from reference_client import mean_by_size
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.state import Participants
from stforecast.federated.methods.fedavg import FedAvg
from vision.methods import METHODS
from vision.methods.fpl import (
    FPL,
    FPLOptions,
    cluster_means,
    contrastive_loss,
    finch,
    unbiased_prototypes,
)

SIZES = (8, 13, 5, 9)
N_CLASSES, WIDTH = 4, 5


def fpl(**options):
    return partial(FPL, options=FPLOptions(**options))


def angles(*degrees):
    return torch.tensor([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in degrees])


def groups(labels):
    return sorted(np.flatnonzero(labels.numpy() == k).tolist() for k in labels.unique())


def test_finch_links_first_neighbours_by_hand():
    """0-1 are each other's, 5 has 1; 40-45 are each other's, 52 has 45; 90-91."""
    points = angles(0, 1, 5, 40, 45, 52, 90, 91)
    first, *_ = finch(points)
    assert groups(first) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_two_points_that_share_a_first_neighbour_are_one_cluster():
    (labels,) = finch(angles(0, 10, 19))  # 0 and 19 both have 10; 10 has 19.
    assert groups(labels) == [[0, 1, 2]]


def test_finch_goes_on_with_the_means_of_clusters():
    # Means near 0.5, 10.5, 90.5 and 100.5 degrees: the first two are neighbours, and the last two.
    partitions = finch(angles(0, 1, 10, 11, 90, 91, 100, 101))
    assert [groups(p) for p in partitions] == [
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[0, 1, 2, 3], [4, 5, 6, 7]],
    ]


def test_finch_compares_directions_and_not_lengths():
    points = torch.tensor([[1.0, 0.0], [9.0, 0.1], [1.0, 1.0], [7.0, 7.2]])
    assert groups(finch(points)[0]) == [[0, 1], [2, 3]]


def test_a_point_is_not_its_own_neighbour_where_all_others_are_opposed():
    (labels,) = finch(angles(0, 100, 200))
    assert labels.tolist() == [0, 0, 0]


@pytest.mark.parametrize("points", [torch.ones(1, 3), angles(0, 90)])
def test_one_or_two_points_are_one_cluster(points):
    (labels,) = finch(points)
    assert labels.tolist() == [0] * len(points)


def test_finch_agrees_with_chains_followed_one_by_one():
    points = torch.randn(40, 6)
    cosine = F.cosine_similarity(points[:, None], points[None], dim=-1).numpy()
    np.fill_diagonal(cosine, -2)
    nearest = cosine.argmax(1)
    adjacent = np.array(
        [
            [n == nearest[m] or m == nearest[n] or nearest[m] == nearest[n] for n in range(40)]
            for m in range(40)
        ]
    )
    label = np.arange(40)
    for _ in range(40):
        label = np.array([label[row].min() for row in adjacent | np.eye(40, dtype=bool)])
    expected = sorted(np.flatnonzero(label == k).tolist() for k in np.unique(label))
    assert groups(finch(points)[0]) == expected


def test_partition_chooses_the_number_of_clusters():
    points = angles(0, 1, 10, 11, 90, 91, 100, 101)
    assert len(cluster_means(points, "first")) == 4
    means = cluster_means(points, "last")
    torch.testing.assert_close(means, torch.stack([points[:4].mean(0), points[4:].mean(0)]))


def test_unbiased_prototypes_count_clusters_and_not_clients():
    prototypes = torch.tensor([[[0.0], [6.0], [5.0]]])
    means, known = unbiased_prototypes(prototypes, torch.tensor([[2, 2, 0]]), 3)
    assert means.flatten().tolist() == [5, 0, 3]
    assert known.tolist() == [[True, False, True]]


def test_contrastive_loss_by_hand():
    """Eq. 8 at τ = 0.5; the second sample's class has no prototype."""
    features = torch.tensor([[[2.0, 0.0], [0.0, 3.0]]])
    prototypes, classes = angles(0, 60, 90)[None] * 7, torch.tensor([[0, 0, 1]])
    loss = contrastive_loss(features, torch.tensor([[0, 2]]), prototypes, classes, tau=0.5)
    own = math.exp(2) + math.exp(1)
    expected = -math.log(own / (own + 1)) / 2
    torch.testing.assert_close(loss, torch.tensor([expected]))


def test_contrastive_loss_survives_a_small_temperature():
    features = torch.tensor([[[1.0, 0.0]]], requires_grad=True)
    prototypes, classes = angles(180, 1)[None], torch.tensor([[0, 1]])
    loss = contrastive_loss(features, torch.tensor([[0]]), prototypes, classes, tau=0.002)
    loss.sum().backward()
    assert loss.item() == pytest.approx(1000, rel=1e-3)
    assert features.grad.isfinite().all()


def reference_loss(client, batch, clusters, options):
    """Sample by sample, Eq. 8 and 10 with ordinary exponentials."""
    features = client.encode(batch["x"])
    total = F.cross_entropy(client.decode(features), batch["y"])
    every = [p for ps in clusters.values() for p in ps]
    for z, y in zip(features, batch["y"].tolist(), strict=True):
        if y not in clusters:
            continue
        own, all_ = (
            sum((F.cosine_similarity(z, p, dim=0) / options.tau).exp() for p in ps)
            for ps in (clusters[y], every)
        )
        square = (z - torch.stack(clusters[y]).mean(0)).square()
        pull = square.mean() if options.distance == "mean" else square.sum()
        total = total + (pull - (own / all_).log()) / len(features)
    return total


def reference_epochs(client, optimizer, clusters, options, epochs):
    last = len(list(client.batches(1))) * (epochs - 1)
    seen = {}
    for step, batch in enumerate(client.batches(epochs)):
        if step >= last:
            for z, y in zip(client.encode(batch["x"]).detach(), batch["y"].tolist(), strict=True):
                seen.setdefault(y, []).append(z)
        optimizer.zero_grad()
        reference_loss(client, batch, clusters, options).backward()
        optimizer.step()
    return {y: torch.stack(zs).mean(0) for y, zs in seen.items()}


@pytest.mark.quick(2)
@pytest.mark.parametrize("distance", ["mean", "sum"])
def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone, distance):
    options = FPLOptions(tau=0.2, distance=distance)
    federation = federate(partial(FPL, options=options), SIZES, lr=0.05)
    clients = alone(federation)
    optimizers = [torch.optim.Adam(c.params.values(), lr=0.05) for c in clients]
    server, clusters = clients[0].values(), {}
    for _ in range(3):
        federation.run_round()
        held = []
        for client, optimizer in zip(clients, optimizers, strict=True):
            client.receive(server)
            held.append(reference_epochs(client, optimizer, clusters, options, epochs=2))
        server = mean_by_size([c.values() for c in clients], SIZES)
        for k in range(N_CLASSES):
            own = [h[k] for h in held if k in h]
            if own:
                points = torch.stack(own)
                clusters[k] = [points[g].mean(0) for g in groups(finch(points)[0])]
        state = federation.state.server
        model = {n: state[n] for n in server}
        torch.testing.assert_close(model, server, rtol=1e-4, atol=1e-5)
        for k, expected in clusters.items():
            found = state["clusters"][k][state["used"][k]]
            a, b = (torch.stack(sorted(p, key=lambda v: v[0].item())) for p in (found, expected))
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_first_round_is_fedavgs(federate):
    runs = [federate(m, SIZES, build="module", rounds=1) for m in (FPL, FedAvg)]
    for federation in runs:
        federation.run()
    model = {n: runs[0].state.server[n] for n in runs[1].state.server}
    torch.testing.assert_close(model, runs[1].state.server, rtol=0, atol=0)


def test_model_prototypes_and_counts_are_sent_and_only_used_clusters_return(federate):
    federation = federate(FPL, SIZES)
    federation.run_round()
    model, n = 4 * (6 * WIDTH + WIDTH + WIDTH * N_CLASSES + N_CLASSES), len(SIZES)
    up = model + 4 * N_CLASSES * WIDTH + 4 * N_CLASSES
    used = int(federation.state.server["used"].sum())
    second = federation.run_round()
    assert N_CLASSES <= used < 2 * N_CLASSES
    assert [r.bytes_up for r in federation.reports] == [n * up] * 2
    assert federation.reports[0].bytes_down == n * model
    assert second.bytes_down == n * (model + used * (4 * WIDTH + 4))


def test_a_class_that_nobody_present_holds_keeps_its_clusters(federate):
    method = federate(FPL, SIZES).method
    server = federate(FPL, SIZES).state.server
    server["clusters"][3, 0], server["used"][3, 0] = 7.0, True
    uploads = {n: server[n][None].repeat(2, *[1] * server[n].ndim) for n in method.shared}
    uploads["prototypes"] = torch.ones(2, N_CLASSES, WIDTH)
    uploads["counts"] = torch.tensor([[1, 0, 0, 0], [2, 1, 0, 0]], dtype=torch.int32)
    of = Participants(torch.tensor([0, 2]), torch.tensor([8, 5]), round=1)
    after = method.aggregate(server, of, uploads)
    assert after["used"].sum(1).tolist() == [1, 1, 0, 1]
    assert after["clusters"][3, 0].tolist() == [7.0] * WIDTH


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 0.0}, "tau is 0.0"),
        ({"clusters": "middle"}, "clusters is 'middle'"),
        ({"distance": "max"}, "distance is 'max'"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        FPLOptions(**options)


def test_it_is_registered():
    assert METHODS["fpl"] is FPL
