"""Sets of digits, from files written here byte by byte."""

import bz2
import gzip
import struct

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from scipy.io import savemat
from sklearn.datasets import load_digits

from data_prep.base.errors import InputError
from vision.datasets import DATASETS, load
from vision.datasets.syn_generated import FONTS, _draw_mask, _font, syn_generated


def idx(values, shape):
    header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return header + bytes(values)


@pytest.fixture
def mnist_dir(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    parts = {
        "train-images-idx3-ubyte": idx(range(18), (3, 2, 3)),
        "train-labels-idx1-ubyte": idx([7, 0, 9], (3,)),
        "t10k-images-idx3-ubyte": idx(range(100, 106), (1, 2, 3)),
        "t10k-labels-idx1-ubyte": idx([4], (1,)),
    }
    for name, data in parts.items():
        (folder / name).write_bytes(data)
    return tmp_path


def test_mnist(mnist_dir):
    images = load("mnist", mnist_dir)
    assert images.images[1].tolist() == [[[6, 7, 8], [9, 10, 11]]]
    assert images.labels.tolist() == [7, 0, 9, 4]
    assert images.is_test.tolist() == [False, False, False, True]
    assert images.domain_names == ("mnist",)
    assert images.class_names == tuple("0123456789")


def test_mnist_may_be_gzipped(mnist_dir):
    plain = load("mnist", mnist_dir)
    for path in (mnist_dir / "MNIST/raw").iterdir():
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert torch.equal(load("mnist", mnist_dir / "MNIST/raw").images, plain.images)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (idx(range(17), (3, 2, 3)), r"17 bytes .*\(3, 2, 3\) .*18"),
        (b"\0\0\x08\x01", "begins with"),
        (b"", "begins with"),
        (idx(range(18), (18,)), "3 dimensions"),
    ],
)
def test_a_damaged_mnist_file_is_named(mnist_dir, data, message):
    (mnist_dir / "MNIST/raw/train-images-idx3-ubyte").write_bytes(data)
    with pytest.raises(InputError, match=f"train-images-idx3-ubyte: .*{message}"):
        load("mnist", mnist_dir)


def test_a_damaged_gzip_file_is_named(mnist_dir):
    path = mnist_dir / "MNIST/raw/train-images-idx3-ubyte"
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    path.with_name(path.name + ".gz").write_bytes(packed[:-9])
    with pytest.raises(InputError, match=r"idx3-ubyte.gz: .*official files"):
        load("mnist", mnist_dir)


def test_fewer_labels_than_images(mnist_dir):
    (mnist_dir / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(idx([1], (1,)))
    with pytest.raises(InputError, match=r"images-idx3-ubyte: 3 images, .* 1 labels"):
        load("mnist", mnist_dir)


def libsvm(label, values):
    return f"{label} " + " ".join(f"{i}:{v}" for i, v in values.items()) + "\n"


def test_usps(tmp_path):
    text = libsvm(1, {1: -1, 2: 1, 17: 0.5}) + libsvm(10, {256: -0.5})
    (tmp_path / "usps.bz2").write_bytes(bz2.compress(text.encode()))
    (tmp_path / "usps.t").write_text(libsvm(4, {1: 1}))
    images = load("usps", tmp_path)
    assert images.images.shape == (3, 1, 16, 16)
    assert images.labels.tolist() == [0, 9, 3]
    # Values that LIBSVM leaves out are 0, the middle of [-1, 1].
    assert images.images[0, 0, :2, :3].tolist() == [[0, 255, 128], [191, 128, 128]]
    assert images.images[1, 0, 15, 15] == 64
    assert images.is_test.tolist() == [False, False, True]


@pytest.mark.parametrize(
    "text", [libsvm(0, {1: 1}), libsvm(1, {1: 1.5}), libsvm(1, {257: 1}), "words\n", ""]
)
def test_a_damaged_usps_file_is_named(tmp_path, text):
    (tmp_path / "usps.bz2").write_bytes(bz2.compress(text.encode()))
    with pytest.raises(InputError, match=r"usps\.bz2: .*csie\.ntu"):
        load("usps", tmp_path)


def test_usps_cut_short(tmp_path):
    packed = bz2.compress(libsvm(1, {1: 1}).encode())
    (tmp_path / "usps.bz2").write_bytes(packed[:-5])
    with pytest.raises(InputError, match=r"usps\.bz2: "):
        load("usps", tmp_path)


def mat(path, labels, shift=0):
    x = np.arange(32 * 32 * 3 * len(labels)).reshape(32, 32, 3, -1) % 251 + shift
    path.parent.mkdir(exist_ok=True)
    savemat(path, {"X": x.astype(np.uint8), "y": np.array(labels)[:, None]})
    return x


def test_svhn(tmp_path):
    x = mat(tmp_path / "train_32x32.mat", [10, 3])
    mat(tmp_path / "test_32x32.mat", [9], shift=2)
    images = load("svhn", tmp_path)
    assert images.labels.tolist() == [0, 3, 9]
    assert images.images[1, 2, 5, 7] == x[5, 7, 2, 1]
    assert images.is_test.tolist() == [False, False, True]


def test_svhn_of_another_layout(tmp_path):
    savemat(tmp_path / "train_32x32.mat", {"X": np.zeros((2, 32, 32, 3), np.uint8), "y": [1, 2]})
    with pytest.raises(InputError, match=r"train_32x32\.mat: found X uint8 \(2, 32, 32, 3\)"):
        load("svhn", tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(b"MATLAB 5.0 MAT-file" * 20)
    with pytest.raises(InputError, match=r"train_32x32\.mat: .*housenumbers"):
        load("svhn", tmp_path)


def test_syn_from_the_authors_files(tmp_path):
    mat(tmp_path / "SynthDigits/synth_train_32x32.mat", [0, 1])
    mat(tmp_path / "SynthDigits/synth_test_32x32.mat", [2])
    images = load("syn", tmp_path)
    assert (images.name, images.labels.tolist()) == ("syn", [0, 1, 2])


def test_syn_from_folders(tmp_path):
    for part, digits in (("imgs_train", "0123456789"), ("imgs_valid", "07")):
        for digit in digits:
            path = tmp_path / "syn" / part / digit / "1.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (4, 4), (int(digit), 0, 0)).save(path)
    images = load("syn", tmp_path)
    assert images.class_names == tuple("0123456789")
    assert torch.equal(images.labels, images.images[:, 0, 0, 0].long())
    assert images.is_test.sum() == 2


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"digits8x8", "syn-generated"}))
def test_what_is_not_there_is_named(tmp_path, name):
    with pytest.raises(InputError, match=r"no .*(get|give|use)"):
        load(name, tmp_path / "nowhere")
    with pytest.raises(InputError, match="folder given"):
        load(name)


