"""Nodes with images, without Flower: accuracies and models are those of one process."""

import dataclasses
import json
import secrets
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from node_link import TOKEN, NodeLink
from PIL import Image

from data_prep.base.errors import InputError
from stforecast.cli.main import cli
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.messages import Message
from stforecast.federated.uploads.masking import SecureSums
from stforecast.flower import client_app
from stforecast.flower.node_settings import NodeSettings
from stforecast.flower.server_app import prepare_continuation, serve
from stforecast.flower.settings import read_app, read_run, write_app
from vision.config import resolve
from vision.datasets import load
from vision.learner import Learner
from vision.methods import METHODS
from vision.nodes import ImageFederation

N = 3
RUN = f"run-{TOKEN}"
SETTINGS = {
    "size": 8, "clients": N, "shots": 8, "test_shots": 6, "rounds": 2, "batch_size": 8,
    "device": "cpu",
}  # fmt: skip
CONVNET = {"channels": 4, "feature_size": 8}
CLASSES = tuple("0123456789")


def settings_of(method):
    """Settings of a tiny run of a method."""
    tiny = {"backbone": "tiny-random", "input_size": 16}
    own = tiny if METHODS[method].defaults.get("model") == "vit" else CONVNET
    return {**SETTINGS, **own}


def write_images(path, images, ids):
    """Write some images as an owner would, with the classes that they have."""
    part = images.take(ids)
    classes, labels = np.unique(part.labels, return_inverse=True)
    np.savez(
        path, images=part.images.permute(0, 2, 3, 1), labels=labels, is_test=part.is_test,
        class_names=np.array(images.class_names)[classes],
    )  # fmt: skip
    return path


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """Makes a fitted learner, and the settings and the link of a run on nodes with its images."""
    monkeypatch.setattr(secrets, "token_hex", lambda n: TOKEN)

    def make(method="fedavg", **shared):
        settings = settings_of(method)
        learner = Learner(method, **settings).fit(load("digits8x8").as_rgb())
        configs = {}
        for i in range(N):
            ids = np.concatenate([learner.partition.train[i], learner.partition.test[i]])
            path = write_images(tmp_path / f"{i}.npz", learner.images, ids)
            configs[i] = {"data": str(path), "first-client": i}
        run = ImageFederation(
            resolve(method, **settings), N, Patience(0.1, 1, 0.01), str(tmp_path / "server"),
            classes=CLASSES, **shared,
        )  # fmt: skip
        return run, NodeLink(run, configs), learner

    return make


def check_models(learner, folder):
    """Check that the nodes' saved models predict as the clients of a learner do."""
    images = learner.images.images[:40]
    for i in range(N):
        own = Learner.load(folder / f"{i}.federation" / RUN)
        assert (own.config.method, own.class_names) == (learner.config.method, CLASSES)
        for view in learner.fitted()[0].views:
            expected = learner.predict(images, i, view)
            # An image between two classes may fall to either side.
            assert (own.predict(images, 0, view) == expected).mean() > 0.9, view


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("method", "secure"), [("fedavg", None), ("fedavg", SecureSums()), ("pfpl", None)]
)
def test_numbers_are_those_of_one_process(method, secure, federation, tmp_path):
    run, link, learner = federation(method, secure=secure)
    about = serve(link, run)
    counts = learner.counts_
    right = counts.right[0, 0].sum()
    error_rate = float(1 - right / counts.total.sum())
    assert about["test"] == {"error_rate": pytest.approx(error_rate, abs=0.02)}
    found = [pd.read_csv(tmp_path / f"{i}.federation" / RUN / "metrics.csv") for i in range(N)]
    for v, view in enumerate(counts.views):
        of_clients = [t.query(f"view == '{view}' and mask == 'all classes'") for t in found]
        mine = [t.query("client != 'all'")["accuracy"].item() for t in of_clients]
        assert mine == pytest.approx(
            counts.accuracies(view, "all classes", "client").tolist(), abs=0.05
        ), v
    rounds = pd.read_csv(tmp_path / "server" / "rounds.csv")
    for name in ("train_loss", "train_task_loss", "participants", "failed"):
        assert rounds[name].tolist() == pytest.approx(learner.rounds_[name].tolist(), rel=1e-3)
    check_models(learner, tmp_path)
    assert (about["nodes"], about["left_out"]) == (N, {})


NOT_ON_NODES = {"fedic", "central", "chance", *(n for n in METHODS if n.startswith(("lin", "nea")))}


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(METHODS.keys() - NOT_ON_NODES))
def test_every_method_leaves_models_that_need_no_server(method, federation, tmp_path):
    run, link, learner = federation(method)
    assert serve(link, run)["nodes"] == N
    check_models(learner, tmp_path)


@pytest.mark.repeats
def test_a_finished_federation_goes_on(federation, tmp_path, monkeypatch):
    run, link, _ = federation("fedavg")
    serve(link, run)
    further = prepare_continuation(run, tmp_path / "further", 1)
    assert read_run(further.as_run_config()).after == TOKEN
    monkeypatch.setattr(secrets, "token_hex", lambda n: "f" * 16)
    about = serve(NodeLink(further, link.configs), further)
    assert about["nodes"] == N
    first, then = (
        pd.read_csv(tmp_path / name / "rounds.csv")["train_loss"] for name in ("server", "further")
    )
    assert then.iloc[0] < first.iloc[0]


def asked_to_join(run, data):
    config = {"data": str(data), "first-client": 0}
    return client_app.answer_of_node(run, config, Message({"task": "join", "run": TOKEN}))


def make_folder(folder, counts):
    """Write a folder of images: some of each class."""
    for name, n in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(n):
            Image.new("L", (9, 7), i).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture
def pets(tmp_path):
    """Settings of a run on nodes with folders of cats and dogs."""
    config = resolve("fedavg", **settings_of("fedavg"))
    return ImageFederation(config, 2, Patience(), str(tmp_path / "s"), classes=("dog", "cat"))


def test_a_folder_that_lacks_a_class_is_a_client(pets, tmp_path, monkeypatch):
    monkeypatch.setattr(client_app, "_kept", {})
    folder = make_folder(tmp_path / "north", {"cat": 5})
    assert asked_to_join(pets, folder).about == {"first": 0, "sizes": [4]}
    (node,) = client_app._kept.values()
    assert node.own.trainer.train_data.tensors["x"].shape == (1, 4, 3, 8, 8)
    assert set(node.own.trainer.train_data.tensors["y"].flatten().tolist()) == {1}
    Image.new("L", (9, 7), 9).save(folder / "cat" / "more.png")
    assert asked_to_join(pets, folder).about["sizes"] == [5], "a new image is noticed"


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({"cat": 5, "horse": 5}, "horse, .*dog, cat"),
        ({"cat": 1}, "no test"),
        ({}, "found no images"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(counts, reason, pets, tmp_path):
    folder = make_folder(tmp_path / "north", counts)
    folder.mkdir(exist_ok=True)
    with pytest.raises(InputError, match=reason):
        asked_to_join(pets, folder)


def test_a_node_without_images_is_told_so(pets, tmp_path):
    with pytest.raises(InputError, match=r"nowhere: .*file"):
        asked_to_join(pets, tmp_path / "nowhere")
    cube = tmp_path / "x.nc"
    cube.write_text("no images")
    with pytest.raises(InputError, match=r"x\.nc: .* NumPy"):
        asked_to_join(pets, cube)


def test_the_clients_of_a_node_with_images_are_one(tmp_path):
    assert NodeSettings("localhost:9", tmp_path, 3).last_client() == 3
    NodeSettings("localhost:9", tmp_path, 3).check()


def test_the_app_holds_the_run(pets, tmp_path):
    run = dataclasses.replace(pets, owners={7: range(2)}, secure=SecureSums())
    assert read_app(write_app(tmp_path / "app", run)) == run
    with pytest.raises(InputError, match="be used"):
        read_run({**run.as_run_config(), "classes": "cat"})
    with pytest.raises(InputError, match="unknown task 'sounds'"):
        read_run({**run.as_run_config(), "task": "sounds"})


@pytest.mark.parametrize(
    ("method", "settings", "reason"),
    [
        ("central", {}, "central .*rounds"),
        ("chance", {}, "chance .*rounds"),
        ("nearest_mean_local", {}, "nearest_mean_local .*rounds"),
        ("fedic", {}, "surrogate is 10"),
        ("fedavg", {"imbalance": 5}, "imbalance is 5.0"),
        ("fedavg", {"size": 0}, "size is 0"),
        ("fedvit", {"feature_cache": "/etc"}, "node writes"),
        ("fedavg", {"partition": "fedta-tasks"}, "in tasks"),
        ("fedavg", {"delta_coding": True}, "not support delta_coding"),
        ("fedproto", {"slow_share": 0.3}, "fedproto"),
        ("fedavg", {"clip": 1.0, "noise": "gaussian"}, "sends counters"),
    ],
)
def test_what_nodes_cannot_do_is_refused(method, settings, reason, tmp_path):
    config = resolve(method, **settings)
    run = ImageFederation(config, 3, Patience(), str(tmp_path), classes=("cat", "dog"))
    with pytest.raises(InputError, match=reason):
        read_run(run.as_run_config())


def type_in(*words):
    done = CliRunner().invoke(cli, ["-q", "vision", "federate", *map(str, words)], obj={})
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_the_command_writes_the_app(tmp_path):
    words = [
        "--method", "pfpl", "--clients", 4, "--out", tmp_path / "app", "--results",
        tmp_path / "results", "--alpha", 0.3, "--size", 16, "--enough", 2, "--node", "7=0-3",
    ]  # fmt: skip
    assert "Missing option '--classes'" in type_in(*words).output
    done = type_in(*words, "--classes", "cat, dog")
    assert done.output.startswith("uploads are plain: the server sees each client's upload")
    assert done.output.endswith(f"begin it with: flwr run {tmp_path / 'app'} --stream\n")
    run = read_app(Path(tmp_path / "app"))
    assert (run.classes, run.n_clients, run.patience.enough) == (("cat", "dog"), 4, 2)
    assert (run.owners, run.out) == ({7: range(4)}, str(tmp_path / "results"))
    config = run.config
    assert (config.method_options.alpha, config.data.size, config.training.batch_size) == (
        0.3,
        16,
        4,
    )
    for option in ("--poll=1", "--ways=3", "--data=npz", "--images=x", "--partition=iid"):
        assert "such option" in type_in(*words, option).output
    with pytest.raises(InputError, match="classes is 'cat,cat'"):
        type_in(*words, "--classes", "cat,cat")
    assert json.loads(json.dumps(run.as_run_config())) == run.as_run_config()


@pytest.mark.parametrize(("more", "fewest"), [((), 3), (("--plain-uploads",), 0)])
def test_uploads_are_masked_by_default(more, fewest, tmp_path):
    type_in(
        "--method", "fedavg", "--clients", 4, "--classes", "cat,dog", "--size", 16, "--out",
        tmp_path / "app", "--results", tmp_path / "results", *more,
    )  # fmt: skip
    run = read_app(tmp_path / "app")
    assert bool(run.secure) == bool(fewest)
    assert run.patience.min_parties == (fewest or 1)
