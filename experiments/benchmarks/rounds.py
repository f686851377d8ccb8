"""How long a federated round takes: this project's paths, and loops over clients, side by side.

    python -m experiments.benchmarks.rounds --clients 10,100 --out FOLDER

Every path does FUELS's round on the same data from the same seeds (dual GRU of 128, 37 batches of
24 a client, the batch and its augmentation encoded, all three losses, Adam, prototypes aggregated),
each in a process of its own. Rounds of all paths take turns, so that whatever else the machine does
falls on all alike; medians count. The first two rounds are not timed: there the paths' losses are
compared, since a path that is fast because it computes something else is worth nothing.

The limit is what the machine's matrix products allow: the round's arithmetic over the measured
rate of single-precision batched products of the round's shapes, on all cores.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import tabulate
import torch
from matplotlib.figure import Figure

from data_prep.cube import atomic_path
from experiments.benchmarks.client_loop import ClientLoop
from experiments.benchmarks.problem import BATCH, HIDDEN, STEPS, make_federation
from stforecast.plots.drawing import ONE_COLUMN, SMALL, panels, save_figure

WARM_UP = 2
"""Rounds before the clock starts: in the first, clients have no prototypes to compare with."""


@dataclass(frozen=True)
class Variant:
    """One way to do the round.

    Attributes:
        name: as the table calls it.
        loop: whether it loops over clients: `peers`, `tuned`, or not at all (empty).
        threads: threads, of which each of ours trains cohorts of its own.
        kernel: whether to use the compiled kernel.
        settings: further settings of the run.
    """

    name: str
    loop: str = ""
    threads: int = 1
    kernel: bool = True
    settings: tuple[tuple[str, Any], ...] = ()


def variants(threads: int) -> list[Variant]:
    """What is compared, the reference first."""
    found = [
        Variant("loop over clients, nn.GRU", "peers"),
        Variant("loop, tuned", "tuned"),
        Variant("stacked, torch only", kernel=False),
        Variant("stacked, compiled kernel"),
    ]
    several = [
        replace(v, name=f"{v.name}, {threads} threads", threads=threads)
        for v in found
        if threads > 1
    ]
    return [*found, *several]


def make_runner(variant: Variant, n_clients: int, n_batches: int) -> Callable[[], float]:
    """A function that does one round and returns the mean training loss."""
    workers = variant.threads if not variant.loop else 1
    federation = make_federation(n_clients, n_batches, workers, **dict(variant.settings))
    if variant.loop:
        return ClientLoop(federation, tuned=variant.loop == "tuned").run_round
    return lambda: federation.run_round().train_loss


class Running:
    """A variant in a process of its own, ready to do rounds."""

    def __init__(self, variant: Variant, n_clients: int, n_batches: int) -> None:
        self.variant = variant
        self._pool = ProcessPoolExecutor(
            max_workers=1,
            mp_context=get_context("spawn"),
            initializer=_prepare,
            initargs=(variant, n_clients, n_batches),
        )

    def round(self) -> tuple[float, float, float]:
        """Loss, wall and CPU seconds of one round."""
        return self._pool.submit(_timed_round).result()

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown()


_run_round: Callable[[], float]


def _prepare(variant: Variant, n_clients: int, n_batches: int) -> None:
    global _run_round
    os.environ["STFORECAST_KERNELS"] = "on" if variant.kernel else "off"
    torch.set_num_threads(variant.threads)
    _run_round = make_runner(variant, n_clients, n_batches)


def _timed_round() -> tuple[float, float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    loss = _run_round()
    return loss, time.perf_counter() - wall, time.process_time() - cpu


def gigaflop(n_clients: int, n_batches: int) -> float:
    """Arithmetic of the GRUs' matrix products in a round, in 10⁹ operations.

    Forward, and twice as much backward; the batch and its augmentation; two GRUs, whose first step
    has no hidden product.
    """
    product = 2 * (2 * BATCH) * HIDDEN * 3 * HIDDEN
    return n_clients * n_batches * 2 * 3 * (STEPS - 1) * product / 1e9


def product_rate(cores: int, n_clients: int = 16) -> float:
    """Rate of batched single-precision products of the round's shapes, in 10⁹ operations a second.

    Measured on one core, the best of several tries, and taken times the number of cores: clients
    are independent, so nothing need be lost between cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    a, b = torch.rand(n_clients, 2 * BATCH, HIDDEN), torch.rand(n_clients, HIDDEN, 3 * HIDDEN)
    c = torch.bmm(a, b)
    seconds = []
    for _ in range(100):
        start = time.perf_counter()
        torch.bmm(a, b, out=c)
        seconds.append(time.perf_counter() - start)
    torch.set_num_threads(before)
    return cores * 2 * a.numel() * b.shape[2] / 1e9 / min(seconds)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        clients: number of clients.
        variant: name of the path.
        seconds: median wall-clock seconds a round.
        cpu_seconds: median CPU seconds a round, over all threads.
        speedup: against the faster of the loops as peers write them.
        speedup_tuned: against the faster of the tuned loops.
        share: of the limit by arithmetic, in [0, 1].
        difference: largest relative difference of a round's loss from the reference's.
        losses: mean training losses of the rounds before the clock.
    """

    clients: int
    variant: str
    seconds: float
    cpu_seconds: float
    speedup: float
    speedup_tuned: float
    share: float
    difference: float
    losses: list[float]


def measure(
    n_clients: int, n_batches: int, repetitions: int, threads: int, rate: float
) -> list[Row]:
    """Time all variants, taking turns.

    Args:
        n_clients: clients of the federation.
        n_batches: batches of a client's epoch.
        repetitions: timed rounds of each.
        threads: most threads of a variant.
        rate: what `product_rate` gave.
    """
    running = [Running(v, n_clients, n_batches) for v in variants(threads)]
    first = [[r.round()[0] for _ in range(WARM_UP)] for r in running]
    timed = [[r.round()[1:] for r in running] for _ in range(repetitions)]
    for r in running:
        r.close()
    walls, cpus = (
        [statistics.median(turn[i][k] for turn in timed) for i in range(len(running))]
        for k in range(2)
    )
    fastest = {
        loop: min(w for w, r in zip(walls, running, strict=True) if r.variant.loop == loop)
        for loop in ("peers", "tuned")
    }
    return [
        Row(
            clients=n_clients,
            variant=r.variant.name,
            seconds=wall,
            cpu_seconds=cpu,
            speedup=fastest["peers"] / wall,
            speedup_tuned=fastest["tuned"] / wall,
            share=gigaflop(n_clients, n_batches) / rate / wall,
            difference=max(abs(a / b - 1) for a, b in zip(losses, first[0], strict=True)),
            losses=losses,
        )
        for r, wall, cpu, losses in zip(running, walls, cpus, first, strict=True)
    ]


def flower(python: str, reference: Row, n_batches: int, repetitions: int) -> Row:
    """The row of Flower's simulation, after the others, since Ray takes all cores.

    Args:
        python: interpreter of an environment that has `flwr[simulation]` and this project.
        reference: the first row of the same number of clients.
        n_batches: batches of a client's epoch.
        repetitions: timed rounds.
    """
    sizes = {
        "clients": reference.clients, "batches": n_batches, "rounds": WARM_UP + repetitions,
    }  # fmt: skip
    options = [text for name, n in sizes.items() for text in (f"--{name}", str(n))]
    command = [python, "-m", "experiments.benchmarks.flower_round", *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    rounds = json.loads(done.stdout.splitlines()[-1])
    seconds = statistics.median(r["seconds"] for r in rounds[WARM_UP:])
    faster = reference.seconds / seconds
    losses = zip(rounds, reference.losses, strict=False)
    return replace(
        reference,
        variant="Flower's simulation, tuned loop",
        seconds=seconds,
        cpu_seconds=math.nan,
        speedup=reference.speedup * faster,
        speedup_tuned=reference.speedup_tuned * faster,
        share=reference.share * faster,
        difference=max(abs(r["loss"] / loss - 1) for r, loss in losses),
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    headers = [
        "clients", "path", "s/round", "CPU s", "× loop", "× tuned", "of limit", "loss differs",
    ]  # fmt: skip
    values = [list(asdict(row).values())[: len(headers)] for row in rows]
    formats = ("d", "", ".3g", ".3g", ".1f", ".1f", ".0%", ".0e")
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
        ax.margins(x=0.2)
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


def _counts(_: click.Context, __: click.Parameter, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as e:
        raise click.BadParameter(f"{text!r}: give numbers such as 10,100") from e


@click.command()
@click.option("--clients", default="10,100", show_default=True, callback=_counts, help="Numbers.")
@click.option("--batches", default=37, show_default=True, help="Batches of a client's epoch.")
@click.option("--repetitions", default=5, show_default=True, help="Timed rounds of each path.")
@click.option("--threads", default=os.cpu_count(), show_default=True, help="Most of a path.")
@click.option("--flower", "python", help="Interpreter that has flwr[simulation], to compare with.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder.")
def main(
    clients: list[int], batches: int, repetitions: int, threads: int, python: str | None, out: Path
) -> None:
    """Compare this project's rounds with loops over clients."""
    rate = product_rate(threads)
    click.echo(f"batched products of the round's shapes: {rate:.0f} GFLOP/s on {threads} cores")
    rows: list[Row] = []
    for n in clients:
        of_size = measure(n, batches, repetitions, threads, rate)
        if python:
            of_size.append(flower(python, of_size[0], batches, repetitions))
        click.echo(table(of_size) + "\n")
        rows += of_size
    results = {"machine": machine(rate), "rows": [asdict(row) for row in rows]}
    with atomic_path(out / "rounds.json") as part:
        part.write_text(json.dumps(results, indent=2) + "\n")
    save_figure(draw(rows), out / "rounds.png")
    click.echo(f"{out / 'rounds.json'}, {out / 'rounds.png'}")


if __name__ == "__main__":
    main()
