"""The commands for images, `stforecast vision …`."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from data_prep.base.errors import InputError, counted, counted_span
from stforecast.cli import options
from stforecast.cli.commands import (
    CONFIG,
    command,
    make_list_command,
    make_plot_group,
    say_next,
    to_json,
)
from stforecast.cli.federate import NODES, shared_settings, with_server, write_federation
from stforecast.cli.lists import Names, documented, lister, method_rows, summaries, titles
from vision.plots import PLOTS

if TYPE_CHECKING:
    from vision.results import ImageRun


def _run_options(args: list[str]) -> dict[str, list[click.Option]]:
    from vision.config import defaults, sections

    method = options.peek(args, "--method", "pfpl")
    made_for = defaults(method)
    model = options.peek(args, "--model", made_for["model"])
    partition = options.peek(args, "--partition", made_for["partition"])
    titles = {
        "data": "Images",
        "partition": f"Partition {partition}",
        "model_options": f"Options of {model}",
    }
    return options.by_section(method, sections(method, model, partition), made_for, titles)


@command(options.RUN_FOLDER, options.JSON, name="run", sections=_run_options)
def run_images_command(
    ctx: click.Context,
    *,
    method: str = "pfpl",
    out: Path,
    label: str | None = None,
    resume: Path | None = None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Divide images among clients, train a method, evaluate it and save the run.

    Methods whose clients predict with the server's average are tested in two ways: with the
    averaged model, and with each client's own model after its latest local training. The method's
    own way is named after its model, such as global or personal; the other is called trained (own
    models) or averaged. The summary, run.json ("judged") and the tables say which is which.

    The last options depend on --method, --model and --partition: give these with --help to list
    them.

    Options:
        method: see: vision list methods.
        label: name in tables and figures; by default the method's.
        resume: resume this unfinished run instead of starting a new one.
    """
    from stforecast.bench.described import describe_run
    from stforecast.bench.progress import rounds_bar
    from stforecast.cli.options import check_resumed
    from stforecast.federated.runs.run_folder import read_config
    from vision import results
    from vision.cli.tables import image_summary
    from vision.config import resolve

    check_resumed(ctx, allowed=["as_json"], needed=["out"])
    settings = options.given(ctx, settings)
    command = results.ImageRun.command
    config = read_config(resume, command, resolve) if resume else resolve(method, **settings)
    with rounds_bar(config.total_rounds, progress=ctx.obj["progress"]) as after_round:
        if resume:
            finished = results.UnfinishedImageRun.resume(resume, after_round)
        else:
            finished = results.run_images(
                method, out, settings, label=label, after_round=after_round
            )
    click.echo(to_json(describe_run(finished.folder)) if as_json else image_summary(finished))
    say_next("report", finished.folder, "--out", "report.html")


def _federation_options(args: list[str]) -> dict[str, list[click.Option]]:
    found = _run_options(args).items()
    sections = {title: each for title, each in found if not title.startswith("Partition")}
    # Each node has its own images, and they are one client.
    left_out = {"data", "images", "imbalance", "surrogate", "partition", "feature_cache"}
    left_out |= {"workers", "cohort", "test_every", "checkpoint_every", "poll"}
    return with_server(sections, left_out)


@command(CONFIG, NODES, name="federate", sections=_federation_options)
def federate_images_command(
    ctx: click.Context,
    *,
    config: Path | None,
    method: str = "pfpl",
    clients: int | None = None,
    classes: str | None = None,
    out: Path | None = None,
    results: Path | None = None,
    nodes: tuple[str, ...],
    **settings: Any,
) -> None:
    """Write the Flower app of a federation of images, to be started with `flwr run`.

    Each node is one client with its own images, see `stforecast node`; images are converted to RGB
    of one size. See docs/federation.md.

    Options:
        method: see: stforecast vision list methods.
        clients: number of nodes.  [required]
        classes: names of all nodes' classes, such as cat,dog; a node may lack some.  [required]
        out: folder for the app.  [required]
        results: folder on the server for the results.  [required]
    """
    options.check_given(ctx, "classes")
    assert classes is not None
    from vision.config import check_read, resolve
    from vision.nodes import ImageFederation, parse_classes

    shared = shared_settings(ctx, settings, nodes)
    check_read(method, options.given(ctx, settings))
    found = resolve(method, **settings, clients=clients)
    federation = ImageFederation(found, **shared, classes=parse_classes(classes))
    write_federation(ctx, out, federation)


def _divide_options(args: list[str]) -> dict[str, list[click.Option]]:
    from vision.config import ImageOptions, ImageRunOptions, sections

    partition = options.peek(args, "--partition", ImageRunOptions.partition)
    kind = sections("solo", ImageRunOptions.model, partition)["partition"]
    return {
        "Images": options.from_dataclass(ImageOptions),
        f"Partition {partition}": options.from_dataclass(kind),
    }


