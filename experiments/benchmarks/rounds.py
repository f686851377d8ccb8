"""How long a federated round takes: this project's paths, and loops over clients, side by side.

    python -m experiments.benchmarks.rounds --clients 10,100,1000 --out FOLDER

Every path does FUELS's round on the same data from the same seeds (dual GRU of 128, batches of 24,
the batch and its augmentation encoded, all three losses, Adam, prototypes aggregated), each in a
process of its own. Rounds of all paths take turns, so that whatever else the machine does falls on
all alike; medians count. The first two rounds are not timed: there the paths' losses are compared,
since a path that is fast because it computes something else is worth nothing.

An epoch has 37 batches. With many clients fewer are measured, by all paths alike: their time is
scaled to an epoch, and what happens once a round, at the server and around cohorts, is added. Paths
are measured on one thread and on all with the fewest clients, then on the better of the two, or on
both where they are close.

The limit is what torch's matrix products allow: the round's arithmetic over the measured rate of
single-precision batched products of the round's shapes, on all cores.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import tabulate
import torch
from matplotlib.figure import Figure

from data_prep.cube import atomic_path
from experiments.benchmarks.measure import (
    WARM_UP,
    Row,
    batches_for,
    better_threads,
    measure,
    product_rate,
    variants,
)
from experiments.benchmarks.problem import EPOCH
from stforecast.plots.drawing import ONE_COLUMN, SMALL, panels, save_figure

MOST_FLOWER = 100
"""Clients up to which Flower's simulation is measured: each is a node with messages of its own."""


def flower(python: str, reference: Row, repetitions: int) -> Row:
    """The row of Flower's simulation with whole epochs, after the others: Ray takes all cores.

    Args:
        python: interpreter of an environment that has `flwr[simulation]` and this project.
        reference: the first row of the same number of clients.
        repetitions: timed rounds.
    """
    sizes = {"clients": reference.clients, "batches": EPOCH, "rounds": WARM_UP + repetitions}
    options = [text for name, n in sizes.items() for text in (f"--{name}", str(n))]
    command = [python, "-m", "experiments.benchmarks.flower_round", *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    rounds = json.loads(done.stdout.splitlines()[-1])
    seconds = statistics.median(r["seconds"] for r in rounds[WARM_UP:])
    faster, same_work = reference.seconds / seconds, reference.batches == EPOCH
    losses = zip(rounds, reference.losses if same_work else [math.nan], strict=False)
    return replace(
        reference,
        variant="Flower's simulation, tuned loop",
        seconds=seconds,
        batch_ms=1e3 * seconds / reference.clients / EPOCH,
        cpu_seconds=math.nan,
        once_seconds=math.nan,
        speedup=reference.speedup * faster,
        speedup_tuned=reference.speedup_tuned * faster,
        share=reference.share * faster,
        difference=max(abs(r["loss"] / loss - 1) for r, loss in losses),
        batches=EPOCH,
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    headers = [
        "clients", "path", "s/round", "ms/batch", "CPU s", "× loop", "× tuned", "of limit",
        "loss differs", "batches",
    ]  # fmt: skip
    values = [list(asdict(row).values())[: len(headers)] for row in rows]
    formats = ("d", "", ".3g", ".3g", ".3g", ".1f", ".1f", ".0%", ".0e", "d")
    return tabulate.tabulate(values, headers, floatfmt=formats)


def draw(rows: Sequence[Row]) -> Figure:
    """Seconds a round of each path, one panel for each number of clients."""
    sizes = sorted({row.clients for row in rows})
    fig, axes = panels(1.7 * ONE_COLUMN, 2.4, len(sizes))
    for ax, n in zip(axes, sizes, strict=True):
        some = [row for row in rows if row.clients == n][::-1]
        colors = ["0.6" if "stacked" not in row.variant else "tab:blue" for row in some]
        bars = ax.barh([r.variant for r in some], [r.seconds for r in some], color=colors)
        labels = [f" {r.seconds:.3g} s, {r.speedup:.1f}×" for r in some]
        ax.bar_label(bars, labels, fontsize=SMALL)
        ax.margins(x=0.25)
        ax.grid(visible=False, axis="y")
        ax.set_xlabel(f"seconds a round, {n} clients")
    return fig


def machine(rate: float) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "gigaflops": rate,
    }


def counts(_: click.Context, __: click.Parameter, text: str) -> list[int]:
    """Numbers with commas between them, for an option."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as e:
        raise click.BadParameter(f"{text!r}: give numbers such as 10,100") from e


@click.command()
@click.option("--clients", default="10,100,1000", show_default=True, callback=counts)
@click.option("--batches", type=int, help=f"Measured of an epoch's {EPOCH}; fewer of many clients.")
@click.option("--repetitions", default=3, show_default=True, help="Timed rounds of each path.")
@click.option("--threads", default=os.cpu_count(), show_default=True, help="Most of a path.")
@click.option("--flower", "python", help="Interpreter that has flwr[simulation], to compare with.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder.")
def main(
    clients: list[int],
    batches: int | None,
    repetitions: int,
    threads: int,
    python: str | None,
    out: Path,
) -> None:
    """Compare this project's rounds with loops over clients."""
    rate = product_rate(threads)
    click.echo(f"batched products of the round's shapes: {rate:.0f} GFLOP/s on {threads} cores")
    rows: list[Row] = []
    compared = variants(threads)
    for n in sorted(clients):
        n_batches = batches or batches_for(n)
        click.echo(f"{n} clients, {n_batches} of {EPOCH} batches:")
        of_size = measure(compared, n, n_batches, repetitions, rate)
        compared = better_threads(compared, of_size)
        if python and n <= MOST_FLOWER:
            of_size.append(flower(python, of_size[0], repetitions))
        click.echo(table(of_size) + "\n")
        rows += of_size
    results = {"machine": machine(rate), "rows": [asdict(row) for row in rows]}
    with atomic_path(out / "rounds.json") as part:
        part.write_text(json.dumps(results, indent=2) + "\n")
    save_figure(draw(rows), out / "rounds.png")
    click.echo(f"{out / 'rounds.json'}, {out / 'rounds.png'}")


if __name__ == "__main__":
    main()
