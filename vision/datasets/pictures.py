"""Decoding of image files into one tensor."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from data_prep.errors import InputError, check_regular, reading
from data_prep.limits import check_expansion, check_size

EXTENSIONS = {".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".gif"}
THREADS = 4
PIXEL = 8
"""Bytes of memory for a pixel while it is decoded."""

LARGE, LARGE_SIZE = threading.Lock(), 2**22
"""Images with more pixels than this are decoded one at a time, to limit memory."""


def decode(paths: Sequence[Path], size: int | None, source: str) -> Tensor:
    """Decode image files as RGB, in parallel threads: Pillow releases the interpreter's lock.

    Args:
        paths: at least one file.
        size: height and width of all; an image of another size is resized (bilinear, antialiased,
            proportions not kept). None if all files have the same size.
        source: advice for a damaged file, for messages.

    Returns:
        `(n, 3, height, width)` uint8.

    Raises:
        InputError: if a file is damaged or has more pixels than Pillow accepts (89 million), if
            sizes differ and `size` is None, or if the images would not fit in memory.
    """
    with warnings.catch_warnings():  # Warning filters are shared by all threads.
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
        try:
            pixels = _decode_one(paths[i], size, source, (width, height))
        except _OtherSize as e:
            raise InputError(
                f"{paths[i]}: {e}, but {paths[0]} is {height} × {width}; give the size of all "
                "images, e.g. 64"
            ) from e
        images[i] = torch.from_numpy(pixels).permute(2, 0, 1)

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(put, range(len(paths))):
            pass
    return images


class _OtherSize(InputError):
    """Error for an image whose size differs from that of the first one."""


def _decode_one(
    path: Path, size: int | None, source: str, expected: tuple[int, int] | None = None
) -> np.ndarray:
    """Decode one file to `(height, width, 3)`; of several frames only the first."""
    check_regular(path, "image", source)
    with reading(path, "as an image", source), Image.open(path) as file:
        width, height = file.size
        if size is None and expected not in (None, file.size):
            raise _OtherSize(f"{height} × {width}")
        check_expansion(PIXEL * width * height, path, f"{path}: {height} × {width} pixels")
        with LARGE if width * height > LARGE_SIZE else nullcontext():
            picture = file if file.mode == "RGB" else file.convert("RGB")
            if size is not None and picture.size != (size, size):
                picture = picture.resize((size, size), Image.Resampling.BILINEAR)
            return np.array(picture)
