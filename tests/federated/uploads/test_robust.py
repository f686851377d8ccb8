"""Robust centres by hand and by numpy, and runs in which a fifth of the clients is malicious."""

import numpy as np
import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.uploads.robust import RULES, Robust
from stforecast.methods import METHODS

HOW = RULES
SIZES = (12,) * 10
MALICIOUS = (2, 7)


def uploads(n=10, far=100.0, seed=0):
    """Of honest clients around 1, and of a fifth around `far`."""
    rng = np.random.default_rng(seed)
    w = 1 + 0.1 * rng.normal(size=(n, 3, 4))
    w[: n // 5] += far
    return {"w": torch.tensor(w), "steps": torch.arange(n)}


def test_nothing_is_done_unless_asked():
    given = uploads()
    assert Robust().guard(given) is given


@pytest.mark.parametrize("n", [10, 5, 4, 1])
def test_the_median_and_the_trimmed_mean_are_numpys(n):
    given = uploads(n)
    w = given["w"].numpy()
    median = Robust("median").guard(given)["w"]
    np.testing.assert_allclose(median, np.broadcast_to(np.median(w, axis=0), w.shape))
    cut = int(0.2 * n)
    trimmed = np.sort(w, axis=0)[cut : n - cut].mean(0)
    found = Robust("trimmed").guard(given)
    np.testing.assert_allclose(found["w"], np.broadcast_to(trimmed, w.shape))
    assert found["steps"] is given["steps"]


def test_clipping_draws_far_uploads_to_the_median_as_a_whole():
    given = {"a": torch.tensor([0.0, 1.0, 2.0, 3.0, 104.0]), "b": torch.zeros(5)}
    found = Robust("clip").guard(given)
    # The median is 2, the distances to it 2, 1, 0, 1 and 102, and their median 1.
    assert found["a"].tolist() == pytest.approx([1, 1, 2, 3, 3])
    assert found["b"].tolist() == [0] * 5


def test_uploads_that_are_kept_apart_stay_but_for_the_far():
    given = uploads()
    w = given["w"]
    centre = torch.from_numpy(np.median(w.numpy(), axis=0))
    median = Robust("median").guard(given, apart=True)["w"]
    assert torch.equal(median[2:], w[2:])
    torch.testing.assert_close(median[:2], centre.expand(2, -1, -1))
    limited = Robust("trimmed").guard(given, apart=True)["w"].numpy()
    ordered = np.sort(w.numpy(), axis=0)
    np.testing.assert_allclose(limited, np.clip(w.numpy(), ordered[2], ordered[-3]))


def test_a_keys_statistics_are_its_holders():
    prototypes = torch.tensor([[[1.0], [0.0]], [[3.0], [5.0]], [[8.0], [7.0]], [[0.0], [900.0]]])
    given = {"prototypes": prototypes, "counts": torch.tensor([[4, 0], [1, 2], [9, 2], [0, 1]])}
    found = Robust("median").guard(given)["prototypes"][..., 0]
    assert found.tolist() == [[3, 0], [3, 7], [3, 7], [0, 7]]
    of_model = Robust("median").guard(given, model=["prototypes"])["prototypes"][..., 0]
    assert of_model[0].tolist() == [2, 6]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_a_key_that_nobody_holds_changes_nothing(how, apart):
    """As the classes of later tasks."""
    given = uploads(5)
    given["prototypes"], given["known"] = given.pop("w"), torch.ones(5, 3, dtype=torch.bool)
    expected = Robust(how).guard(given, apart=apart)["prototypes"]
    more = {
        "prototypes": torch.cat([given["prototypes"], torch.zeros(5, 1, 4)], 1),
        "known": torch.cat([given["known"], torch.zeros(5, 1, dtype=torch.bool)], 1),
    }
    found = Robust(how).guard(more, apart=apart)["prototypes"]
    torch.testing.assert_close(found[:, :3], expected)
    assert not found[:, 3].any()


def test_outlying_clients_are_dropped_as_a_whole():
    given = uploads()
    assert Robust("drop").kept(given).tolist() == list(range(2, 10))
    assert Robust("drop").guard(given) is given
    assert Robust("drop").kept({"steps": torch.arange(3)}).tolist() == [0, 1, 2]


def test_equal_clients_are_all_kept():
    assert Robust("drop").kept({"w": torch.ones(5, 3)}).tolist() == [0, 1, 2, 3, 4]


def test_clients_that_hold_more_classes_are_no_further_away():
    values = torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0, 1.0, -1.0])
    known = torch.zeros(7, 16, dtype=torch.bool)
    known[:, 0] = known[5:] = True
    given = {"prototypes": values[:, None, None].expand(7, 16, 1), "known": known}
    assert Robust("drop").kept(given).tolist() == list(range(7))


