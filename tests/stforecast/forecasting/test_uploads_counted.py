"""The ε of a run counts each upload that left, whatever trained: compared with a spy."""

from __future__ import annotations

import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.cli.main import main
from stforecast.federated.uploads.uplink import (
    NOT_COVERED,
    Sent,
    Uplink,
    counting_uploads,
    epsilon,
    guarantee,
)
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.results import ForecastRun
from stforecast.forecasting.runs import notes_of, resume, run

NOISY = {"clip": 1.0, "noise": "gaussian", "noise_std": 5.0}
PRIVATE = Uplink("gaussian", noise_std=5.0, clip=1.0)


@pytest.fixture
def left(monkeypatch):
    """Uploads of the first client that were encoded, which all clients' trainers do."""
    encoded, encode = [], Uplink.encode

    def spy(self, upload, known, generators):
        encoded.append(len(generators))
        return encode(self, upload, known, generators)

    monkeypatch.setattr(Uplink, "encode", spy)
    return encoded


def n_left(left, n_clients):
    return sum(left) / n_clients


@pytest.mark.parametrize(
    "further",
    [
        {},
        {"refit": "once", "refit_rounds": 2},
        {"tune": True},
        {"target": "validation"},
        {"participation": 1.0, "rounds": 3},
    ],
)
def test_a_run_reports_all_uploads_that_left(cube_path, tiny, tmp_path, left, further):
    pytest.importorskip("dp_accounting")
    if "tune" in further:
        tiny = {name: value for name, value in tiny.items() if name != "lr"}
    settings = {**tiny, "service": "internet", **NOISY, **further}
    found = run("fedavg", cube_path, tmp_path / "run", settings).about
    assert found["privacy"]["uploads"] == n_left(left, found["clients"])
    assert found["privacy"]["epsilon"] == epsilon(PRIVATE, found["privacy"]["uploads"])


@pytest.mark.slow
def test_a_forecast_counts_what_its_folds_send(cube_path, tiny, tmp_path, left):
    pytest.importorskip("dp_accounting")
    settings = {**NOISY, "rounds": 1, "refit": "never"}
    options = [word for n, v in settings.items() for word in ("--set", f"{n}={v}")]
    out = tmp_path / "out"
    words = ["forecast", str(cube_path), "--horizon=3", "--method=fedavg", "--folds=2"]
    with pytest.raises(SystemExit):
        main([*words, f"--out={out}", *options])
    found = ForecastRun.open(out / "run").about
    assert found["privacy"]["uploads"] == n_left(left, found["clients"]) == 3


@pytest.mark.slow
def test_a_sweep_before_the_run_counts(cube_path, tiny, tmp_path, left):
    pytest.importorskip("dp_accounting")
    settings = {**tiny, "service": "internet", **NOISY}
    settings = {n: v for n, v in settings.items() if n != "lr"}
    options = [f"--{n.replace('_', '-')}={v}" for n, v in settings.items()]
    words = ["run", f"--data={cube_path}", "--method=fedavg", "--sweep=lr=0.1,0.01"]
    with pytest.raises(SystemExit):
        main([*words, f"--out={tmp_path / 'r'}", *options])
    found = ForecastRun.open(tmp_path / "r").about
    assert found["privacy"]["uploads"] == n_left(left, found["clients"])
    assert found["privacy"]["uploads"] > len(ForecastRun.open(tmp_path / "r").rounds())


def test_a_resumed_run_counts_its_earlier_rounds(cube_path, tiny, tmp_path):
    pytest.importorskip("dp_accounting")
    further = {"rounds": 2, "refit": "once", "refit_rounds": 2, "checkpoint_every": 1}
    settings = {**tiny, "service": "internet", **NOISY, **further}
    whole = run("fedavg", cube_path, tmp_path / "a", settings).about["privacy"]

    def stop(report):
        if report.round == 2:
            raise InputError("stopped here")

    with pytest.raises(InputError, match="stopped here"):
        run("fedavg", cube_path, tmp_path / "b", settings, after_round=stop)
    assert resume(tmp_path / "b").about["privacy"] == whole


def test_adaptation_and_calibration_send_nothing_and_training_further_does(cube_path, tiny, left):
    settings = {**tiny, "service": "internet", **NOISY}
    forecaster = Forecaster("fedavg", **settings).fit(cube_path)
    left.clear()
    with counting_uploads() as sent:
        forecaster.update(cube_path, "trained further", days=1)
    n_clients = len(forecaster.cells)
    assert sum(s.uploads for s in sent) == n_left(left, n_clients) > 0


def test_uploads_of_other_settings_compose(caplog):
    pytest.importorskip("dp_accounting")
    twice = Uplink("gaussian", noise_std=5.0, clip=2.0)  # As four uploads of half its clip.
    assert epsilon(PRIVATE, [Sent(PRIVATE, 1), Sent(twice, 1)]) == pytest.approx(
        epsilon(PRIVATE, 5)
    )
    assert guarantee(PRIVATE, [Sent(PRIVATE, 1), Sent(Uplink(), 3)], "a series") == {}
    assert mentions(caplog.text, "3 of 4", "left")
    assert notes_of([Sent(Uplink(), 3)]) == {}


OF_FIELDS = {
    "ids": "which clients trained",
    "loss": "training losses",
    "task_loss": "training losses",
    "score": "validation losses",
    "sizes": "numbers of samples",
    "errors": "test errors",
    "targets": "numbers of targets",
}
"""Numbers made from the data in the nodes' messages, and the words of `NOT_COVERED`."""


def test_all_that_nodes_send_without_noise_is_listed():
    import inspect
    import re

    from stforecast.federated.nodes.node import Node

    found = set()
    for method in (Node.join, Node._train, Node.report):
        found |= set(re.findall(r'"(\w+)": ', inspect.getsource(method)))
    # Places, shapes and yes or no, which do not depend on values.
    assert found - {"first", "like", "model", "has_best"} == set(OF_FIELDS)
    assert all(any(words in known for known in NOT_COVERED) for words in OF_FIELDS.values())
