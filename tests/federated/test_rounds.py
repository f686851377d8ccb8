import math

import pytest
import torch
from torch import nn

from data_prep.base.errors import InputError
from stforecast.federated.core import state
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.method import Method, predictions
from stforecast.federated.core.population import PerClient, SplitModel
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.methods.fedavg import FedAvg


@pytest.fixture
def scripted(federate, monkeypatch):
    """Makes a federation whose validation losses are those given."""

    def make(losses, **settings):
        federation = federate(Method, rounds=len(losses), **settings)
        script = iter(losses)
        monkeypatch.setattr(federation, "evaluate", lambda data, state: next(script))
        return federation

    return make


def params(state):
    return {name: t.clone() for name, t in state.clients.params.items()}


@pytest.mark.repeats
def test_training_lowers_the_loss(federate):
    federation = federate(Method, (12, 12, 12), rounds=40, lr=0.05)
    federation.run()
    first, last = federation.reports[0], federation.reports[-1]
    assert last.train_loss < 0.1 * first.train_loss
    assert last.validation_loss < 0.5 * first.validation_loss


def test_a_round_is_reported(federate):
    federation = federate(Method, (8, 12), rounds=2)
    seen = []
    federation.run(after_round=seen.append)
    assert seen == federation.reports
    assert [r.round for r in seen] == [1, 2]
    assert [r.participants for r in seen] == [2, 2]
    assert all(r.seconds > 0 for r in seen)
    assert all(r.train_loss == r.train_task_loss for r in seen)
    assert federation.history()[1]["validation_loss"] == seen[1].validation_loss


def test_the_training_loss_is_the_mean_over_clients_of_their_batches(federate, task):
    sizes = (8, 12)
    # So small a step leaves the initial model as it is.
    federation = federate(Method, sizes, optimizer="sgd", lr=1e-12, epochs=1, rounds=1)
    means = []
    for i, size in enumerate(sizes):
        own = {name: t[i : i + 1] for name, t in params(federation.state).items()}
        losses = []
        for start in range(0, size, 4):
            rows = slice(start, start + 4)
            batch = {name: t[i : i + 1, rows] for name, t in federation.train.tensors.items()}
            losses.append(
                task.loss(federation.method.predict(own, {}, batch["x"], "personal"), batch)
            )
        means.append(torch.cat(losses).mean())
    assert federation.run_round().train_loss == pytest.approx(float(sum(means) / 2))


def test_evaluation_pools_all_clients_and_samples(federate, monkeypatch):
    federation = federate(Method, (4, 8))
    monkeypatch.setattr("stforecast.federated.core.method.ROWS_ON_CPU", 3)
    monkeypatch.setattr(
        federation.method, "predict", lambda state, payload, x, view: torch.zeros(*x.shape[:2], 2)
    )
    data = federation.validation.tensors
    observed = data["y"][data["mask"]]
    by_client = [y[mask].square().mean() for y, mask in zip(data["y"], data["mask"], strict=True)]
    expected = observed.square().mean()
    assert federation.evaluate(federation.validation) == pytest.approx(float(expected))
    assert float(expected) != pytest.approx(float(sum(by_client) / 2))
    data["mask"].zero_()
    assert math.isnan(federation.evaluate(federation.validation))


def test_predictions_come_in_order_of_clients_and_samples(federate, make_data, monkeypatch):
    federation = federate(Method, (8, 8, 8))
    federation.run()
    data = make_data((7, 7, 7), seed=3)
    ((_, expected),) = predictions(federation.method, federation.state, data)
    monkeypatch.setattr("stforecast.federated.core.method.ROWS_ON_CPU", 4)
    parts = list(predictions(federation.method, federation.state, data, cohort_size=2))
    assert [p.shape[:2] for _, p in parts] == [(2, 4), (2, 3), (1, 4), (1, 3)]
    assert all(torch.equal(p.isnan(), batch["y"].isnan()) for batch, p in parts)
    joined = torch.cat([torch.cat([p for _, p in parts[i : i + 2]], dim=1) for i in (0, 2)])
    torch.testing.assert_close(joined, expected)