@command(sections=_divide_options)
def divide(
    ctx: click.Context, *, out: Path, partition: str = "n-way", seed: int = 1, **settings: Any
) -> None:
    """Draw or tabulate the partition of images among clients, without training.

    Options:
        out: figure (.png, .pdf, .svg) or table (.csv).
        partition: see: vision list partitions.
        seed: seed of the partition.
    """
    from stforecast.bench.drawing import FORMATS, save_figure
    from stforecast.federated.runs.run_folder import write_csv
    from vision.cli.tables import classes_left_out
    from vision.config import check_read, resolve
    from vision.learner import load_images, prepared
    from vision.plots.partition import division, stages_of
    from vision.streams.base import TaskStream

    options.check_ending(out, *FORMATS, ".csv")
    settings |= {"partition": partition, "seed": seed}
    check_read("solo", options.given(ctx, settings))
    config = resolve("solo", **settings)
    images, _ = prepared(load_images(config), config)
    parts = config.partition.split(images, config.run.seed)
    table = parts.table(images)
    if out.suffix == ".csv":
        write_csv(table, out)
    elif isinstance(parts, TaskStream):
        save_figure(stages_of(table, images.class_names, config.partition.clients), out)
    else:
        n_clients = config.partition.clients
        save_figure(division(table, images.class_names, images.domain_names, n_clients), out)
    counts = table[table["part"] == "train"].groupby("client")["samples"].sum()
    click.echo(
        f"{out}: {len(images)} images of {images.name}, {len(counts)} clients with "
        f"{counted_span(counts.min(), counts.max(), 'training image')} each"
    )
    if left_out := classes_left_out(table, images.class_names):
        click.echo(left_out)


def image_methods_table() -> str:
    """Tabulate the methods only for images, after the others' names, for `docs/methods.md`."""
    from vision.methods import METHODS

    alone = {name: m for name, m in METHODS.items() if m.__module__.startswith("vision.")}
    both = sorted(f"`{name}`" for name in METHODS.keys() - alone.keys())
    shared = f"Of the methods above, these train on images, too: {', '.join(both)}."
    table = documented((name, method, method.paper) for name, method in alone.items())
    return f"{textwrap.fill(shared, 112)}\n\n{table}"


def _partitions(known: Names) -> list[list[str]]:
    from vision.streams import STREAMS

    return titles(known) + titles(STREAMS)


IMAGE_LISTS = {
    "methods": lister("vision.methods:METHODS", ["method", "what it does"], method_rows),
    "data": lister("vision.datasets:DATASETS", ["data set", "what it is"]),
    "partitions": lister("vision.partition:PARTITIONS", ["partition", "what it is"], _partitions),
    "models": lister("vision.models:MODELS", ["model", "what it is"], summaries),
    "plots": lister("vision.plots:PLOTS", ["figure", "what it is"]),
}
"""Lists of `stforecast vision list`, by name."""


def _find(folders: tuple[Path, ...]) -> list[ImageRun]:
    from vision.results import ImageRun

    return ImageRun.find(folders)


plot = make_plot_group(
    "Draw a figure of finished image runs.", PLOTS, _find, "stforecast vision run"
)
list_command = make_list_command(IMAGE_LISTS)


IMAGES_AT_ONCE = 1024
"""Images that are read and predicted at a time, so that a folder may hold any number."""


@command(name="predict")
def predict_images_command(
    run: Path, *, images: Path, out: Path, client: int = 0, model: str | None = None
) -> None:
    """Predict the classes of new images with a client's model of a finished run.

    Options:
        images: folder of the images, or one image; read and resized as --data folder does.
        out: table to write, .csv: file and class of each image.
        client: number of the client, from 0.
        model: one of the method's models, such as nearest; by default its first.
    """
    options.check_ending(out, ".csv")
    options.check_runs((run,), "stforecast vision run")
    import pandas as pd

    from stforecast.federated.runs.run_folder import write_csv
    from vision.datasets.folder import decode, grey, image_files
    from vision.learner import Learner

    learner = Learner.load(run)
    paths = image_files([images]) if images.is_dir() else [images]
    if not paths:
        raise InputError(f"{images}: found no images (*.jpg, *.png, …); give a folder of images")
    channels, height, width = learner.shape
    size = height if height == width else None
    classes: list[str] = []
    for begin in range(0, len(paths), IMAGES_AT_ONCE):
        some = paths[begin : begin + IMAGES_AT_ONCE]
        pictures = decode(some, size, "give images in a folder, or one file")
        shown = pictures if channels == 3 else grey(pictures)
        classes += learner.predict(shown, client, model).tolist()
    top = images if images.is_dir() else images.parent
    files = [path.relative_to(top).as_posix() for path in paths]
    write_csv(pd.DataFrame({"file": files, "class": classes}), out)
    counts = pd.Series(classes).value_counts()
    listed = ", ".join(f"{n} {name}" for name, n in counts.items())
    click.echo(f"{out}: classes of {counted(len(paths), 'image')} by client {client}: {listed}")


@click.group(context_settings=options.HELP)
def vision() -> None:
    """Federated learning of images: PFPL, GLDP, FedTA and their baselines."""


for subcommand in (
    run_images_command,
    federate_images_command,
    divide,
    plot,
    predict_images_command,
    list_command,
):
    vision.add_command(subcommand)
