"""What the command says to images, their labels, weights and runs that cannot be right.

As `test_damaged_content`, for the doors of `stforecast vision`.
"""

import bz2
import gzip
import pickle
import re
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from damages import Bomb, json_of, npy_header
from PIL import Image
from safetensors.torch import load_file, save_file
from scipy.io import savemat

from data_prep.base.files import checksum
from stforecast.federated.runs.run_folder import checksum_of_json

pytestmark = pytest.mark.attack("damaged files")

NAN = float("nan")


def png(width, height):
    """The beginning of a picture that declares a size."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))
    return lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + data)


def text(content):
    return lambda path: path.write_text(content)


def replaced(before, after):
    return lambda path: path.write_text(path.read_text().replace(before, after, 1))


def picture_of(width, height):
    return lambda path: Image.new("RGB", (width, height)).save(path)


def link_elsewhere(path):
    path.rename(Path("secret.png"))
    path.symlink_to(Path("secret.png").resolve())


def link_to_class(path):
    path.parent.rename(Path("elsewhere"))
    path.parent.symlink_to(Path("elsewhere").resolve())


def no_pictures(path):
    shutil.rmtree(path.parent.parent)
    path.parent.mkdir(parents=True)


def class_without_pictures(path):
    for picture in path.parent.iterdir():
        picture.unlink()


def class_of_other_files(path):
    for picture in path.parent.iterdir():
        picture.rename(picture.with_suffix(".heic"))


def class_for_testing_only(path):
    root = path.parent.parent
    for cls in ("cat", "dog"):
        for part in ("train", "test")[cls == "dog" :]:
            shutil.copytree(root / cls, root / part / cls)
        shutil.rmtree(root / cls)


FOLDER = {
    "is text": (text("not a picture"), r"0\.png: cannot be read as an image .*; put a whole image"),
    "declares 10 gigapixels": (png(100_000, 100_000), r"0\.png: .*Image size .10000000000 pixels"),
    "declares 100 megapixels": (png(10_000, 10_000), r"0\.png: .*Image size .100000000 pixels"),
    "declares more than it has": (png(900, 900), r"0\.png: cannot be read as an image"),
    "is of another size": (picture_of(4, 9), r"9 × 4|0\.png is 9 × 4; give the size of all"),
    "lies above the classes": (
        lambda p: p.rename(p.parent.parent / p.name), "under 0 folders|1 folders.*under 0"),
    "is a link out of the folder": (link_elsewhere, r"0\.png: is a link out of pictures; rep"),
    "its class is a link": (link_to_class, "pictures/cat: is a link to a folder, and links are"),
    "there are no pictures": (no_pictures, r"pictures: found no images \(\*\.jpg"),
    "its class is empty": (class_without_pictures, "pictures/cat: found no images .*folders"),
    "its class has other files": (class_of_other_files, "pictures/cat: found no images .* which"),
    "a class is for testing only": (class_for_testing_only, "class dog has test images, but no tr"),
}  # fmt: skip


def arrays(**changed):
    """Other arrays beside the sound ones; None takes one away."""

    def damage(path):
        with np.load(path) as found:
            whole = {**found, **changed}
        np.savez(path, **{name: a for name, a in whole.items() if a is not None})

    return damage


def member(name, content):
    """Another member of the archive."""

    def damage(path):
        with zipfile.ZipFile(path) as z:
            kept = {n: z.read(n) for n in z.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
            for n, data in {**kept, f"{name}.npy": content}.items():
                z.writestr(n, data)

    return damage


PIXELS = np.zeros((12, 8, 8, 3), np.uint8)
LABELS = np.arange(12) % 2

NPZ = {
    "has pickled images": (
        arrays(images=np.array([Bomb()] * 12)), r"images\.npy holds objects, which are pick"),
    "has pickled labels": (arrays(labels=np.array([Bomb()] * 12)), "labels.npy holds objects"),
    "has pickled names": (arrays(class_names=np.array([Bomb()] * 2)), "class_names.npy holds obj"),
    "declares objects": (member("images", npy_header((12,), "|O")), "which are pickled"),
    "declares 80 TB": (member("images", npy_header((10**6, 10**4, 10**4), "|u1")), "does not fit"),
    "has floats": (arrays(images=PIXELS / 255), r"images are float64 \(12, 8, 8, 3\); expected"),
    "has NaN pixels": (arrays(images=np.full((12, 8, 8), NAN)), "images are float64"),
    "has signed pixels": (arrays(images=PIXELS.astype(np.int8)), "images are int8"),
    "has flat images": (arrays(images=PIXELS.reshape(12, -1)), r"images are uint8 \(12, 192\)"),
    "has four channels": (arrays(images=np.zeros((12, 8, 8, 4), np.uint8)), "expected uint8"),
    "has images of no height": (arrays(images=PIXELS[:, :0]), r"images are .*\(12, 3, 0, 8\)"),
    "has fewer labels": (arrays(labels=LABELS[:9]), r"labels are .*\(9,\); expected .*\(12,\)"),
    "has labels in a column": (arrays(labels=LABELS[:, None]), r"labels are int64 \(12, 1\)"),
    "has NaN labels": (arrays(labels=np.full(12, NAN)), "labels are float64"),
    "has text labels": (arrays(labels=LABELS.astype(str)), "labels are <U"),
    "has a label below 0": (arrays(labels=LABELS - 1), "has no class_names and the numbers -1, 0;"),
    "has a huge label": (arrays(labels=LABELS * 10**9), "the numbers 0, 1000000000; number from 0"),
    "has a label beyond the names": (arrays(class_names=["a"]), "1 names allow 0 to 0"),
    "has endless labels": (arrays(labels=np.full(12, 2**64 - 1, np.uint64)), "numbers -1;"),
    "has a name twice": (arrays(class_names=["a", "a"]), "a, a of labels are not all different"),
    "has NaN for names": (arrays(class_names=[NAN, 1]), "class_names are float64"),
    "has fewer domains": (arrays(domains=LABELS[:9]), r"domains are int64 \(9,\); expe"),
    "has NaN for parts": (arrays(is_test=np.full(12, NAN)), "is_test is float64; expected bool"),
    "has no labels": (arrays(labels=None), "has no labels; expected images, labels"),
    "has an unknown array": (arrays(label_names=["a"]), "has an array 'label_names'; expected"),
    "holds no images": (
        arrays(images=PIXELS[:0], labels=LABELS[:0], is_test=np.zeros(0, bool)), "has no labels"),
}  # fmt: skip


def packed(pack, unpack, change):
    return lambda path: path.write_bytes(pack(change(unpack(path.read_bytes()))))


def gz(change):
    return packed(gzip.compress, gzip.decompress, change)


def line(before, after):
    """Other text in a bzip2 file."""
    return packed(bz2.compress, bz2.decompress, lambda data: data.replace(before, after, 1))


def idx(shape, data=b""):
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
    return gz(lambda _: header + data)


def label_of_77(path):
    labels = path.with_name("train-labels-idx1-ubyte.gz")
    labels.write_bytes(gzip.compress(gzip.decompress(labels.read_bytes())[:-1] + b"\x4d"))


def mat(**changed):
    sound = {"X": np.zeros((32, 32, 3, 10), np.uint8), "y": np.arange(1, 11)[:, None]}
    return lambda path: savemat(path, {**sound, **changed})


FILES = {
    "digits.gz": {
        "is of floats": (gz(lambda d: d[:2] + b"\x0d" + d[3:]), "begins with .*expected an IDX"),
        "has two dimensions": (idx((10, 64), bytes(640)), "begins with .*expected an IDX"),
        "declares 4 GB": (idx((2**16, 2**8, 2**8)), "would take 4.295 GB"),
        "has fewer images": (idx((9, 8, 8), bytes(576)), "9 images, but 10 labels up to 9"),
        "has no images": (idx((0, 8, 8)), "0 images, but 10 labels"),
        "has other sizes": (idx((10, 4, 4), bytes(160)), r"mnist: training images are \(1, 4, 4\)"),
        "has a label of 77": (label_of_77, r"labels up to 77 in train-labels-idx1-ubyte\.gz"),
    },
    "digits.bz2": {
        "has a large pixel": (line(b"0.5", b"50"), "values up to 50.0; expected lines of a label"),
        "has a NaN pixel": (line(b"0.5", b"nan"), "values up to nan"),
        "has a label of 11": (line(b"1 1:", b"11 1:"), "labels .*11"),
        "has a NaN label": (line(b"1 1:", b"nan 1:"), "labels .*nan"),
        "has too many pixels": (line(b"256:", b"300:"), r"usps\.bz2: cannot be read as lines"),
        "has a word": (line(b"0.5", b"dark"), r"usps\.bz2: cannot be read as lines"),
    },
    "digits.mat": {
        "has a label of 11": (mat(y=np.arange(2, 12)[:, None]), r"10 labels .*11"),
        "has a NaN label": (mat(y=np.full((10, 1), NAN)), "10 labels .*nan"),
        "has half a label": (mat(y=np.full((10, 1), 0.5)), "10 labels .*0.5"),
        "has fewer labels": (mat(y=np.ones((9, 1))), r"y \(9, 1\)"),
        "has floats": (mat(X=np.zeros((32, 32, 3, 10))), "found X double"),
        "has another order": (mat(X=np.zeros((10, 32, 32, 3), np.uint8)), r"X uint8 \(10, 32, 32"),
    },
    "cifar.bin": {
        "has an unknown label": (
            lambda p: p.write_bytes(b"\0\7" + bytes(3072)), "label 7; expected 0 to 1"),
    },
    "class names": {
        "has a name twice": (text("apple\napple\n"), "found a repeated name; expected unique"),
        "names a path": (text("../../etc\nbear\n"), r"found the name '\.\./\.\./etc'"),
    },
    "wnids.txt": {
        "leaves its folder": (text("../../../etc\n"), r"found the name '\.\./\.\./\.\./etc'"),
        "names one that is not there": (text("n01\nn02\n"), "train: no images of n02"),
    },
    "annotations": {
        "leaves its folder": (text("../../0.JPEG\tn01\n"), r"line 1: image '\.\./\.\./0\.JPEG' of"),
        "has an unknown class": (text("val_0.JPEG\tn99\n"), "line 1: .* of class 'n99'"),
        "names no file": (text("val_9.JPEG\tn01\n"), r"val_9\.JPEG: cannot be read as an image"),
    },
}  # fmt: skip


def weights(change):
    def damage(path):
        found = load_file(path)
        change(found)
        save_file(found, path)

    return damage


def learner(change):
    """Changes saved parameters and their checksum, as someone would who means harm."""

    def damage(path):
        weights(change)(path)
        mended = {"state": checksum(path)}
        json_of(lambda a: a.update(mended))(path.with_name("learner.json"))

    return damage


def setting(**changed):
    return json_of(lambda a: a["settings"].update(changed))


def begun(change):
    """Changes the description of an unfinished run, and its checksum."""

    def damage(about):
        change(about)
        about["checksum"] = checksum_of_json(about)

    return json_of(damage)


HEADER = (2**62).to_bytes(8, "little") + b"{}"
NAME, PATCH = "blocks.0.attn.qkv.weight", "patch_embed.proj.weight"

WEIGHTS = {
    "lacks a block": (
        weights(lambda w: w.pop(NAME)), r"blocks\.0\.attn\.qkv\.weight: found nothing"),
    "lacks its positions": (
        weights(lambda w: w.pop("pos_embed")), "found no pos_embed.*use one of the"),
    "has one too many": (
        weights(lambda w: w.update(x=torch.ones(1))), r"x: found \(1,\), expected nothing"),
    "is of another net": (weights(lambda w: [w.clear(), w.update(a=torch.ones(1))]), "patch_embed"),
    "has another shape": (
        weights(lambda w: w.update({NAME: w[NAME][:, :3].clone()})), r"found \(48, 3\), exp"),
    "is flat": (weights(lambda w: w.update({PATCH: w[PATCH].flatten()})), "unpack|values"),
    "has flat positions": (weights(lambda w: w.update(pos_embed=torch.ones(5))), "plain ViT"),
    "has an odd grid": (
        weights(lambda w: w.update(pos_embed=torch.ones(1, 4 + 2, 16))), "no square grid"),
    "has NaN": (weights(lambda w: w[NAME].fill_(NAN)), f"{NAME} holds NaN or infinity; get the fi"),
    "has a huge header": (lambda p: p.write_bytes(HEADER), "cannot be read as safetensors"),
    "is a checkpoint of torch": (lambda p: torch.save({"a": Bomb()}, p), "cannot be read as safet"),
    "is a pickle": (lambda p: p.write_bytes(pickle.dumps(Bomb())), "cannot be read as safetensors"),
}  # fmt: skip

RUNS = {
    "learner.json": {
        "is of a later version": (json_of(lambda a: a.update(format=99)), "format 99, this vers"),
        "lacks its classes": (json_of(lambda a: a.pop("classes")), "no 'classes' in the saved"),
        "has a number as classes": (json_of(lambda a: a.update(classes=7)), "run-n-way/model"),
        "has other classes": (json_of(lambda a: a.update(classes=["a"])), "run-n-way/model"),
        "has no shape": (json_of(lambda a: a.update(shape="wide")), "run-n-way/model"),
        "is huge": (json_of(lambda a: a.update(shape=[1, 10**6, 10**6])), "run-n-way/model"),
        "has a large shape": (json_of(lambda a: a.update(shape=[1, 10**5, 10**5])), "GB of memory"),
        "has settings of no kind": (json_of(lambda a: a.update(settings=[1])), "run-n-way/model"),
        "has an unknown setting": (setting(ta=1), "unknown option of pfpl 'ta'"),
        "is of an unknown method": (setting(method="x"), "unknown method 'x'"),
        "has another size": (setting(channels=9), "run-n-way/model"),
        "has a NaN setting": (setting(lr=NAN), "lr is nan"),
    },
    "state of a learner": {
        "has one byte changed": (
            lambda p: p.write_bytes(p.read_bytes()[:-1] + b"\x01"), "cannot be trusted: it has"),
        "lacks a parameter": (
            learner(lambda a: a.pop(next(n for n in a if "encoder" in n))), "run-n-way/model"),
        "has another shape": (
            learner(lambda a: a.update({n: t[:1].clone() for n, t in a.items() if t.ndim > 2})),
            "run-n-way/model"),
        "has bytes as numbers": (
            learner(lambda a: a.update({n: t.to(torch.uint8) for n, t in a.items()})),
            "run-n-way/model"),
    },
    "image run.json": {
        "lacks its settings": (json_of(lambda a: a.pop("settings")), "no settings in it"),
        "lacks its models": (json_of(lambda a: a.pop("views")), "no views in it"),
        "has a number as data": (json_of(lambda a: a.update(data=7)), "no data in it"),
        "has a word as clients": (json_of(lambda a: a.update(clients="x")), "no clients in it"),
    },
    "image rounds.csv": {
        "lacks a column": ( replaced("bytes_up", "up"), "no column 'bytes_up'"),
        "has words for numbers": ( replaced("\n1,", "\none,"), "no numbers in column"),
    },
    "partition.csv": {
        "lacks a column": ( replaced("samples", "n"), "no column 'samples'"),
        "has words for numbers": ( replaced("\n0,", "\nnone,"), "no numbers in colu"),
    },
    "stages.csv": {
        "lacks a column": ( replaced("right", "r"), "no column 'right'"),
        "has words for numbers": ( replaced("\n1,", "\none,"), "no numbers in colu"),
    },
}  # fmt: skip

BEGUN = {
    "is of a later version": (json_of(lambda a: a.update(format=99)), "format 99, this version"),
    "has settings of no kind": (begun(lambda a: a.update(settings=[1])), "settings"),
    "lacks its method": (begun(lambda a: a["settings"].pop("method")), "method"),
    "lacks its label": (begun(lambda a: a.pop("label")), "label"),
    "has an unknown setting": (
        begun(lambda a: a["settings"].update(ta=1)), "unknown option of .* 'ta'"
    ),
    "has a negative setting": (begun(lambda a: a["settings"].update(lr=-1)), "lr is -1"),
}  # fmt: skip

GRID = (
    'task = "images"\nmethods = ["solo"]\n{}\n[settings]\nsize = 8\nclients = 2\n{}\n'
    "[scenarios]\n{}\n"
)


def grid(top='data = ["digits8x8"]', settings="", scenarios='a = {ways = 3}\n"b" = {}'):
    return text(GRID.format(top, settings, scenarios))


BENCHMARK = {
    "has no data": (grid(top=""), "no data, and scenario 'a' names none"),
    "has a number as data": (grid(top="data = 3"), "data is 3; it must be a list of names"),
    "has an unknown key": (grid(top='date = ["x"]'), "unknown key 'date'"),
    "has a negative setting": (grid(settings="ways = -1"), "ways is -1; it must be positive"),
    "has a NaN setting": (grid(settings="lr = nan"), "lr is nan"),
    "has an endless setting": (grid(settings=f"rounds = 1{'0' * 30}"), "rounds is 1e.30; it must"),
    "has a setting of a forecast": (grid(settings="closeness = 3"), "unknown option .*'closeness'"),
    "has a scenario of no kind": (grid(scenarios="a = 3"), "scenarios is .*it must be tables of"),
    "has a scenario twice": (grid(scenarios="a = {}\na = {}"), "is not TOML"),
    "has scenarios alike": (grid(scenarios='"n=3" = {}\n"n 3" = {}'), "names that differ only in"),
    "has an unknown setting in one": (grid(scenarios="a = {way = 3}"), "unknown option .* 'way'"),
}

TABLES = {
    "picture": FOLDER, "images.npz": NPZ, **FILES, "backbone": WEIGHTS, **RUNS,
    "settings.json": BEGUN, "image settings.json": BEGUN, "images.toml": BENCHMARK,
}  # fmt: skip
CASES = [(door, damage) for door, damages in TABLES.items() for damage in damages]


@pytest.mark.parametrize(("door", "damage"), CASES)
def test_impossible_images_are_refused(open_door, refused, tmp_path, door, damage):
    opened = open_door(door)
    change, expected = TABLES[door][damage]
    change(opened.path)
    message = refused(*opened.words)
    if not re.search(expected, message) or not any(p in message for p in opened.path.parts):
        pytest.fail(f"expected {expected!r} in {message!r}", False)
    assert not (tmp_path / "pickle was loaded").exists()
