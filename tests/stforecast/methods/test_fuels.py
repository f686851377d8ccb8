"""FUELS against a slow reference written from the paper: loops, float64, one client at a time.

The reference does not import the method; `generator` is shared, since a draw is agreed by its key.
"""

import copy
import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from cut_windows import cut_windows
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax
from scipy.stats import kstest
from torch import nn

from data_prep.base.errors import InputError
from stforecast.data.window_spec import WindowSpec
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.population import Population
from stforecast.federated.core.prototypes import attract_repel_loss
from stforecast.federated.core.state import Cohort, Participants, generator
from stforecast.federated.core.training import Training
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.forecasting.task import ForecastTask, client_data
from stforecast.methods.fuels import Fuels, FuelsOptions, intra_loss
from stforecast.models.dual import DualGRU, DualGRUOptions

C, Q, P = 2, 2, 4
SPEC = WindowSpec(closeness=C, periods=Q, period=P)
FIRST = Q * P
LR = 0.01


def make_series(n_clients, samples=10):
    """`(steps, clients)` with a daily shape that is each client's own."""
    rng = np.random.default_rng(7)
    steps = np.arange(FIRST + samples)
    daily = np.sin(2 * np.pi * (steps[:, None] / P + rng.random(n_clients)))
    return (daily + 0.3 * rng.normal(size=(len(steps), n_clients))).astype(np.float32)


def samples_of(series, spec=SPEC, first=FIRST):
    starts = np.arange(first, len(series))
    return client_data(cut_windows(series, starts, spec, with_next=True))


def federation(data, *, method=Fuels, hidden=3, spec=SPEC, cohort=None, training=None, **options):
    training = {"batch_size": spec.period, "lr": LR, **(training or {})}
    population = Population(lambda: DualGRU(spec, DualGRUOptions(hidden)), seed=2)
    chosen = method.Options(**options)
    task = ForecastTask(spec.period)
    return Federation(
        method(population, task, Training(**training), chosen), data, seed=11, cohort_size=cohort
    )


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def cosine(a, b):
    return float(np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)))


# Eq. 3 to 6


def plain_intra(r, shifted, w, tau):
    """Eq. 3 to 6 as printed, and the derivative by W: SM / (B × denominator) where W > 0."""
    n = len(r)
    loss, gradient = 0.0, np.zeros((n, n))
    for b in range(n):
        sm = [np.exp(cosine(r[b], shifted[i]) / tau) for i in range(n)]
        z = [max(0.0, sm[i] * w[b, i]) for i in range(n)]
        true_negatives = [i for i in range(n) if z[i] > 0]
        denominator = sm[b] + sum(z[i] for i in true_negatives)
        loss += -np.log(sm[b] / denominator) / n
        for i in true_negatives:
            gradient[b, i] = sm[i] / denominator / n
    return loss, gradient


def mixed_filters(n, size):
    """W with positive, negative and zero entries, on and off the diagonal."""
    w = random(n, size, size, seed=3)
    w[0, 0, 0], w[0, 1, 2], w[0, 2, 2], w[1, 0, 1] = -0.5, 0.0, 0.0, 1e-6
    w[1, 1] = -1.0
    return w


@pytest.mark.parametrize("tau", [1.0, 0.02, 0.005])
def test_intra_loss_and_its_gradient_are_those_of_eq_3_to_6(tau):
    r, shifted, w = random(2, 5, 6, seed=1), random(2, 5, 6, seed=2), mixed_filters(2, 5)
    filters = torch.tensor(w, dtype=torch.float32, requires_grad=True)
    loss = intra_loss(torch.tensor(r).float(), torch.tensor(shifted).float(), filters, tau)
    loss.sum().backward()
    for client in range(2):
        expected, gradient = plain_intra(r[client], shifted[client], w[client], tau)
        assert loss[client].item() == pytest.approx(expected, rel=1e-4)
        np.testing.assert_allclose(filters.grad[client], gradient, rtol=2e-3, atol=1e-6)
    assert (filters.grad >= 0).all()
    assert (filters.grad[filters <= 0] == 0).all()


