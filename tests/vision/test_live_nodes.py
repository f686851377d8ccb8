"""Images on a SuperLink and two nodes on this machine. Slow; needs Flower."""

import importlib.util

import pandas as pd
import pytest
from click.testing import CliRunner
from PIL import Image

from experiments.local_flower import LocalFlower, follow
from stforecast.cli.main import cli
from vision.datasets import load
from vision.learner import Learner

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("flwr"), reason="needs the extra flower"),
]

SETTINGS = {"size": 8, "rounds": 1, "batch_size": 8, "device": "cpu"}
MODEL = {"channels": 4, "feature_size": 8}
SHARES = {"north": range(0, 60), "south": range(60, 140)}


def make_folders(folder):
    """Write some digits as folders of images, by node, part and class."""
    digits = load("digits8x8")
    for name, share in SHARES.items():
        for i in share:
            part = "test" if i % 4 == 0 else "train"
            path = folder / name / part / str(digits.labels[i].item()) / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(digits.images[i, 0].numpy()).save(path)
    return {name: folder / name for name in SHARES}


def test_folders_of_images_train_together(tmp_path):
    folders, results = make_folders(tmp_path), tmp_path / "results"
    words = {**SETTINGS, **MODEL, "clients": 2, "out": tmp_path / "app", "results": results}
    words |= {"start": 600, "answer": 240, "classes": ",".join("0123456789")}
    given = [f"--{name.replace('_', '-')}={value}" for name, value in words.items()]
    typed = ["-q", "vision", "federate", "--method=fedavg", "--secure-aggregation", *given]
    CliRunner().invoke(cli, typed, obj={}, catch_exceptions=False)
    with LocalFlower(tmp_path / "logs") as flower:
        for first, (name, folder) in enumerate(folders.items()):
            flower.start_node(name, folder, first)
        about = follow(flower, flower.run(tmp_path / "app"), results, seconds=900)
    assert about["nodes"] == 2
    right = total = 0
    for name in SHARES:
        (run,) = (tmp_path / f"{name}.federation").glob("run-*")
        table = pd.read_csv(run / "metrics.csv")
        mine = table.query("client == '0' and mask == 'all classes'")
        mine = mine.query("view == 'global'")
        right += (mine["accuracy"] * mine["samples"]).sum()
        total += mine["samples"].sum()
        assert Learner.load(run).class_names == tuple("0123456789")
    assert about["test"]["error_rate"] == pytest.approx(1 - right / total)
    assert total == sum(i % 4 == 0 for share in SHARES.values() for i in share)
