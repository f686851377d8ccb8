"""Benchmarks: methods × data × services × seeds from one TOML file, resumable run by run.

    title = "A quick look"
    seeds = [1, 2, 3]
    services = ["internet"]
    data = ["milan.nc"]                    # cubes, relative to the working folder
    methods = ["ridge", "solo", { method = "fuels", label = "w/o inter", inter = false }]

    [settings]                             # of every method that has them
    rounds = 50
    split = "days:20,5,5"

In place of a cube's path, `{ name = "city", cells = 25, days = 21 }` simulates a city.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pandas as pd
from tqdm import tqdm

from data_prep import milan
from data_prep.errors import InputError, choose
from data_prep.simulate import simulate
from experiments.progress import rounds_bar
from experiments.report import results_table
from stforecast.config import resolve
from stforecast.results import Run, open_run, run, write_csv

log = logging.getLogger(__name__)

KEYS = ("title", "data", "services", "seeds", "methods", "settings")


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
        data: paths of cubes, or tables that describe a simulated city.
        services: variables of the cubes.
        seeds: seeds.
        entries: methods and variants.
        settings: flat settings shared by all.
    """

    title: str
    data: tuple[Any, ...]
    services: tuple[str | None, ...]
    seeds: tuple[int, ...]
    entries: tuple[Entry, ...]
    settings: dict[str, Any]

    def replace(
        self,
        data: Sequence[Path] = (),
        services: Sequence[str] = (),
        seeds: Sequence[int] = (),
        rounds: int | None = None,
    ) -> Grid:
        """The grid with other data, services, seeds or rounds, where any are given."""
        settings = self.settings | ({} if rounds is None else {"rounds": rounds})
        return dataclasses.replace(
            self,
            data=tuple(map(str, data)) or self.data,
            services=tuple(services) or self.services,
            seeds=tuple(seeds) or self.seeds,
            settings=settings,
        )


@dataclass(frozen=True)
class Outcome:
    """What became of a grid.

    Attributes:
        runs: finished runs.
        failures: `label (data, service, seed)` to the error's one line.
    """

    runs: list[Run]
    failures: dict[str, str]


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
    if unknown := table.keys() - set(KEYS):
        raise InputError(f"{path}: {choose('key', min(unknown), KEYS)}")
    for key in ("data", "methods"):
        if not isinstance(table.get(key), list) or not table[key]:
            raise InputError(f"{path}: {key!r} must be a list with at least one entry")
    try:
        return Grid(
            title=str(table.get("title", path.stem)),
            data=tuple(table["data"]),
            services=tuple(table.get("services", [None])),
            seeds=tuple(table.get("seeds", [1])),
            entries=tuple(_entry(e, table.get("settings", {})) for e in table["methods"]),
            settings=dict(table.get("settings", {})),
        )
    except InputError as e:
        raise InputError(f"{path}: {e}") from e


def _entry(entry: Any, shared: dict[str, Any]) -> Entry:
    own = {"method": entry} if isinstance(entry, str) else dict(entry)
    if "method" not in own:
        raise InputError(f"an entry of 'methods' names no method: {entry}")
    method = own.pop("method")
    made = Entry(method, str(own.pop("label", method)), own)
    resolve(method, **{**shared, **own})
    return made


def run_grid(grid: Grid, out: Path, *, progress: bool = False) -> Outcome:
    """Do every run of the grid that is not done yet, and write the tables.

    A run that fails is noted in its folder and in the table and does not stop the others; it is
    tried again the next time.

    Args:
        grid: the benchmark.
        out: folder for `runs/`, `metrics.csv` and `table.md`.
        progress: whether to show progress bars.

    Raises:
        InputError: if `out` holds runs with other settings, or the data cannot be read.
    """
    cells = list(_cells(grid, out, progress))
    runs, failures = [], {}
    with tqdm(cells, desc=grid.title, unit="run", disable=None if progress else True) as bar:
        for folder, data, entry, settings in bar:
            bar.set_postfix_str(f"{entry.label}, seed {settings['seed']}")
            try:
                runs.append(
                    _finished(folder, entry, settings)
                    or _run(folder, data, entry, settings, progress)
                )
            except Exception as e:
                log.warning("%s: %s", folder.relative_to(out), e)
                (folder / "failed.txt").write_text(traceback.format_exc())
                failures[str(folder.relative_to(out / "runs"))] = f"{type(e).__name__}: {e}"
    if runs:
        write_csv(pd.concat([r.metrics().assign(label=r.label) for r in runs]), out / "metrics.csv")
    table = results_table(runs, failures)
    (out / "table.md").write_text(f"# {grid.title}\n\n{table}\n")
    return Outcome(runs, failures)


def _cells(
    grid: Grid, out: Path, progress: bool
) -> Iterator[tuple[Path, Path, Entry, dict[str, Any]]]:
    """Folder, cube, entry and settings of each run."""
    for item in grid.data:
        data = _cube(item, out, progress)
        for service in grid.services:
            for entry in grid.entries:
                for seed in grid.seeds:
                    settings = {**grid.settings, **entry.settings, "seed": seed}
                    if service is not None:
                        settings["service"] = service
                    name = Path(_slug(data.stem), _slug(service or "-"), _slug(entry.label))
                    folder = out / "runs" / name / f"seed-{seed}"
                    folder.mkdir(parents=True, exist_ok=True)
                    yield folder, data, entry, settings


def _run(folder: Path, data: Path, entry: Entry, settings: dict[str, Any], progress: bool) -> Run:
    config = resolve(entry.method, **settings)
    with rounds_bar(
        config.training.rounds, progress=progress and config.federated, keep=False
    ) as after_round:
        finished = run(
            entry.method, data, folder, settings, label=entry.label, after_round=after_round
        )
    (folder / "failed.txt").unlink(missing_ok=True)
    return finished


def _finished(folder: Path, entry: Entry, settings: dict[str, Any]) -> Run | None:
    """The run in the folder, if it is there and has these settings."""
    if not (folder / "run.json").exists():
        return None
    found = open_run(folder)
    wanted = json.loads(json.dumps(resolve(entry.method, **settings).flat()))
    before = cast(dict[str, Any], found.about["settings"])
    changed = sorted(k for k in wanted.keys() | before.keys() if wanted.get(k) != before.get(k))
    if changed:
        raise InputError(
            f"{folder} was run with other settings ({', '.join(changed)}); delete it or choose "
            "another --out"
        )
    return found


def _cube(item: Any, out: Path, progress: bool) -> Path:
    """Path of a cube; a described city is simulated and prepared once."""
    if isinstance(item, str):
        return Path(item)
    options = dict(item)
    name = str(options.pop("name", "city"))
    cube = out / "data" / f"{name}.nc"
    if not cube.exists():
        raw = out / "data" / f"{name}-raw"
        simulate(raw, progress=progress, **options)
        milan.prepare(raw, cube, progress=progress)
    return cube


def _slug(text: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", text).strip("-").lower() or "-"
