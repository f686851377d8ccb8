"""Learner and run folder on scikit-learn's digits."""

import dataclasses
import json
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from data_prep.base.errors import InputError
from stforecast.forecasting.config import resolve as defaults_of_forecasts
from vision.backbones.load import TINY as BACKBONE
from vision.config import resolve, sections
from vision.learner import Learner, method_for_images
from vision.methods import METHODS
from vision.models import MODELS
from vision.partition import PARTITIONS
from vision.results import ImageRun, run_images
from vision.streams import STREAMS

TINY = {
    "clients": 3, "rounds": 2, "size": 8, "channels": 4, "feature_size": 8, "share": 0.3,
    "batch_size": 16, "workers": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def learner():
    return Learner("pfpl", **TINY).fit()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_images("fedavg", tmp_path_factory.mktemp("runs") / "run", {**TINY, "seed": 4})


def test_a_saved_learner_predicts_the_same(learner, tmp_path):
    loaded = Learner.load(learner.save(tmp_path / "model"))
    images = learner.images.images[:40]
    for client in range(3):
        for view in ("personal", "nearest"):
            expected = learner.predict(images, client, view)
            assert (loaded.predict(images, client, view) == expected).all()


def test_a_loaded_learner_says_that_it_has_no_accuracy(learner, tmp_path):
    loaded = Learner.load(learner.save(tmp_path / "model"))
    with pytest.raises(InputError, match="no accuracy"):
        loaded.accuracy()


def test_a_learner_loaded_from_its_run_has_the_rounds(finished, tmp_path):
    loaded = Learner.load(finished.folder)
    pd.testing.assert_frame_equal(loaded.rounds_, finished.rounds(), check_dtype=False)
    assert Learner.load(loaded.save(tmp_path)).rounds_.empty


def test_scikit_learn_clones_a_learner(learner):
    cloned = clone(learner)
    assert cloned.config == learner.config
    assert cloned.set_params(rounds=5).config.training.rounds == 5
    with pytest.raises(InputError, match="not fitted"):
        cloned.fitted()


@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_of_rounds_is_shown_if_asked_for(progress, capsys):
    Learner("fedavg", **TINY).fit(progress=progress)
    assert ("0/2" in capsys.readouterr().err) is progress


def test_predictions_are_the_accuracy(learner):
    images = learner.images
    accuracies = []
    for client, ids in enumerate(learner.partition.test):
        names = np.asarray(images.class_names)[images.labels[ids].numpy()]
        accuracies.append((learner.predict(images.images[ids], client) == names).mean())
    assert learner.accuracy() == pytest.approx(np.mean(accuracies))


def test_it_says_what_it_was_fitted_on(learner):
    said = "<Learner('pfpl', data='digits8x8'), fitted: "
    assert repr(learner) == f"{said}images (1, 8, 8), 10 classes>"
    assert repr(Learner("pfpl", **TINY)) == f"{said}no>"


def test_arrays_and_no_images_at_all_are_predicted(learner):
    images = learner.images.images[:40]
    assert (learner.predict(images.numpy(), 0) == learner.predict(images, 0)).all()
    assert learner.predict(images[:0], 0).shape == (0,)


@pytest.mark.repeats
def test_two_runs_are_equal(learner):
    a, b = (x.fitted()[1].flat() for x in (learner, Learner("pfpl", **TINY).fit()))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.repeats
def test_numbers_do_not_depend_on_the_workers(learner):
    again = Learner("pfpl", **{**TINY, "workers": 2}).fit()
    a, b = (x.fitted()[1].flat() for x in (learner, again))
    for name in a:  # A worker has one thread, and convolutions round by the number of threads.
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-4)


@pytest.mark.repeats
def test_another_seed_divides_otherwise(learner):
    other = Learner("pfpl", **{**TINY, "seed": 2}).fit()
    assert not torch.equal(learner.partition.train[0], other.partition.train[0])


def test_rounds_are_judged_when_asked_for():
    table = Learner("solo", **{**TINY, "rounds": 3, "test_every": 2}).fit().rounds_
    judged = table["accuracy (personal, all classes)"].notna()
    assert judged.tolist() == [False, True, True]


