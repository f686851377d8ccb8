from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from stforecast.federated.core.state import Participants
from stforecast.federated.methods.solo import Solo
from stforecast.federated.methods.two_models import personal_model
from stforecast.federated.uploads.uplink import Uplink
from vision.config import resolve
from vision.evaluation import judged_models, possible_names
from vision.methods import METHODS
from vision.methods.fedkd import (
    FedKD,
    FedKDOptions,
    low_rank_factors,
    packed_factors,
    rank_for,
    truncated,
    unpacked,
)

SIZES = (8, 13, 5)
MATRICES = {"encoder.1.weight": (6, 5), "head.weight": (5, 4)}
VECTORS = ("encoder.1.bias", "head.bias")


def fedkd(**options):
    return partial(FedKD, options=FedKDOptions(**options))


def energy(round, start, end, rounds=3):
    return start + (end - start) * min(1, (round + 1) / rounds)


def needed(update, share):
    squares = np.linalg.svd(update, compute_uv=False) ** 2
    return next(k for k in range(len(squares) + 1) if squares[:k].sum() >= share * squares.sum())


def low_rank(update, rank):
    u, s, vt = np.linalg.svd(update)
    return sum(s[k] * np.outer(u[:, k], vt[k]) for k in range(rank)) if rank else 0 * update


def pays(update, rank):
    return rank * sum(update.shape) < update.size


def distil(log_target, log_p):
    return (log_target.exp() * (log_target - log_p)).sum(1).mean()


def train(mentor, mentee, w, optimizer, epochs, clip):
    """Each loss is differentiated for its own model alone; returns the gradients' norms."""
    norms = []
    for batch in mentee.batches(epochs):
        h_t, h_s = mentor.encode(batch["x"]), mentee.encode(batch["x"])
        l_t, l_s = mentor.decode(h_t), mentee.decode(h_s)
        p_t, p_s = l_t.log_softmax(1), l_s.log_softmax(1)
        own_t, own_s = F.cross_entropy(l_t, batch["y"]), F.cross_entropy(l_s, batch["y"])
        sure = own_t.item() + own_s.item()
        loss_t = own_t + (distil(p_s, p_t) + F.mse_loss(h_t, h_s @ w)) / sure
        loss_s = own_s + (distil(p_t, p_s) + F.mse_loss(h_t, h_s @ w)) / sure
        learned = [*mentee.params.values(), w]
        grads_t = torch.autograd.grad(loss_t, list(mentor.params.values()), retain_graph=True)
        grads_s = torch.autograd.grad(loss_s, learned)
        pairs = zip([*mentor.params.values(), *learned], [*grads_t, *grads_s], strict=True)
        for p, g in pairs:
            p.grad = g
        if clip:
            for model in (mentor.params.values(), mentee.params.values(), [w]):
                norms.append(float(clip_grad_norm_(model, clip)))
        optimizer.step()
    return norms


