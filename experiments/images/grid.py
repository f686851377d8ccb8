"""Image benchmarks: methods × data × scenarios × seeds from one TOML file.

task = "images"                        # tells it from a benchmark of forecasts
title = "PFPL, Table 1: Digits"
seeds = [1, 2, 3]
data = ["mnist+usps+syn-generated"]
methods = ["solo", "fedavg", { method = "pfpl", label = "α = 0.3", alpha = 0.3 }]
figures = ["partition", { plot = "rounds", methods = ["fedavg", "α = 0.3"] }]

[settings]                             # of every method
rounds = 100
clients = 20

[scenarios]                            # ways to divide the images: settings, data too
"n = 3" = { ways = 3 }
"n = 4" = { ways = 4 }

[presets.small]                        # `--preset small` puts these in place of the above
seeds = [1]
settings = { rounds = 10, model = "convnet" }

[published]                            # by scenario and label, to stand beside ours
source = "PFPL, Table 1"
accuracy."n = 3" = { solo = 91.15 }
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import StrictInt

from data_prep.errors import InputError, choose
from experiments.config_file import (
    IMAGES,
    Entry,
    Keys,
    check_keys,
    command_words,
    parse_entries,
    read_toml,
)
from experiments.figures import FigureSpec, parse_figures
from experiments.names import shown, slug
from experiments.published import Published, parse_published
from vision.config import resolve
from vision.evaluation import TRAINED
from vision.methods import METHODS
from vision.plots import PLOTS


@dataclass(frozen=True)
class ImageGrid:
    """A benchmark of images.

    Attributes:
        title: heading of the table.
        data: names of image sets, for scenarios that name none.
        scenarios: name to settings of how images are divided; one without a name if none is given.
        seeds: seeds, of the division too.
        entries: methods and variants.
        settings: flat settings shared by all.
        figures: what to draw for each data set and scenario.
        published: what a paper prints of these methods, by scenario.
        command: words that begin the command, as a reader would repeat it.
    """

    title: str
    data: tuple[str, ...]
    scenarios: Mapping[str, dict[str, Any]]
    seeds: tuple[int, ...]
    entries: tuple[Entry, ...]
    settings: dict[str, Any]
    figures: tuple[FigureSpec, ...] = ()
    published: Published | None = None
    command: tuple[str, ...] = field(default=("stforecast", "bench"))

    def replace(
        self,
        data: Sequence[str] = (),
        seeds: Sequence[int] = (),
        settings: Mapping[str, Any] | None = None,
        images: Path | None = None,
    ) -> ImageGrid:
        """The grid with other data, seeds, shared settings or folder of images, where given.

        Raises:
            InputError: if a setting is unknown or out of range.
        """
        shared = {**self.settings, **(settings or {})}
        if images is not None:
            shared["images"] = str(images)
        for own in self.scenarios.values():
            for entry in self.entries:
                resolve(entry.method, **{**shared, **own, **entry.settings})
        flags = {
            "--images": [] if images is None else [shown(images)],
            "--data": data,
            "--seed": seeds,
        }
        return dataclasses.replace(
            self,
            data=tuple(data) or self.data,
            seeds=tuple(seeds) or self.seeds,
            settings=shared,
            command=(*self.command, *command_words(flags, settings or {})),
        )

    def repeat(self, out: Path) -> str:
        """The command that does this benchmark again."""
        return shlex.join([*self.command, "--out", shown(out)])


KEYS: Keys = {
    "task": (str, f'"{IMAGES}"'),
    "title": (str, "text"),
    "data": (list[str], "a list of names of image sets"),
    "scenarios": (dict[str, dict[str, Any]], "tables of settings, by name"),
    "seeds": (list[StrictInt], "a list of whole numbers"),
    "methods": (list[str | dict[str, Any]], "a list of names, or { method, label, settings… }"),
    "figures": (list[str | dict[str, Any]], "a list of names, or { plot, name, methods, seeds… }"),
    "settings": (dict[str, Any], "a table"),
    "presets": (dict[str, dict[str, Any]], "tables of the keys above, by name"),
    "published": (dict[str, Any], "a table"),
}
"""Keys of the file, their types and what to tell people about them."""


def load_image_grid(path: Path, preset: str | None = None) -> ImageGrid:
    """Read a benchmark's TOML file.

    Args:
        path: of the file.
        preset: name of one of its presets.

    Raises:
        InputError: naming the file and what is wrong in it.
    """
    try:
        table = _with_preset({"title": path.stem, **read_toml(path)}, preset)
        grid = _grid(table)
    except InputError as e:
        raise InputError(f"{path}: {e}") from e
    chosen = ("--preset", preset) if preset else ()
    return dataclasses.replace(grid, command=(*grid.command, shown(path), *chosen))


def _views(method: str) -> tuple[str, ...]:
    """The method's models, which have rows of their own."""
    return (*METHODS.find(method).views, TRAINED)


def _with_preset(table: dict[str, Any], name: str | None) -> dict[str, Any]:
    """The table with one of its presets in place; `settings` are merged, other keys replaced."""
    presets = check_keys(table, KEYS, {"task", "methods"}).get("presets", {})
    rest = {key: value for key, value in table.items() if key != "presets"}
    if name is None:
        return rest
    if name not in presets:
        raise choose("preset", name, presets)
    preset = presets[name]
    settings = {**rest.get("settings", {}), **preset.get("settings", {})}
    found = {**rest, **preset, "settings": settings}
    if "published" in rest and "scenarios" in preset:
        found["published"] = _published_of(rest["published"], preset["scenarios"])
    return found


def _published_of(published: dict[str, Any], scenarios: Mapping[str, Any]) -> dict[str, Any]:
    """What is printed of some scenarios."""
    return {
        key: {s: numbers for s, numbers in part.items() if s in scenarios}
        if isinstance(part, dict)
        else part
        for key, part in published.items()
    }


def _grid(table: dict[str, Any]) -> ImageGrid:
    found = check_keys(table, KEYS, {"task", "methods"})
    settings, scenarios = found.get("settings", {}), found.get("scenarios", {"": {}})
    if len({slug(name) for name in scenarios}) < len(scenarios):
        raise InputError("two scenarios have names that differ in signs only; rename one")
    for name, own in scenarios.items():
        if "data" not in found and "data" not in own:
            raise InputError(f"no data, and scenario {name!r} names none; it is {KEYS['data'][1]}")
        entries = parse_entries(found["methods"], {**settings, **own}, resolve)
    labels = [e.label for e in entries]
    rows = [*labels, *(f"{e.label} ({v})" for e in entries for v in _views(e.method))]
    published = found.get("published")
    return ImageGrid(
        title=found["title"],
        data=tuple(found.get("data", ())),
        scenarios=scenarios,
        seeds=tuple(found.get("seeds", [1])),
        entries=entries,
        settings=settings,
        figures=parse_figures(found.get("figures", []), labels, PLOTS),
        published=published and parse_published(published, rows, scenarios),
    )
