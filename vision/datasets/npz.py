"""Any data set in one `.npz` file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from data_prep.base.errors import InputError, check_regular, no_file, reading, some
from data_prep.base.limits import check_expansion
from data_prep.base.registry import listed
from data_prep.readers.npz import Header
from data_prep.readers.npz import read_npz as npz_arrays
from vision.datasets.image_set import ImageSet, check_trained, hold_out

NEEDED, OTHERS = ("images", "labels"), ("domains", "is_test", "class_names", "domain_names")
KEYS = f"{', '.join(NEEDED)}[, {', '.join(OTHERS)}]"
REMEDY = "write it with numpy.savez(file, images=…, labels=…)"


@listed
def npz(root: Path) -> ImageSet:
    """Any data set in a NumPy file: arrays `images, labels[, domains, is_test, *_names]`."""
    if not root.is_file():
        raise no_file(root, ".npz file", f"give a file with {KEYS}")
    return read_image_npz(root, root.stem)


def find_npz(root: Path, name: str) -> Path | None:
    """Return the file `NAME*.npz` of a folder, or None; `cifar100.npz` is not one of `cifar10`."""
    files = [p for p in sorted(root.glob(f"{name}*.npz")) if not p.name[len(name)].isdigit()]
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise InputError(f"{root}: {names} may all be {name}; keep one of them")
    for path in files:
        check_regular(path, ".npz file", "replace it with the file itself, or remove it")
    return files[0] if files else None


def read_image_npz(path: Path, name: str) -> ImageSet:
    """Read a set from a NumPy file.

    The arrays: `images` uint8 `(n, height, width)`, `(n, height, width, 1 or 3)` or
    `(n, 1 or 3, height, width)`; `labels` and `domains` `(n,)` integers; `is_test` `(n,)` bool;
    `class_names` and `domain_names` text, by default the numbers. Nothing is unpickled.
    """
    with reading(path, f"as a NumPy file with {KEYS}", REMEDY), ZipFile(path) as file:
        keys = [key.removesuffix(".npy") for key in file.namelist()]
    if missing := set(NEEDED) - set(keys):
        raise InputError(f"{path}: has no {' and no '.join(sorted(missing))}; expected {KEYS}")
    if unknown := set(keys) - {*NEEDED, *OTHERS}:
        raise InputError(f"{path}: has an array {min(unknown)!r:.60}; expected {KEYS}; {REMEDY}")
    found = npz_arrays(path, keys, lambda headers: _check(headers, path))
    arrays = dict(zip(keys, found, strict=True))
    try:
        return _image_set(arrays, name, path.name)
    except InputError as e:
        raise InputError(f"{path}: ", e, f"; {REMEDY}") from e


def _check(found: Mapping[str, Header], path: Path) -> None:
    """Raise an error if arrays are inconsistent, before they are read."""
    images = found["images"]
    for key in ("labels", "domains", "is_test"):
        if key in found and found[key].shape != images.shape[:1]:
            raise InputError(
                f"{path}: {key} are {found[key].dtype} {found[key].shape}; expected "
                f"{images.shape[:1]}, one for each image; {REMEDY}"
            )
    if images.dtype != np.uint8 or len(images.shape) not in (3, 4):
        raise InputError(
            f"{path}: images are {images.dtype} {images.shape}; expected uint8 (n, height, width) "
            f"or (n, height, width, channels); {REMEDY}"
        )
    # An image also needs 64 bytes of memory for its label, domain and split.
    check_expansion(images.n_bytes + 64 * images.shape[0], path)


def _image_set(arrays: dict[str, np.ndarray], name: str, file: str) -> ImageSet:
    images = arrays["images"] if arrays["images"].ndim == 4 else arrays["images"][..., None]
    if images.shape[-1] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    labels = _whole_numbers("labels", arrays["labels"])
    if not len(labels):
        raise InputError("has no labels; expected one for each image")
    domains = torch.zeros_like(labels)
    if "domains" in arrays:
        domains = _whole_numbers("domains", arrays["domains"])
    split = "split as in the file"
    if "is_test" in arrays:
        if arrays["is_test"].dtype != bool:
            raise InputError(f"is_test is {arrays['is_test'].dtype}; expected bool")
        is_test = torch.from_numpy(arrays["is_test"])
    else:
        is_test = hold_out(labels, domains)
        split = "0.2 of each class and domain for testing, seed 0"
    found = ImageSet(
        name=name,
        images=torch.from_numpy(np.ascontiguousarray(images)),
        labels=labels,
        domains=domains,
        is_test=is_test,
        class_names=_names(arrays, "class_names", labels),
        domain_names=_names(arrays, "domain_names", domains) if "domains" in arrays else (name,),
        source=f"{file}, {split}",
    )
    check_trained(name, labels, is_test, found.class_names)
    return found


def _whole_numbers(key: str, values: np.ndarray) -> Tensor:
    if values.dtype.kind not in "iu":
        raise InputError(f"{key} are {values.dtype} {values.shape}; expected whole numbers (n,)")
    return torch.from_numpy(values.astype(np.int64))


def _names(arrays: dict[str, np.ndarray], key: str, values: Tensor) -> tuple[str, ...]:
    if key not in arrays:
        numbers = values.unique().tolist()
        if numbers != list(range(len(numbers))):
            raise InputError(
                f"has no {key} and the numbers {some(numbers)}; number from 0 to "
                f"{len(numbers) - 1} or add {key}"
            )
        return tuple(map(str, numbers))
    names = arrays[key]
    if names.dtype.kind not in "Uiu" or names.ndim != 1:
        raise InputError(f"{key} are {names.dtype} {names.shape}; expected text (n,)")
    return tuple(map(str, names))
