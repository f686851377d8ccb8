"""Search for image files below folders, with checks for missing images and links."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from data_prep.errors import InputError, check_regular
from vision.datasets.pictures import EXTENSIONS

BESIDE = {"__MACOSX"}
"""Folders to skip, which archives made on another system contain."""


def image_files(tops: Iterable[Path]) -> list[Path]:
    """Return the sorted image files below folders; names that begin with a dot are ignored.

    Args:
        tops: the folders.

    Raises:
        InputError: if a folder cannot be read, is a link, has no images although a sibling has, or
            contains something that is neither a file nor a folder, such as a dangling link.
    """
    images: list[Path] = []
    leaves: dict[Path, dict[Path, bool]] = defaultdict(dict)
    for top in tops:
        for here, folders, files in os.walk(top, onerror=_refuse):
            folders[:] = [f for f in folders if not f.startswith(".") and f not in BESIDE]
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
    for beside in leaves.values():
        if any(beside.values()) and (empty := [f for f, full in beside.items() if not full]):
            raise InputError(
                f"{min(empty)}: found no images (*.jpg, *.png, …), which the folders beside it "
                "have; add its images or remove it"
            )
    return sorted(images)


def check_links(folder: Path, paths: Sequence[Path]) -> None:
    """Raise an error for links out of a folder, which could expose any file of the system.

    Args:
        folder: folder that should contain the files.
        paths: paths of the files.

    Raises:
        InputError: if a file is such a link; names the first.
    """
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
