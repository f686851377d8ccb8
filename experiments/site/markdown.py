"""Generated parts of pages, numbers in their text, and figures small enough for the repository."""

from __future__ import annotations

import io
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from stforecast.bench.drawing import save_figure

MOST_BYTES = 200_000
"""Maximum size of a figure in the repository."""

NUMBER = re.compile(r"(<!--=(.+?)-->)[^<]*(?=<!--/-->)")
"""A named number in a text, such as `<!--=default.parts-->22<!--/-->`."""


def replaced(text: str, name: str, make: Callable[[], str]) -> str:
    """Return the text with one part updated, if it has that part."""
    begin, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
    before, found, rest = text.partition(begin)
    return f"{before}{begin}\n{make()}\n{end}{rest.partition(end)[2]}" if found else text


def filled(text: str, numbers: Mapping[str, str]) -> str:
    """Return the text with its named numbers updated.

    >>> filled("<!--=seeds-->3<!--/--> seeds", {"seeds": "5"})
    '<!--=seeds-->5<!--/--> seeds'
    """
    return NUMBER.sub(lambda found: found[1] + numbers[found[2]], text)


def as_png(figure: Figure) -> bytes:
    """Return a drawn figure as a `shrunk` PNG."""
    with tempfile.TemporaryDirectory() as folder:
        return shrunk(save_figure(figure, Path(folder) / "figure.png"))


def shrunk(path: Path) -> bytes:
    """Return a PNG with a colour palette, scaled down if necessary to stay below `MOST_BYTES`."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    while True:
        buffer = io.BytesIO()
        image.quantize(256).save(buffer, "PNG", optimize=True)
        if buffer.tell() <= MOST_BYTES:
            return buffer.getvalue()
        image = image.resize((image.width * 4 // 5, image.height * 4 // 5))


def photograph(page: Path, picture: Path) -> None:
    """Save the first cell of a report's page and the plan as a PNG, drawn by Chromium."""
    look = ("--hide-scrollbars", "--force-device-scale-factor=1.5", "--window-size=1700,1300")
    wait = "--virtual-time-budget=15000"
    names = (f"--screenshot={picture.resolve()}", page.resolve().as_uri())
    words = ("chromium", "--headless=new", "--no-sandbox", *look, wait, *names)
    subprocess.run(words, check=True, capture_output=True)
    with Image.open(picture) as whole:
        whole.crop((230, 500, 2320, 1698)).save(picture)
