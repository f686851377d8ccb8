"""Measure time and memory as the number of clients grows, with a share of them in each round."""

from __future__ import annotations

import itertools
import resource
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from experiments.benchmarks import frame
from experiments.benchmarks.client_loop import HIDDEN
from experiments.benchmarks.rounds import Variant, make_runner
from stforecast.bench.curves import HUES, label_places
from stforecast.bench.drawing import SMALL, TINY, TWO_COLUMNS, panels, save_figure

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


@frame.benchmark()
def growth(
    results: frame.Results,
    *,
    clients: str = "1000,2000,5000,10000",
    methods: str = "fedavg,fuels",
    share: float = 0.1,
    hidden_size: int = HIDDEN,
    compared: int = 0,
    memory: str = "1GB",
    threads: int = frame.CORES,
) -> str:
    """Measure rounds as the number of clients grows.

    Each size trains FUELS's model (a few batches per epoch) in a separate process. Clients' states
    that exceed `--memory` are in memory-mapped files, so that only the states of participants use
    memory. FUELS compares every participant with all clients, on the server and when it mixes
    prototypes; this cost grows with the product of both numbers, and FedAvg does not have it. With
    `--compared` it compares with a sample.

    Args:
        results: gets a row for each method and size.
        clients: numbers of clients.
        methods: methods of the rounds.
        share: share of the clients in a round.
        hidden_size: hidden size of each GRU.
        compared: clients that FUELS compares with; 0 is all.
        memory: memory of a run.
        threads: number of threads.
    """
    settings = {"memory": memory, "participation": share, "hidden_size": hidden_size}
    for method, n in itertools.product(methods.split(","), frame.listed_numbers(clients)):
        own = {**settings, "method": method} | ({"compared": compared} if method == "fuels" else {})
        grown = frame.in_own_process(grow, n, threads, own)
        results.add({"method": method, "clients": n, **grown})
    if results.path:
        save_figure(draw_growth(results.rows), results.path.with_suffix(".png"))
    return frame.table(results.rows, COLUMNS)


def grow(n_clients: int, threads: int, settings: dict[str, Any]) -> dict[str, float]:
    """Measure the fastest round of a federation of this size, and memory; see `COLUMNS`."""
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
    return {
        "participants": taking_part,
        "seconds": fastest.seconds,
        "server_seconds": fastest.server_seconds,
        "participant_ms": 1e3 * (fastest.seconds - fastest.server_seconds) / taking_part,
        "faults": faulted / taking_part,
        "memory_gb": frame.own_memory("RssAnon") / 1e6,
        "peak_gb": frame.own_memory("VmHWM") / 1e6,
    }


def faults() -> int:
    """Return how often this process has touched a page that was not mapped."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt + used.ru_majflt


def slopes_of(rows: Sequence[dict[str, Any]], column: str) -> dict[str, float]:
    """Return the slope of a column's logarithm, by least squares, of methods with several sizes.

    >>> rows = [{"method": "fuels", "clients": 10**n, "seconds": 2 * 100**n} for n in range(3)]
    >>> round(slopes_of(rows, "seconds")["fuels"], 6)
    2.0
    """
    methods = dict.fromkeys(row["method"] for row in rows)
    of = {m: [(r["clients"], r[column]) for r in rows if r["method"] == m] for m in methods}
    several = {m: np.log(np.array(points)).T for m, points in of.items() if len(points) > 1}
    return {m: float(np.polyfit(logs[0], logs[1], 1)[0]) for m, logs in several.items()}


def draw_growth(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw seconds, time of a participant and memory against the number of clients."""
    shown = {
        "seconds a round": "seconds",
        "ms a participant": "participant_ms",
        "GB without files": "memory_gb",
    }
    place_of = label_places((row["method"], row["method"]) for row in rows)
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
