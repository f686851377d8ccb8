"""A run over a task stream: what is judged when, on which images, and what is written."""

import pandas as pd
import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from vision.config import resolve
from vision.evaluation import MASKS, TASK, column
from vision.learner import Learner
from vision.plots import PLOTS
from vision.results import run_images
from vision.streams.measures import known
from vision.task import stacked_images

SETTINGS = {
    "partition": "gldp-shards", "clients": 4, "stages": 3, "shards": 2, "cut": "class", "size": 8,
    "channels": 4, "feature_size": 8, "rounds": 2, "batch_size": 64, "lr": 0.05,
}  # fmt: skip


@pytest.fixture(scope="module")
def fitted():
    return Learner("gldp", participation=0.5, epochs=2, **SETTINGS).fit()


def test_each_stage_is_judged_on_all_stages_so_far(fitted):
    stages = fitted.stages_
    seen = stages.groupby("round")[["stage", "test_stage"]].agg(["min", "max"])
    assert seen.to_numpy().tolist() == [[m, m, 0, m] for m in (0, 1, 2)] * 2
    assert fitted.rounds_["stage"].tolist() == [0, 1, 2] * 2
    views = ["personal", "averaged", "local", "local averaged", "global", "global averaged"]
    assert stages["view"].unique().tolist() == views


def test_accuracies_of_rounds_are_those_of_the_stages(fitted):
    for view in ("personal", "global"):
        by_stage = fitted.rounds_[column(view, MASKS[0])].tolist()[-3:]
        assert known(fitted.stages_, view).tolist() == pytest.approx(by_stage)


def test_counts_are_those_of_plain_predictions(fitted):
    method, state = fitted._method, fitted._state
    rows = fitted.stages_[fitted.stages_["round"] == 6].set_index(
        ["view", "mask", "test_stage", "client"]
    )
    own = fitted.partition.own_classes(fitted.images)[2]
    for stage, ids in enumerate(fitted.partition.test):
        data = stacked_images(fitted.images, ids)
        for client, (batch, scores) in enumerate(
            predictions(method, state, data, view="global", cohort_size=1)
        ):
            valid = batch["valid"][0]
            y, scores = batch["y"][0, valid], scores[0, valid]
            inside = torch.where(own[client], scores, -torch.inf)
            trained = fitted.images.labels[fitted.partition.train[stage][client]].unique()
            told = torch.full_like(scores, -torch.inf)
            told[:, trained] = scores[:, trained]
            for mask, s in zip((*MASKS, TASK), (scores, inside, told), strict=True):
                found = rows.loc[("global", mask, stage, client)]
                assert found["right"] == int((s.argmax(1) == y).sum())
                assert found["samples"] == len(y)


def test_participants_are_marked(fitted):
    rows = fitted.stages_[fitted.stages_["participant"]]
    took_part = [set(group["client"]) for _, group in rows.groupby("round")]
    # Half of the clients, the same in all stages of a global round.
    assert [len(clients) for clients in took_part] == [2] * 6
    assert took_part[0] == took_part[1] == took_part[2] != took_part[3] == took_part[4]


