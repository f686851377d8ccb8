import torch
from torch import nn

from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.population import Population
from stforecast.models.linear import MLP, MLPOptions

WINDOW = WindowSpec(closeness=6, extra_lags="23,25,167,168,169", calendar="week", horizon=2)


def test_it_is_torchs_own_network_for_each_client():
    population = Population(lambda: MLP(WINDOW, MLPOptions(8, 4)), seed=1)
    params = population.parameters(3)
    for t in params.values():
        t.add_(torch.randn(t.shape, generator=torch.Generator().manual_seed(t.numel())))
    x = torch.randn(3, 5, WINDOW.n_inputs, generator=torch.Generator().manual_seed(0))
    y_hat = population.decode(params, population.encode(params, x))
    assert y_hat.shape == (3, 5, 2)
    for i in range(3):
        own = nn.Sequential(
            nn.Linear(20, 8), nn.SiLU(), nn.Linear(8, 4), nn.SiLU(), nn.Linear(4, 2)
        )
        weights = [t[i].mT if t.ndim == 3 else t[i] for t in params.values()]
        own.load_state_dict(dict(zip(own.state_dict(), weights, strict=True)))
        torch.testing.assert_close(y_hat[i], own(x[i]))


def test_its_size():
    window = WindowSpec(closeness=6, extra_lags="23,25,167,168,169", calendar="week")
    parameters = Population(lambda: MLP(window)).initial()
    assert sum(t.numel() for t in parameters.values()) == 20 * 64 + 64 + 64 * 32 + 32 + 33 == 3457


def test_dropout_zeroes_units_in_training_only():
    population = Population(lambda: MLP(WINDOW, MLPOptions(8, 4, dropout=0.5)), seed=1)
    params, x = population.parameters(1), torch.ones(1, 64, WINDOW.n_inputs)
    population.train(False)
    features = population.encode(params, x)[0]
    torch.testing.assert_close(features, features[:1].expand_as(features))
    population.train(True)
    assert (population.encode(params, x)[0] == 0).any()
