import math

import pytest
import torch
from scipy.stats import expon, kstest, laplace, norm

from data_prep.base.errors import InputError
from stforecast.federated.core.state import State, generator
from stforecast.federated.core.tensors import like_of, total_bytes
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.uploads.uplink import (
    Uplink,
    clip_uploads,
    dequantise,
    epsilon,
    guarantee,
    quantise,
)


def generators(*ids):
    return [generator(1, 0, i, 3) for i in ids]


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def pushed(uplink, upload, known=None, ids=(0, 1)):
    known = known or {}
    wire = uplink.encode(upload, known, generators(*ids))
    return wire, uplink.decode(wire, known, like_of(upload))


@pytest.mark.parametrize(("bits", "steps"), [(8, 127), (4, 7)])
def test_a_quantised_value_is_the_nearest_step_of_its_row(bits, steps):
    values = randn(2, 3, 5)
    back = dequantise(*quantise(values, bits), values, bits)
    for row, got in zip(values.view(6, 5), back.view(6, 5), strict=True):
        step = float(row.abs().max()) / steps
        expected = torch.tensor([round(float(v) / step) * step for v in row])
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("law", "of"), [("gaussian", norm), ("laplace", laplace), ("exponential", expon)]
)
def test_noise_of_the_machine_has_the_same_law(law, of):
    """Kolmogorov-Smirnov; the threshold fails once in 10¹⁰ runs."""
    drawn = Uplink(law).encode({"w": torch.zeros(1, 5000)}, {}, [None])["w"][0].double().numpy()
    scale = 2**-0.5 if law == "laplace" else 1.0
    assert kstest(drawn, of(scale=scale).cdf).pvalue > 1e-10


def test_rows_of_zeros_stay_zeros():
    values = torch.zeros(1, 2, 3)
    assert torch.equal(dequantise(*quantise(values, 8), values, 8), values)


def test_bytes_are_those_that_travel():
    """FUELS's 24 prototypes of 256: 4 bytes a value, then 1, then half of one, and the scales."""
    upload = {"prototypes": randn(10, 24, 256)}
    sent = {b: total_bytes(pushed(Uplink(bits=b), upload, ids=range(10))[0]) for b in (32, 8, 4)}
    assert sent == {32: 10 * 24576, 8: 10 * (6144 + 24 * 4), 4: 10 * (3072 + 24 * 4)}


def test_an_odd_number_of_values_and_a_scalar_a_client_are_quantised():
    upload = {"w": randn(2, 3), "a": torch.tensor([2.0, -3.0])}
    wire, back = pushed(Uplink(bits=4), upload)
    assert wire["w/codes"].shape == (2, 2)
    torch.testing.assert_close(back["a"], upload["a"])
    assert (back["w"] - upload["w"]).abs().max() <= upload["w"].abs().max() / 14 + 1e-6


def test_counters_travel_as_they_are():
    upload = {"n": torch.tensor([3, 4]), "w": randn(2, 3)}
    wire, back = pushed(Uplink(noise="laplace", bits=8, clip=1.0), upload)
    assert wire["n"] is upload["n"]
    assert back["n"] is upload["n"]


def test_differences_lose_less_than_values():
    """Small changes get small steps, and errors of quantisation do not add up."""
    uplink, known = Uplink(bits=4, delta_coding=True), {}
    value, base = randn(2, 4, 8), randn(2, 4, 8)
    for _ in range(6):
        value = value + 0.01 * base
        _, known = pushed(uplink, {"p": value}, known)
    _, plain = pushed(Uplink(bits=4), {"p": value})
    assert (known["p"] - value).abs().max() < 0.1 * (plain["p"] - value).abs().max()


@pytest.mark.parametrize(
    ("law", "expected_mean"), [("laplace", 0), ("gaussian", 0), ("exponential", 2)]
)
def test_noise_has_the_stated_mean_and_deviation(law, expected_mean):
    uplink = Uplink(noise=law, noise_std=2.0)
    _, back = pushed(uplink, {"p": torch.zeros(1, 200_000)}, ids=[0])
    assert float(back["p"].mean()) == pytest.approx(expected_mean, abs=0.02)
    assert float(back["p"].std()) == pytest.approx(2, rel=0.02)
    kurtosis = float(((back["p"] - back["p"].mean()) / back["p"].std()).pow(4).mean())
    assert kurtosis == pytest.approx({"laplace": 6, "gaussian": 3, "exponential": 9}[law], rel=0.1)


