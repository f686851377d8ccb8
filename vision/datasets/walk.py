"""Image files below a folder: none is left out in silence, none lies elsewhere."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from data_prep.errors import InputError, check_regular
from vision.datasets.pictures import EXTENSIONS

BESIDE = {"__MACOSX"}
"""Folders that an archive of another system brings along."""


def image_files(tops: Iterable[Path]) -> list[Path]:
    """Image files below some folders, sorted; names that begin with a dot do not count.

    Args:
        tops: the folders.

    Raises:
        InputError: if a folder cannot be read, is a link, holds no image although another one
            beside it does, or holds what is neither a file nor a folder, such as a dangling link.
    """
    images: list[Path] = []
    leaves: dict[Path, dict[Path, bool]] = defaultdict(dict)
    for top in tops:
        for here, folders, files in os.walk(top, onerror=_refuse):
            folders[:] = [f for f in folders if not f.startswith(".") and f not in BESIDE]
            for file in (f for f in files if not f.startswith(".")):
                check_regular(Path(here, file), "image or folder", "put it there or remove this")
            found = [Path(here, f) for f in (*files, *folders) if _is_image(f)]
            if link := next((f for f in folders if Path(here, f).is_symlink()), None):
                raise InputError(
                    f"{Path(here, link)}: a link to a folder, which is not followed; put the "
                    "folder itself there"
                )
            if not folders:
                leaves[Path(here).parent][Path(here)] = bool(found)
            images += found
    for beside in leaves.values():
        if any(beside.values()) and (empty := [f for f, full in beside.items() if not full]):
            raise InputError(
                f"{min(empty)}: found no images (*.jpg, *.png, …), which the folders beside it "
                "have; put its images there or take it away"
            )
    return sorted(images)


def check_links(folder: Path, paths: Sequence[Path]) -> None:
    """Refuse links that lead out of a folder: what another has made may point to any file.

    Args:
        folder: where the files should be.
        paths: of the files.

    Raises:
        InputError: naming the first such link.
    """
    home = os.path.realpath(folder)
    for path in paths:
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(home):
            raise InputError(
                f"{path}: a link that leaves {folder}; put the image itself there (cp -L)"
            )


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in EXTENSIONS and not name.startswith(".")


def _refuse(e: OSError) -> None:
    raise InputError(f"{e.filename}: cannot be read ({e.strerror}); open it or take it away") from e
