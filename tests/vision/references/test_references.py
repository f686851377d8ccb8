"""References on a frozen backbone: against scikit-learn, and what they see of a task stream."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import StandardScaler

from data_prep.base.errors import InputError
from vision.config import read_by
from vision.learner import Learner

TINY = {
    "data": "digits8x8", "model": "vit", "backbone": "tiny-random", "input_size": 8, "size": 0,
    "clients": 3, "share": 0.3, "workers": 1, "rounds": 7, "participation": 0.3,
}  # fmt: skip
STREAM = {
    "partition": "fedta-tasks", "stages": 2, "task_classes": 2, "private_classes": 1,
    "train_shots": 10, "test_shots": 10,
}  # fmt: skip


def fitted(method, **more):
    settings = {k: v for k, v in TINY.items() if k != "share" or "partition" not in more}
    return Learner(method, **read_by(method, {**settings, **more})).fit()


def features(learner, ids):
    backbone = learner.fitted()[0].population.model.encoder.backbone
    return backbone.query(learner.images.images[ids]).double().numpy()


def right(learner, predict):
    """Accuracy by client of a function from features to classes."""
    found = []
    for client, ids in enumerate(learner.partition.test):
        guessed = predict(client, features(learner, ids))
        found.append((guessed == learner.images.labels[ids].numpy()).mean())
    return np.mean(found)


def training_ids(learner, client, pooled):
    train = learner.partition.train
    return torch.cat(train) if pooled else train[client]


@pytest.mark.quick(2)
@pytest.mark.parametrize(("method", "pooled"), [("linear_probe", True), ("linear_probe_local", 0)])
def test_the_probe_is_a_logistic_regression(method, pooled):
    learner = fitted(method)

    def predict(client, wanted):
        ids = training_ids(learner, client, pooled)
        x, y = features(learner, ids), learner.images.labels[ids].numpy()
        scaler = StandardScaler().fit(x)
        model = LogisticRegression(C=0.1, max_iter=1000).fit(scaler.transform(x), y)
        return model.predict(scaler.transform(wanted))

    assert learner.accuracy() == pytest.approx(right(learner, predict), abs=0.01)
    assert len(learner.rounds_) == 1


@pytest.mark.quick(2)
@pytest.mark.parametrize(("method", "pooled"), [("nearest_mean", True), ("nearest_mean_local", 0)])
def test_the_nearest_mean_is_by_the_cosine(method, pooled):
    learner = fitted(method)

    def predict(client, wanted):
        ids = training_ids(learner, client, pooled)
        x, y = features(learner, ids), learner.images.labels[ids].numpy()
        scaler = StandardScaler().fit(x)
        classes = np.unique(y)
        means = np.stack([scaler.transform(x)[y == c].mean(0) for c in classes])
        return classes[cosine_similarity(scaler.transform(wanted), means).argmax(1)]

    assert learner.accuracy() == pytest.approx(right(learner, predict), abs=0.01)


def test_chance_is_one_in_the_number_of_classes():
    learner = Learner("chance", data="digits8x8", size=8, channels=4, clients=3, ways=4).fit()
    assert learner.accuracy() == pytest.approx(0.1)
    shares = [1 / len(own_classes(learner, client)) for client in range(3)]
    assert learner.accuracy(mask="own classes") == pytest.approx(np.mean(shares))


def test_one_class_and_two_classes_have_a_head():
    learner = fitted("linear_probe_local", ways=2)
    outside = set(learner.images.class_names) - set(own_classes(learner, 0))
    assert not outside & set(learner.predict(learner.images.images[:50], 0))
    x = torch.tensor([[-20.0], [-19.0], [20.0]])
    probe = learner.fitted()[0]
    weight, bias = probe.head(x, torch.tensor([3, 3, 5]))
    assert (x @ weight + bias).argmax(1).tolist() == [0, 0, 1]
    weight, bias = probe.head(x, torch.tensor([3, 3, 3]))
    assert weight.shape == (1, 1)
    assert bias.shape == (1,)


def own_classes(learner, client):
    labels = learner.images.labels[learner.partition.train[client]].unique()
    return [learner.images.class_names[c] for c in labels]


@pytest.mark.quick(4)
@pytest.mark.parametrize("method", ["nearest_mean", "nearest_mean_local"])
@pytest.mark.parametrize("order", ["inside", "sequential"])
def test_they_see_the_tasks_so_far_and_forget_none(method, order):
    learner = fitted(method, **STREAM, stage_order=order)
    stages = learner.stages_
    assert sorted(stages["round"].unique()) == [1, 2]
    assert stages["participant"].all()
    state = learner.fitted()[1]
    head = state.clients.params["head.bias"]
    seen = learner.partition.own_classes(learner.images)[-1]
    expected = seen.any(0, keepdim=True) if method == "nearest_mean" else seen
    assert torch.equal(head > -1e5, expected)


def test_central_trains_on_the_tasks_so_far():
    learner = fitted("central", **{**STREAM, "rounds": 2}, epochs=1)
    assert learner.rounds_["participants"].eq(1).all()
    assert learner.rounds_["bytes_up"].eq(0).all()
    assert len(learner.fitted()[1].clients) == 1
    assert len(learner.counts_.total) == 3


def test_a_saved_reference_predicts_the_same(tmp_path):
    learner = fitted("linear_probe")
    images = learner.images.images[:20]
    again = Learner.load(learner.save(tmp_path))
    assert (again.predict(images, 0) == learner.predict(images, 0)).all()


def test_a_model_without_a_frozen_backbone_is_refused():
    with pytest.raises(InputError, match=r"linear_probe .* frozen"):
        Learner("linear_probe", model="convnet", data="digits8x8", size=8, clients=2).fit()
