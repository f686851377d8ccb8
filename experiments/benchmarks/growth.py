"""Measure time and memory as the number of clients grows, with a share of them in each round."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from experiments.benchmarks.client_loop import BATCH, HIDDEN
from experiments.benchmarks.frame import Results, benchmark, numbers, table, timed
from experiments.benchmarks.machine import CORES, in_own_process, own_memory
from experiments.benchmarks.rounds import Variant, make_runner
from stforecast.bench.curves import HUES, places
from stforecast.bench.drawing import SMALL, TINY, TWO_COLUMNS, panels, save_figure
from stforecast.federated.core.prototypes import jensen_shannon

BATCHES, ROUNDS = 4, 3
"""Batches of a client's epoch, and timed rounds after a first one."""

COLUMNS = {
    "method": ("method", ""),
    "clients": ("clients", ""),
    "participants": ("in a round", ""),
    "seconds": ("s a round", ".3g"),
    "server_seconds": ("s of the server", ".3g"),
    "participant_ms": ("ms a participant", ".3g"),
    "faults": ("faults a participant", ".3g"),
    "memory_gb": ("GB without files", ".2f"),
    "peak_gb": ("peak GB with files", ".2f"),
}

DIVERGENCES = {
    "clients": ("clients", "d"),
    "seconds": ("s, all pairs", ".3g"),
    "tenth_seconds": ("s, a tenth against all", ".3g"),
    "memory_gb": ("memory GB", ".2f"),
}


@benchmark()
def growth(
    results: Results,
    *,
    clients: str = "1000,2000,5000,10000",
    methods: str = "fedavg,fuels",
    pairs: str = "500,1000,2000,5000",
    share: float = 0.1,
    hidden_size: int = HIDDEN,
    compared: int = 0,
    memory: str = "1GB",
    threads: int = CORES,
) -> str:
    """Measure rounds and the server's divergences as the number of clients grows.

    Each size trains FUELS's model (a few batches per epoch) in a separate process. Clients' states
    that exceed `--memory` are in memory-mapped files, so that only those of participants use
    memory. FUELS compares every participant with all clients, on the server and when it mixes
    prototypes; this cost grows with the product of both numbers, and FedAvg does not have it. With
    `--compared` it compares with a sample. The second table measures the divergences alone: of all
    pairs of clients, with 24 prototypes of 256 values, and of a tenth of the clients against all.

    Args:
        results: gets a row for each method and size.
        clients: numbers of clients.
        methods: methods of the rounds.
        pairs: numbers of clients whose divergences are measured.
        share: share of the clients in a round.
        hidden_size: hidden size of each GRU.
        compared: clients that FUELS compares with; 0 is all.
        memory: memory of a run.
        threads: number of threads.
    """
    sizes, of_pairs = numbers(clients), numbers(pairs)
    settings = {"memory": memory, "participation": share, "hidden_size": hidden_size}
    for method, n in itertools.product(methods.split(","), sizes):
        own = {**settings, "method": method} | ({"compared": compared} if method == "fuels" else {})
        grown = in_own_process(grow, n, threads, own)
        results.add({"method": method, "clients": n, **grown._asdict()})
    if results.path:
        save_figure(draw(results.rows), results.path.with_suffix(".png"))
    results.about["divergences"] = [in_own_process(compare, n, threads) for n in of_pairs]
    results.add()
    divergences = table(results.about["divergences"], DIVERGENCES)
    return f"{table(results.rows, COLUMNS)}\n\n{divergences}"


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


def grow(n_clients: int, threads: int, settings: dict[str, Any]) -> Growth:
    """Measure rounds of a federation of this size with settings of a run."""
    torch.set_num_threads(threads)
    variant = Variant("", threads=threads, settings=(("full_start", False), *settings.items()))
    run_round = make_runner(variant, n_clients, BATCHES)
    run_round()
    rounds = []
    for _ in range(ROUNDS):
        before = faults()
        rounds.append((run_round(), faults() - before))
    fastest, faulted = min(rounds, key=lambda r: r[0].seconds)
    taking_part = max(1, round(settings["participation"] * n_clients))
    of_clients = 1e3 * (fastest.seconds - fastest.server_seconds) / taking_part
    return Growth(
        taking_part, fastest.seconds, fastest.server_seconds, of_clients, faulted / taking_part,
        own_memory("RssAnon") / 1e6, own_memory("VmHWM") / 1e6,
    )  # fmt: skip


def faults() -> int:
    """Return how often this process has touched a page that was not mapped."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt + used.ru_majflt


def compare(n_clients: int, threads: int) -> dict[str, float]:
    """Measure the divergences between the prototypes of all pairs of clients.

    Memory is what they take in addition to the prototypes; `tenth_seconds` are of a tenth of the
    clients against all.
    """
    torch.set_num_threads(threads)
    prototypes = torch.rand(BATCH, n_clients, 2 * HIDDEN) - 0.5
    before = own_memory("VmHWM")

    def diverge(rows: int) -> None:
        total = torch.zeros(rows, n_clients, dtype=torch.float64)
        for slot in prototypes:
            total += jensen_shannon(slot[:rows], None if rows == n_clients else slot)

    everyone, tenth = (timed(diverge, n) for n in (n_clients, n_clients // 10))
    return {
        "clients": n_clients,
        "seconds": everyone.seconds,
        "tenth_seconds": tenth.seconds,
        "memory_gb": (own_memory("VmHWM") - before) / 1e6,
    }


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the line of least squares in logarithms.

    >>> round(slope([1, 10, 100], [2, 200, 20_000]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def slopes_of(rows: Sequence[dict[str, Any]], column: str) -> dict[str, float]:
    """Return the slope of a column of `Growth` for each method measured with several sizes."""
    methods = dict.fromkeys(row["method"] for row in rows)
    of = {m: [(r["clients"], r[column]) for r in rows if r["method"] == m] for m in methods}
    return {m: slope(*zip(*points, strict=True)) for m, points in of.items() if len(points) > 1}


def draw(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw seconds, time of a participant and memory against the number of clients."""
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
