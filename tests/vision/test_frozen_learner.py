"""Whole runs on a frozen backbone: a stream of tasks, saved, loaded and measured."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from stforecast.federated.core.training import Training
from stforecast.federated.uploads.uplink import Uplink
from vision.backbones.load import TINY
from vision.config import ImageOptions, ImageRunOptions, read_by, resolve
from vision.datasets import load
from vision.learner import Learner
from vision.methods import METHODS
from vision.models.vit import ViTOptions
from vision.streams import STREAMS
from vision.streams.measures import spatial_retention, temporal_retention

FROZEN = sorted(n for n, m in METHODS.items() if m.defaults.get("model") == "vit")
SETTINGS = {
    "model": "vit",
    "backbone": TINY,
    "input_size": 8,
    "size": 8,
    "partition": "fedta-tasks",
    "clients": 2,
    "stages": 2,
    "task_classes": 3,
    "private_classes": 3,
    "train_shots": 8,
    "test_shots": 4,
    "surrogate": 1,
    "rounds": 1,
    "epochs": 1,
    "device": "cpu",
}


QUICK = {"target": {"synthetic": 40, "server_batch_size": 16, "warm_up": 1, "student_steps": 3}}
"""Settings for which a method needs less time."""


@pytest.mark.quick(4)
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*FROZEN, "fedavg", "fednova"])
def test_a_stream_is_learned_saved_and_loaded(name, tmp_path):
    learner = Learner(name, **read_by(name, SETTINGS), **QUICK.get(name, {})).fit()
    images = load("digits8x8", size=8).images[:5]
    predicted = learner.predict(images, client=1)
    again = Learner.load(learner.save(tmp_path)).predict(images, client=1)
    assert np.array_equal(predicted, again)
    shared = learner.counts_.views[0]
    local = "personal" if "personal" in learner.counts_.views else "trained"
    over_time = temporal_retention(learner.stages_, local)
    assert math.isclose(over_time.get(0, 1.0), 1.0)
    among = spatial_retention(learner.stages_, shared, local)
    assert (among.dropna() >= 0).all()


def test_all_that_need_a_backbone_are_found():
    assert set(FROZEN) >= {"fedta", "fedvit", "fedl2p", "feddualp", "fedmgp", "glfc"}


@pytest.mark.parametrize("name", FROZEN)
def test_no_two_settings_of_a_run_share_a_name(name):
    sections = [ImageOptions, ImageRunOptions, Training, Uplink, ViTOptions, STREAMS["fedta-tasks"]]
    sections.append(METHODS[name].Options)
    names = [f.name for section in sections for f in dataclasses.fields(section)]
    assert len(names) == len(set(names))


def test_settings_of_the_backbone_reach_it():
    config = resolve("fedta", **{**SETTINGS, "pool": "mean", "blocks": 2, "anchors": 500})
    assert (config.model_options.pool, config.model_options.blocks) == ("mean", 2)
    assert config.method_options.anchors == 500
    assert config.training.optimizer == "adam"
    assert torch.tensor(config.training.lr).isclose(torch.tensor(1e-3))


def test_rivals_are_trained_alike():
    names = ("fedvit", "fedl2p", "feddualp", "fedmgp", "glfc", "target", "mfcl")
    own, *others = (resolve(name) for name in ("fedta", *names))
    assert all(config.training == own.training for config in others)
    assert all(config.data == own.data for config in others)
    assert own.training.optimizer_state == "round"
    assert own.training.clip_gradients == 1
    assert own.data.within_task


def test_optimisers_of_images_begin_anew_in_every_round():
    for name in METHODS:
        assert resolve(name).training.optimizer_state == "round"
