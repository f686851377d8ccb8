"""Data sets of digits: scikit-learn's, MNIST, USPS, SVHN, SYN and Digits-DG."""

from __future__ import annotations

import io
from math import prod
from pathlib import Path

import numpy as np
import torch

from data_prep.base.errors import InputError, reading
from data_prep.base.limits import check_expansion
from data_prep.base.registry import listed
from vision.datasets.domains import DomainFolders
from vision.datasets.files import find_path, open_file, read_bytes, read_digits_mat
from vision.datasets.folder import SPLITS, find_images
from vision.datasets.image_set import ImageSet, hold_out

DIGITS = tuple("0123456789")

Part = tuple[np.ndarray, np.ndarray]
"""Images `(n, channels, height, width)` uint8 and labels `(n,)`."""


def digit_set(name: str, train: Part, test: Part, source: str) -> ImageSet:
    """Build a set of digits from its official training and test part; its domain has its name."""
    if train[0].shape[1:] != test[0].shape[1:]:
        raise InputError(
            f"{name}: training images are {train[0].shape[1:]}, test images {test[0].shape[1:]}; "
            "expected one size; get the files again"
        )
    images, labels = (
        torch.from_numpy(np.concatenate(two)) for two in zip(train, test, strict=True)
    )
    is_test = torch.arange(len(labels)) >= len(train[1])
    return ImageSet.of_one_domain(name, images, labels.long(), is_test, DIGITS, source)


