"""The command that describes any cube, table, raw records, run or model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import click

from data_prep.base.errors import InputError
from experiments.endings import to_json
from experiments.options import HELP, JSON, PATH

TABLES = (".csv", ".tsv", ".csv.gz", ".xlsx", ".parquet")
ARRAYS = (".h5", ".hdf5")


class Description(NamedTuple):
    """What was found at a path.

    Attributes:
        kind: such as "cube".
        about: its description, as JSON can hold it.
        text: the same for readers.
        next_command: what to type next; empty if there is nothing to suggest.
    """

    kind: str
    about: dict[str, Any]
    text: str
    next_command: str = ""

    def as_json(self, path: Path) -> str:
        """Return the description of what lies at a path as JSON."""
        return to_json({"path": str(path), "kind": self.kind, **self.about})


@click.command(context_settings=HELP)
@click.argument("path", type=PATH)
@JSON
def info(path: Path, as_json: bool) -> None:
    """Describe a cube, a table, raw records, a run or a model in one screen.

    PATH is a file or a folder: a cube (.nc), a table of your own (.csv, .xlsx, .parquet), raw days,
    records in HDF5 (.h5), a run, a folder of runs, or a model, such as one that adapt wrote.
    Nothing is written.
    """
    found = describe(path)
    if as_json:
        click.echo(found.as_json(path))
        return
    click.echo(f"{path}: {found.kind}\n{found.text}")
    if found.next_command:
        click.echo(f"\nnext: {found.next_command}")


def describe(path: Path) -> Description:
    """Describe whatever is at a path.

    Raises:
        InputError: if nothing is there, or it is of no known kind, or damaged.
    """
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file or folder; {_beside(path)}")
    if path.suffix == ".nc":
        return _cube(path)
    if path.name.endswith(TABLES):
        return _table(path)
    if path.suffix in ARRAYS:
        return _arrays(path)
    raise InputError(
        f"{path}: unknown kind of file; give a cube (.nc), a table ({', '.join(TABLES)}), an .h5 "
        "file, a folder of raw days or a run"
    )


def _beside(path: Path) -> str:
    """Return advice for a path that does not exist: a name like it in the same folder."""
    from data_prep.base.errors import close_to

    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist either; correct the path"
    names = sorted(p.name for p in path.parent.iterdir())[:1000]
    return f"correct the path{close_to(path.name, names)}"


def _cube(path: Path) -> Description:
    from data_prep.cube import open_cube
    from data_prep.description import describe_cube
    from experiments.info.cubes import cube_text

    with open_cube(path) as ds:
        about = describe_cube(ds)
    return Description("cube", about, cube_text(about), _forecast(path, about))


def _forecast(path: Path, about: dict[str, Any]) -> str:
    services = [name for name, s in about["services"].items() if not s["blank"]]
    choice = f" --service {quote(services[0])}" if len(about["services"]) > 1 and services else ""
    return f"stforecast forecast {quote(str(path))}{choice} --horizon 24 --out forecast/"


def _table(path: Path) -> Description:
    from data_prep.description import describe_cube
    from data_prep.sets.table import read
    from experiments.info.cubes import cube_text, preview

    try:
        ds = read(path)
    except InputError as e:
        return _unclear(path, e.typed)
    about = describe_cube(ds)
    text = f"{cube_text(about)}\n\n{preview(ds)}"
    return Description("table", about, text, _forecast(path, about))


def _unclear(path: Path, question: str) -> Description:
    """Describe a table that `prepare` refuses without options: its columns and the question."""
    from data_prep.readers.delimited import Dialect
    from data_prep.readers.files import read_table
    from experiments.info.cubes import facts

    df, _ = read_table(path, dialect=Dialect(header="pass --no-header" not in question))
    columns = {str(name): str(column.iloc[0]) for name, column in df.items()} if len(df) else {}
    about = {"rows": len(df), "columns": columns, "problem": question}
    shown = list(_few(columns))
    text = facts({"rows": f"{len(df):,}", "columns": f"{len(columns)}, with the first row:"})
    lines = "\n".join(f"    {name}: {value}" for name, value in shown)
    command = f"stforecast prepare table --raw {quote(str(path))} --dry-run"
    return Description(
        "table, not clear without options", about, f"{text}\n{lines}\n\n{question}",
        f"{command}, with the option named above",
    )  # fmt: skip


def _few(columns: dict[str, str], most: int = 12) -> Iterator[tuple[str, str]]:
    yield from list(columns.items())[:most]
    if len(columns) > most:
        yield "…", f"{len(columns) - most} more"


def _arrays(path: Path) -> Description:
    from experiments.info.raw import arrays_text, describe_arrays

    about = describe_arrays(path)
    name = about["data_set"]
    command = f"stforecast prepare {name} --raw {quote(str(path))} --out {name}.nc" if name else ""
    kind = "raw records" if about["layout"] else "HDF5"
    return Description(kind, about, arrays_text(about), command)


def _folder(path: Path) -> Description:
    from experiments.info import models, raw, runs
    from stforecast.federated.runs.run_folder import ABOUT, BEGUN
    from stforecast.results import is_model

    if (path / ABOUT).exists():
        about = runs.describe_run(path)
        of_images = about["of"] == "images"
        command = f"stforecast compare {quote(str(path))}"
        return Description(
            "finished run", about, runs.run_text(about), "" if of_images else command
        )
    if is_model(path):
        about = models.describe_model(path)
        more = " --events EVENTS.csv" if about["events"] else ""
        command = (
            f"stforecast predict {quote(str(path))} --history NEWER.nc{more} --out forecast.csv"
        )
        return Description("model", about, models.model_text(about), command)
    if (path / BEGUN).exists():
        about = runs.describe_unfinished(path)
        command = f"stforecast run --resume {quote(str(path))}"
        return Description("unfinished run", about, runs.unfinished_text(about), command)
    if found := raw.find_days(path):
        about = raw.describe_days(path, *found)
        command = f"stforecast prepare {found[0]} --raw {quote(str(path))} --out {found[0]}.nc"
        return Description("raw records", about, raw.days_text(about), command)
    if folders := sorted(p.parent for p in path.rglob(ABOUT)):
        rows = runs.describe_runs(folders, path)
        command = f"stforecast compare {quote(str(path))}"
        return Description("finished runs", {"runs": rows}, runs.runs_text(rows), command)
    for name in ("metr-la.h5", "metr_la.h5"):
        if (path / name).is_file():
            return _arrays(path / name)
    raise InputError(
        f"{path}: a folder without runs, models or raw records; give a file in it, or another "
        "folder"
    )


COMMANDS = (info,)