def test_intra_loss_by_hand():
    """B = 2, τ = 1, r = r' = the unit vectors: SM = [[e, 1], [1, e]]."""
    r = torch.eye(2)[None]
    e = np.e
    cases = {
        ((0.0, 1.0), (1.0, 0.0)): np.log((e + 1) / e),
        ((1.0, 1.0), (1.0, 1.0)): np.log((2 * e + 1) / e),
        ((-1.0, 2.0), (-3.0, 0.0)): np.log((e + 2) / e) / 2,
        ((-1.0, -1.0), (0.0, 0.0)): 0.0,
    }
    for filters, expected in cases.items():
        loss = intra_loss(r, r, torch.tensor([filters]), 1.0)
        assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_the_losses_stay_finite_between_opposite_vectors():
    """τ = 0.002 makes exponents of ±500, which even float64 cannot divide one by one."""
    r = torch.eye(3)[None].requires_grad_()
    loss = intra_loss(r, -r.detach(), torch.ones(1, 3, 3), 0.002)
    inter = attract_repel_loss(r, -r.detach(), r.detach(), 0.002)
    assert loss.item() == pytest.approx(500 + np.log(2), rel=1e-5)
    np.testing.assert_allclose(inter.detach(), [[1000] * 3])
    (loss.sum() + inter.sum()).backward()
    assert r.grad.isfinite().all()


# Temporal shifting


def cohort_of(run, ids, round=0):
    ids = torch.tensor(ids)
    return Cohort(
        run.state.clients, ids, run.train.take(ids), run.method.training, run.state.seed, round
    )


def plain_shift(series, client, k, a):
    """a v + (1 - a) (v one step later), for the closeness and the periodic values of window k."""
    steps = [k - C + i for i in range(C)] + [k - j * P for j in range(Q, 0, -1)]
    now = np.array([series[s, client] for s in steps], dtype=np.float64)
    later = np.array([series[s + 1, client] for s in steps], dtype=np.float64)
    return now, a * now + (1 - a) * later


def test_a_shifted_sample_mixes_each_value_with_the_next_by_one_share():
    series = make_series(3)
    run = federation(samples_of(series), shift=0.3)
    cohort = cohort_of(run, [0, 1, 2], round=4)
    shifted = [run.method.augment(cohort, batch) for batch in cohort.batches()]
    for client in range(3):
        draws = generator(11, 4, client)
        for number, batch in enumerate(shifted):
            shares = 0.3 + 0.7 * torch.rand(P, 1, generator=draws).double().numpy()
            for b in range(P):
                k = FIRST + number * P + b
                _, expected = plain_shift(series, client, k, shares[b, 0])
                np.testing.assert_allclose(batch[client, b], expected, atol=1e-5)


def test_the_newest_value_is_mixed_with_the_target():
    run = federation(samples_of(make_series(1)), shift=0.0)
    cohort = cohort_of(run, [0])
    batch = next(cohort.batches())
    x, y = batch["x"][..., C - 1], batch["y"][..., 0]
    share = torch.rand(P, 1, generator=generator(11, 0, 0)).T
    shifted = run.method.augment(cohort, batch)[..., C - 1]
    torch.testing.assert_close(shifted, share * x + (1 - share) * y)


def test_shares_are_uniform_between_the_bound_and_one():
    run = federation(samples_of(make_series(2)), shift=0.5)
    cohort = cohort_of(run, [0, 1])
    ones = {"x": torch.ones(2, 3000, 4), "x_next": torch.zeros(2, 3000, 4)}
    shares = run.method.augment(cohort, ones)
    assert torch.equal(shares, shares[..., :1].expand_as(shares))
    for client in range(2):
        assert kstest(shares[client, :, 0].numpy(), "uniform", args=(0.5, 0.5)).pvalue > 0.01
    assert not torch.equal(shares[0], shares[1])