@listed
def digits8x8() -> ImageSet:
    """Digits 8 × 8: 1,797 handwritten digits from scikit-learn; no files are needed.

    The test part of Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine
    Learning Repository, 1998. Values from 0 to 16 are scaled to 0 to 255 and rounded.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    labels = torch.from_numpy(bunch.target).long()
    images = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8))[:, None]
    is_test = hold_out(labels, torch.zeros_like(labels))
    source = "scikit-learn's digits, 0.2 of each class for testing, seed 0"
    return ImageSet.of_one_domain("digits8x8", images, labels, is_test, DIGITS, source)


MNIST_SOURCE = (
    "get the four official files, e.g. with torchvision.datasets.MNIST(folder, download=True), and "
    "give that folder"
)


@listed
def mnist(root: Path) -> ImageSet:
    """MNIST: 60,000 training and 10,000 test images, 28 × 28, white on black.

    LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document Recognition",
    Proceedings of the IEEE 86(11), 1998. Read from the four official IDX files, plain or `.gz`, in
    `root` or its `MNIST/raw` (torchvision's layout).
    """
    train, test = (_part(root, part) for part in ("train", "t10k"))
    return digit_set("mnist", train, test, "MNIST, official IDX files and split")


def _part(root: Path, part: str) -> Part:
    folders = ("", "MNIST/raw", "MNIST", "mnist")
    names = f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"
    files = [find_path(root, (name, f"{name}.gz"), folders, MNIST_SOURCE) for name in names]
    images, labels = read_idx(files[0], 3), read_idx(files[1], 1)
    if images.shape != (len(labels), *images.shape[1:]) or not images.size or labels.max() > 9:
        raise InputError(
            f"{files[0]}: {len(images)} images, but {len(labels)} labels up to "
            f"{labels.max(initial=0)} in {files[1].name}; expected one digit per image; "
            f"{MNIST_SOURCE}"
        )
    return images[:, None], labels


def read_idx(path: Path, dims: int) -> np.ndarray:
    """Read the array of an IDX file of unsigned bytes, plain or `.gz`.

    The layout: bytes 0, 0, 8 (unsigned byte), number of dimensions; each dimension as a big-endian
    32-bit integer; the data, last dimension fastest.
    """
    expected = f"an IDX file of unsigned bytes with {dims} dimensions"
    with reading(path, f"as {expected}", MNIST_SOURCE), open_file(path) as file:
        header = file.read(4 + 4 * dims)
        if header[:4] != bytes([0, 0, 8, dims]) or len(header) < 4 + 4 * dims:
            raise InputError(
                f"{path}: begins with {header[:4]!r}; expected {expected}; {MNIST_SOURCE}"
            )
        shape = tuple(int(n) for n in np.frombuffer(header, ">u4", dims, 4))
        check_expansion(prod(shape), path)
        data = file.read(prod(shape) + 1)
    if len(data) != prod(shape):
        found = "more" if len(data) > prod(shape) else f"{len(data):,}"
        raise InputError(
            f"{path}: has {found} bytes of data; its header {shape} declares {prod(shape):,}; "
            f"{MNIST_SOURCE}"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


USPS_SOURCE = (
    "get usps.bz2 and usps.t.bz2 from "
    "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html"
)


@listed
def usps(root: Path) -> ImageSet:
    """USPS: 7,291 training and 2,007 test images, 16 × 16, white on black.

    Hull, "A Database for Handwritten Text Recognition Research", IEEE TPAMI 16(5), 1994. Read from
    the two LIBSVM files, `.bz2` or plain: labels 1 to 10 for the digits 0 to 9, then 256 values in
    [-1, 1], which are scaled to 0 to 255 and rounded.
    """
    train, test = (
        read_libsvm(find_path(root, (f"{name}.bz2", name), ("", "USPS", "usps"), USPS_SOURCE))
        for name in ("usps", "usps.t")
    )
    return digit_set("usps", train, test, "USPS, LIBSVM's files, official split")


def read_libsvm(path: Path) -> Part:
    """Read images `(n, 1, 16, 16)` uint8 and digits `(n,)` from a file, plain or `.bz2`."""
    from sklearn.datasets import load_svmlight_file

    def cost(text: bytes) -> int:
        """Return the bytes of memory for a part; lines may omit values, which are zeros."""
        return 8 * len(text) + 16 * 256 * text.count(b"\n")

    expected = "lines of a label from 1 to 10 and 256 values in [-1, 1]"
    with reading(path, f"as {expected}", USPS_SOURCE):
        text = io.BytesIO(read_bytes(path, cost))
        pixels, labels = load_svmlight_file(text, n_features=256, zero_based=False)
    x = pixels.toarray()
    if not (len(x) and abs(x).max() <= 1) or not np.isin(labels, np.arange(1, 11)).all():
        largest = abs(x).max(initial=0)
        found = f"{len(x)} lines, labels {np.unique(labels)!s:.60}, values up to {largest}"
        raise InputError(f"{path}: {found}; expected {expected}; {USPS_SOURCE}")
    images = np.rint((x + 1) * 127.5).astype(np.uint8).reshape(-1, 1, 16, 16)
    return images, labels.astype(np.int64) - 1


@listed
def svhn(root: Path) -> ImageSet:
    """SVHN: 73,257 training and 26,032 test images, 32 × 32, RGB, cropped from street views.

    Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature Learning", NIPS
    Workshop on Deep Learning and Unsupervised Feature Learning, 2011. Read from the official
    MATLAB files; the 531,131 extra images are not used. In the files, digit 0 has the label 10.
    """
    source = (
        "get train_32x32.mat and test_32x32.mat (format 2, cropped digits) from "
        "http://ufldl.stanford.edu/housenumbers/"
    )
    train, test = (
        read_digits_mat(find_path(root, (name,), ("", "SVHN", "svhn"), source), source)
        for name in ("train_32x32.mat", "test_32x32.mat")
    )
    return digit_set("svhn", train, test, "SVHN, official cropped digits and split")


SYN_SOURCE = (
    "get SynthDigits from the authors' page, http://yaroslav.ganin.net, or use syn-generated, "
    "which needs no files"
)


@listed
def syn(root: Path, *, size: int | None = None) -> ImageSet:
    """SYN: 479,400 training and 9,553 test images, 32 × 32, RGB.

    Ganin, Lempitsky, "Unsupervised Domain Adaptation by Backpropagation", ICML 2015: digits of
    Windows fonts in many positions, colours and degrees of blur. Read from the authors'
    `synth_train_32x32.mat` and `synth_test_32x32.mat`, or else from a folder `syn` (or `SYN`) of
    image files, `train/3/*.png` and `test/3/*.png` (also `imgs_train` and `imgs_valid`).
    """
    names = ("synth_train_32x32.mat", "imgs_train", "train")
    folders = ("SynthDigits", "synth_digits", "SYN", "syn", "")
    file = find_path(root, names, folders, SYN_SOURCE, Path.exists)
    if file.is_dir():
        splits = {**SPLITS, "imgs_train": False, "imgs_valid": True}
        return find_images(file.parent, SYN_SOURCE, splits=splits).read("syn", size)
    test_file = find_path(file.parent, ("synth_test_32x32.mat",), ("",), SYN_SOURCE)
    train, test = read_digits_mat(file, SYN_SOURCE), read_digits_mat(test_file, SYN_SOURCE)
    return digit_set("syn", train, test, "SYN, the authors' files and split")


@DomainFolders(
    domains=("mnist", "mnist_m", "svhn", "syn"),
    folders=("digits_dg", "digits-dg", "Digits-DG", ""),
    source="get Digits-DG from https://github.com/KaiyangZhou/Dassl.pytorch (DATASETS.md)",
)
def digits_dg() -> None:
    """Digits-DG: 24,000 images of 10 digits in 4 domains, 32 × 32, RGB.

    Zhou, Yang, Hospedales, Xiang, "Deep Domain-Adversarial Image Generation for Domain
    Generalisation", AAAI 2020. 600 images of each digit in MNIST, MNIST-M, SVHN and SYN. Read from
    the folders `DOMAIN/train/DIGIT` and `DOMAIN/val/DIGIT`, whose split is used, or from a file
    `digits-dg*.npz`.
    """