def test_the_best_state_is_that_of_the_lowest_validation_loss(scripted):
    federation = scripted([4.0, 2.0, 3.0, 2.0])
    states = []
    federation.run(after_round=lambda report: states.append(params(federation.state)))
    assert [r.validation_loss for r in federation.reports] == [4, 2, 3, 2]
    assert federation.best.round == 2
    for name, t in federation.best.clients.params.items():
        assert torch.equal(t, states[1][name])
        assert not torch.equal(t, states[3][name])


@pytest.mark.parametrize(
    ("patience", "stopped"), [(0, 6), (1, 3), (2, 4), (3, 6), (9, 6)], ids=lambda n: str(n)
)
def test_patience_counts_rounds_since_the_best(scripted, patience, stopped):
    federation = scripted([3.0, 2.0, 2.5, 2.0, 1.0, 5.0], patience=patience)
    federation.run()
    assert federation.state.round == stopped


def test_without_validation_all_rounds_are_done(federate):
    federation = federate(Method, patience=1, validated=False)
    federation.run()
    assert federation.state.round == 3
    assert federation.best is None
    assert all(math.isnan(r.validation_loss) for r in federation.reports)


def test_a_diverged_round_is_never_the_best(scripted):
    federation = scripted([3.0, math.nan, 2.0, math.nan])
    federation.run()
    assert federation.best.round == 3


def test_a_first_loss_that_is_nan_can_be_beaten(scripted):
    federation = scripted([math.nan, 3.0, 2.0])
    federation.run()
    assert federation.best.round == 3


def test_a_share_of_the_clients_takes_part(federate):
    federation = federate(Method, (8,) * 10, rounds=8, participation=0.3)
    drawn = []
    for _ in range(8):
        present = federation.participants()
        assert present.round == federation.state.round
        assert torch.equal(present.sizes, federation.train.sizes[present.ids])
        drawn.append(tuple(present.ids.tolist()))
        federation.run_round()
    assert drawn[0] == tuple(range(10))
    assert all(len(ids) == 3 and sorted(set(ids)) == list(ids) for ids in drawn[1:])
    assert len(set(drawn)) > 5
    assert [r.participants for r in federation.reports] == [10] + [3] * 7