def test_sums_are_compared_by_their_means_over_samples():
    """So that a large client is not outlying."""
    samples = torch.tensor([10, 20, 1000, 30, 10])
    sums = {"histogram": samples[:, None] * torch.tensor([[1.0], [1.1], [0.9], [1.0], [9.0]])}
    assert Robust("drop").kept(sums, samples=samples).tolist() == [0, 1, 2, 3]
    assert 2 not in Robust("drop").kept(sums)


@pytest.mark.parametrize("how", ["median", "trimmed", "clip"])
def test_a_rule_that_does_harm_is_refused_before_anything_trains(federate, how):
    with pytest.raises(InputError, match=rf"robust='{how}' .*fedtrees: .*drop"):
        federate(METHODS["fedtrees"], SIZES, robust=Robust(how))


def test_a_method_that_nobody_has_measured_is_refused_every_rule():
    class Unmeasured(METHODS["fedavg"]):
        name = ""

    for how in HOW:
        Robust(how).check(METHODS["fedavg"])
        with pytest.raises(InputError, match="nobody"):
            Robust(how).check(Unmeasured)
    Robust().check(Unmeasured)


def test_options():
    with pytest.raises(InputError, match=r"robust_trim is 0\.5; .*\[0, 0\.5\)"):
        Robust("trimmed", robust_trim=0.5)
    with pytest.raises(InputError, match="none, median, trimmed, clip"):
        Robust("mean")


@pytest.fixture
def attacked(federate, monkeypatch):
    """Makes a run in which a fifth of the clients sends large random uploads."""

    def make(name, robust="none", malicious=MALICIOUS):
        federation = federate(METHODS[name], SIZES, rounds=6, lr=0.05, robust=Robust(robust))
        upload = federation.method.upload

        def lie(cohort):
            sent = {name: t.clone() for name, t in upload(cohort).items()}
            rng = torch.Generator().manual_seed(cohort.round)
            for i in set(cohort.ids.tolist()) & set(malicious):
                for t in sent.values():
                    if t.is_floating_point():
                        row = t[cohort.ids.tolist().index(i)]
                        row.copy_(30 * torch.randn(row.shape, generator=rng))
            return sent

        monkeypatch.setattr(federation.method, "upload", lie)
        federation.run()
        return federation

    return make


def error(federation):
    return min(r.validation_loss for r in federation.reports[-3:])


@pytest.mark.quick(3)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["fedavg", "fedrep", "fedprox", "perfedavg", "fedproto"])
@pytest.mark.parametrize("how", HOW)
def test_a_fifth_of_malicious_clients_does_little_harm(attacked, name, how):
    honest = error(attacked(name, malicious=()))
    defenceless, guarded = error(attacked(name)), error(attacked(name, how))
    assert defenceless > 1.5 * honest
    assert guarded < 1.4 * honest


@pytest.mark.quick(3)
@pytest.mark.parametrize("how", METHODS["fuels"].attacked.guards)
def test_malicious_prototypes_do_not_reach_others_in_fuels(attacked, how):
    def messages(federation):
        honest_ids = torch.tensor([i for i in range(10) if i not in MALICIOUS])
        everyone = federation.trainer.participants(honest_ids)
        sent = federation.method.broadcast(federation.state.server, everyone)
        return torch.cat([sent["positive"], sent["negative"]]).abs().max()

    honest = messages(attacked("fuels", malicious=()))
    assert messages(attacked("fuels")) > 10 * honest
    assert messages(attacked("fuels", how)) < 2 * honest