def test_a_run_folder(finished):
    about = json.loads((finished.folder / "run.json").read_text())
    assert about["settings"]["method"] == "fedavg"
    assert about["source"].startswith("scikit-learn")
    rounds, metrics, parts = finished.rounds(), finished.metrics(), finished.partition()
    assert rounds["round"].tolist() == [1, 2]
    name = "accuracy (global, all classes)"
    assert finished.accuracy() == pytest.approx(rounds[name].iloc[-1])
    assert finished.accuracy("best") == pytest.approx(rounds[name].max())
    assert finished.accuracy("last ten") == pytest.approx(rounds[name].mean())
    mine = metrics[(metrics["mask"] == "all classes") & (metrics["view"] == "global")]
    clients = mine[mine["client"] != "all"]
    assert clients["accuracy"].mean() == pytest.approx(finished.accuracy())
    by_class = mine[mine["class"] != "all"]
    right = (by_class["accuracy"] * by_class["samples"]).sum()
    assert right == pytest.approx((clients["accuracy"] * clients["samples"]).sum())
    assert by_class["samples"].sum() == clients["samples"].sum()
    assert set(parts["part"]) == {"train", "test"}
    assert isinstance(ImageRun.find([finished.folder.parent])[0].metrics(), pd.DataFrame)


def test_a_finished_run_is_not_overwritten(finished):
    with pytest.raises(InputError, match="a finished run"):
        run_images("fedavg", finished.folder, TINY)


def test_mistakes(learner, tmp_path):
    with pytest.raises(InputError, match="accuracy"):
        Learner("solo").accuracy()
    with pytest.raises(InputError, match="clients 0 to 2"):
        learner.predict(learner.images.images[:1], 3)
    with pytest.raises(InputError, match="uint8"):
        learner.predict(learner.images.images[:1].float(), 0)
    with pytest.raises(InputError, match=r"learner\.json: "):
        Learner.load(tmp_path)
    with pytest.raises(InputError, match=r"not .*finished"):
        ImageRun.open(tmp_path)
    folder = learner.save(tmp_path / "cut")
    state = folder / "state.safetensors"
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(InputError, match=r"state\.safetensors"):
        Learner.load(folder)


def test_settings():
    config = resolve("fedrep", head_epochs=2, ways=4, norm="group")
    assert resolve(**config.flat()) == config
    assert (config.training.optimizer, config.training.drop_last) == ("sgd", False)
    with pytest.raises(InputError, match="mean ways"):
        resolve("solo", way=3)
    with pytest.raises(InputError, match="unknown method 'fuels'"):
        resolve("fuels")


def test_no_two_sections_share_a_name():
    for method in METHODS:
        for model in MODELS:
            for partition in (*PARTITIONS, *STREAMS):
                types = sections(method, model, partition)
                names = [f.name for t in types.values() for f in dataclasses.fields(t)]
                assert len(names) == len(set(names)), (method, model, partition)


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_can_be_pickled(name):
    frozen = METHODS[name].defaults.get("model") == "vit"
    config = resolve(
        name, **({"backbone": BACKBONE, "input_size": 8} if frozen else {"channels": 4})
    )
    method = method_for_images(config, (1, 8, 8), 3)
    assert type(pickle.loads(pickle.dumps(method))) is METHODS[name]


@pytest.mark.quick(2)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_is_not_finite_is_refused(tmp_path, value):
    """It would call every image the first class."""
    learner = Learner("fedavg", clients=2, rounds=1, size=8, channels=4).fit()
    state = learner.fitted()[1]
    next(iter(state.server.values())).flatten()[0] = value
    folder = learner.save(tmp_path)
    with pytest.raises(InputError, match=r"server/.* not finite"):
        Learner.load(folder)


def test_fedcp_has_the_weight_on_images_with_which_features_do_not_shrink():
    assert resolve("fedcp").method_options.lam == 1
    assert resolve("fedcp", lam=5).method_options.lam == 5
    assert defaults_of_forecasts("fedcp").method_options.lam == 5
