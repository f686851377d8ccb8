"""The transformer on patches against torch's own layers, client by client."""

import numpy as np
import pytest
import torch
from torch import nn

from data_prep.base.errors import InputError
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.population import Population
from stforecast.models.patches import PatchTransformer, PatchTransformerOptions, sines

SPEC = WindowSpec(closeness=5, periods=2, period=24, horizon=3)
OPTIONS = PatchTransformerOptions(
    patch=3, width=8, encoder_heads=2, encoder_units=6, decoder_heads=4, decoder_units=10
)
OLDEST_FIRST = [5, 6, 0, 1, 2, 3, 4]
"""Places of the inputs: two periods, then the newest five."""


@pytest.fixture
def model():
    model = Population(lambda: PatchTransformer(SPEC, OPTIONS), seed=1)
    model.train(False)
    return model


def different(model, n):
    g = torch.Generator().manual_seed(5)
    draw = {name: torch.randn(p.shape, generator=g) for name, p in model.parameters(n).items()}
    return {name: t / t.shape[1] ** 0.5 for name, t in draw.items()}


def stack_of(params, part, client, n_layers, heads, units):
    """Torch's own layers with the values of one client."""
    plain = nn.TransformerEncoderLayer(8, heads, units, batch_first=True)
    stack = nn.TransformerEncoder(plain, n_layers, enable_nested_tensor=False).eval()
    names = {
        "self_attn.in_proj_": "queries_keys_values.",
        "self_attn.out_proj.": "mixed.",
        "linear1.": "hidden.",
        "linear2.": "output.",
        "norm1.": "after_attention.",
        "norm2.": "after_units.",
    }
    values = {
        f"layers.{k}.{theirs}{kind}": params[f"{part}.layers.{k}.{ours}{kind}"][client].t()
        for k in range(n_layers)
        for theirs, ours in names.items()
        for kind in ("weight", "bias")
    }
    stack.load_state_dict(values)
    return stack


def expected(params, x, i):
    series = x[:, OLDEST_FIRST]
    series = torch.cat([series, series[:, -1:], series[:, -1:]], dim=1)
    patches = torch.stack([series[:, k : k + 3] for k in (0, 3, 6)], dim=1)
    at = {name: t[i] for name, t in params.items()}
    tokens = patches @ at["encoder.embedding.weight"] + at["encoder.embedding.bias"]
    tokens = stack_of(params, "encoder", i, 2, 2, 6)(tokens + at["encoder.positions.weight"])
    angle = np.arange(3)[:, None] / 10_000 ** (np.arange(0, 8, 2) / 8)
    waves = np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(3, 8)
    decoded = stack_of(params, "head", i, 4, 4, 10)(tokens + torch.from_numpy(waves).float())
    y = decoded.flatten(1) @ at["head.linear.weight"] + at["head.linear.bias"]
    return tokens.flatten(1), y


def test_every_client_is_a_transformer_of_torch(model):
    params, x = different(model, 3), torch.randn(3, 4, 7, generator=torch.manual_seed(6))
    features = model.encode(params, x)
    y = model.decode(params, features)
    for i in range(3):
        tokens, forecast = expected(params, x[i], i)
        torch.testing.assert_close(features[i], tokens, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(y[i], forecast, rtol=1e-4, atol=1e-4)


def test_the_paper_sizes_are_the_default():
    model = Population(lambda: PatchTransformer(WindowSpec(closeness=96, periods=0, horizon=96)))
    shapes = {name: tuple(t.shape[1:]) for name, t in model.initial().items()}
    assert shapes["encoder.positions.weight"] == (24, 64)
    assert shapes["encoder.layers.1.hidden.weight"] == (64, 128)
    assert shapes["head.layers.3.hidden.weight"] == (64, 256)
    assert shapes["head.linear.weight"] == (24 * 64, 96)
    assert model.model.token_size == 64


def test_sines_are_those_of_positions():
    waves = sines(5, 6)
    for p in range(5):
        for k in range(3):
            angle = p / 10_000 ** (2 * k / 6)
            assert waves[p, 2 * k].item() == pytest.approx(np.sin(angle), abs=1e-6)
            assert waves[p, 2 * k + 1].item() == pytest.approx(np.cos(angle), abs=1e-6)


def test_widths_and_windows_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="width is 10"):
        PatchTransformerOptions(width=10)
    with pytest.raises(InputError, match=r"patch_transformer .*only"):
        PatchTransformer(WindowSpec(calendar="day"))
