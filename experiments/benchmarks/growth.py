"""Measure time and memory as the number of clients grows, with a share of them in each round.

    python -m experiments.benchmarks.growth --clients 1000,2000,5000,10000 --memory 1GB
    python -m experiments.benchmarks.growth --clients 1000,3000,10000,30000,100000 --share 0.01 \
        --hidden-size 16 --compared 300 --memory 1GB --pairs 500 --out FOLDER

Each size trains FUELS's model (a few batches per epoch) in a separate process. Clients' states that
exceed `--memory` are in memory-mapped files, so that only those of participants use memory. FUELS
compares every participant with all clients, on the server and when it mixes prototypes; this cost
grows with the product of both numbers, and FedAvg does not have it. With `--compared` it compares
with a sample. The second table measures the divergences alone: of all pairs of clients, with 24
prototypes of 256 values, and of a tenth of the clients against all. With `--out` the first is also
written, as growth.json, and drawn.
"""

from __future__ import annotations

import itertools
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import tabulate
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from experiments.benchmarks.measure import Variant, make_runner
from experiments.benchmarks.prepare import in_own_process
from experiments.benchmarks.problem import BATCH, HIDDEN
from experiments.benchmarks.results import processor, save
from experiments.benchmarks.rounds import counts
from stforecast.bench.curves import HUES, places
from stforecast.bench.drawing import SMALL, TINY, TWO_COLUMNS, panels, save_figure
from stforecast.federated.core.prototypes import jensen_shannon

BATCHES, ROUNDS = 4, 3
"""Batches of a client's epoch, and timed rounds after a first one."""

STATUS = Path("/proc/self/status")


class Growth(NamedTuple):
    """Row of the table of rounds.

    Attributes:
        participants: number of clients in a round.
        seconds: wall-clock seconds of the fastest round.
        server_seconds: those of the server in it.
        participant_ms: milliseconds of a participant in it, without the server's.
        faults: pages not mapped when a participant touched them.
        memory_gb: GB of this process's memory without files.
        peak_gb: peak of this memory with the pages of files.
    """

    participants: int
    seconds: float
    server_seconds: float
    participant_ms: float
    faults: float
    memory_gb: float
    peak_gb: float


def memory(kind: str) -> float:
    """Return this process's memory in GB: `RssAnon`, current without files, or `VmHWM`, peak."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines[kind].split()[0]) / 1e6


def grow(
    n_clients: int,
    method: str,
    threads: int,
    allowed: str,
    share: float = 0.1,
    hidden: int = HIDDEN,
    compared: int = 0,
) -> Growth:
    """Measure rounds of a federation of this size."""
    torch.set_num_threads(threads)
    settings = [("method", method), ("memory", allowed), ("participation", share)]
    settings += [("full_start", False), ("hidden_size", hidden)]
    settings += [("compared", compared)] if method == "fuels" else []
    variant = Variant("ours", threads=threads, settings=tuple(settings))
    run_round = make_runner(variant, n_clients, BATCHES)
    run_round()
    rounds = []
    for _ in range(ROUNDS):
        before = faults()
        rounds.append((run_round(), faults() - before))
    fastest, faulted = min(rounds, key=lambda r: r[0].seconds)
    taking_part = max(1, round(share * n_clients))
    of_clients = 1e3 * (fastest.seconds - fastest.server_seconds) / taking_part
    return Growth(
        taking_part, fastest.seconds, fastest.server_seconds, of_clients, faulted / taking_part,
        memory("RssAnon"), memory("VmHWM"),
    )  # fmt: skip


def faults() -> int:
    """Return how often this process has touched a page that was not mapped."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt + used.ru_majflt


