import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn

from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.population import Network, PerClient, Population, SplitModel

CLIENTS = 3


@pytest.fixture
def convolution():
    """A population of a convolution with batch normalisation, other weights for each client."""

    def build():
        encoder = nn.Sequential(nn.Conv1d(1, 2, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Flatten())
        return SplitModel(PerClient(encoder), PerClient(nn.Linear(6, 2)))

    population = Population(build)
    g = torch.Generator().manual_seed(1)
    params = {
        name: torch.randn(t.shape, generator=g).requires_grad_()
        for name, t in population.parameters(CLIENTS).items()
    }
    return population, params, population.buffers(CLIENTS)


def one_client(population, params, buffers, i):
    """An ordinary module with the weights and statistics of client `i`."""
    alone = nn.Sequential(nn.Conv1d(1, 2, 2), nn.BatchNorm1d(2), nn.ReLU(), nn.Flatten())
    state = {**params, **buffers}
    prefix = "encoder.module."
    alone.load_state_dict(
        {n.removeprefix(prefix): t[i].detach() for n, t in state.items() if n.startswith(prefix)}
    )
    return alone.train(population.model.training)


@pytest.mark.parametrize("training", [True, False])
def test_per_client_is_a_loop_over_ordinary_modules(convolution, training):
    population, params, buffers = convolution
    for t in buffers.values():
        t += torch.arange(CLIENTS).view(-1, *[1] * (t.dim() - 1)).to(t.dtype)
    population.train(training)
    alone = [one_client(population, params, buffers, i) for i in range(CLIENTS)]
    before = {name: t.clone() for name, t in buffers.items()}
    x = torch.randn(CLIENTS, 5, 1, 4)
    features = population.encode({**params, **buffers}, x)
    features.square().sum().backward()
    for i, module in enumerate(alone):
        expected = module(x[i])
        expected.square().sum().backward()
        torch.testing.assert_close(features[i], expected)
        for name, p in module.named_parameters():
            torch.testing.assert_close(params[f"encoder.module.{name}"].grad[i], p.grad)
        for name, t in module.named_buffers():
            torch.testing.assert_close(buffers[f"encoder.module.{name}"][i], t)
    changed = {name for name, t in buffers.items() if not torch.equal(t, before[name])}
    assert changed == (set(buffers) if training else set())


def test_decoding_uses_the_head(convolution):
    population, params, buffers = convolution
    features = torch.randn(CLIENTS, 5, 6)
    y = population.decode({**params, **buffers}, features)
    weight, bias = params["head.module.weight"], params["head.module.bias"]
    torch.testing.assert_close(y, features @ weight.mT + bias[:, None])


def test_running_a_population_leaves_its_own_model_alone(convolution):
    population, params, buffers = convolution
    before = {name: t.clone() for name, t in population.model.state_dict().items()}
    population.encode({**params, **buffers}, torch.randn(CLIENTS, 5, 1, 4)).sum().backward()
    for name, t in population.model.state_dict().items():
        assert torch.equal(t, before[name])


def test_all_clients_start_from_the_same_weights(stacked, module):
    for build in (stacked, module):
        population = Population(build, seed=3)
        whole = {**population.parameters(CLIENTS), **population.buffers(CLIENTS)}
        assert tuple(whole) == population.names
        for name, t in whole.items():
            initial = population.initial()[name]
            assert initial.shape == (1, *t.shape[1:])
            assert torch.equal(t, initial.expand_as(t))
            t.add_(1)
            assert not torch.equal(t, population.initial()[name].expand_as(t)), name
        assert {n.partition(".")[0] for n in whole} == {"encoder", "head"}


def test_weights_depend_on_the_seed_alone(stacked):
    torch.manual_seed(0)
    first = Population(stacked, seed=3).initial()
    torch.manual_seed(1)
    again, other = Population(stacked, seed=3).initial(), Population(stacked, seed=4).initial()
    for name, t in first.items():
        assert torch.equal(t, again[name])
        assert not torch.equal(t, other[name])


def test_the_global_generator_is_not_disturbed(stacked):
    before = torch.get_rng_state()
    Population(stacked, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_stacked_and_ordinary_layers_may_be_mixed():
    def build():
        return SplitModel(PerClient(nn.Linear(3, 4)), ClientLinear(4, 2))

    population = Population(build)
    params = population.parameters(CLIENTS)
    shapes = {name: tuple(t.shape) for name, t in params.items()}
    assert shapes == {
        "encoder.module.weight": (CLIENTS, 4, 3),
        "encoder.module.bias": (CLIENTS, 4),
        "head.weight": (CLIENTS, 4, 2),
        "head.bias": (CLIENTS, 2),
    }
    features = population.encode(params, torch.ones(CLIENTS, 5, 3))
    assert population.decode(params, features).shape == (CLIENTS, 5, 2)


def test_tied_weights_stay_tied_for_each_client():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3, bias=False)
            self.second = nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    population = Population(lambda: SplitModel(PerClient(Tied()), nn.Identity()))
    assert population.names == ("encoder.module.first.weight",)
    weights = torch.randn(CLIENTS, 3, 3)
    x = torch.randn(CLIENTS, 5, 3)
    features = population.encode({"encoder.module.first.weight": weights}, x)
    torch.testing.assert_close(features, x @ weights.mT @ weights.mT)


def test_absent_weights_are_an_error(stacked):
    population = Population(stacked)
    with pytest.raises((KeyError, RuntimeError)):
        population.encode({}, torch.ones(1, 4, 3))


def test_a_module_without_a_client_axis_is_refused():
    with pytest.raises(ValueError, match="PerClient"):
        Population(lambda: SplitModel(PerClient(nn.Linear(3, 4)), nn.Linear(4, 1)))


def test_a_client_is_not_coupled_to_another(stacked):
    population = Population(stacked)
    params = {n: t.requires_grad_() for n, t in population.parameters(CLIENTS).items()}
    population.encode(params, torch.randn(CLIENTS, 4, 3))[1].sum().backward()
    for name in ("encoder.0.weight", "encoder.0.bias"):
        touched = params[name].grad.flatten(1).any(1).tolist()
        assert touched == [False, True, False]


def test_mixed_precision_multiplies_in_bfloat16_and_keeps_the_rest():
    build = lambda: SplitModel(ClientLinear(64, 8), ClientLinear(8, 2))  # noqa: E731
    full, mixed = Population(build), Population(build, mixed_precision="bf16")
    params = {name: p.requires_grad_() for name, p in mixed.parameters(CLIENTS).items()}
    x = torch.randn(CLIENTS, 5, 64, generator=torch.Generator().manual_seed(0))
    exact, features = full.encode(params, x), mixed.encode(params, x)
    rounded = x.bfloat16() @ params["encoder.weight"].bfloat16()
    expected = rounded.float() + params["encoder.bias"][:, None]
    assert 0 < (features - exact).abs().max() < 0.02
    torch.testing.assert_close(features, expected, rtol=2**-7, atol=2**-7)
    mixed.decode(params, features).sum().backward()
    assert {p.grad.dtype for p in params.values()} == {torch.float32}


class Slow(ClientLinear):
    """A layer during which other threads run."""

    def forward(self, x):
        time.sleep(0.002)
        return super().forward(x)


def slow_model():
    return SplitModel(Slow(2, 2), ClientLinear(2, 1))


@pytest.mark.parametrize("copied", [lambda p: p, copy.copy, copy.deepcopy])
def test_threads_that_share_a_population_get_their_own_results(copied):
    population, x = Population(slow_model), torch.ones(1, 1, 2)
    params = [
        {name: torch.full_like(t, value) for name, t in population.parameters(1).items()}
        for value in range(8)
    ]
    pair = population, copied(population)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda i: pair[i % 2].encode(params[i], x), range(8))
    for value, features in enumerate(found):
        assert features.tolist() == [[[3 * value] * 2]]


def test_threads_that_share_a_network_get_their_own_results():
    network, x = Network("net.", partial(Slow, 2, 2), nn.ReLU), torch.ones(1, 1, 2)
    tensors = [
        {name: torch.full_like(t, value) for name, t in network.initial(1, 0)[0].items()}
        for value in range(8)
    ]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda own: network(own, x, training=False), tensors)
    for value, outputs in enumerate(found):
        assert outputs.tolist() == [[[3 * value] * 2]]


def test_a_pickled_population_draws_the_same_weights():
    population = Population(slow_model)
    pickled = pickle.loads(pickle.dumps(population))
    drawn = population.parameters_drawn([1, 2])
    for name, t in pickled.parameters_drawn([1, 2]).items():
        assert torch.equal(t, drawn[name])


def test_a_pickled_network_draws_the_same_weights():
    network = Network("net.", partial(Slow, 2, 2), nn.ReLU)
    drawn, _ = network.initial(2, 5)
    for name, t in pickle.loads(pickle.dumps(network)).initial(2, 5)[0].items():
        assert torch.equal(t, drawn[name])
