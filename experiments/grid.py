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
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from data_prep.errors import InputError, choose
from experiments.figures import FigureSpec, parse_figures
from experiments.names import shown, slug
from experiments.published import Published, parse_published
from stforecast.config import resolve


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
    cells: int = 25
    days: int = 28
    seed: int = 1

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Entry:
    """One row of the table.

    Attributes:
        method: name of the method.
        label: what to call it.
        settings: flat settings of its own, on top of the grid's.
    """

    method: str
    label: str
    settings: dict[str, Any] = field(default_factory=dict)


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
        rounds: int | None = None,
    ) -> Grid:
        """The grid with other data, services, seeds or rounds, where any are given."""
        settings = self.settings | ({} if rounds is None else {"rounds": rounds})
        given = {
            "--data": [shown(path) for path in data],
            "--service": services,
            "--seed": seeds,
            "--rounds": [] if rounds is None else [rounds],
        }
        more = (word for flag, values in given.items() for v in values for word in (flag, str(v)))
        return dataclasses.replace(
            self,
            data=tuple(map(str, data)) or self.data,
            services=tuple(services) or self.services,
            seeds=tuple(seeds) or self.seeds,
            settings=settings,
            command=(*self.command, *more),
        )

    def repeat(self, out: Path) -> str:
        """The command that does this benchmark again."""
        return shlex.join([*self.command, "--out", shown(out)])


KEYS: dict[str, tuple[Any, str]] = {
    "title": (str, "text"),
    "data": (list[str | City], "a list of paths of cubes, or { name, city, cells, days, seed }"),
    "services": (list[str], "a list of names"),
    "seeds": (list[int], "a list of whole numbers"),
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
    try:
        table = tomllib.loads(path.read_text())
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: is not TOML ({e})") from e
    try:
        grid = _grid({"title": path.stem, **table})
    except InputError as e:
        raise InputError(f"{path}: {e}") from e
    return dataclasses.replace(grid, command=(*grid.command, shown(path)))


def _grid(table: dict[str, Any]) -> Grid:
    if unknown := table.keys() - KEYS.keys():
        raise choose("key", min(unknown), KEYS)
    if missing := {"data", "methods"} - table.keys():
        raise InputError(f"no key {min(missing)!r}; it is {KEYS[min(missing)][1]}")
    found = {key: _check(key, value) for key, value in table.items()}
    settings = found.get("settings", {})
    entries = tuple(_entry(e, settings) for e in found["methods"])
    labels = [e.label for e in entries]
    folders = [slug(label) for label in labels]
    if twice := next((label for label in labels if folders.count(slug(label)) > 1), None):
        raise InputError(f"several methods are called {twice!r}; give each a label of its own")
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


def _check(key: str, value: Any) -> Any:
    kind, words = KEYS[key]
    try:
        found = TypeAdapter(kind).validate_python(value)
    except ValidationError as e:
        raise InputError(f"{key} is {value!r}; it must be {words}") from e
    if found == []:
        raise InputError(f"{key} is empty; give at least one entry")
    return found


def _entry(entry: str | dict[str, Any], shared: dict[str, Any]) -> Entry:
    own = {"method": entry} if isinstance(entry, str) else dict(entry)
    if "method" not in own:
        raise InputError(f"an entry of methods names no method: {entry}")
    method = own.pop("method")
    made = Entry(method, str(own.pop("label", method)), own)
    resolve(method, **{**shared, **own})
    return made
