import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from data_prep.base.errors import InputError
from stforecast.federated.core.training import (
    STEPS,
    Optimizer,
    Training,
    clip_by_client,
    kept_moments,
    moment_names,
    zero_moments,
)

CLIENTS = 3
SETTINGS = {
    "adam": {"optimizer": "adam", "lr": 0.1},
    "adam with decay": {"optimizer": "adam", "lr": 0.1, "weight_decay": 0.5},
    "sgd": {"optimizer": "sgd", "lr": 0.1},
    "sgd with momentum": {
        "optimizer": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 0.5,
    },
    "adam, clipped": {"optimizer": "adam", "lr": 0.1, "clip_gradients": 3.0},
    "sgd, clipped": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "clip_gradients": 3.0},
}


def reference(params, training):
    """An ordinary optimiser of one client."""
    settings = {"lr": training.lr, "weight_decay": training.weight_decay, "foreach": False}
    if training.optimizer == "adam":
        return torch.optim.Adam(params, **settings)
    return torch.optim.SGD(params, **settings, momentum=training.momentum)


def losses(params, target):
    """A quartic for each client; `target`: `(clients, 2, 2)`. The gradient of a lies transposed."""
    error = params["a"].mT @ target - target + params["b"].unsqueeze(-1)
    return error.pow(4).flatten(1).sum(1)


@pytest.fixture(params=["kernel", "torch"])
def steps_by(request, monkeypatch):
    """Which implementation of Adam takes the steps."""
    if request.param == "torch":
        monkeypatch.setattr("stforecast.federated.kernels.functions.library", lambda: None)


@pytest.mark.usefixtures("steps_by")
@pytest.mark.parametrize("apart", [(), ("b",)], ids=["one norm", "two norms"])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_stacked_clients_are_optimised_as_if_alone(settings, apart):
    training = Training(**settings)
    g = torch.Generator().manual_seed(0)
    params = {
        "a": torch.randn(CLIENTS, 2, 2, generator=g, dtype=torch.float64).requires_grad_(),
        "b": torch.randn(CLIENTS, 2, generator=g, dtype=torch.float64).requires_grad_(),
    }
    target = torch.randn(CLIENTS, 2, 2, generator=g, dtype=torch.float64)
    alone = [
        {name: p.detach()[i : i + 1].clone().requires_grad_() for name, p in params.items()}
        for i in range(CLIENTS)
    ]
    own = [reference(list(one.values()), training) for one in alone]
    moments = zero_moments(params, training)
    norms = []
    for n_steps in (2, 1, 3):  # A new optimiser in every round, on the same moments.
        optimizer = Optimizer(params, moments, training, apart=apart)
        for _ in range(n_steps):
            optimizer.step(losses(params, target))
            for i, (one, optimiser) in enumerate(zip(alone, own, strict=True)):
                optimiser.zero_grad()
                losses(one, target[i : i + 1]).sum().backward()
                if training.clip_gradients:
                    for together in (["a"], ["b"]) if apart else (["a", "b"],):
                        found = [one[name] for name in together]
                        norms.append(float(clip_grad_norm_(found, training.clip_gradients)))
                optimiser.step()
        for i, one in enumerate(alone):
            for name, p in one.items():
                torch.testing.assert_close(params[name][i : i + 1], p)
                if STEPS in moments:
                    assert moments[STEPS][name][i] == own[i].state[p]["step"]
                for moment in moments.keys() - {STEPS}:
                    expected = own[i].state[p][moment]
                    torch.testing.assert_close(moments[moment][name][i : i + 1], expected)
    if training.clip_gradients:
        assert min(norms) < training.clip_gradients < max(norms)


