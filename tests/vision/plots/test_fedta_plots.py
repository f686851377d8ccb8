"""FedTA's figures, read back from their axes."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.metrics import silhouette_score

from data_prep.base.errors import InputError
from stforecast.federated.core.method import predictions
from vision.backbones.load import TINY
from vision.learner import Learner, load_images, prepared
from vision.methods.fedta import anchor_head
from vision.plots import PLOTS
from vision.plots.embeddings import _features
from vision.results import run_images
from vision.streams.measures import spatial_retention, temporal_retention
from vision.task import stacked_images

SETTINGS = {
    "model": "vit", "backbone": TINY, "input_size": 8, "size": 8, "partition": "fedta-tasks",
    "clients": 2, "stages": 2, "task_classes": 3, "private_classes": 3, "train_shots": 8,
    "test_shots": 9, "surrogate": 1, "rounds": 1, "epochs": 1, "workers": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Runs with 3 and 9 anchors, of a mix in random order, and one without anchors."""
    out = tmp_path_factory.mktemp("runs")
    options = {
        "3": {"anchors": 3},
        "9": {"anchors": 9},
        "random": {"anchors": 9, "mix": "random"},
        "none": {"tail_anchor": False},
    }
    return {k: run_images("fedta", out / k, {**SETTINGS, **o}, label=k) for k, o in options.items()}


def titles(fig):
    return [ax.get_title().split("\n")[0] for ax in fig.axes]


def points(ax):
    return np.concatenate([c.get_offsets() for c in ax.collections])


def test_a_panel_before_the_anchors_and_one_for_each_number(finished):
    fig = PLOTS["anchors"]([finished["3"], finished["9"], finished["none"]])
    # Both runs have the same pool, since anchors do not change the first stage of training.
    chosen = [_features(finished[name], 0, 0).chosen for name in ("3", "9")]
    assert titles(fig) == [
        "before the anchors",
        f"3 anchors, {chosen[0]} chosen",
        f"9 anchors, {chosen[1]} chosen",
    ]
    before, *behind = (points(ax) for ax in fig.axes)
    assert before.shape == (3 * 9, 2)
    assert not any(np.allclose(before, b) for b in behind)
    assert [len(ax.collections) for ax in fig.axes] == [3, 3, 3]
    classes = [t.get_text() for t in fig.legends[0].get_texts()]
    run = finished["3"]
    table = run.partition()
    own = table[(table["client"] == 0) & (table["stage"] == 0) & (table["part"] == "test")]
    assert classes == own["class"].tolist()
    view = _features(run, 0, 0)
    score = silhouette_score(view.behind, view.labels, metric="cosine")
    assert fig.axes[1].get_title().endswith(f"\nsilhouette {score:.2f}")


@pytest.mark.repeats
def test_another_pool_has_a_panel_of_its_own(finished, tmp_path):
    other = run_images("fedta", tmp_path, {**SETTINGS, "anchors": 9, "pool_size": 2})
    fig = PLOTS["anchors"]([finished["3"], other], client=1, stage=1)
    before, three, again, nine = titles(fig)
    assert before == again == "before the anchors"
    assert (three.split(",")[0], nine.split(",")[0]) == ("3 anchors", "9 anchors")


@pytest.mark.parametrize("name", ["3", "random"])
def test_features_behind_the_anchors_are_what_the_head_reads(finished, name):
    learner = Learner.load(finished[name].folder)
    method, state = learner.fitted()
    images, _ = prepared(load_images(learner.config), learner.config)
    stream = learner.config.partition.split(images, 1)
    data = stacked_images(images, stream.test[1])
    *_, (_, logits) = predictions(method, state, data, view="fused", cohort_size=1)
    view = _features(finished[name], client=1, stage=1)
    assert torch.equal(view.ids, stream.test[1][1])
    own = {n: t[1:].double() for n, t in state.clients.params.items() if n.startswith("anchor.")}
    keys = torch.nn.functional.normalize(own["anchor.keys"][0], dim=1)
    served = (torch.from_numpy(view.before) @ keys.T).argmax(1).unique()
    assert view.chosen == len(served)
    own["anchor.bias"] *= 0
    found = anchor_head(own, torch.from_numpy(view.behind)[None])[0]
    logits = logits[0].double() - state.clients.params["anchor.bias"][1]
    # Features are drawn at unit length, so logits agree up to a factor for each image.
    similar = torch.nn.functional.cosine_similarity(found, logits, dim=1)
    torch.testing.assert_close(similar, torch.ones_like(similar), atol=1e-5, rtol=0)


def test_what_cannot_be_drawn_is_refused(finished, tmp_path):
    anchors = PLOTS["anchors"]
    with pytest.raises(InputError, match=r"fedta .* anchors"):
        anchors([finished["none"]])
    with pytest.raises(InputError, match=r"clients 0 to 1 .*0 to 1"):
        anchors([finished["3"]], client=2)
    other = run_images("fedta", tmp_path, {**SETTINGS, "anchors": 3, "seed": 2})
    with pytest.raises(InputError, match="different images"):
        anchors([finished["3"], other])


def test_retention_of_the_shared_and_of_own_models(finished):
    runs = [finished["9"], dataclasses.replace(finished["9"])]
    fig = PLOTS["retention"](runs, mask="task classes")
    over_time, among = fig.axes
    stages = finished["9"].stages()
    line, _ = over_time.lines  # And that of 100 %.
    expected = 100 * temporal_retention(stages, "personal", "task classes")
    assert line.get_ydata().tolist() == pytest.approx(expected.tolist())
    line, _ = among.lines
    expected = 100 * spatial_retention(stages, "fused", "personal", "task classes")
    assert line.get_ydata().tolist() == pytest.approx(expected.tolist())
    assert [t.get_text() for t in fig.legends[0].get_texts()] == ["9"]


def test_methods_without_a_shared_model_retain_over_time_alone(tmp_path):
    settings = {n: v for n, v in SETTINGS.items() if n not in ("backbone", "input_size")}
    solo = run_images("solo", tmp_path, {**settings, "model": "convnet", "channels": 4})
    over_time, among = PLOTS["retention"]([solo]).axes
    assert len(over_time.lines) == 2
    assert len(among.lines) == 1  # That of 100 %.