def test_a_bound_of_one_leaves_the_sample_as_it_is():
    run = federation(samples_of(make_series(2)), shift=1.0)
    batch = next(cohort_of(run, [0, 1]).batches())
    assert torch.equal(run.method.augment(cohort_of(run, [0, 1]), batch), batch["x"])


def test_a_client_draws_the_same_in_any_cohort():
    run = federation(samples_of(make_series(4)))

    def shifted(ids):
        cohort = cohort_of(run, ids, round=1)
        return torch.cat([run.method.augment(cohort, batch) for batch in cohort.batches()], dim=1)

    together = shifted([0, 1, 2, 3])
    assert torch.equal(shifted([1, 3]), together[[1, 3]])
    assert torch.equal(shifted([2]), together[[2]])


def test_draws_of_a_client_are_not_those_that_choose_participants():
    """The round's generator is keyed (seed, round), client 0's (seed, round, 0)."""
    choice, client = generator(11, 3), generator(11, 3, 0)
    assert not torch.equal(torch.rand(4, generator=choice), torch.rand(4, generator=client))


# Eq. 11 to 13


def plain_inter(r, positive, negative, tau):
    loss = 0.0
    for row, pos, neg in zip(r, positive, negative, strict=True):
        loss_pos = np.exp(cosine(row, pos) / tau)
        loss_neg = np.exp(cosine(row, neg) / tau)
        loss += -np.log(loss_pos / (loss_pos + loss_neg)) / len(r)
    return loss


