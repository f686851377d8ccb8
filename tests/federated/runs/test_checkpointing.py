"""Runs that are stopped and go on, for every method; signals; how often checkpoints are taken."""

import dataclasses
import os
import signal
import threading
import time

import pytest
import torch
from waiting import Killed, killed_after

from data_prep.base.errors import InputError, Stopped
from stforecast.federated.core.data import Stream
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.runs import unfinished_run
from stforecast.federated.runs.checkpoint import newest_first
from stforecast.federated.runs.unfinished_run import Checkpointer
from stforecast.federated.uploads.uplink import Uplink
from stforecast.methods import METHODS as ALL

# Others are in test_contract.
METHODS = {n: m for n, m in ALL.items() if m.__module__.startswith("stforecast.methods.")}
SIZES = (8, 12, 8)
ABOUT = {"settings": {"method": "fedavg", "split": ("a", 1)}}


def facts(federation):
    """All numbers of a run but seconds."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in federation.history()]
    best = federation.best
    return federation.state.flat(), rows, best and best.flat(), best and best.round


def assert_same(a, b):
    torch.testing.assert_close(facts(a), facts(b), rtol=0, atol=0, equal_nan=True)


def run_in_pieces(make, out, rounds, every=1):
    """The federation that ends a run which was killed after each of these rounds."""
    for round in rounds:
        with Checkpointer(out, ABOUT, every) as checkpointer, pytest.raises(Killed):
            checkpointer.run(make(), killed_after(round))
    last = make()
    with Checkpointer(out, ABOUT, every) as checkpointer:
        checkpointer.run(last)
    return last


@pytest.mark.sampled(12)
@pytest.mark.parametrize("build", ["stacked", "module"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_on_as_if_never_killed(federate, request, name, build, tmp_path):
    def make():
        model = request.getfixturevalue(build)
        return federate(METHODS[name], SIZES, build=model, rounds=4, participation=0.7)

    whole = make()
    whole.run()
    # Rounds 2 and 4 are done again: they ended before their checkpoint.
    assert_same(run_in_pieces(make, tmp_path, rounds=(2, 2, 4)), whole)


CHOICES = {
    "momentum": {"optimizer": "sgd", "momentum": 0.9},
    "schedule": {"schedule": "cosine"},
    "shuffle": {"shuffle": True},
    "patience": {"patience": 1, "lr": 0.5},
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("choice", CHOICES)
def test_settings_go_on(federate, choice, tmp_path):
    def make():
        return federate(FedAvg, SIZES, **{"rounds": 6, **CHOICES[choice]})

    whole = make()
    whole.run()
    assert_same(run_in_pieces(make, tmp_path, rounds=(2,)), whole)


def test_a_run_that_lost_its_patience_does_not_begin_again(federate, tmp_path):
    def make():
        return federate(FedAvg, SIZES, rounds=30, lr=0.5, patience=1)

    done = run_in_pieces(make, tmp_path, rounds=())
    assert done.state.round < 30
    again = make()
    with Checkpointer(tmp_path, ABOUT, 1) as checkpointer:
        checkpointer.run(again)
    assert_same(again, done)


@pytest.mark.repeats
def test_delta_coding_and_files_go_on(federate, monkeypatch, tmp_path):
    def make():
        uplink = Uplink(bits=8, delta_coding=True)
        return federate(METHODS["fuels"], SIZES, rounds=4, uplink=uplink, memory=memory)

    memory = None
    memory = make().trainer.predicted_memory().total - 1
    whole = make()
    assert whole.trainer._store
    whole.run()
    assert whole.state.received
    assert_same(run_in_pieces(make, tmp_path / "run", rounds=(3,)), whole)


def test_cohorts_stay_as_they_were(federate, tmp_path):
    with Checkpointer(tmp_path, ABOUT, 1) as checkpointer, pytest.raises(Killed):
        checkpointer.run(federate(FedAvg, SIZES, cohort_size=1), killed_after(2))
    other = federate(FedAvg, SIZES, cohort_size=3)
    with Checkpointer(tmp_path, ABOUT, 1) as checkpointer:
        checkpointer.run(other)
    assert other.trainer.cohort_size == 1


def reversed_clients(data):
    tensors = {name: t.flip(0) for name, t in data.tensors.items()}
    return dataclasses.replace(data, tensors=tensors, sizes=data.sizes.flip(0))


def test_checkpoints_of_other_data_are_refused(federate, tmp_path):
    """Also where nothing but the order of the clients differs."""
    with Checkpointer(tmp_path, ABOUT, 1) as checkpointer:
        checkpointer.run(federate(FedAvg, SIZES))
    turned, unjudged, other = (federate(FedAvg, SIZES) for _ in range(3))
    turned.trainer.stream = Stream([reversed_clients(s) for s in turned.trainer.stream.stages])
    unjudged.trainer.validation = reversed_clients(unjudged.validation)
    for federation, known in ((turned, ()), (unjudged, ()), (other, ("other cells",))):
        with Checkpointer(tmp_path, ABOUT, 1) as checkpointer:
            if known:
                checkpointer.note_data({}, *known)
            with pytest.raises(InputError, match=r"round-\d+: .*data"):
                checkpointer.run(federation)


@pytest.mark.parametrize("changes", [{"rounds": 1}, {"seed": 8}])
def test_a_state_that_the_run_cannot_have_reached_is_refused(federate, tmp_path, changes):
    """Settings and data agree, by whatever accident, but not the numbers."""
    with Checkpointer(tmp_path, ABOUT, 1) as checkpointer:
        checkpointer.run(federate(FedAvg, SIZES))
    with (
        Checkpointer(tmp_path, ABOUT, 1) as checkpointer,
        pytest.raises(InputError, match="another run"),
    ):
        checkpointer.run(federate(FedAvg, SIZES, **changes))


def test_a_state_of_other_clients_is_refused(federate):
    federation, other = federate(FedAvg, (8, 8)), federate(FedAvg, (8, 8, 8))
    with pytest.raises(InputError, match="another run"):
        federation.restore(other.state, None, [])


@pytest.mark.parametrize(("every", "kept"), [(1, [5, 4]), (2, [4, 2]), (0, []), (9, [])])
def test_checkpoints_are_taken_every_so_many_rounds(federate, tmp_path, every, kept):
    with Checkpointer(tmp_path, ABOUT, every) as checkpointer:
        checkpointer.run(federate(FedAvg, SIZES, rounds=5))
    found = newest_first(tmp_path / "checkpoints")
    assert [path.name for path in found] == [f"round-{r:04d}" for r in kept]


def test_by_default_they_take_a_small_share_of_the_time(federate, tmp_path, monkeypatch):
    now, saved = [0.0], []

    def save(checkpoint, folder):
        saved.append(checkpoint.state.round)
        now[0] += 2

    monkeypatch.setattr(unfinished_run, "save_checkpoint", save)
    monkeypatch.setattr(unfinished_run.time, "perf_counter", lambda: now[0])
    federation = federate(FedAvg, SIZES, rounds=10)

    def after(report):
        now[0] += 15

    with Checkpointer(tmp_path, ABOUT) as checkpointer:
        checkpointer.run(federation, after)
    # A tiny state is due at once, and then whenever 40 s have passed.
    assert saved == [1, 4, 7, 10]


def test_without_room_there_are_none_by_default(federate, tmp_path, monkeypatch, caplog):
    usage = unfinished_run.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(unfinished_run.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    monkeypatch.setattr(unfinished_run, "USUAL_SPEED", 1e12)
    with Checkpointer(tmp_path, ABOUT) as checkpointer:
        checkpointer.run(federate(FedAvg, SIZES, rounds=3))
    assert not newest_first(tmp_path / "checkpoints")
    assert caplog.text.count("no checkpoints: one needs") == 1


@pytest.mark.quick(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_round(federate, tmp_path, number):
    before = signal.getsignal(number)

    def make():
        return federate(FedAvg, SIZES, rounds=4)

    stopped = make()
    local_update = stopped.method.local_update

    def signalled(cohort, payload):
        if cohort.round == 1 and 0 in cohort.ids:
            os.kill(os.getpid(), number)
        return local_update(cohort, payload)

    stopped.method.local_update = signalled
    expected = pytest.raises(Stopped, match=r"after round 2; .*: me")
    with expected as caught, Checkpointer(tmp_path, ABOUT, 0, "go on with: me") as checkpointer:
        checkpointer.run(stopped)
    assert caught.value.signal == number
    assert signal.getsignal(number) is before
    whole = make()
    whole.run()
    assert_same(run_in_pieces(make, tmp_path, rounds=()), whole)


def test_a_second_signal_ends_it_at_once(federate, tmp_path):
    federation = federate(FedAvg, SIZES, rounds=4)

    def signalled(cohort, payload):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not reached")

    federation.method.local_update = signalled
    expected = pytest.raises(Stopped, match="first round")
    with expected, Checkpointer(tmp_path, ABOUT, 1) as checkpointer:
        checkpointer.run(federation)


def test_a_round_that_goes_on_after_a_signal_is_cut_off(federate, tmp_path, monkeypatch):
    monkeypatch.setattr("stforecast.federated.runs.unfinished_run.GRACE", 0.2)
    federation = federate(FedAvg, SIZES, rounds=4)
    local_update = federation.method.local_update

    def signalled(cohort, payload):
        if cohort.round == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
            raise AssertionError("not reached")
        return local_update(cohort, payload)

    federation.method.local_update = signalled
    expected = pytest.raises(Stopped, match="SIGTERM after round 2")
    with expected, Checkpointer(tmp_path, ABOUT, 1) as checkpointer:
        checkpointer.run(federation)
    assert next(p.name for p in newest_first(tmp_path / "checkpoints")) == "round-0002"


def test_before_the_training_a_signal_ends_it_at_once(tmp_path):
    expected = pytest.raises(Stopped, match=r"SIGTERM .*first round")
    with expected, Checkpointer(tmp_path, ABOUT, 1):
        os.kill(os.getpid(), signal.SIGTERM)


def test_other_threads_may_keep_runs_too(federate, tmp_path):
    federation = federate(FedAvg, SIZES)

    def work():
        with Checkpointer(tmp_path, ABOUT, 1) as checkpointer:
            checkpointer.run(federation)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert federation.finished


def test_an_observer_goes_on_too(federate, tmp_path):
    class Counter:
        def __init__(self):
            self.seen, self.sums = [], torch.zeros(2)

        def __call__(self, report):
            self.seen.append(report.round)
            self.sums += report.train_loss
            if report.round == killed:
                raise Killed

        def notes(self):
            return {"seen": self.seen}, {"sums": self.sums}

        def restore(self, notes, tensors):
            self.seen, self.sums = list(notes["seen"]), tensors["sums"].clone()

    whole = Counter()
    killed = None
    federate(FedAvg, SIZES, rounds=4).run(whole)
    for killed in (3, None):  # noqa: B007  read by the counter
        part = Counter()
        try:
            with Checkpointer(tmp_path, ABOUT, 1) as checkpointer:
                checkpointer.run(federate(FedAvg, SIZES, rounds=4), part, part)
        except Killed:
            pass
    assert part.seen == whole.seen == [1, 2, 3, 4]
    assert torch.equal(part.sums, whole.sums)
