"""Benchmarks: methods × data × services × seeds from one TOML file, resumable run by run.

    title = "A quick look"
    seeds = [1, 2, 3]
    services = ["internet"]
    data = ["milan.nc"]                    # cubes, relative to the working folder
    methods = ["ridge", "solo", { method = "fuels", label = "w/o inter", inter = false }]
    figures = ["cdf", { plot = "predictions", methods = ["ridge", "solo"], seeds = [1] }]

    [settings]                             # of every method
    rounds = 50
    split = "days:20,5,5"

    [published]                            # numbers of a paper by label, to stand beside ours
    source = "FUELS, Table 7"
    mse.internet = { "w/o inter" = 0.983 }

In place of a cube's path, `{ name = "small-city", cells = 25, days = 21 }` simulates a city. A
figure may have a `name`, its plot's options, and `methods` (labels) and `seeds` to choose runs by.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, StrictInt

from data_prep.errors import InputError
from experiments.config_file import (
    Entry,
    Keys,
    check_keys,
    command_words,
    parse_entries,
    read_toml,
)
from experiments.figures import FigureSpec, parse_figures
from experiments.names import shown
from experiments.published import Published, parse_published
from stforecast.config import resolve
from stforecast.data.splits import parse_split


@dataclass(frozen=True)
class City:
    """A simulated city in place of a cube; see `data_prep.simulate`.

    Attributes:
        name: what to call it.
        city: whose grid it has, milan or trentino.
        cells: number of cells.
        days: number of days.
        seed: seed of the city, whatever the seeds of the runs.
    """

    name: str = "city"
    city: str = "milan"
    cells: StrictInt = 25
    days: StrictInt = 28
    seed: StrictInt = 1

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Grid:
    """A benchmark.

    Attributes:
        title: heading of the table.
        data: paths of cubes, or cities to simulate.
        services: variables of the cubes; None is the only one.
        seeds: seeds.
        entries: methods and variants.
        settings: flat settings shared by all.
        figures: what to draw for each data set and service.
        published: what a paper prints of these methods.
        command: words that begin the command, as a reader would repeat it.
    """

    title: str
    data: tuple[str | City, ...]
    services: tuple[str | None, ...]
    seeds: tuple[int, ...]
    entries: tuple[Entry, ...]
    settings: dict[str, Any]
    figures: tuple[FigureSpec, ...] = ()
    published: Published | None = None
    command: tuple[str, ...] = ("stforecast", "bench")

    def replace(
        self,
        data: Sequence[Path] = (),
        services: Sequence[str] = (),
        seeds: Sequence[int] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> Grid:
        """The grid with other data, services, seeds or shared settings, where any are given.

        Raises:
            InputError: if a seed or a setting is unknown or out of range.
        """
        shared = {**self.settings, **(settings or {})}
        for entry in self.entries:
            for seed in seeds or self.seeds:
                _check_settings(entry.method, **{**shared, **entry.settings, "seed": seed})
        flags = {"--data": [shown(path) for path in data], "--service": services, "--seed": seeds}
        return dataclasses.replace(
            self,
            data=tuple(map(str, data)) or self.data,
            services=tuple(services) or self.services,
            seeds=tuple(seeds) or self.seeds,
            settings=shared,
            command=(*self.command, *command_words(flags, settings or {})),
        )

    def repeat(self, out: Path) -> str:
        """The command that does this benchmark again."""
        return shlex.join([*self.command, "--out", shown(out)])


KEYS: Keys = {
    "title": (str, "text"),
    "data": (list[str | City], "a list of paths of cubes, or { name, city, cells, days, seed }"),
    "services": (list[str], "a list of names"),
    "seeds": (list[StrictInt], "a list of whole numbers"),
    "methods": (list[str | dict[str, Any]], "a list of names, or { method, label, settings… }"),
    "figures": (list[str | dict[str, Any]], "a list of names, or { plot, name, methods, seeds… }"),
    "settings": (dict[str, Any], "a table"),
    "published": (dict[str, Any], "a table"),
}
"""Keys of the file, their types and what to tell people about them."""


def load_grid(path: Path) -> Grid:
    """Read a benchmark's TOML file.

    Raises:
        InputError: naming the file and what is wrong in it.
    """
    table = read_toml(path)
    try:
        grid = _grid({"title": path.stem, **table})
    except InputError as e:
        raise InputError(f"{path}: {e}") from e
    return dataclasses.replace(grid, command=(*grid.command, shown(path)))


def _grid(table: dict[str, Any]) -> Grid:
    found = check_keys(table, KEYS, {"data", "methods"})
    settings = found.get("settings", {})
    entries = parse_entries(found["methods"], settings, _check_settings)
    labels = [e.label for e in entries]
    services = tuple(found.get("services", [None]))
    published = found.get("published")
    return Grid(
        title=found["title"],
        data=tuple(found["data"]),
        services=services,
        seeds=tuple(found.get("seeds", [1])),
        entries=entries,
        settings=settings,
        figures=parse_figures(found.get("figures", []), labels),
        published=published and parse_published(published, labels, services),
    )


def _check_settings(method: str, **settings: Any) -> None:
    parse_split(resolve(method, **settings).data.split)
