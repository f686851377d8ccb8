"""Sound inputs for every door of the command, and what it must do with a damaged one."""

import bz2
import gzip
import io
import json
import re
import shutil
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import polars as pl
import pytest
from PIL import Image
from safetensors.torch import save_file
from scipy.io import savemat
from small_files import made_once

from data_prep.cube import make_cube, write_cube
from stforecast.cli.main import main
from stforecast.federated.runs.run_folder import begin
from vision import learner
from vision.backbones.load import TINY_GEOMETRY
from vision.backbones.vit import ViT

FIRST_MS = 1383260400000  # 2013-11-01 00:00 Europe/Rome
DAY = "sms-call-internet-mi-2013-11-01.txt"
FEW_IMAGES = ["--size", "8", "--clients", "2", "--rounds", "1", "--channels", "4",
              "--feature-size", "4", "--device", "cpu"]  # fmt: skip
TINY = ["--split", "days:7,1,2", "--rounds", "1", "--hidden-size", "4", "--device", "cpu"]
SENSORS = ["773869", "767541", "717447"]
HOURS = pd.date_range("2013-11-01", periods=240, freq="h")


@dataclass(frozen=True)
class Door:
    """A file that a command reads.

    Attributes:
        path: the file, sound, below the working folder.
        words: the command.
    """

    path: Path
    words: list[str]


@pytest.fixture(scope="session")
def sound(tmp_path_factory):
    """A folder with a sound input for each door."""
    return made_once(tmp_path_factory, "sound", write_all)


def write_all(folder):
    write_raw_day(folder)
    write_metr_la(folder)
    write_fedda(folder)
    write_tables(folder)
    write_town(folder)
    write_mirror(folder)
    (folder / "bench.toml").write_text(
        'data = ["town.nc"]\nmethods = ["last_value"]\nservices = ["sms"]\n'
        '[settings]\nsplit = "days:7,1,2"\n'
    )
    for method in ("fuels", "ridge"):
        done("run", "--data", folder / "town.nc", "--service", "internet", "--method", method,
             *(TINY if method == "fuels" else TINY[:2]),
             "--out", folder / f"run-{method}")  # fmt: skip
    write_images(folder)
    for partition in ("n-way", "gldp-shards"):
        done("vision", "run", "--method", "pfpl", "--partition", partition, *FEW_IMAGES,
             "--out", folder / f"run-{partition}")  # fmt: skip
    write_begun(folder)