@pytest.mark.quick(3)
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("clip", "settings"),
    [
        (0.0, {"optimizer": "adam"}),
        (0.5, {"optimizer": "adam"}),
        (0.5, {"optimizer": "sgd", "momentum": 0.9}),
    ],
)
def test_rounds_are_those_of_clients_trained_one_by_one(federate, alone, clip, settings):
    """Clipping is torch's, of each model of each client on its own."""
    start, end = 0.5, 0.9
    federation = federate(
        fedkd(t_start=start, t_end=end), SIZES, lr=0.05, clip_gradients=clip, **settings
    )
    mentees, mentors = alone(federation), alone(federation)
    maps = [torch.eye(5, requires_grad=True) for _ in SIZES]
    optimizers = [
        torch.optim.Adam(params, lr=0.05)
        if settings["optimizer"] == "adam"
        else torch.optim.SGD(params, lr=0.05, momentum=0.9)
        for params in (
            [*t.params.values(), *s.params.values(), w]
            for t, s, w in zip(mentors, mentees, maps, strict=True)
        )
    ]
    share = [n / sum(SIZES) for n in SIZES]
    known = {n: t.numpy() for n, t in mentees[0].values().items()}
    ranks = {name: min(shape) for name, shape in MATRICES.items()}
    cut, norms = 0, []
    for r in range(3):
        federation.run_round()
        updates = {name: [] for name in MATRICES}
        wanted = {name: [] for name in MATRICES}
        for mentor, mentee, w, optimizer in zip(mentors, mentees, maps, optimizers, strict=True):
            mentee.receive({n: torch.from_numpy(t) for n, t in known.items()})
            norms += train(mentor, mentee, w, optimizer, 2, clip)
            for name in MATRICES:
                update = mentee.params[name].detach().numpy() - known[name]
                wanted[name].append(needed(update, energy(r + 1, start, end)))
                if pays(update, ranks[name]):
                    cut += 1
                    rank = min(ranks[name], needed(update, energy(r, start, end)))
                    update = low_rank(update, rank)
                updates[name].append(update)
        for name in MATRICES:
            mean = sum(a * u for a, u in zip(share, updates[name], strict=True))
            rank = needed(mean, energy(r, start, end))
            down = low_rank(mean, rank) if pays(mean, rank) else mean
            known[name] = known[name] + down
            ranks[name] = max(wanted[name])
        for name in VECTORS:
            mean = sum(a * m.params[name].detach() for a, m in zip(share, mentees, strict=True))
            known[name] = mean.numpy()
        server = federation.state.server
        assert server["ranks"].tolist() == list(ranks.values())
        for name in MATRICES:
            left, right = server[f"left/{name}"], server[f"right/{name}"]
            mentee = (server[f"known/{name}"] + left @ right)[0]
            torch.testing.assert_close(mentee, torch.from_numpy(known[name]))
        for i, (mentor, w) in enumerate(zip(mentors, maps, strict=True)):
            params = federation.state.clients.params
            own = {n: t[i] for n, t in personal_model(params).items()}
            torch.testing.assert_close(own, mentor.values())
            torch.testing.assert_close(params["hidden"][i], w.detach())
    assert cut
    assert not clip or min(norms) < clip < max(norms)


def test_one_client_that_keeps_all_teaches_itself_nothing(federate):
    """Mentor and mentee agree from the start, so they stay what training alone makes."""
    methods = fedkd(t_start=1.0, t_end=1.0), Solo
    runs = [federate(m, (12,), optimizer="sgd", lr=0.05) for m in methods]
    for federation in runs:
        federation.run()
    alone = runs[1].state.clients.params
    mentor = personal_model(runs[0].state.clients.params)
    torch.testing.assert_close(mentor, alone, rtol=1e-4, atol=1e-5)
    server = runs[0].state.server
    for name in MATRICES:
        mentee = server[f"known/{name}"] + server[f"left/{name}"] @ server[f"right/{name}"]
        torch.testing.assert_close(mentee, alone[name], rtol=1e-4, atol=1e-5)


