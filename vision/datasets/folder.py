"""Image files in folders that are named after class, domain and part: search, checks, decoding."""

from __future__ import annotations

import logging
import os
import threading
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from data_prep.base.errors import InputError, as_text, check_regular, reading, some
from data_prep.base.limits import check_expansion, check_size
from data_prep.base.registry import listed
from vision.datasets.image_set import ImageSet, check_trained, hold_out

log = logging.getLogger(__name__)

EXTENSIONS = {".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".gif"}
LARGE, LARGE_SIZE = threading.Lock(), 2**22
"""Images with more pixels than this are decoded one at a time, to limit memory."""


def decode(paths: Sequence[Path], size: int | None, source: str) -> Tensor:
    """Decode image files as RGB in parallel threads: `(n, 3, height, width)` uint8.

    With a `size`, others are resized (bilinear, antialiased, proportions not kept); without one,
    all must be equal. Images are turned as their EXIF data say; transparent parts become white.
    More than 8 bits a value are an error. Pillow releases the interpreter's lock, and refuses more
    than 89 million pixels.
    """
    what = f"{paths[0]} and {len(paths) - 1} more images"
    if size is not None:
        check_size(len(paths) * 3 * size * size, f"{what} at {size} × {size} pixels")
    with warnings.catch_warnings():  # Warning filters are shared by all threads.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", "Corrupt EXIF")
        first = _decode_one(paths[0], size, source)
        height, width = first.shape[:2]
        check_size(len(paths) * first.size, what)
        images = torch.empty(len(paths), 3, height, width, dtype=torch.uint8)

        def put(i: int) -> None:
            pixels = _decode_one(paths[i], size, source, (paths[0], width, height))
            images[i] = torch.from_numpy(pixels).permute(2, 0, 1)

        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(put, range(len(paths))):
                pass
    return images


def grey(images: Tensor) -> Tensor:
    """Return the luminance of RGB images, as Pillow does: `(n, 1, height, width)`."""
    weights = torch.tensor([0.299, 0.587, 0.114])
    return torch.einsum("nchw,c->nhw", images.float(), weights)[:, None].round().to(torch.uint8)


def _decode_one(
    path: Path, size: int | None, source: str, first: tuple[Path, int, int] | None = None
) -> np.ndarray:
    """Decode one file to `(height, width, 3)`; of several frames only the first.

    Without a `size`, the size of the `first` image, after its path, is expected.
    """
    check_regular(path, "image", source)
    with reading(path, "as an image", source), Image.open(path) as file:
        width, height = file.size
        if file.mode[0] in "IF":
            raise InputError(
                f"{path}: has values of more than 8 bits (mode {file.mode}), whose range the file "
                "does not tell; expected 8 bits: save all images so, scaled alike"
            )
        # A pixel needs 8 bytes of memory while it is decoded.
        check_expansion(8 * width * height, path, f"{path}: {height} × {width} pixels")
        with LARGE if width * height > LARGE_SIZE else nullcontext():
            ImageOps.exif_transpose(file, in_place=True)
            if size is None and first is not None and file.size != first[1:]:
                other, width, height = first
                raise InputError(
                    f"{path}: {file.height} × {file.width}, but {other} is {height} × {width}; "
                    "give the size of all images, e.g. 64"
                )
            picture = _as_rgb(file)
            if size is not None and picture.size != (size, size):
                picture = picture.resize((size, size), Image.Resampling.BILINEAR)
            return np.array(picture)


def _as_rgb(picture: Image.Image) -> Image.Image:
    """Convert an image to RGB; transparent parts become white, as their colour is arbitrary."""
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    picture = picture.convert("RGBA")
    page = Image.new("RGB", picture.size, "white")
    page.paste(picture, mask=picture.getchannel("A"))
    return page


REMEDY = "give a folder with [train or test/][DOMAIN/]CLASS/*.jpg"


def image_files(tops: Iterable[Path]) -> list[Path]:
    """Return the sorted image files below folders; names that begin with a dot are ignored.

    A warning names other files next to images. An unreadable folder, a link to a folder, a
    folder without images next to one that has some, and what is neither file nor folder (such as a
    dangling link) are errors.
    """
    images: list[Path] = []
    others: list[Path] = []
    leaves: dict[Path, dict[Path, bool]] = defaultdict(dict)
    for top in tops:
        for here, folders, files in os.walk(top, onerror=_refuse):
            # Archives made on a Mac contain a folder of other data.
            folders[:] = [f for f in folders if not f.startswith(".") and f != "__MACOSX"]
            for file in (f for f in files if not f.startswith(".")):
                check_regular(Path(here, file), "image or folder", "replace or remove it")
            found = [Path(here, f) for f in (*files, *folders) if _is_image(f)]
            if link := next((f for f in folders if Path(here, f).is_symlink()), None):
                raise InputError(
                    f"{Path(here, link)}: is a link to a folder, and links are not followed; "
                    "replace it with the folder itself"
                )
            if not folders:
                leaves[Path(here).parent][Path(here)] = bool(found)
            images += found
            if found:
                others += [Path(here, f) for f in files if f[0] != "." and not _is_image(f)]
    if others:
        endings = ", ".join(sorted(EXTENSIONS))
        log.warning("left out: %s; names of images end in %s", some(sorted(others), 2), endings)
    for beside in leaves.values():
        if any(beside.values()) and (empty := [f for f, full in beside.items() if not full]):
            raise InputError(
                f"{min(empty)}: found no images (*.jpg, *.png, …), which neighbouring folders "
                "have; add its images or remove it"
            )
    return sorted(images)


def check_links(folder: Path, paths: Sequence[Path]) -> None:
    """Refuse links out of a folder, which could expose any file of the system."""
    home = os.path.realpath(folder)
    for path in paths:
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(home):
            raise InputError(
                f"{path}: is a link out of {folder}; replace it with the image itself (cp -L)"
            )


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in EXTENSIONS and not name.startswith(".")


def _refuse(e: OSError) -> None:
    raise InputError(f"{e.filename}: cannot be read ({e.strerror}); allow it or remove it") from e


SPLITS: Mapping[str, bool] = {
    **dict.fromkeys(("train", "training"), False),
    **dict.fromkeys(("test", "testing", "val", "valid", "validation"), True),
}
"""Folder names of the parts of a set, in lower case: True for testing, False for training."""


@dataclass(frozen=True)
class Tree:
    """Image files with class, domain and part, before they are decoded.

    Attributes:
        folder: folder of the files.
        paths: the files, sorted.
        classes: class of each file.
        domains: domain of each file; "" if the folders have no domains.
        is_test: part of each file; None if the folders have no parts.
        source: advice for a damaged file, for messages.
    """

    folder: Path
    paths: Sequence[Path]
    classes: Sequence[str]
    domains: Sequence[str]
    is_test: Sequence[bool] | None
    source: str

    def read(self, name: str, size: int | None = None) -> ImageSet:
        """Decode the files into a set; its only domain, if the folders have none, has its name.

        Without a `size`, the height and width, all files must have the same.
        """
        check_links(self.folder, self.paths)
        for kind, names in (("class", self.classes), ("domain", self.domains)):
            # Tables and figures cannot contain it.
            if odd := next((name for name in names if as_text(name) != name), None):
                raise InputError(
                    f"{self.folder}: the {kind} '{as_text(odd)}' has a name that is not UTF-8; "
                    "rename its folder"
                )
        class_names, labels = _index(self.classes)
        domain_names, domains = _index([d or name for d in self.domains])
        if self.is_test is None:
            is_test = hold_out(labels, domains)
            split = "0.2 of each class and domain for testing, seed 0"
        else:
            is_test, split = torch.tensor(self.is_test), "split by folder"
            check_trained(as_text(str(self.folder)), labels, is_test, class_names)
        return ImageSet(
            name=name,
            images=decode(self.paths, size, self.source),
            labels=labels,
            domains=domains,
            is_test=is_test,
            class_names=class_names,
            domain_names=domain_names,
            source=f"image files of {as_text(self.folder.name)}, {split}",
        )


def find_images(
    folder: Path,
    source: str,
    *,
    domains: Sequence[str] | None = None,
    ignored: Sequence[str] = (),
    splits: Mapping[str, bool] = SPLITS,
) -> Tree:
    """Find the image files below a folder: `[domain/]class/*.jpg`, a part anywhere above class.

    Files without an image's extension and names that begin with a dot are ignored. Case does not
    matter in the names of parts.

    Args:
        folder: folder to search.
        source: advice if there are no images, for messages.
        domains: the domains' folders, if there are other folders too; None takes all.
        ignored: names of folders to skip, such as Office-31's `images`.
        splits: folder names of the parts; True is test.
    """
    tops = [folder] if domains is None else [folder / d for d in domains]
    paths = image_files(tops)
    if not paths:
        raise InputError(f"{folder}: found no images (*.jpg, *.png, …); {source}")
    parts, named = [], []
    for path in paths:
        # A Mac may store é as two characters; equal names must be equal in all domains and parts.
        above = map(partial(unicodedata.normalize, "NFC"), path.relative_to(folder).parts[:-1])
        levels = [p for p in above if p not in ignored]
        # The innermost folder is the class, even if its name is that of a part, such as `train`.
        parts.append(tuple(p.lower() for p in levels[:-1] if p.lower() in splits))
        named.append([p for p in levels[:-1] if p.lower() not in splits] + levels[-1:])
    for path, levels in zip(paths, named, strict=True):
        if len(levels) != len(named[0]) or len(levels) not in (1, 2):
            raise InputError(
                f"{path}: lies under {len(levels)} folders that name a domain or class, "
                f"{paths[0]} under {len(named[0])}; expected class/ or domain/class/ for all"
            )
    if all(levels[-1].lower() in splits for levels in named):
        raise InputError(
            f"{paths[0]}: its folder should name a class, but all images lie in folders of parts "
            f"({some(sorted({levels[-1] for levels in named}))}); {REMEDY}"
        )
    return Tree(
        folder=folder,
        paths=paths,
        classes=[levels[-1] for levels in named],
        domains=[levels[0] if len(levels) == 2 else "" for levels in named],
        is_test=_test_parts(folder, parts, splits),
        source=source,
    )


def _test_parts(
    folder: Path, parts: Sequence[tuple[str, ...]], splits: Mapping[str, bool]
) -> list[bool] | None:
    """Return whether each file is for testing, or None without a test folder."""
    found = {part[0] if len(part) == 1 else " and ".join(part) for part in parts}
    named = ", ".join(sorted(name or "(none)" for name in found))
    if not found <= set(splits) | {""}:
        raise InputError(f"{folder}: an image lies in the parts {named} at once; choose one")
    tests = [name for name in found if name and splits[name]]
    trains = [name for name in found if name and not splits[name]]
    if not tests and ("" not in found or not trains):
        return None
    if "" in found or not trains or len(tests) > 1:
        raise InputError(
            f"{folder}: the images' parts are {named}; expected a training and one test part, or "
            "no such folders at all"
        )
    return [splits[part[0]] for part in parts]


def _index(names: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    """Return the sorted distinct names and each item's index among them."""
    unique, index = np.unique(np.array(names, dtype=object), return_inverse=True)
    return tuple(unique), torch.from_numpy(index)


@listed
def folder(root: Path, *, size: int | None = None) -> ImageSet:
    """Any folder of images: `[DOMAIN/]CLASS/*.jpg`, with `train/` and `test/` before or between."""
    if not root.is_dir():
        raise InputError(f"{root}: no folder here; {REMEDY}")
    tree = replace(find_images(root, REMEDY), source="put a whole image in its place or remove it")
    return tree.read(as_text(root.resolve().name), size)
