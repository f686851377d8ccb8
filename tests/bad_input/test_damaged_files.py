"""What the command says to a file that is not what it should be: every door × every damage.

Each case must exit with code 2, with one line on stderr that names the file, nothing on stdout, no
traceback, and the working folder as it was.
"""

import pickle
import random
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from data_prep.base.errors import InputError, reading
from data_prep.cube import open_cube
from stforecast.federated.core.state import Clients, State
from stforecast.federated.runs import checkpoint

pytestmark = pytest.mark.attack("damaged files")

TEXT = ["raw day", "grid", "long.csv", "wide.csv", "distances.csv", "locations.csv", "benchmark",
        "forecaster.json", "run.json", "metrics.csv", "rounds.csv", "settings.json",
        "class names", "wnids.txt", "annotations", "images.toml", "image settings.json",
        "learner.json", "image run.json", "image rounds.csv", "partition.csv",
        "stages.csv"]  # fmt: skip
BINARY = ["raw day.gz", "grid.gz", "metr-la.h5", "adjacency.npz", "fedda.h5", "table.csv.gz",
          "table.parquet", "cube to train on", "cube to export", "cube to forecast from",
          "state.safetensors", "state of a baseline", "forecasts.nc", "archive", "picture",
          "photograph", "images.npz", "digits.gz", "digits.bz2", "digits.mat", "cifar.bin",
          "backbone", "state of a learner"]  # fmt: skip


class Bomb:
    """A pickle that makes a file when it is loaded."""

    def __reduce__(self):
        return Path.touch, (Path("pickle was loaded"),)


def in_its_place(make):
    """A damage that puts something else where the file was."""

    def damage(path):
        path.unlink()
        make(path)

    return damage


def overwritten(change):
    """A damage that changes the file's bytes."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def cut(share):
    return overwritten(lambda data: data[: int(len(data) * share)])


def noise(data):
    return random.Random(1).randbytes(len(data))


def zeros_in_the_middle(data):
    third = len(data) // 3
    return data[:third] + bytes(third) + data[2 * third :]


EVERYWHERE = {
    "is not there": Path.unlink,
    "is a folder": in_its_place(Path.mkdir),
    "cannot be read": in_its_place(lambda path: path.symlink_to("/proc/self/mem")),
    "is a link to itself": in_its_place(lambda path: path.symlink_to(path.name)),
    "is empty": overwritten(lambda data: b""),
    "is one byte": overwritten(lambda data: data[:1]),
    "is noise": overwritten(noise),
    "is zeros": overwritten(lambda data: bytes(len(data))),
    "is a pickle": overwritten(lambda data: pickle.dumps(Bomb())),
    "is UTF-16": overwritten(lambda data: "time,1\n2024-01-01,2\n".encode("utf-16")),
    "has a hole": overwritten(zeros_in_the_middle),
    "is nested 100,000 deep": overwritten(lambda data: b"[" * 100_000),
}
"""Damages that every file may have."""

TO_BINARY = {
    "is cut after 10 %": cut(0.1),
    "is cut after a half": cut(0.5),
    "is cut after 90 %": cut(0.9),
    "lacks its last byte": overwritten(lambda data: data[:-1]),
    "lacks its first byte": overwritten(lambda data: data[1:]),
    "is text": overwritten(lambda data: b"time,cell,speed\n2024-01-01,1,2\n"),
}
"""Damages that a binary file shows."""

CASES = [(door, damage) for door in TEXT + BINARY for damage in EVERYWHERE]
CASES += [(door, damage) for door in BINARY for damage in TO_BINARY]

UNSEEN = {
    ("picture", "is not there"), ("photograph", "is not there"), ("picture", "lacks its last byte"),
    ("cifar.bin", "is zeros"), ("cifar.bin", "has a hole"), ("backbone", "has a hole"),
}  # fmt: skip
"""What is sound all the same: one picture fewer, pixels of zeros, weights of zeros."""


READ_WITH_ANOTHER = {"state.safetensors", "metrics.csv", "photograph", "class names", "annotations",
                     "state of a learner", "image rounds.csv"}  # fmt: skip
"""Doors whose command is that of another door and reads the same sound files."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("door", [d for d in TEXT + BINARY if d not in READ_WITH_ANOTHER])
def test_a_sound_file_is_accepted(open_door, stforecast, door):
    code, _, err = stforecast(*open_door(door).words)
    assert code == 0, err


@pytest.mark.sampled(4)
@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="Linux only")
@pytest.mark.parametrize(("door", "damage"), [case for case in CASES if case not in UNSEEN])
def test_a_damaged_file_is_refused(open_door, refused, tmp_path, door, damage):
    opened = open_door(door)
    {**EVERYWHERE, **TO_BINARY}[damage](tmp_path / opened.path)
    message = refused(*opened.words)
    if not any(part in message for part in opened.path.parts):
        pytest.fail(f"{opened.path} is not named in {message!r}", False)


def flipped(data, seed):
    """The bytes with one bit changed."""
    changed = bytearray(data)
    bit = random.Random(seed).randrange(8 * len(data))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def cube_of(path):
    with reading(path, "whole", ""), open_cube(path) as cube:
        return cube.load()


@pytest.mark.sampled(16)
@pytest.mark.parametrize("seed", range(160))
def test_a_flipped_bit_in_a_cube_changes_nothing_or_is_told(sound, tmp_path, seed):
    """HDF5 keeps checksums of numbers, attributes and its own structures."""
    data, path = (sound / "town.nc").read_bytes(), tmp_path / "town.nc"
    path.write_bytes(flipped(data, seed))
    with suppress(InputError):  # `reading` words it in one line that names the file.
        assert cube_of(path).identical(cube_of(sound / "town.nc"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint's folder."""
    clients = Clients({"w": torch.ones(2, 50)}, {}, {}, torch.tensor([5, 6]))
    state = State(clients, {"w": torch.ones(50)}, round=1, seed=7)
    made = checkpoint.Checkpoint({"settings": {}}, state, None, [], cohort_size=2)
    return checkpoint.save_checkpoint(made, tmp_path_factory.mktemp("run"))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("seed", range(80))
@pytest.mark.parametrize("name", ["state.safetensors", "checkpoint.json", "SHA256SUMS"])
def test_a_flipped_bit_in_a_checkpoint_is_told(saved, tmp_path, name, seed):
    folder = tmp_path / saved.name
    folder.mkdir()
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / name).write_bytes(flipped((saved / name).read_bytes(), seed))
    with pytest.raises(InputError, match="round-0001") as refused:
        checkpoint.load_checkpoint(folder)
    assert "\n" not in str(refused.value)
