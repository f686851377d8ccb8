"""Image files decoded into one tensor."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from data_prep.errors import InputError, check_regular, reading
from data_prep.limits import check_size

EXTENSIONS = {".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".gif"}
THREADS = 4


def decode(paths: Sequence[Path], size: int | None, source: str) -> Tensor:
    """Decode image files as RGB, in parallel: Pillow works outside the interpreter's lock.

    Args:
        paths: at least one file.
        size: height and width of all; an image of another size is resized (bilinear, antialiased,
            proportions not kept). None if all are of one size already.
        source: what to do about a damaged file.

    Returns:
        `(n, 3, height, width)` uint8.

    Raises:
        InputError: if a file is damaged or of more pixels than Pillow trusts (89 million), if sizes
            differ and `size` is None, or if all would not fit in memory.
    """
    with warnings.catch_warnings():  # All threads share them.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        return _decode_all(paths, size, source)


def _decode_all(paths: Sequence[Path], size: int | None, source: str) -> Tensor:
    what = f"{paths[0]} and {len(paths) - 1} more images"
    if size is not None:
        check_size(len(paths) * 3 * size * size, f"{what} at {size} × {size} pixels")
    first = _decode_one(paths[0], size, source)
    height, width = first.shape[:2]
    check_size(len(paths) * first.size, what)
    images = torch.empty(len(paths), 3, height, width, dtype=torch.uint8)

    def put(i: int) -> None:
        pixels = _decode_one(paths[i], size, source)
        if pixels.shape != first.shape:
            raise InputError(
                f"{paths[i]}: {pixels.shape[0]} × {pixels.shape[1]}, but {paths[0]} is "
                f"{height} × {width}; give the size that all images shall have, e.g. 64"
            )
        images[i] = torch.from_numpy(pixels).permute(2, 0, 1)

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(put, range(len(paths))):
            pass
    return images


def _decode_one(path: Path, size: int | None, source: str) -> np.ndarray:
    check_regular(path, "image", source)
    with reading(path, "as an image", source), Image.open(path) as file:
        picture = file.convert("RGB")
        if size is not None and picture.size != (size, size):
            picture = picture.resize((size, size), Image.Resampling.BILINEAR)
        return np.array(picture)