def compare(n_clients: int, threads: int) -> list[float]:
    """Measure the divergences between the prototypes of all pairs of clients.

    Returns:
        Seconds, seconds of a tenth of the clients against all, and GB in addition to the
        prototypes.
    """
    torch.set_num_threads(threads)
    prototypes = torch.rand(BATCH, n_clients, 2 * HIDDEN) - 0.5
    before, seconds = memory("VmHWM"), []
    for rows in (n_clients, n_clients // 10):
        start, total = time.perf_counter(), torch.zeros(rows, n_clients, dtype=torch.float64)
        for slot in prototypes:
            total += jensen_shannon(slot[:rows], None if rows == n_clients else slot)
        seconds.append(time.perf_counter() - start)
    return [*seconds, memory("VmHWM") - before]


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the line of least squares in logarithms.

    >>> round(slope([1, 10, 100], [2, 200, 20_000]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Tabulate rounds.

    Args:
        rows: method, number of clients and the values of `Growth`, by name.
    """
    headers = [
        "method", "clients", "in a round", "s a round", "s of the server", "ms a participant",
        "faults a participant", "GB without files", "peak GB with files",
    ]  # fmt: skip
    formats = ("", "", "", ".3g", ".3g", ".3g", ".3g", ".2f", ".2f")
    values = [list(row.values()) for row in rows]
    return tabulate.tabulate(values, headers, "github", floatfmt=formats, intfmt=",")


def slopes_of(rows: Sequence[dict[str, Any]], column: str) -> dict[str, float]:
    """Return the slope of each method that was measured with several sizes.

    Args:
        rows: as for `table_of`.
        column: a field of `Growth`.
    """
    methods = dict.fromkeys(row["method"] for row in rows)
    of = {m: [(r["clients"], r[column]) for r in rows if r["method"] == m] for m in methods}
    return {m: slope(*zip(*points, strict=True)) for m, points in of.items() if len(points) > 1}


def draw(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw seconds, time of a participant and memory against the number of clients.

    Args:
        rows: as for `table_of`.
    """
    shown = {
        "seconds a round": "seconds",
        "ms a participant": "participant_ms",
        "GB without files": "memory_gb",
    }
    place_of = places((row["method"], row["method"]) for row in rows)
    fig, axes = panels(TWO_COLUMNS, 2.6, len(shown), n_columns=len(shown))
    for ax, (label, column) in zip(axes, shown.items(), strict=True):
        slopes = slopes_of(rows, column)
        for name in dict.fromkeys(row["method"] for row in rows):
            of_one = [row for row in rows if row["method"] == name]
            found = f", slope {slopes[name]:.2f}" if name in slopes else ""
            sizes, values = [r["clients"] for r in of_one], [r[column] for r in of_one]
            color = HUES[place_of[name] % len(HUES)]
            ax.loglog(sizes, values, "o-", color=color, label=name + found)
        ax.set_xlabel("clients")
        ax.set_ylabel(label)
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
        ax.tick_params(labelsize=SMALL)
        ax.margins(y=0.15)
        ax.legend(fontsize=TINY)
    return fig


@click.command()
@click.option("--clients", default="1000,2000,5000,10000", show_default=True, callback=counts)
@click.option("--method", multiple=True, default=["fedavg", "fuels"], show_default=True)
@click.option("--pairs", default="500,1000,2000,5000", show_default=True, callback=counts)
@click.option("--share", default=0.1, show_default=True, help="Share of clients in a round.")
@click.option("--hidden-size", "hidden", default=HIDDEN, show_default=True)
@click.option("--compared", default=0, help="Clients that FUELS compares with; 0 is all.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of results.")
@click.option("--memory", "allowed", default="1GB", show_default=True, help="Memory of a run.")
@click.option("--threads", default=os.cpu_count(), show_default=True)
def main(
    clients: list[int],
    method: tuple[str, ...],
    pairs: list[int],
    share: float,
    hidden: int,
    compared: int,
    out: Path | None,
    allowed: str,
    threads: int,
) -> None:
    """Measure rounds and the server's divergences as the number of clients grows."""
    click.echo(processor())
    settings = {"share": share, "hidden_size": hidden, "compared": compared, "memory": allowed}
    rows = []
    for name, n in itertools.product(method, clients):
        grown = in_own_process(grow, n, name, threads, allowed, share, hidden, compared)
        rows.append({"method": name, "clients": n, **grown._asdict()})
    click.echo(table_of(rows) + "\n")
    if out:
        save({**settings, "rows": rows}, out / "growth.json")
        save_figure(draw(rows), out / "growth.png")
    divergences = [[n, *in_own_process(compare, n, threads)] for n in pairs]
    headers = ["clients", "s, all pairs", "s, a tenth against all", "memory GB"]
    click.echo(tabulate.tabulate(divergences, headers, floatfmt=("d", ".3g", ".3g", ".2f")))


if __name__ == "__main__":
    main()
