"""The commands for data: simulate, download, prepare, export."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from data_prep import DATA_SETS, options_of
from data_prep.base.errors import InputError, as_text, counted, in_minutes, shown, some
from data_prep.base.progress import doing
from data_prep.base.registry import help_text, title
from stforecast.bench import LOCAL, RAY
from stforecast.cli import options
from stforecast.cli.commands import Subcommands, command, option_words, say_json, say_next

if TYPE_CHECKING:
    import xarray as xr


@command(
    sections=options.section("City", "data_prep.city.simulate:simulate", leave_out=("progress",))
)
def simulate_command(ctx: click.Context, *, out: Path, **given: Any) -> None:
    """Write records of a simulated city in the published raw layout.

    Options:
        out: folder for the daily files.
    """
    from data_prep.city.simulate import simulate
    from stforecast.federated.runs.run_folder import check_folder

    check_folder(out)
    files = simulate(out, progress=ctx.obj["progress"], **given)
    click.echo(f"{counted(len(files), 'file')} in {out}")
    name = given.get("city", "milan")
    say_next("prepare", name, "--raw", out, "--out", f"{name}.nc")


@command()
def download_command(
    ctx: click.Context,
    data_set: str,
    *,
    out: Path,
    source: str | None = None,
    only: str | None = None,
) -> None:
    """Download and verify a data set's official files; run it again to resume.

    `stforecast list data` shows which data sets have a download. Where no checksum is published,
    the file's own is recorded in SHA256SUMS at its first download and checked afterwards.

    Options:
        out: folder for the files.
        source: mirror to use instead: a base URL or a local folder.
        only: download only files whose names match, e.g. '*2013-11-0*'.
    """
    from data_prep.download.fetch import download
    from stforecast.federated.runs.run_folder import check_folder

    check_folder(out)
    found = DATA_SETS.find(data_set)
    if not found.SOURCES:
        reason = getattr(found, "BY_HAND", "it is a file of your own")
        raise InputError(f"{data_set}: there is nothing to download; {reason}")
    files = download(found.SOURCES, out, source=source, only=only, progress=ctx.obj["progress"])
    click.echo(f"{counted(len(files), 'file')} in {out}")
    say_next("prepare", data_set, "--raw", out, "--out", f"{data_set}.nc")


def _prepare(name: str, data_set: ModuleType) -> click.Command:
    """Return the command that prepares one data set.

    With a function `read`, the same as `prepare` without a file to write, it can be tried.
    """
    read = getattr(data_set, "read", None)

    @click.pass_obj
    def prepare_one(
        obj: dict[str, bool],
        raw: Path,
        out: Path | None,
        *,
        overwrite: bool,
        as_json: bool,
        engine: str = LOCAL,
        dry_run: bool = False,
        **given: Any,
    ) -> None:
        doing(f"reading {raw}")
        if dry_run and read:
            _preview(lambda: read(raw, **given), raw, as_json=as_json)
            return
        if out is None:
            raise click.UsageError("Missing option '--out'.")
        options.check_ending(out, ".nc")
        if out.is_file() and not overwrite:
            raise InputError(f"{out} already exists; choose another --out, or pass --overwrite")
        if engine == RAY:
            from stforecast.bench.ray import ray_map

            given["spread"] = ray_map
        from data_prep.cube import PREPARED_BY  # imports xarray

        here = copy_context()
        here.run(PREPARED_BY.set, _typed(click.get_current_context()))
        made = here.run(data_set.prepare, raw, out, progress=obj["progress"], **given)
        _describe_cube(made, as_json=as_json)

    about, params = data_set.__doc__, _parameters(data_set)
    text, summary = help_text(about), title(about)
    return click.Command(name, options.HELP, prepare_one, params, text, short_help=summary)


def _parameters(data_set: ModuleType) -> list[click.Parameter]:
    """Return the options of the command that prepares a data set."""
    params: list[click.Parameter] = [
        click.Option(["--raw"], type=options.PATH, required=True, help="Raw file or folder."),
        click.Option(["--out"], type=options.PATH, help="Cube to write, a .nc file.  [required]"),
        click.Option(["--overwrite"], is_flag=True, help="Replace an existing cube."),
        options.JSON,
    ]
    if "spread" in inspect.signature(data_set.prepare).parameters:
        text = "Reading of raw files: one by one locally, or in parallel by Ray."
        engines = click.Choice([LOCAL, RAY])
        params.append(
            click.Option(["--engine"], type=engines, default=LOCAL, show_default=True, help=text)
        )
    if hasattr(data_set, "read"):
        text = "Print what was understood and the first rows, and write nothing."
        params.append(click.Option(["--dry-run"], is_flag=True, help=text))
    return params + options.from_function(options_of(data_set), ("progress", "spread"))


def _typed(ctx: click.Context) -> str:
    """Return the command line as it was typed, with files outside the folder by name only."""
    words = ["stforecast", "prepare", str(ctx.info_name)]
    for option in ctx.command.params:
        value = ctx.params.get(str(option.name))
        if ctx.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
            value = shown(value) if isinstance(value, Path) else value
            value = list(value) if isinstance(value, tuple) else value
            words += option_words(option, value, Path())
    return as_text(shlex.join(words))


def _preview(read: Callable[[], xr.Dataset], raw: Path, *, as_json: bool) -> None:
    """Print how records are read, and the cube, which is not written."""
    from data_prep.cube import warn_of_services
    from data_prep.described import cube_text, notes_of, preview, steps_text
    from data_prep.description import describe_cube
    from data_prep.readers.origin import collecting_notes

    with collecting_notes() as notes:
        try:
            ds = read()
        finally:
            if notes and not as_json:
                click.echo(f"{raw}: how it is read\n{steps_text(notes)}\n")
    warn_of_services(ds, raw)
    if as_json:
        say_json({"path": str(raw), "kind": "table", **describe_cube(ds), **notes_of(notes)})
        return
    click.echo(f"{raw}: as it is understood\n{cube_text(describe_cube(ds))}\n\n{preview(ds)}")
    click.echo("\nnothing was written; leave out --dry-run to write the cube")


def _describe_cube(path: Path, *, as_json: bool) -> None:
    from data_prep.cube import open_cube, services_of, step_of
    from data_prep.described import Description, period
    from data_prep.description import span_of
    from stforecast.cli.info import checked, describe

    if as_json:
        say_json(describe(path).in_full(path))
        return
    with open_cube(path) as ds:
        steps, cells = counted(ds.sizes["time"], "step"), counted(ds.sizes["cell"], "cell")
        click.echo(
            f"{path}: {steps} of {in_minutes(step_of(ds))} × {cells}, {period(span_of(ds))}; "
            f"services: {some(services_of(ds), 12)}"
        )
    command = ["stforecast", "forecast", str(path), "--horizon", "24", "--out", "forecast/"]
    found = checked(path, Description("", {}, "", shlex.join(command)))
    if found.next_command:
        say_next(*shlex.split(found.next_command)[1:])


prepare = Subcommands(
    "prepare",
    known=DATA_SETS,
    make=_prepare,
    help="Turn raw records into a cube (netCDF4).",
    context_settings=options.HELP,
)
