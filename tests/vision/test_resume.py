"""Image runs that are stopped and go on: every method, partitions and task streams."""

import dataclasses
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file
from waiting import Killed, killed_after

from data_prep.base.errors import InputError
from stforecast.bench.described import of_unfinished
from vision import learner
from vision.config import read_by
from vision.methods import METHODS
from vision.results import ImageRun, UnfinishedImageRun, run_images

TINY = {
    "clients": 3, "rounds": 3, "size": 8, "batch_size": 16, "workers": 1,
    "checkpoint_every": 1,
}  # fmt: skip


def assert_same(a, b):
    """All files of two runs, but for seconds."""
    names = sorted(path.name for path in a.folder.glob("*.csv"))
    assert names == sorted(path.name for path in b.folder.glob("*.csv"))
    for name in names:
        tables = [
            pd.read_csv(r.folder / name).drop(columns="seconds", errors="ignore") for r in (a, b)
        ]
        pd.testing.assert_frame_equal(*tables, check_exact=True)
    one, other = (load_file(r.folder / "model" / "state.safetensors") for r in (a, b))
    assert one.keys() == other.keys()
    assert all(np.array_equal(t, other[name], equal_nan=True) for name, t in one.items())


OWN = {"gldp": {"epochs": 2}}
"""Settings of methods."""

CHOICES = {
    "every other round judged": {"test_every": 2, "rounds": 5, "share": 0.2},
    "stages inside a round": {"partition": "gldp-shards", "stages": 2, "rounds": 2},
    "stages one after another": {
        "partition": "fedta-tasks",
        "stages": 2,
        "task_classes": 3,
        "private_classes": 1,
        "rounds": 2,
    },
}


@pytest.mark.attack("kills")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("method", "choice"),
    [
        ("pfpl", "every other round judged"),
        ("gldp", "stages inside a round"),
        ("pfpl", "stages one after another"),
        pytest.param("gldp", "every other round judged", marks=pytest.mark.slow),
        pytest.param("pfpl", "stages inside a round", marks=pytest.mark.slow),
        pytest.param("gldp", "stages one after another", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_killed_equals_one_that_was_not(method, choice, tmp_path):
    settings = {**TINY, "channels": 4, "feature_size": 8, **OWN.get(method, {}), **CHOICES[choice]}
    whole = run_images(method, tmp_path / "whole", settings, facts={"scenario": "s"})
    out = tmp_path / "killed"
    with pytest.raises(Killed):
        run_images(method, out, settings, facts={"scenario": "s"}, after_round=killed_after(2))
    with pytest.raises(Killed):
        UnfinishedImageRun.resume(
            out, after_round=killed_after(4 if len(whole.rounds()) > 3 else 3)
        )
    resumed = UnfinishedImageRun.resume(out)
    assert_same(resumed, whole)
    assert resumed.about.keys() == whole.about.keys()
    assert resumed.about["scenario"] == "s"


VIT = {"backbone": "tiny-random", "input_size": 8}
QUICK = {
    "fedgen": {"hidden": 16, "server_steps": 5},
    "mfcl": {**VIT, "noise_width": 8, "hidden": 16, "server_steps": 5, "replay": 16},
    "target": {**VIT, "synthetic": 40, "server_batch_size": 16, "warm_up": 1, "student_steps": 3},
}
"""Settings for which a method needs less time."""


@pytest.mark.repeats
@pytest.mark.attack("kills")
@pytest.mark.sampled(20)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_any_method_that_was_killed_equals_one_that_was_not(method, tmp_path):
    frozen = METHODS[method].defaults.get("model") == "vit"
    own = VIT if frozen else {"channels": 4, "feature_size": 8}
    settings = read_by(method, {**TINY, "share": 0.1, **own, **QUICK.get(method, {})})
    whole, out = run_images(method, tmp_path / "whole", settings), tmp_path / "killed"
    if len(whole.rounds()) < 2:
        pytest.skip("trains in one round")
    with pytest.raises(Killed):
        run_images(method, out, settings, after_round=killed_after(2))
    with suppress(Killed):
        UnfinishedImageRun.resume(out, after_round=killed_after(3))
    assert_same(UnfinishedImageRun.resume(out), whole)


def test_how_an_unfinished_run_goes_on_is_told(tmp_path):
    stages = {"channels": 4, "partition": "gldp-shards", "stages": 2}
    with pytest.raises(Killed):
        run_images("fedavg", tmp_path, {**TINY, **stages}, after_round=killed_after(5))
    with pytest.raises(InputError, match="`stforecast info"):
        ImageRun.find([tmp_path])
    about = of_unfinished(tmp_path).about
    assert about["command"] == "stforecast vision run"
    assert (about["rounds_done"], about["rounds"]) == (4, 6)


def test_a_run_does_not_go_on_with_other_images(tmp_path, monkeypatch):
    """Also where nothing but a test image differs."""
    with pytest.raises(Killed):
        run_images("fedavg", tmp_path, {**TINY, "channels": 4}, after_round=killed_after(2))
    load = learner.load_images

    def another_test_image(config):
        images = load(config)
        pixels = images.images.clone()
        pixels[images.is_test.nonzero()[0]] += 1
        return dataclasses.replace(images, images=pixels)

    def in_another_order(config):
        images = load(config)
        return images.take(torch.arange(len(images)).flip(0))

    for other in (another_test_image, in_another_order):
        monkeypatch.setattr(learner, "load_images", other)
        with pytest.raises(InputError, match=r"round-0001: .* other data"):
            UnfinishedImageRun.resume(tmp_path)
    monkeypatch.setattr(learner, "load_images", load)
    assert len(UnfinishedImageRun.resume(tmp_path).rounds()) == 3