def test_who_takes_part_depends_on_the_seed(federate):
    drawn = []
    for seed in (1, 1, 2):
        federation = federate(Method, (8,) * 10, participation=0.3, seed=seed)
        federation.state.round = 5
        drawn.append(federation.participants().ids.tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_at_least_one_client_takes_part(federate):
    federation = federate(Method, (8, 8, 8), participation=0.01)
    federation.run()
    assert [r.participants for r in federation.reports] == [3, 1, 1]


class Watching(Method):
    """Sends the clients' ids up and down and keeps what it is called with."""

    def init(self, clients, sizes, seed):
        self.cohorts, self.training_modes = [], []
        return {"calls": torch.zeros(1)}

    def broadcast(self, server, to):
        return {"id": to.ids[:, None]}

    def local_update(self, cohort, payload):
        assert torch.equal(payload["id"][:, 0], cohort.ids)
        self.cohorts.append(cohort.ids.tolist())
        return super().local_update(cohort, payload)

    def upload(self, cohort):
        self.training_modes.append(self.population.model.training)
        return {"id": cohort.ids[:, None]}

    def aggregate(self, server, of, uploads):
        assert torch.equal(uploads["id"][:, 0], of.ids)
        return {"calls": server["calls"] + 1, "ids": of.ids, "sizes": of.sizes}

    def predict(self, state, payload, x, view):
        assert not torch.is_grad_enabled()
        self.training_modes.append(self.population.model.training)
        return super().predict(state, payload, x, view)


def test_uploads_are_aggregated_in_order_of_ids(federate):
    federation = federate(Watching, (8, 12, 8, 12, 8), cohort_size=2, rounds=1)
    federation.run()
    assert federation.method.cohorts == [[0, 2], [4], [1, 3]]
    assert federation.state.server["ids"].tolist() == [0, 1, 2, 3, 4]
    assert federation.state.server["sizes"].tolist() == [8, 12, 8, 12, 8]
    assert federation.state.server["calls"] == 1
    assert federation.reports[0].bytes_down == federation.reports[0].bytes_up == 5 * 8


def test_clients_are_shared_fairly_between_workers(federate):
    made = federate(Watching, (4,) * 34, rounds=1)
    federation = Federation(made.method, made.train, workers=3)
    assert federation.trainer.cohort_size == 12
    federation.run()
    assert federation.reports[0].participants == 34


def test_the_model_trains_in_rounds_and_is_at_rest_in_validation(federate):
    federation = federate(Watching, rounds=2, cohort_size=3)
    federation.run()
    assert federation.method.training_modes == [True, False, True, False]


def test_dropout_draws_from_the_runs_own_generators(federate):
    def build():
        return SplitModel(PerClient(nn.Dropout()), ClientLinear(3, 2))

    states = []
    for global_seed in (0, 1):
        torch.manual_seed(global_seed)
        federation = federate(Method, build=build)
        federation.run()
        states.append(params(federation.state))
    assert torch.equal(states[0]["head.weight"], states[1]["head.weight"])


@pytest.mark.parametrize("most", [state.MOST_KEPT, 0])
def test_what_depends_on_samples_alone_is_computed_once(federate, monkeypatch, most):
    monkeypatch.setattr(state, "MOST_KEPT", most)
    computed, means = [], {}

    def mean(cohort):
        computed.append(cohort.ids.tolist())
        return cohort.data.tensors["x"].mean(dim=(1, 2)).double()[:, None]

    class Keeping(FedAvg):
        personalises = True

        def personalise(self, cohort, payload):
            means[tuple(cohort.ids.tolist())] = cohort.kept("mean", mean)

    federation = federate(Keeping, (8, 8, 8), cohort_size=2, rounds=3)
    federation.run()
    assert computed == [[0, 1], [2]] * (1 if most else 3)
    expected = federation.train.tensors["x"].mean(dim=(1, 2)).double()[:, None]
    torch.testing.assert_close(torch.cat(list(means.values())), expected, rtol=1e-6, atol=1e-6)


def test_a_method_may_have_a_loss_of_its_own(federate):
    class Own(Method):
        def local_loss(self, cohort, batch, payload):
            return self.population.encode(cohort.state, batch["x"]).square().flatten(1).mean(1)

    assert federate(Own).run_round().train_loss > 0


def test_padding_is_not_evaluated(federate):
    federation = federate(Method, (4, 8))
    whole = federation.evaluate(federation.validation)
    padding = federation.validation.tensors["mask"][0, 4:]
    assert not padding.any()
    padding.fill_(True)  # The task would count it, and its targets are NaN.
    assert federation.evaluate(federation.validation) == pytest.approx(whole)


def test_a_client_of_less_than_a_batch_is_refused_before_training(federate):
    with pytest.raises(InputError, match=r"client 1 .*3 .*batch"):
        federate(Method, (8, 3))


def test_a_round_in_which_all_diverge_ends_the_run(federate):
    federation = federate(Method)
    federation.state.clients.params["head.bias"].fill_(math.nan)
    with pytest.raises(InputError, match=r"round 1: .*clients 0, 1, 2"):
        federation.run_round()


def test_big_batches_make_small_cohorts(federate):
    assert federate(Method, (200,) * 20, batch_size=100).trainer.cohort_size == 10
    assert federate(Method, (2000,) * 20, batch_size=2000).trainer.cohort_size == 4
    few = federate(Method, (200,) * 20, batch_size=100, cohort_size=7)
    assert few.trainer.cohort_size == 7