def test_digits8x8_is_scikit_learns():
    images, bunch = load("digits8x8"), load_digits()
    assert abs(images.images[:, 0].numpy() / 255 * 16 - bunch.images).max() < 0.04
    assert images.labels.tolist() == bunch.target.tolist()
    shares = images.labels[images.is_test].bincount() / images.labels.bincount()
    assert abs(shares - 0.2).max() < 0.004


def test_names_are_checked(tmp_path):
    with pytest.raises(InputError, match=r"'mnits'; .*: cifar10"):
        load("mnits", tmp_path)


def test_a_union_has_the_domains_of_its_sets(mnist_dir):
    images = load("digits8x8 + mnist", mnist_dir, size=12)
    assert images.images.shape[1:] == (1, 12, 12)
    assert images.domain_names == ("digits8x8", "mnist")
    assert images.name == "digits8x8+mnist"


def test_generated_images_depend_on_their_number_alone():
    few, many = syn_generated(n_images=12), syn_generated(n_images=31)
    assert torch.equal(few.images, many.images[:12])
    assert few.labels.tolist() == [*range(10), 0, 1]


def test_generated_images_are_alive():
    images = syn_generated(n_images=60, size=24).images.float()
    assert images.shape[2:] == (24, 24)
    assert images.flatten(1).std(1).min() > 8
    assert len(images.mean((2, 3)).round().unique(dim=0)) == 60


@pytest.mark.parametrize("n_images", [0, -1])
def test_some_images_must_be_asked_for(n_images):
    with pytest.raises(InputError, match="n_images"):
        syn_generated(n_images=n_images)


@pytest.mark.parametrize("font", range(len(FONTS)))
def test_the_drawn_digit_is_the_label(font):
    """Without turn, shear, shift, blur and neighbours it is the plain digit of that font."""
    u = np.array([(font + 0.5) / len(FONTS), 0, 1, 1, 0.5, 0.5, 1 / 3, 0.5, 0.5, 0, 0, 0])
    plain = []
    for digit in "0123456789":
        canvas = Image.new("L", (64, 64))
        ImageDraw.Draw(canvas).text((32, 32), digit, 255, _font(font, 38), anchor="mm")
        plain.append(np.asarray(canvas.reduce(2)).ravel().astype(float))
    for digit in range(10):
        drawn = _draw_mask(digit, u, 32).ravel()
        likeness = [np.corrcoef(drawn, other)[0, 1] for other in plain]
        assert np.argmax(likeness) == digit
        assert likeness[digit] > 0.9