def test_noise_is_a_clients_own():
    uplink, upload = Uplink(noise="laplace"), {"p": torch.zeros(2, 5)}
    _, both = pushed(uplink, upload)
    _, second = pushed(uplink, {"p": torch.zeros(1, 5)}, ids=[1])
    assert torch.equal(both["p"][1:], second["p"])
    assert not torch.equal(both["p"][0], both["p"][1])


def test_the_norm_of_a_whole_upload_is_clipped():
    values = {"a": torch.tensor([[3.0], [0.3]]), "b": torch.tensor([[[4.0]], [[0.4]]])}
    limited = clip_uploads(values, 1.0)
    torch.testing.assert_close(limited["a"], torch.tensor([[0.6], [0.3]]))
    torch.testing.assert_close(limited["b"], torch.tensor([[[0.8]], [[0.4]]]))


def federation(federate, uplink):
    made = federate(FedAvg, (8, 12, 8))
    return Federation(
        made.method, made.train, made.validation, seed=1, cohort_size=2, uplink=uplink
    )


def test_the_server_aggregates_what_it_received(federate):
    run = federation(federate, Uplink(bits=8))
    report = run.run_round()
    state = run.state
    mine = {n: dequantise(*quantise(t, 8), t, 8) for n, t in state.clients.params.items()}
    share = torch.tensor([8, 12, 8]) / 28
    for name, t in mine.items():
        torch.testing.assert_close(state.server[name], torch.tensordot(share, t, dims=1))
    plain = federation(federate, Uplink()).run_round()
    assert plain.bytes_up == 3 * 4 * 32  # 32 values in 10 rows a client.
    assert report.bytes_up == 3 * (32 + 4 * 10)
    assert report.bytes_down == plain.bytes_down


def test_a_run_with_delta_coding_is_resumed(federate):
    uplink = Uplink(bits=4, delta_coding=True, noise="gaussian", noise_std=0.01)
    whole = federation(federate, uplink)
    whole.run()
    first = federation(federate, uplink)
    first.run_round()
    again = federation(federate, uplink)
    flat = {name: t.clone() for name, t in first.state.flat().items()}
    again.state = State.from_flat(flat, round=1, seed=1)
    again.run()
    torch.testing.assert_close(again.state.flat(), whole.state.flat(), rtol=0, atol=0)
    assert set(whole.state.received) == set(whole.state.clients.params)


def test_the_account_is_that_of_the_gaussian_mechanism():
    """Balle and Wang (2018), Theorem 8: δ(ε) of one Gaussian release of sensitivity 2 clip.

    T releases are one of a noise smaller by √T.
    """
    pytest.importorskip("dp_accounting")
    uplink = Uplink(noise="gaussian", noise_std=30.0, clip=1.0)
    for uploads in (1, 50):
        e = epsilon(uplink, uploads)
        mu = 2 * math.sqrt(uploads) / 30
        delta = norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)
        assert delta == pytest.approx(uplink.privacy_delta, rel=1e-3)
    hardly = Uplink(noise="gaussian", noise_std=0.05, clip=50.0)
    assert 1e6 < epsilon(hardly, 3) < math.inf


def test_counters_are_not_called_private():
    upload = {"counts": torch.tensor([3, 4]), "w": randn(2, 3)}
    with pytest.raises(InputError, match=r"counters \(counts\)"):
        pushed(Uplink(noise="gaussian", clip=1.0), upload)


def test_plain_noise_is_not_called_private():
    assert Uplink(noise="gaussian", clip=1.0).private
    assert not Uplink(noise="gaussian").private
    assert not Uplink(noise="laplace", clip=1.0).private
    assert not Uplink(clip=1.0).private


@pytest.mark.parametrize(
    "wrong",
    [{"noise": "cauchy"}, {"bits": 3}, {"clip": -1.0}, {"noise_std": math.nan}],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(InputError):
        Uplink(**wrong)


def test_a_guarantee_names_what_it_does_not_cover():
    private = Uplink("gaussian", noise_std=5.0, clip=1.0)
    found = guarantee(private, 3, "a series", ["scale global"])["privacy"]
    assert found["epsilon"] == epsilon(private, 3)
    assert "scale global" in found["not_covered"]
    assert guarantee(Uplink(), 3, "a series") == {}