def test_rank_for_by_hand():
    values = torch.tensor([[3.0, 2.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert rank_for(values, 0.64).tolist() == [1, 1, 0]  # 9 of 14 is 0.643.
    assert rank_for(values, 0.65).tolist() == [2, 1, 0]
    assert rank_for(values, 0.93).tolist() == [3, 1, 0]
    assert rank_for(values, 1.0).tolist() == [3, 1, 0]
    assert rank_for(values, 0.0).tolist() == [1, 1, 0]


def test_what_is_cut_off_holds_no_more_than_its_share():
    update = torch.randn(4, 9, 6)
    left, right, values = low_rank_factors(update)
    torch.testing.assert_close(left @ right, update, rtol=1e-4, atol=1e-5)
    rank = rank_for(values, 0.8)
    lost = (update - truncated(left, rank) @ right).square().sum((1, 2)) / update.square().sum(
        (1, 2)
    )
    more = (update - truncated(left, rank - 1) @ right).square().sum((1, 2))
    assert (lost <= 0.2 + 1e-5).all()
    assert (more / update.square().sum((1, 2)) > 0.2).all()


@pytest.mark.parametrize(("rank", "floats"), [(2, 2 * (9 + 6)), (3, 3 * (9 + 6)), (4, 9 * 6)])
def test_factors_travel_while_they_are_smaller(rank, floats):
    left, right, _ = low_rank_factors(torch.randn(2, 9, 6))
    message = packed_factors("w", left, right, rank)
    assert sum(t[0].numel() for t in message.values()) == floats
    kept = left @ right if rank == 4 else left[..., :rank] @ right[:, :rank]
    torch.testing.assert_close(unpacked(message, "w"), kept)


def wide_bytes(ranks):
    vectors, words = 5 + 4, len(MATRICES)
    sizes = [
        min(r * sum(shape), shape[0] * shape[1])
        for r, shape in zip(ranks, MATRICES.values(), strict=True)
    ]
    return 4 * (vectors + words + sum(sizes))


def test_bytes_are_those_of_the_factors_at_the_announced_ranks(federate):
    federation = federate(fedkd(t_start=0.4, t_end=0.4), SIZES)
    announced = [5, 4]
    for _ in range(3):
        report = federation.run_round()
        assert report.bytes_up == len(SIZES) * wide_bytes(announced)
        announced = federation.state.server["ranks"].tolist()
    assert report.bytes_up < len(SIZES) * wide_bytes([5, 4])
    server = federation.state.server
    ranks = [int(server[f"left/{n}"][0].any(0).sum()) for n in MATRICES]
    assert federation.run_round().bytes_down == len(SIZES) * wide_bytes(ranks)
    assert federation.reports[0].bytes_down == len(SIZES) * wide_bytes([0, 0])


def test_the_share_kept_grows_over_the_rounds(federate):
    method = federate(FedKD, rounds=100).method
    shares = [method.kept_share(r) for r in (0, 49, 99, 100)]
    assert shares == pytest.approx([0.9503, 0.965, 0.98, 0.98])


@pytest.mark.quick(4)
@pytest.mark.parametrize("build", ["stacked", "module"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_the_server_knows_every_clients_mentee(federate, build, participation):
    federation = federate(
        fedkd(t_start=0.5, t_end=0.6),
        (8, 12, 8, 12),
        build=build,
        participation=participation,
        rounds=5,
    )
    federation.run()
    server, params = federation.state.server, federation.state.clients.params
    for name in federation.method.matrices:
        known = server[f"known/{name}"]
        torch.testing.assert_close(params[name].flatten(2), known.expand(4, -1, -1))


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_views_are_the_mentor_and_the_mentee_with_its_update(federate, make_data, participation):
    federation = federate(fedkd(), (8, 12, 8, 12), participation=participation, rounds=4)
    federation.run()
    method, state, data = federation.method, federation.state, make_data((5,) * 4)
    ((batch, own),) = predictions(method, state, data)
    ((_, shared),) = predictions(method, state, data, view="global")
    mentor = personal_model(state.clients.params)
    mentee = {n: state.server[n].expand(4, -1) for n in VECTORS}
    for name in MATRICES:
        left, right = state.server[f"left/{name}"], state.server[f"right/{name}"]
        mentee[name] = (state.server[f"known/{name}"] + left @ right).expand(4, -1, -1)
    for y_hat, model in ((own, mentor), (shared, mentee)):
        expected = method.population.decode(model, method.population.encode(model, batch["x"]))
        torch.testing.assert_close(y_hat, expected)
    assert not torch.allclose(own, shared)


def test_the_mentee_that_a_client_trained_is_not_judged(federate, make_data):
    federation = federate(fedkd(), (8, 12), rounds=2)
    federation.run()
    models = judged_models(federation.method, federation.state, make_data((5, 5)))
    ways = {model.name: model.way for model in models}
    assert ways == {"personal": None, "global": "averaged"}
    assert possible_names(FedKD) == list(ways)


def test_a_client_that_returns_receives_what_it_missed(federate):
    federation = federate(fedkd(t_start=1.0, t_end=1.0), (8,) * 4, participation=0.5, rounds=4)
    federation.run()
    ids = torch.arange(4)
    everyone = Participants(ids, ids, federation.state.round)
    payload = federation.method.broadcast(federation.state.server, everyone)
    for name, update in federation.method.updates(payload):
        mentees = federation.state.clients.params[name] + update
        torch.testing.assert_close(mentees, mentees[:1].expand_as(mentees), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(update[0], update[1]) or not torch.allclose(update[2], update[3])


def test_quantised_uploads_are_read(federate):
    federation = federate(fedkd(), SIZES, uplink=Uplink(bits=8))
    federation.run()
    assert all(t.isfinite().all() for t in federation.state.flat().values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"t_start": -0.1}, "t_start is -0.1"),
        ({"t_end": 1.1}, "t_end is 1.1"),
        ({"t_start": 0.99}, "t_end is 0.98; .*t_start 0.99"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        FedKDOptions(**options)


def test_it_is_registered():
    assert METHODS["fedkd"] is FedKD


def test_gradients_are_clipped_as_in_public_code():
    assert resolve("fedkd").training.clip_gradients == 10
    assert resolve("fedkd", clip_gradients=0).training.clip_gradients == 0
    assert resolve("ditto").training.clip_gradients == 0