def done(*words):
    """The command, which must succeed."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words)])
    assert not ended.value.code


def write_raw_day(folder):
    rows = [
        f"{cell}\t{FIRST_MS + 600_000 * i}\t39\t1.5\t\t0.25\t\t{10 + i}.75\n"
        for cell in (1, 2)
        for i in range(144)
    ]
    text = "".join(rows).encode()
    (folder / DAY).write_bytes(text)
    (folder / f"{DAY}.gz").write_bytes(gzip.compress(text, mtime=0))
    squares = [
        {
            "type": "Feature",
            "properties": {"cellId": cell},
            "geometry": {
                "type": "Polygon",
                "coordinates": [[[cell, 45], [cell + 1, 45], [cell + 1, 46], [cell, 45]]],
            },
        }
        for cell in (1, 2, 3)
    ]
    grid = json.dumps({"type": "FeatureCollection", "features": squares})
    (folder / "grid.geojson").write_text(grid)
    (folder / "grid.geojson.gz").write_bytes(gzip.compress(grid.encode(), mtime=0))
    simulated = {"note": "", "city": "milan", "start": "2013-11-01", "days": 1, "cells": 2,
                 "seed": 1, "kinds": {}, "version": "0"}  # fmt: skip
    (folder / "SIMULATED.json").write_text(json.dumps(simulated))


def write_metr_la(folder):
    times = pd.date_range("2012-03-01", periods=24, freq="5min")
    with h5py.File(folder / "metr-la.h5", "w") as file:
        group = file.create_group("df")
        group.attrs.update({"pandas_type": np.bytes_("frame"), "nblocks": np.int64(1)})
        group["axis0"] = np.array(SENSORS, dtype="S6")
        group["axis1"] = times.to_numpy().astype("datetime64[ns]").astype(np.int64)
        group["axis1"].attrs["kind"] = np.bytes_("datetime64")
        group["block0_values"] = np.arange(72.0).reshape(24, 3)
    ids = np.array(SENSORS)
    np.savez(folder / "metr-la-adjacency.npz", sensor_id=ids, adjacency=np.eye(3))
    pairs = [f"{a},{b},{100 * (i + 2 * j)}\n" for i, a in enumerate(ids) for j, b in enumerate(ids)]
    (folder / "distances_la.csv").write_text("from,to,cost\n" + "".join(pairs))
    places = [f"{i},{sensor},34.1,-118.{i}\n" for i, sensor in enumerate(ids)]
    (folder / "locations.csv").write_text("index,sensor_id,latitude,longitude\n" + "".join(places))


def write_fedda(folder):
    values = np.arange(12.0).reshape(4, 3)
    with h5py.File(folder / "milano.h5", "w") as file:
        file["idx"] = FIRST_MS // 1000 + 3600 * np.arange(4)
        file["cell"] = np.array([1, 2, 3])
        file["lng"], file["lat"] = np.array([9.1, 9.2, 9.3]), np.array([45.1, 45.2, 45.3])
        for name in ("sms", "call", "net"):
            file[name] = values


def write_tables(folder):
    long = pd.DataFrame(
        {"time": np.repeat(HOURS[:6], 2).astype(str), "cell": [1, 2] * 6, "speed": np.arange(12.0)}
    )
    text = long.to_csv(index=False)
    (folder / "long.csv").write_text(text)
    (folder / "long.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    (folder / "wide.csv").write_text("time,1,2\n2024-01-01,1,2\n2024-01-02,3,4\n2024-01-03,5,6\n")
    pl.read_csv(text.encode(), try_parse_dates=True).write_parquet(folder / "long.parquet")


def write_town(folder):
    rng = np.random.default_rng(0)
    wave = 1 + 0.5 * np.sin(2 * np.pi * HOURS.hour.to_numpy() / 24)
    values = np.array([100.0, 50.0, 400.0]) * (wave[:, None] + 0.1 * rng.normal(size=(240, 3)))
    cube = make_cube(
        {"internet": values, "sms": 2 * values}, HOURS, np.array([11, 22, 33]), title="a town",
        source="invented", license="none", units="MB", time_zone="Europe/Rome",
    )  # fmt: skip
    write_cube(cube, folder / "town.nc")


def write_mirror(folder):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as z:
        for name in ("metr_la.h5", "distances_la.csv", "sensor_locations_la.csv"):
            z.writestr(name, bytes(range(256)) * 8)
    (folder / "mirror").mkdir()
    (folder / "mirror" / "download.zip").write_bytes(packed.getvalue())


def write_images(folder):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(12) % 2
    for i, picture in enumerate(pixels):
        path = folder / "pictures" / ("cat", "dog")[i % 2] / f"{i}.{('png', 'jpg')[i // 6]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    np.savez(folder / "images.npz", images=pixels, labels=labels, is_test=np.arange(12) > 7)
    write_digits(folder)
    (folder / "cifar").mkdir()
    record = b"\0\1" + bytes(3072)
    for name in ("train.bin", "test.bin"):
        (folder / "cifar" / name).write_bytes(3 * record)
    (folder / "cifar" / "fine_label_names.txt").write_text("apple\nbear\n")
    tiny = folder / "tiny-imagenet-200"
    for name in ("train/n01/images/0.JPEG", "train/n01/images/1.JPEG", "val/images/val_0.JPEG"):
        (tiny / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).save(tiny / name)
    (tiny / "wnids.txt").write_text("n01\n")
    (tiny / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t9\t9\n")
    save_file(ViT(TINY_GEOMETRY).state_dict(), folder / "vit.safetensors")
    (folder / "images.toml").write_text(
        'task = "images"\ndata = ["digits8x8"]\nmethods = ["solo"]\n[settings]\nclients = 2\n'
        'size = 8\nrounds = 1\nchannels = 4\nfeature_size = 4\ndevice = "cpu"\n'
    )


def write_digits(folder):
    digits = np.arange(10, dtype=np.uint8)
    for name in ("mnist", "usps", "svhn"):
        (folder / name).mkdir()
    for part, side in (("train", 8), ("t10k", 8)):
        images = np.zeros((10, side, side), np.uint8)
        for kind, values in (("images-idx3", images), ("labels-idx1", digits)):
            header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            path = folder / "mnist" / f"{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(header + values.tobytes(), mtime=0))
    lines = "".join(f"{digit + 1} 1:-1 256:0.5\n" for digit in digits)
    for name in ("usps.bz2", "usps.t.bz2"):
        (folder / "usps" / name).write_bytes(bz2.compress(lines.encode()))
    for name in ("train_32x32.mat", "test_32x32.mat"):
        arrays = {"X": np.zeros((32, 32, 3, 10), np.uint8), "y": digits[:, None] + 1}
        savemat(folder / "svhn" / name, arrays, do_compression=True)


def write_begun(folder):
    """Runs that were stopped before they took a checkpoint."""
    for name, run in (("begun", "run-fuels"), ("begun-images", "run-n-way")):
        about = json.loads((folder / run / "run.json").read_text())
        begun = {"settings": about["settings"], "label": "mine"}
        begun |= {"facts": {}} if "images" in name else {"data": "town.nc"}
        (folder / name).mkdir()
        begin(folder / name, begun)


DIVIDE = "vision divide --partition iid --clients 2 --size 0 --out who.csv"

DOORS = {
    "raw day": (DAY, "prepare milan --raw {} --out out.nc"),
    "raw day.gz": (f"{DAY}.gz", "prepare milan --raw {} --out out.nc"),
    "grid": ("grid.geojson", f"prepare milan --raw {DAY} --grid {{}} --out out.nc"),
    "grid.gz": ("grid.geojson.gz", f"prepare milan --raw {DAY} --grid {{}} --out out.nc"),
    "metr-la.h5": ("metr-la.h5", "prepare metr-la --raw {} --out out.nc"),
    "adjacency.npz": (
        "metr-la-adjacency.npz",
        "prepare metr-la --raw metr-la.h5 --adjacency {} --out out.nc",
    ),
    "distances.csv": (
        "distances_la.csv",
        "prepare metr-la --raw metr-la.h5 --adjacency {} --out out.nc",
    ),
    "locations.csv": (
        "locations.csv",
        "prepare metr-la --raw metr-la.h5 --locations {} --out out.nc",
    ),
    "fedda.h5": ("milano.h5", "prepare fedda-h5 --raw {} --out out.nc"),
    "long.csv": ("long.csv", "prepare table --raw {} --out out.nc"),
    "wide.csv": ("wide.csv", "prepare table --raw {} --out out.nc"),
    "table.csv.gz": ("long.csv.gz", "prepare table --raw {} --out out.nc"),
    "table.parquet": ("long.parquet", "prepare table --raw {} --out out.nc"),
    "cube to train on": (
        "town.nc",
        "run --data {} --service sms --method last_value --split days:7,1,2 --out run",
    ),
    "cube to export": ("town.nc", "export {} --out out.h5"),
    "cube to forecast from": ("town.nc", "predict run-ridge --history {} --out out.csv"),
    "benchmark": ("bench.toml", "bench {} --out out"),
    "forecaster.json": (
        "run-fuels/model/forecaster.json",
        "predict run-fuels --history town.nc --out out.csv",
    ),
    "state.safetensors": (
        "run-fuels/model/state.safetensors",
        "predict run-fuels --history town.nc --out out.csv",
    ),
    "state of a baseline": (
        "run-ridge/model/state.safetensors",
        "predict run-ridge --history town.nc --out out.csv",
    ),
    "run.json": ("run-fuels/run.json", "plot cdf run-fuels --out out.png"),
    "metrics.csv": ("run-fuels/metrics.csv", "plot cdf run-fuels --out out.png"),
    "rounds.csv": ("run-fuels/rounds.csv", "plot rounds run-fuels --out out.png"),
    "forecasts.nc": ("run-fuels/forecasts.nc", "plot predictions run-fuels --out out.png"),
    "archive": ("mirror/download.zip", "download metr-la --source {} --out ."),
    "settings.json": ("begun/settings.json", "run --resume begun"),
    "picture": ("pictures/cat/0.png", f"{DIVIDE} --data folder --images pictures"),
    "photograph": ("pictures/cat/6.jpg", f"{DIVIDE} --data folder --images pictures"),
    "images.npz": ("images.npz", f"{DIVIDE} --data npz --images {{}}"),
    "digits.gz": ("mnist/train-images-idx3-ubyte.gz", f"{DIVIDE} --data mnist --images mnist"),
    "digits.bz2": ("usps/usps.bz2", f"{DIVIDE} --data usps --images usps"),
    "digits.mat": ("svhn/train_32x32.mat", f"{DIVIDE} --data svhn --images svhn"),
    "cifar.bin": ("cifar/train.bin", f"{DIVIDE} --data cifar100 --images cifar"),
    "class names": ("cifar/fine_label_names.txt", f"{DIVIDE} --data cifar100 --images cifar"),
    "wnids.txt": (
        "tiny-imagenet-200/wnids.txt",
        f"{DIVIDE} --data tiny-imagenet --images tiny-imagenet-200",
    ),
    "annotations": (
        "tiny-imagenet-200/val/val_annotations.txt",
        f"{DIVIDE} --data tiny-imagenet --images tiny-imagenet-200",
    ),
    "backbone": (
        "vit.safetensors",
        "vision run --method fedvit --model vit --backbone {} --input-size 8 --size 8 "
        "--clients 2 --rounds 1 --device cpu --out out",
    ),
    "images.toml": ("images.toml", "bench {} --out out"),
    "image settings.json": ("begun-images/settings.json", "vision run --resume begun-images"),
    "learner.json": (
        "run-n-way/model/learner.json",
        "vision predict run-n-way --images pictures --out out.csv",
    ),
    "state of a learner": (
        "run-n-way/model/state.safetensors",
        "vision predict run-n-way --images pictures --out out.csv",
    ),
    "image run.json": ("run-n-way/run.json", "vision plot rounds run-n-way --out out.png"),
    "image rounds.csv": ("run-n-way/rounds.csv", "vision plot rounds run-n-way --out out.png"),
    "partition.csv": ("run-n-way/partition.csv", "vision plot partition run-n-way --out out.png"),
    "stages.csv": ("run-gldp-shards/stages.csv", "vision plot stages run-gldp-shards --out o.png"),
}
"""Every file that the command reads: a sound one, and the words that read it."""

BESIDE = {
    "grid": [DAY],
    "grid.gz": [DAY],
    "adjacency.npz": ["metr-la.h5"],
    "distances.csv": ["metr-la.h5"],
    "locations.csv": ["metr-la.h5"],
    "cube to forecast from": ["run-ridge"],
    "benchmark": ["town.nc"],
    "forecaster.json": ["town.nc"],
    "state.safetensors": ["town.nc"],
    "state of a baseline": ["town.nc"],
    "settings.json": ["town.nc"],
    "learner.json": ["pictures"],
    "state of a learner": ["pictures"],
}
"""What else the words need."""


@pytest.fixture(autouse=True)
def unread():
    """Images are kept for runs that follow; here another file bears the name in each test."""
    learner._load.cache_clear()


@pytest.fixture
def open_door(sound, tmp_path, monkeypatch):
    """Puts the sound inputs of a door into the working folder."""
    monkeypatch.chdir(tmp_path)

    def put(name):
        file, words = DOORS[name]
        for needed in (Path(file).parts[0], *BESIDE.get(name, [])):
            copy = shutil.copytree if (sound / needed).is_dir() else shutil.copyfile
            copy(sound / needed, tmp_path / needed)
        return Door(Path(file), words.format(file).split())

    return put


@pytest.fixture
def stforecast(capfd):
    """Runs the command; gives its exit code, output and error output."""

    def call(*words):
        capfd.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning would be another line on stderr
            warnings.simplefilter("ignore", ResourceWarning)
            with pytest.raises(SystemExit) as done:
                main([str(word) for word in words])
        return done.value.code or 0, *capfd.readouterr()

    return call


@pytest.fixture
def refused(stforecast, tmp_path):
    """Runs the command, which must refuse in one line and leave nothing behind; gives the line.

    `kept` is the name of a file or folder that may stay on purpose.
    """

    def call(*words, kept=""):
        before = contents(tmp_path)
        code, out, err = stforecast("-q", *words)
        after = contents(tmp_path)
        left = sorted(
            str(p.relative_to(tmp_path))
            for p in before.keys() | after.keys()
            if before.get(p) != after.get(p) and kept not in p.relative_to(tmp_path).parts
        )
        line = re.fullmatch(r"stforecast: ([^\n]{1,1000})\n", err)
        if (code, out, left) != (2, "", []) or not line:
            pytest.fail(f"exit code {code}, left {left}, stdout {out!r}, stderr {err!r}", False)
        return line[1]

    return call


def contents(folder):
    """Every path below a folder with its bytes; other than files by their kind."""
    return {
        path: path.read_bytes() if path.is_file() and not path.is_symlink() else path.is_dir()
        for path in folder.rglob("*")
    }
