"""Digits drawn in many fonts and colours on textured backgrounds, similar to SYN."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor
from torch.nn.functional import interpolate

from data_prep.base.errors import InputError
from data_prep.base.limits import check_size
from data_prep.base.registry import listed
from stforecast.federated.core.state import generator
from vision.datasets.digits import DIGITS
from vision.datasets.image_set import ImageSet, hold_out

FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold"),
    *("DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
)
"""Fonts of matplotlib that contain digits."""

LUMINANCE = torch.tensor([0.299, 0.587, 0.114])


@listed
def syn_generated(*, size: int | None = None, n_images: int = 10_000) -> ImageSet:
    """syn-generated: digits drawn by this program, RGB; no files are needed.

    Not SYN (Ganin and Lempitsky, 2015), but similar: a digit in one of 21 fonts, rotated, sheared,
    shifted, of random size, colour and blur, often with other digits next to it, on a texture of
    random surfaces and stripes. The fonts are matplotlib's, so the images are the same on all
    machines with the same versions of matplotlib and Pillow. Image i does not depend on `n_images`.

    Args:
        size: height and width; by default 32, as in SYN.
        n_images: number of images; image i shows the digit i mod 10.
    """
    side = 32 if size is None else size
    if n_images < 1 or side < 1:
        raise InputError(f"n_images is {n_images} and size {side}; both must be 1 or more")
    check_size(n_images * 3 * side * side, f"{n_images} images of {side} × {side} pixels")
    labels = torch.arange(n_images) % len(DIGITS)
    is_test = hold_out(labels, torch.zeros_like(labels))
    images = torch.cat([_draw_batch(i, side) for i in torch.arange(n_images).split(1000)])
    source = "drawn, seed 0, 0.2 of each digit for testing"
    return ImageSet.of_one_domain("syn-generated", images, labels, is_test, DIGITS, source)


def _draw_batch(ids: Tensor, size: int) -> Tensor:
    """Draw the images with these numbers, `(batch, 3, size, size)` uint8."""
    generators = [generator(0, 0, 0, 2, int(i)) for i in ids]
    u = torch.stack([torch.rand(28, generator=g) for g in generators])
    background = _textures(u[:, :12], generators, size)
    masks = [
        _draw_mask(int(i) % 10, row, size) for i, row in zip(ids, u[:, 12:24].numpy(), strict=True)
    ]
    mask = torch.from_numpy(np.stack(masks))[:, None].float() / 255
    color, ground = u[:, 24:27], background.mean((2, 3))
    # Digits that are hard to read get nearer to black or white.
    near = (color @ LUMINANCE - ground @ LUMINANCE).abs() < 0.35
    end = (ground @ LUMINANCE < 0.5).float()[:, None].expand_as(color)
    ink = torch.where(near[:, None], color.lerp(end, 0.75), color)[:, :, None, None]
    noise = torch.stack([torch.randn(3, size, size, generator=g) for g in generators])
    noise *= 0.05 * u[:, 27, None, None, None]
    drawn = background + mask * (ink - background) + noise
    return (255 * drawn.clamp(0, 1)).round().to(torch.uint8)


def _textures(u: Tensor, generators: list[torch.Generator], size: int) -> Tensor:
    """Draw backgrounds `(batch, 3, size, size)` in [0, 1] from 12 uniform numbers each."""
    u = u[:, :, None, None]
    texture = u[:, :3].expand(-1, -1, size, size).clone()
    for octave, knots in enumerate((2, 4, 8)):  # Random surfaces from coarse to fine.
        grid = torch.stack([torch.rand(3, knots, knots, generator=g) for g in generators]) - 0.5
        surface = interpolate(grid, size=(size, size), mode="bicubic", align_corners=True)
        texture += 0.5 * u[:, 3 + octave, None] * surface
    y, x = torch.meshgrid(*2 * [torch.linspace(0, 1, size)], indexing="ij")
    angle, phase = 2 * torch.pi * u[:, 6], 2 * torch.pi * u[:, 7]
    frequency = 2 * torch.pi * (1 + 7 * u[:, 8])
    waves = torch.sin(frequency * (x * angle.cos() + y * angle.sin()) + phase)
    # Half of the images have no stripes.
    strength = 0.3 * (u[:, 9] - 0.5).clamp(min=0)
    return (texture + (strength * waves)[:, None]).clamp(0, 1)


def _draw_mask(digit: int, u: np.ndarray, size: int) -> np.ndarray:
    """Draw the coverage of each pixel, `(size, size)` uint8, from 12 uniform numbers."""
    side = 2 * size  # It is drawn twice as large.
    font = _font(int(u[0] * len(FONTS)), max(4, round(side * (0.6 + 0.05 * int(8 * u[1])))))
    canvas = Image.new("L", (side, side))
    draw = ImageDraw.Draw(canvas)
    center = side / 2
    draw.text((center, center), str(digit), 255, font, anchor="mm")
    reach = font.getlength(str(digit)) / 2
    for anchor, x, v in (("rm", center - reach, u[2]), ("lm", center + reach, u[3])):
        if v < 0.5:
            draw.text((x, center), str(int(20 * v)), 255, font, anchor=anchor)
    canvas = canvas.transform(
        (side, side), Image.Transform.AFFINE, _affine(u[4:9], center), Image.Resampling.BILINEAR
    )
    canvas = canvas.resize((size, size), Image.Resampling.BOX)
    blur = ImageFilter.GaussianBlur(float(size / 32 * max(0.0, u[9] - 0.3)))
    return np.asarray(canvas.filter(blur))


def _affine(u: np.ndarray, center: float) -> tuple[float, ...]:
    """Return Pillow's six coefficients, from output to input pixels, of an affine map."""
    turn, shear = np.radians(40 * u[0] - 20), 0.5 * u[1] - 0.25
    matrix = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    matrix = matrix @ np.array([[1, shear], [0, 0.9 + 0.3 * u[2]]])
    shift = center * (1 + 0.2 * (u[3:5] - 0.5)) - matrix @ [center, center]
    return (*matrix[0], shift[0], *matrix[1], shift[1])


@lru_cache(maxsize=512)
def _font(number: int, pixels: int) -> ImageFont.FreeTypeFont:
    from matplotlib import get_data_path

    file = Path(get_data_path()) / "fonts" / "ttf" / f"{FONTS[number]}.ttf"
    # The other layout engine is optional in Pillow and may place glyphs differently.
    return ImageFont.truetype(str(file), pixels, layout_engine=ImageFont.Layout.BASIC)