def test_a_gradient_without_an_end_is_its_clients_alone():
    grads = {"w": torch.tensor([[3.0, 4.0], [torch.inf, 0.0], [torch.nan, 0.0], [0.0, 0.0]])}
    clipped = clip_by_client(grads, 1.0)["w"]
    torch.testing.assert_close(clipped[[0, 3]], torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    assert clipped[1:3].isnan().any(1).all()


def test_state_is_kept_between_rounds_or_not():
    params = {"w": torch.ones(3, 2)}
    for optimizer in ("adam", "sgd"):
        keep, stage, anew = (
            Training(optimizer=optimizer, momentum=0.9, optimizer_state=state)
            for state in ("keep", "stage", "round")
        )
        assert kept_moments(params, keep).keys() == set(moment_names(keep))
        assert kept_moments(params, stage).keys() == set(moment_names(stage))
        assert kept_moments(params, anew) == {}


def test_a_parameter_that_joins_later_is_optimised_as_if_alone():
    training = Training(lr=0.1)
    target = torch.zeros(1, 2, 2)
    params = {"a": torch.ones(1, 2, 2).requires_grad_(), "b": torch.ones(1, 2).requires_grad_()}
    alone = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
    optimiser, moments = reference(list(alone.values()), training), zero_moments(params, training)
    for frozen in (True, True, False):
        for each in (params, alone):
            each["b"].requires_grad_(not frozen)
        Optimizer(params, moments, training).step(losses(params, target))
        optimiser.zero_grad()
        losses(alone, target).sum().backward()
        optimiser.step()
    torch.testing.assert_close(params["b"], alone["b"])


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"optimizer": "adam"}, ("exp_avg", "exp_avg_sq", STEPS)),
        ({"optimizer": "sgd"}, ()),
        ({"optimizer": "sgd", "momentum": 0.9}, ("momentum_buffer",)),
    ],
)
def test_moments_before_the_first_step(settings, names):
    training = Training(**settings)
    assert moment_names(training) == names
    moments = zero_moments({"w": torch.ones(3, 2)}, training)
    assert moments.keys() == set(names)
    for name, tensors in moments.items():
        assert torch.equal(tensors["w"], torch.zeros(3) if name == STEPS else torch.zeros(3, 2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"epochs": -1}, "epochs is -1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"participation": 0.0}, r"participation is 0.0; .*\(0, 1\]"),
        ({"participation": 1.5}, "participation is 1.5"),
        ({"optimizer": "rmsprop"}, "adam or sgd"),
        ({"optimizer_state": "epoch"}, "keep, round .*stage"),
    ],
)
def test_values_out_of_range_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Training(**settings)


@pytest.mark.parametrize("name", ["momentum", "weight_decay", "clip_gradients", "patience"])
def test_negative_values_are_refused(name):
    with pytest.raises(InputError, match=name):
        Training(**{name: -1})


def test_a_cosine_schedule_falls_from_lr_to_nearly_0():
    training = Training(rounds=4, lr=0.1, schedule="cosine")
    expected = [0.1, 0.1 * (2 + 2**0.5) / 4, 0.05, 0.1 * (2 - 2**0.5) / 4]
    assert [training.lr_in(r) for r in range(4)] == pytest.approx(expected)
    assert {Training(rounds=4, lr=0.1).lr_in(r) for r in range(4)} == {0.1}


def test_the_optimizer_steps_by_the_rounds_rate():
    training = Training(rounds=4, lr=0.1, schedule="cosine", optimizer="sgd")
    params = {"a": torch.ones(1, 1).requires_grad_()}
    Optimizer(params, zero_moments(params, training), training, round=2).step(params["a"].sum(1))
    assert params["a"].item() == pytest.approx(1 - 0.05)


def test_after_the_last_round_the_learning_rate_is_that_of_the_last():
    """Clients may still be fitted then, and a rate of 0 would be refused."""
    training = Training(rounds=4, lr=0.2, schedule="cosine")
    half = 0.5**0.5
    rates = [0.2, 0.1 * (1 + half), 0.1, 0.1 * (1 - half), 0.1 * (1 - half)]
    assert [training.lr_in(round) for round in range(5)] == pytest.approx(rates)
    assert Training(lr=0.2).lr_in(10_000) == 0.2


@pytest.mark.usefixtures("steps_by")
def test_a_servers_own_parameters_may_have_different_numbers_of_rows():
    g = torch.Generator().manual_seed(0)
    shapes = {"wide": (5, 2), "narrow": (2,)}
    params = {n: torch.randn(s, generator=g, dtype=torch.float64) for n, s in shapes.items()}
    alone = {name: p.clone().requires_grad_() for name, p in params.items()}
    training = Training(lr=0.1)
    moments = zero_moments(params, training)
    optimizer = Optimizer({n: p.requires_grad_() for n, p in params.items()}, moments, training)
    own = reference(list(alone.values()), training)
    for _ in range(3):
        optimizer.step((params["wide"] @ params["narrow"]).pow(4).sum()[None])
        own.zero_grad()
        (alone["wide"] @ alone["narrow"]).pow(4).sum().backward()
        own.step()
    for name, p in params.items():
        torch.testing.assert_close(p, alone[name])
        assert moments[STEPS][name].tolist() == [3] * len(p)