@pytest.mark.parametrize("tau", [1.0, 0.02, 0.005])
def test_inter_loss_meets_the_prototype_row_of_its_slot(tau):
    run = federation(samples_of(make_series(2)), tau=tau)
    r, pos, neg = (random(2, P, 6, seed=s) for s in (1, 2, 3))
    payload = {"positive": torch.tensor(pos).float(), "negative": torch.tensor(neg).float()}
    for slots in ([0, 1, 2, 3], [2, 3, 0, 1]):
        batch = {"slot": torch.tensor([slots, slots])}
        loss = run.method.inter_loss(torch.tensor(r).float(), batch, payload)
        for client in range(2):
            expected = plain_inter(r[client], pos[client][slots], neg[client][slots], tau)
            assert loss[client].item() == pytest.approx(expected, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("missing", ["positive", "negative"])
def test_inter_loss_is_zero_without_positives_or_negatives(missing):
    run = federation(samples_of(make_series(2)))
    payload = {k: torch.tensor(random(2, P, 6)).float() for k in ("positive", "negative")}
    payload[missing] = torch.zeros(2, P, 6)
    r = torch.tensor(random(2, P, 6, seed=1)).float().requires_grad_()
    loss = run.method.inter_loss(r, {"slot": torch.arange(P).expand(2, -1)}, payload)
    loss.sum().backward()
    assert torch.equal(loss, torch.zeros(2))
    assert torch.equal(r.grad, torch.zeros_like(r))


# Section 3.3.2: divergences, threshold, Eq. 9 and 10


def plain_jsd(p, q, how="flat"):
    """Jensen–Shannon divergence of softmaxed prototypes, a value; scipy gives its square root."""
    if how == "flat":
        p, q = p.reshape(1, -1), q.reshape(1, -1)
    rows = [
        jensenshannon(softmax(a.astype(float)), softmax(b.astype(float))) ** 2
        for a, b in zip(p, q, strict=True)
    ]
    return np.mean(rows) / p.shape[1]


def plain_threshold(jsd, beta):
    pairs = [jsd[n, m] for n, m in itertools.combinations(range(len(jsd)), 2)]
    return np.percentile(pairs, 100 * beta) if pairs else 0.0


def plain_globals(prototypes, jsd, threshold, n):
    """Eq. 9 and 10 for client n; zeros stand for an empty set."""
    others = [m for m in range(len(jsd)) if m != n]
    pc = [m for m in others if jsd[n, m] <= threshold]
    nc = [m for m in others if jsd[n, m] > threshold]
    zero = np.zeros_like(prototypes[0])
    return tuple(np.mean([prototypes[m] for m in s], axis=0) if s else zero for s in (pc, nc))


def everyone(n, round=1):
    return Participants(torch.arange(n), torch.full((n,), 8), round)


def aggregated(run, prototypes):
    uploads = {"prototypes": torch.tensor(prototypes).float()}
    start = run.method.init(run.state.clients, run.train.sizes, seed=0)
    return run.method.aggregate(start, everyone(len(prototypes)), uploads)


@pytest.mark.parametrize("how", ["flat", "rows"])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_divergences_and_threshold(how, beta):
    prototypes = np.tanh(random(6, P, 6))
    run = federation(samples_of(make_series(6)), divergence=how, beta=beta)
    server = aggregated(run, prototypes)
    expected = np.array([[plain_jsd(p, q, how) for q in prototypes] for p in prototypes])
    np.testing.assert_allclose(server["jsd"], expected, rtol=1e-5, atol=1e-12)
    assert server["threshold"].item() == pytest.approx(plain_threshold(expected, beta), rel=1e-5)
    assert (server["jsd"].diagonal() == 0).all()


def test_divergence_by_hand():
    """Softmax of (log 3, 0) is (3/4, 1/4); the middle of it and (1/2, 1/2) is (5/8, 3/8)."""
    run = federation(samples_of(make_series(2)))
    entropy = {p: -p * np.log(p) - (1 - p) * np.log(1 - p) for p in (5 / 8, 3 / 4, 1 / 2)}
    expected = entropy[5 / 8] - (entropy[3 / 4] + entropy[1 / 2]) / 2
    got = run.method.divergences(
        torch.tensor([[[np.log(3.0)], [0.0]]]), torch.tensor([[[7.0], [7.0]]])
    )
    assert got.item() == pytest.approx(expected / 2, rel=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_global_prototypes_are_means_of_the_alike_and_of_the_others(beta):
    prototypes = np.tanh(random(5, P, 6))
    run = federation(samples_of(make_series(5)), beta=beta)
    server = aggregated(run, prototypes)
    payload = run.method.broadcast(server, Participants(torch.tensor([1, 3, 4]), None, 1))
    jsd, threshold = server["jsd"].numpy(), float(server["threshold"])
    for row, n in enumerate([1, 3, 4]):
        pos, neg = plain_globals(prototypes, jsd, threshold, n)
        np.testing.assert_allclose(payload["positive"][row], pos, atol=1e-6)
        np.testing.assert_allclose(payload["negative"][row], neg, atol=1e-6)


def test_sets_by_hand():
    """Three clients at divergences 1, 2 and 3: β is 2, so only the pair at 3 is unlike."""
    jsd = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    prototypes = torch.tensor([1.0, 10.0, 100.0]).view(3, 1, 1)
    run = federation(samples_of(make_series(3)))
    threshold = run.method.threshold(jsd)
    assert threshold.item() == 2
    server = {"prototypes": prototypes, "jsd": jsd, "threshold": threshold}
    payload = run.method.broadcast(server, everyone(3))
    assert payload["positive"].flatten().tolist() == [55, 1, 1]
    assert payload["negative"].flatten().tolist() == [0, 100, 10]


def test_only_rows_and_columns_of_participants_change():
    old, new = np.tanh(random(5, P, 6)), np.tanh(random(2, P, 6, seed=9))
    run = federation(samples_of(make_series(5)))
    before = aggregated(run, old)
    kept = copy.deepcopy(before)
    # A value that cannot be recomputed shows that a pair of absent clients is reused.
    before["jsd"][0, 2] = before["jsd"][2, 0] = kept["jsd"][0, 2] = kept["jsd"][2, 0] = 0.125
    of = Participants(torch.tensor([1, 4]), torch.tensor([8, 8]), 2)
    after = run.method.aggregate(before, of, {"prototypes": torch.tensor(new).float()})
    expected = old.copy()
    expected[[1, 4]] = new
    np.testing.assert_allclose(after["prototypes"], expected, atol=1e-6)
    for n, m in itertools.product(range(5), repeat=2):
        if n in (1, 4) or m in (1, 4):
            want = plain_jsd(expected[n], expected[m])
            assert after["jsd"][n, m].item() == pytest.approx(want, rel=1e-5, abs=1e-12)
        else:
            assert after["jsd"][n, m] == kept["jsd"][n, m]
    assert after["threshold"].item() == pytest.approx(plain_threshold(after["jsd"].numpy(), 0.5))
    assert all(torch.equal(before[name], kept[name]) for name in kept)


@pytest.mark.parametrize("n_clients", [1, 2])
def test_one_or_two_clients_have_no_negatives(n_clients):
    """With one pair the threshold is its own divergence, so the pair is alike."""
    run = federation(samples_of(make_series(n_clients)))
    run.run_round()
    payload = run.method.broadcast(run.state.server, everyone(n_clients))
    assert not payload["negative"].any()
    assert bool(payload["positive"].any()) == (n_clients == 2)
    run.run_round()
    assert np.isfinite(run.reports[-1].train_loss)


# Whole rounds against one client after another


class PlainClient:
    """One client of Algorithm 1 with torch's own GRU, linear layer and Adam, in float64."""

    def __init__(self, params, options, training):
        self.o, self.training = options, training
        self.recent, self.periodic = (
            plain_gru(params, f"encoder.{name}.") for name in ("closeness", "periodic")
        )
        self.head = nn.Linear(self.recent.hidden_size, 1).double()
        self.head.load_state_dict(
            {"weight": params["head.linear.weight"].T, "bias": params["head.linear.bias"]}
        )
        self.shares = params["shares"][:, 0].numpy() if "shares" in params else None
        self.w = params["filter"].clone().requires_grad_(options.filter_train)
        modules = (self.recent, self.periodic, self.head)
        learned = [p for m in modules for p in m.parameters()]
        self.adam = torch.optim.Adam(learned + [self.w] * options.filter_train, lr=training.lr)

    def encode(self, x):
        parts = torch.tensor(x)[..., None].split([C, Q], dim=1)
        states = [
            gru(part)[1][0] for gru, part in zip((self.recent, self.periodic), parts, strict=True)
        ]
        return torch.cat(states, dim=1)

    def loss(self, x, shifted, y, global_rows):
        """Eq. 15, each term as printed; returns r beside it."""
        o, r = self.o, self.encode(x)
        half = r.shape[1] // 2
        y_hat = self.head(r[:, :half] + r[:, half:])[:, 0]
        pred = ((torch.tensor(y) - y_hat) ** 2).sum() / len(y)
        intra = inter = torch.zeros(())
        if o.intra:
            sm = torch.exp(cosines(r, self.encode(shifted)) / o.tau)
            w = self.w.clamp(min=o.filter_floor) if o.filter_floor else self.w
            z = torch.relu(sm * w)
            intra = -torch.log(sm.diagonal() / (sm.diagonal() + z.sum(1))).mean()
        if o.inter and global_rows is not None:
            pos, neg = (torch.exp(cosines(r, rows).diagonal() / o.tau) for rows in global_rows)
            inter = -torch.log(pos / (pos + neg)).mean()
        if o.loss_form == "alg1":
            return intra + inter + o.rho * pred, r
        return pred + intra + o.rho * inter, r

    def execute(self, series, client, global_prototypes, draws):
        """ClientExecute, lines 16 to 26; returns R_n."""
        for _ in range(self.training.epochs):
            met = []
            for ks in self.batches(len(series)):
                given = self.rows(global_prototypes, ks)
                x, shifted = self.views(series, client, ks, draws if self.o.intra else None)
                loss, r = self.loss(x, shifted, series[ks, client].astype(float), given)
                self.adam.zero_grad()
                loss.backward()
                self.adam.step()
                met += zip(self.keys(ks), r.detach().numpy(), strict=True)
        keys = sorted({key for key, _ in met})
        return np.array([np.mean([r for k, r in met if k == key], axis=0) for key in keys])

    def batches(self, end):
        """Windows of each batch: one of each slot, all at the same place within their slots."""
        slots = self.training.batch_size
        length = P // slots
        begins = (start + place for start in range(FIRST, end, P) for place in range(length))
        every = [begin + length * np.arange(slots) for begin in begins]
        return [ks for ks in every if ks[-1] < end]

    def keys(self, ks):
        length = P // self.training.batch_size
        return ks % P // length if self.o.prototypes == "periodic" else ks - FIRST

    def rows(self, global_prototypes, ks):
        """Rows of PR and NR that a batch meets; None in round 1 and where a set is empty."""
        if global_prototypes is None or not all(g.any() for g in global_prototypes):
            return None
        return [torch.tensor(g[self.keys(ks)]) for g in global_prototypes]

    def views(self, series, client, ks, draws):
        """x and x' of the windows ks; x' is x without a generator."""
        shares = np.ones(len(ks))
        if draws is not None:
            if self.o.shift_draw == "once":
                drawn = self.shares[ks - FIRST]
            else:
                drawn = torch.rand(len(ks), 1, generator=draws).numpy()[:, 0]
            shares = self.o.shift + (1 - self.o.shift) * drawn
        pairs = [plain_shift(series, client, k, a) for k, a in zip(ks, shares, strict=True)]
        return (np.array(part) for part in zip(*pairs, strict=True))

    def parameters(self):
        gru = {
            f"encoder.{name}.{k.removesuffix('_l0')}": p.T if p.ndim == 2 else p
            for name, g in (("closeness", self.recent), ("periodic", self.periodic))
            for k, p in g.named_parameters()
        }
        head = {"head.linear.weight": self.head.weight.T, "head.linear.bias": self.head.bias}
        shares = {} if self.shares is None else {"shares": torch.tensor(self.shares[:, None])}
        return {**gru, **head, "filter": self.w, **shares}


def plain_gru(params, prefix):
    own = {k.removeprefix(prefix): p for k, p in params.items() if k.startswith(prefix)}
    gru = nn.GRU(1, len(own["weight_hh"]), batch_first=True).double()
    gru.load_state_dict({f"{k}_l0": p.T if p.ndim == 2 else p for k, p in own.items()})
    return gru


def cosines(a, b):
    return (a @ b.T) / (a.norm(dim=1)[:, None] * b.norm(dim=1)[None])


def plain_profile(client, values):
    """`(slots, 1)`: mean of the targets of each slot, which are the values at its steps."""
    whole = client.training.batch_size == P  # Then an incomplete last period counts, too.
    ks = np.arange(FIRST, len(values)) if whole else np.concatenate(client.batches(len(values)))
    keys = client.keys(ks)
    return np.array([[values[ks[keys == key]].mean()] for key in sorted(set(keys))])


def client_tensors(run, client):
    clients = run.state.clients
    return {k: t[client].double().clone() for k, t in {**clients.params, **clients.memory}.items()}


def compare_rounds(n_clients, rounds, cohort=None, training=None, **options):
    """Run both; after every round, models, W, prototypes, divergences and β must agree."""
    series = make_series(n_clients)
    run = federation(samples_of(series), cohort=cohort, training=training, **options)
    o = run.method.options
    plain = [PlainClient(client_tensors(run, n), o, run.method.training) for n in range(n_clients)]
    prototypes, jsd, threshold = [None] * n_clients, np.zeros((n_clients, n_clients)), 0.0
    for t in range(rounds):
        ids = run.participants().ids.tolist()
        run.run_round()
        given = [
            plain_globals(prototypes, jsd, threshold, n) if t else None for n in range(n_clients)
        ]
        for n in ids:
            prototypes[n] = plain[n].execute(series, n, given[n], generator(11, t, n))
        compared = prototypes
        if o.partition == "profiles":
            compared = [plain_profile(plain[n], series[:, n]) for n in range(n_clients)]
        for n, m in itertools.product(range(n_clients), repeat=2):
            jsd[n, m] = plain_jsd(compared[n], compared[m], o.divergence)
        threshold = plain_threshold(jsd, o.beta)
        server = run.state.server
        if o.inter:
            np.testing.assert_allclose(server["prototypes"], prototypes, atol=2e-5)
            np.testing.assert_allclose(server["jsd"], jsd, rtol=1e-3, atol=1e-9)
            assert server["threshold"].item() == pytest.approx(threshold, rel=1e-3)
        else:
            assert not server
            assert run.reports[t].bytes_up == run.reports[t].bytes_down == 0
        for n in range(n_clients):
            for name, p in client_tensors(run, n).items():
                expected = plain[n].parameters()[name].detach()
                torch.testing.assert_close(p, expected, atol=5e-5, rtol=1e-4, msg=f"{t} {n} {name}")
    return run


def test_a_round_of_two_clients_equals_the_plain_loop():
    compare_rounds(2, rounds=1)


VARIANTS = {
    "default": {},
    "alg1": {"loss_form": "alg1"},
    "w/o inter": {"inter": False},
    "w/o intra": {"intra": False},
    "w/o W": {"filter_init": "ones", "filter_train": False},
    "W from ones": {"filter_init": "ones"},
    "w/o p-aware": {"prototypes": "concat"},
    "few positives": {"beta": 0.2},
    "rows": {"divergence": "rows"},
    "one epoch of slots": {"training": {"batch_size": 2}},
    "half take part": {"training": {"participation": 0.5}},
    "no shift": {"shift": 1.0, "rho": 0.5, "tau": 0.1},
    "two slots of two steps": {"training": {"batch_size": 2, "epochs": 2}},
    "W above a floor": {"filter_floor": 0.5, "tau": 0.1},
    "shares drawn once": {"shift_draw": "once", "tau": 0.1},
    "own starts": {"starts": "own"},
    "profiles": {"partition": "profiles"},
    "profiles of slots": {"partition": "profiles", "training": {"batch_size": 2}},
}


@pytest.mark.quick(3)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", VARIANTS)
def test_rounds_equal_the_plain_loop(variant):
    compare_rounds(4, rounds=3, cohort=3, **VARIANTS[variant])


def test_forecasts_are_judged_by_the_mean_squared_error_of_what_was_observed():
    """Eq. 14; a missing target counts neither in the sum nor in B."""
    batch = {
        "y": torch.tensor([[[1.0], [2.0], [0.0]], [[1.0], [2.0], [5.0]]]),
        "mask": torch.tensor([[[True], [True], [False]], [[True], [True], [True]]]),
    }
    loss = ForecastTask(P).loss(torch.tensor([[[2.0], [5.0], [9.0]]] * 2), batch)
    assert loss.tolist() == pytest.approx([(1 + 9) / 2, (1 + 9 + 16) / 3])


# Messages


def sent_per_client(run):
    """Floats up and down a client in each round, from the bytes of the payloads."""
    n = len(run.train)
    return [(r.bytes_up / 4 / n, r.bytes_down / 4 / n) for r in run.reports]


def paper_federation(samples, **options):
    spec = WindowSpec(period=24)
    data = samples_of(make_series(2, samples + spec.max_lag - FIRST), spec, spec.max_lag)
    return federation(data, spec=spec, hidden=128, **options)


def test_a_client_sends_as_much_as_published():
    """Table 1: FedAvg 100,737 and FUELS 6,144 values up; down, FUELS sends PR and NR."""
    average, fuels = paper_federation(48, method=FedAvg), paper_federation(48)
    for run in (average, fuels):
        run.run_round()
        run.run_round()
    assert sent_per_client(average) == [(100_737, 100_737)] * 2
    assert sent_per_client(fuels) == [(6144, 0), (6144, 12_288)]


def test_concatenated_prototypes_are_as_large_as_published():
    """Section 5.3: 227,328 values, that is 888 samples of 256."""
    run = paper_federation(888, prototypes="concat")
    assert int(run.train.sizes[0]) == 888
    run.run_round()
    assert sent_per_client(run) == [(227_328, 0)]
    assert run.state.server["prototypes"].shape == (2, 888, 256)


def test_prototypes_are_all_that_is_sent():
    run = federation(samples_of(make_series(3)))
    cohort = cohort_of(run, [0, 1, 2])
    assert run.method.broadcast(run.state.server, everyone(3, round=0)) == {}
    upload = run.method.local_update(cohort, {})
    assert {name: t.shape for name, t in upload.items()} == {"prototypes": (3, P, 6)}
    assert not upload["prototypes"].requires_grad
    server = run.method.aggregate(run.state.server, everyone(3, round=0), upload)
    payload = run.method.broadcast(server, everyone(3))
    assert {name: t.shape for name, t in payload.items()} == {
        "positive": (3, P, 6),
        "negative": (3, P, 6),
    }


def test_models_stay_with_their_clients():
    run = federation(samples_of(make_series(3)))
    start = run.state.clients.params["head.linear.weight"].clone()
    run.run_round()
    trained = run.state.clients.params["head.linear.weight"]
    assert torch.equal(start[0], start[1])
    assert not torch.equal(trained[0], trained[1])


# W and the options


def test_w_starts_in_the_unit_interval_and_is_each_clients_own():
    w = federation(samples_of(make_series(3))).state.clients.params["filter"]
    assert w.shape == (3, P, P)
    assert ((w >= 0) & (w < 1)).all()
    assert not torch.equal(w[0], w[1])
    again = federation(samples_of(make_series(3))).state.clients.params["filter"]
    assert torch.equal(w, again)


def test_w_only_falls():
    run = federation(samples_of(make_series(3)))
    before = run.state.clients.params["filter"].clone()
    run.run_round()
    after = run.state.clients.params["filter"]
    assert (after <= before).all()
    assert (after < before).any()


def test_w_that_is_not_trained_stays_and_has_no_moments():
    run = federation(samples_of(make_series(3)), filter_init="ones", filter_train=False)
    run.run_round()
    clients = run.state.clients
    assert torch.equal(clients.memory["filter"], torch.ones(3, P, P))
    assert "filter" not in clients.params
    assert all("filter" not in moments for moments in clients.moments.values())


def test_defaults_are_those_of_the_paper():
    """Section 5.4 and appendix D.1."""
    options, training = FuelsOptions(), Training()
    assert (options.tau, options.rho, options.beta) == (0.02, 5, 0.5)
    assert (options.loss_form, options.prototypes) == ("eq15", "periodic")
    assert (training.rounds, training.epochs, training.batch_size) == (200, 1, 24)
    assert (training.lr, training.optimizer, training.shuffle) == (1e-3, "adam", False)
    assert WindowSpec().at(pd.Timedelta("1h")).lags == (3, 2, 1, 72, 48, 24)
    assert DualGRUOptions().hidden_size == 128


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"batch_size": 1}, "4 steps .*batch_size=4"),
        ({"shuffle": True}, "out shuffle"),
    ],
)
def test_batches_must_be_periods_in_order(training, message):
    with pytest.raises(InputError, match=message):
        federation(samples_of(make_series(2)), training=training)


def test_concatenated_prototypes_need_equal_sizes():
    data = samples_of(make_series(2))
    unequal = ClientData(data.tensors, torch.tensor([10, 8]))
    with pytest.raises(InputError, match="equal size"):
        federation(unequal, prototypes="concat")
    federation(unequal).run_round()


@pytest.mark.parametrize(
    ("option", "value"),
    [("tau", 0.0), ("tau", -1.0), ("beta", 1.5), ("beta", -0.1), ("shift", 2.0)],
)
def test_numbers_out_of_range_are_refused(option, value):
    with pytest.raises(InputError, match=f"{option} is {value}"):
        FuelsOptions(**{option: value})


@pytest.mark.parametrize("option", ["loss_form", "filter_init", "prototypes", "divergence"])
def test_unknown_choices_are_refused(option):
    """Without this a misspelt choice would quietly be the other one."""
    with pytest.raises(InputError, match=option):
        FuelsOptions(**{option: "misspelt"})
