"""Benchmarks: methods × data × scenarios × seeds from one TOML file."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from data_prep.base.errors import InputError, Words, choose, shown
from stforecast.bench import grid_file
from stforecast.bench.figures import FigureSpec, parse_figures
from stforecast.bench.grid_file import Published, parse_published
from stforecast.bench.kind import Kind, Scenario, kind_named, packaged
from stforecast.bench.run_groups import R


@dataclass(frozen=True)
class Grid(Generic[R]):
    """A benchmark.

    Attributes:
        kind: kind of the runs.
        title: heading of the table.
        data: data sets as named in the file, for scenarios that name none.
        scenarios: scenarios to run on each data set.
        seeds: seeds of the rows that have none of their own.
        entries: methods and variants.
        settings: flat settings shared by all.
        figures: figures to draw for each data set and scenario.
        published: numbers that a paper reports for these methods, by scenario.
        note: text above the table, such as the limits of a small benchmark.
        reference: row that the others are compared with; None for the best.
        backtest: options of a backtest's folds; None without one.
        claims: claims of the paper about these rows.
        command: first words of the command that repeats the benchmark.
        rows: labels of the rows to run; empty for all. The others are only tabulated.
    """

    kind: Kind[R]
    title: str
    data: tuple[Any, ...]
    scenarios: tuple[Scenario, ...]
    seeds: tuple[int, ...]
    entries: tuple[grid_file.Entry, ...]
    settings: dict[str, Any]
    figures: tuple[FigureSpec, ...] = ()
    published: Published | None = None
    note: str = ""
    reference: str | None = None
    backtest: Any = None
    claims: tuple[Any, ...] = ()
    command: tuple[str, ...] = ("stforecast", "bench")
    rows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse keys that contradict each other, and settings that no row or its method reads."""
        if "seed" in self.settings:
            raise InputError(
                Words("seed cannot be set for all rows; give seeds = [1, 2] in the file, or {seed}")
            )
        self.kind.check_grid(self)
        read: set[str] = set()
        for shared in self.kind.shared_settings(self):
            for entry in self.entries:
                settings = self.kind.settings_of(entry.method, shared, entry.settings)
                self.kind.settings.check_read(entry.method, settings)
                read |= settings.keys()
        for name, value in self.settings.items():
            if name not in read:
                self.kind.settings.check_read(self.entries[0].method, {name: value})
                raise InputError(f"no row reads {name}; leave it out")

    @property
    def referred(self) -> str:
        """Method of the row that others are compared with, or of the first row."""
        found = [entry.method for entry in self.entries if entry.label == self.reference]
        return (found or [self.entries[0].method])[0]

    def seeds_of(self, entry: grid_file.Entry) -> tuple[int, ...]:
        """Return the seeds of a row: its own, or the benchmark's."""
        return entry.seeds or self.seeds

    def replace(
        self,
        data: Sequence[str | Path] = (),
        scenarios: Sequence[Scenario] = (),
        seeds: Sequence[int] = (),
        settings: Mapping[str, Any] | None = None,
        rows: Sequence[str] = (),
    ) -> Grid[R]:
        """Return the grid with other data, services, seeds, shared settings or rows, if given.

        Rows with seeds of their own keep these. Unknown and invalid settings are refused.
        """
        for label in rows:
            if label not in (labels := [entry.label for entry in self.entries]):
                raise choose("row", label, labels)
        shared = {**self.settings, **(settings or {})}
        for scenario in scenarios or self.scenarios:
            for entry in self.entries:
                for seed in entry.seeds or seeds or self.seeds:
                    own = {**shared, **scenario.settings, **entry.settings, "seed": seed}
                    self.kind.check(entry.method, **own)
        flags: dict[str, Sequence[Any]] = {
            "--data": [shown(Path(item)) for item in data],
            "--service": [scenario.name for scenario in scenarios],
            "--seed": seeds,
        }
        return dataclasses.replace(
            self,
            data=tuple(map(str, data)) or self.data,
            scenarios=tuple(scenarios) or self.scenarios,
            seeds=tuple(seeds) or self.seeds,
            settings=shared,
            command=(*self.command, *grid_file.command_words(flags, settings or {})),
            rows=tuple(rows),
        )

    def repeat(self, out: Path) -> str:
        """Return the command that repeats this benchmark."""
        return shlex.join([*self.command, "--out", shown(out)])


def load_grid(path: Path, preset: str | None = None) -> Grid[Any]:
    """Read a benchmark's TOML file, with one of its presets; errors name the file."""
    table = {"title": path.stem, **grid_file.read_toml(path)}
    try:
        kind = kind_named(table)
        grid = make_grid(kind, _with_preset(kind, table, preset), path.parent)
    except InputError as e:
        raise InputError(f"{path}: ", e) from e
    chosen = ("--preset", preset) if preset else ()
    name = next((name for name, file in packaged().items() if file == path), shown(path))
    return dataclasses.replace(grid, command=(*grid.command, name, *chosen))


def _with_preset(kind: Kind[Any], table: dict[str, Any], name: str | None) -> dict[str, Any]:
    """Apply one of the table's presets; `settings` are merged, other keys replaced."""
    presets = grid_file.check_keys(table, kind.keys, kind.needed).get("presets", {})
    rest = {key: value for key, value in table.items() if key != "presets"}
    if name is None:
        return rest
    if name not in presets:
        raise choose("preset", name, presets)
    preset = presets[name]
    settings = {**rest.get("settings", {}), **preset.get("settings", {})}
    found = {**rest, **preset, "settings": settings}
    if "published" in rest and "scenarios" in preset:
        chosen = preset["scenarios"]
        found["published"] = {
            key: {s: part[s] for s in part if s in chosen} if isinstance(part, dict) else part
            for key, part in rest["published"].items()
        }
    return found


def make_grid(kind: Kind[R], table: dict[str, Any], folder: Path | None = None) -> Grid[R]:
    """Make a benchmark from the keys of a file, with a title and without presets.

    Files that rows name are also looked for in `folder`, which is the file's.
    """
    found = grid_file.check_keys(table, kind.keys, kind.needed)
    settings, scenarios = found.get("settings", {}), kind.scenarios(found)
    for scenario in scenarios:
        shared = {**settings, **scenario.settings}
        rows = [_located(row, folder) for row in (*found["methods"], *found.get("references", ()))]
        entries = grid_file.parse_entries(rows, shared, kind.check)
    published = found.get("published")
    labels = [entry.label for entry in entries]
    methods = tuple(labels[: len(found["methods"])])
    figures = parse_figures(found.get("figures", []), labels, kind.plots)
    return Grid(
        kind=kind,
        title=found["title"],
        data=tuple(found.get("data", ())),
        scenarios=scenarios,
        seeds=tuple(found.get("seeds", [1])),
        entries=entries,
        settings=settings,
        figures=tuple(dataclasses.replace(f, methods=f.methods or methods) for f in figures),
        note=found.get("note", ""),
        reference=found.get("reference"),
        backtest=kind.backtest(found),
        claims=tuple(kind.claims(found, kind.row_labels(entries))),
        published=published
        and parse_published(published, kind.row_labels(entries), [s.name for s in scenarios]),
    )


def _located(row: str | dict[str, Any], folder: Path | None) -> str | dict[str, Any]:
    """Return a row with the paths of its files in the folder of the benchmark's file."""

    def located(value: Any) -> Any:
        is_absent = isinstance(value, str) and Path(value).suffix and not Path(value).exists()
        return str(folder / value) if is_absent and (folder / value).is_file() else value

    if isinstance(row, str) or folder is None:
        return row
    return {name: located(value) for name, value in row.items()}