@pytest.mark.repeats
def test_rounds_between_judgements():
    learner = Learner("fedavg", test_every=2, **{**SETTINGS, "rounds": 3}).fit()
    assert sorted(set(learner.stages_["round"])) == [4, 5, 6, 7, 8, 9]
    sequential = {**SETTINGS, "stage_order": "sequential", "rounds": 3}
    learner = Learner("fedavg", test_every=2, **sequential).fit()
    assert sorted(set(learner.stages_["round"])) == [2, 3, 5, 6, 8, 9]
    assert learner.rounds_["stage"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert learner.rounds_[column("global", MASKS[0])].isna().tolist()[:2] == [True, False]


@pytest.mark.repeats
def test_trained_models_of_a_method_without_personal_ones():
    learner = Learner("fedavg", **SETTINGS).fit()
    assert learner.counts_.views == ("global", "trained")
    state, stages = learner._state, learner.stages_
    data = stacked_images(learner.images, learner.partition.test[0])
    params = {**state.clients.params, **state.clients.buffers}
    learner._method.population.train(False)
    (logits,) = (learner._method.loss_of(params, data.tensors),)
    assert logits.shape == (4,)
    right = []
    for i, n in enumerate(data.sizes.tolist()):
        own = {name: t[i : i + 1] for name, t in params.items()}
        x, y = data.tensors["x"][i : i + 1, :n], data.tensors["y"][i, :n]
        scores = learner._method.population.decode(own, learner._method.population.encode(own, x))
        right.append(int((scores[0].argmax(1) == y).sum()))
    last = stages[(stages["round"] == 6) & (stages["test_stage"] == 0)]
    last = last[(last["view"] == "trained") & (last["mask"] == MASKS[0])]
    assert last["right"].tolist() == right


@pytest.mark.repeats
def test_a_run_folder_holds_the_stages(tmp_path):
    settings = {**SETTINGS, "stage_spread": 1, "imbalance": 4}
    finished = run_images("fedrep", tmp_path / "run", settings)
    again = pd.read_csv(tmp_path / "run" / "stages.csv")
    pd.testing.assert_frame_equal(finished.stages(), again)
    assert finished.about["stages"] == 3
    assert set(finished.partition()["stage"]) == {0, 1, 2}
    rounds = finished.rounds()
    after_all = rounds.loc[rounds["stage"] == 2, column("personal", MASKS[0])]
    assert finished.accuracy("last") == pytest.approx(after_all.iloc[-1])
    assert finished.accuracy("best") == pytest.approx(after_all.max())
    assert len(PLOTS["stream"]([finished]).axes) == 4
    (line,) = PLOTS["stages"]([finished]).axes[0].lines
    expected = 100 * known(finished.stages(), "personal", participants=True, passes=10)
    assert line.get_ydata().tolist() == pytest.approx(expected.tolist())


@pytest.mark.repeats
def test_figures_draw_every_model_of_a_method(tmp_path):
    settings = {**SETTINGS, "stage_spread": 1}
    finished = run_images("fedavg", tmp_path / "run", settings)
    assert finished.views == ("global", "trained")
    lines = PLOTS["stages"]([finished], view="every").axes[0].lines
    for line, view in zip(lines, finished.views, strict=True):
        expected = 100 * known(finished.stages(), view, participants=True, passes=10)
        assert line.get_ydata().tolist() == pytest.approx(expected.tolist())
    assert [line.get_label() for line in lines] == ["fedavg", "fedavg (trained)"]
    assert len(PLOTS["rounds"]([finished], view="every").axes[0].lines) == 2
    names = [
        t.get_text() for t in PLOTS["bars"]([finished], view="every").axes[0].get_yticklabels()
    ]
    assert names == ["fedavg", "fedavg (trained)"]
    (line,) = PLOTS["rounds"]([finished], view="personal, trained, global").axes[0].lines
    assert line.get_label() == "fedavg (trained)"
    expected = 100 * finished.rounds()[column("trained", MASKS[0])]
    assert line.get_ydata().tolist() == pytest.approx(expected.tolist())
    with pytest.raises(InputError, match="fedavg 'personal, local'"):
        PLOTS["bars"]([finished], view="personal, local")
    with pytest.raises(InputError, match="fedavg 'each'"):
        PLOTS["bars"]([finished], view="each")


def test_without_a_stream_there_are_no_stages(tmp_path):
    settings = {"clients": 3, "size": 8, "channels": 4, "rounds": 1}
    finished = run_images("fedavg", tmp_path / "run", settings)
    assert not (tmp_path / "run" / "stages.csv").exists()
    assert "stage" not in finished.rounds()
    assert finished.masks == MASKS
    with pytest.raises(InputError, match="fedavg 'task classes'"):
        PLOTS["bars"]([finished], mask=TASK)
    assert finished.views == ("global", "trained")
    with pytest.raises(InputError, match="no stages"):
        finished.stages()
    with pytest.raises(InputError, match="no stages"):
        PLOTS["stream"]([finished])


def test_the_server_gets_images_that_no_client_has():
    settings = {**SETTINGS, "rounds": 1, "stages": 1, "surrogate": 3}
    learner = Learner("fedic", server_steps=1, **settings).fit()
    surrogate = learner._method.task.surrogate
    assert surrogate["y"][0].bincount().tolist() == [3] * 10
    whole = Learner("fedavg", **{**settings, "surrogate": 0}).fit().images
    assert len(learner.images) + 30 == len(whole)


def test_a_round_without_participants_is_refused():
    settings = {**SETTINGS, "clients": 3, "rounds": 4, "stage_spread": 2, "seed": 0}
    with pytest.raises(InputError, match=r"samples.*stage"):
        Learner("fedavg", participation=0.34, **settings).fit()


@pytest.mark.repeats
def test_own_classes_are_those_so_far():
    # With one class a stage, whatever is predicted in the first is right.
    learner = Learner("fedavg", **{**SETTINGS, "shards": 1, "rounds": 1}).fit()
    masked = learner.stages_[learner.stages_["mask"] == MASKS[1]]
    of_first = masked[masked["stage"] == 0]
    assert (of_first["right"] == of_first["samples"]).all()
    later = masked[masked["stage"] == 2]
    assert (later["right"] < later["samples"]).any()
    told = learner.stages_[learner.stages_["mask"] == TASK]
    assert (told["right"] == told["samples"]).all()
    assert learner.rounds_[column("global", TASK)].tolist() == [1, 1, 1]


def test_each_stage_has_all_rounds():
    assert resolve("fedavg", partition="gldp-shards", stages=3, rounds=4).total_rounds == 12
    assert resolve("fedavg", rounds=4).total_rounds == 4
