"""Measure time and memory as the number of clients grows, with a tenth of them in each round.

    python -m experiments.benchmarks.growth --clients 1000,2000,5000,10000 --memory 1GB

Each size trains FUELS's model (a few batches per epoch) in a separate process. Clients' states that
exceed `--memory` are in memory-mapped files, so that only those of participants use memory. FUELS
compares every participant with all clients, on the server and when it mixes prototypes; this cost
grows with the product of both numbers, and FedAvg does not have it. The second table measures the
divergences alone: of all pairs of clients, with 24 prototypes of 256 values, and of a tenth of the
clients against all.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import click
import tabulate
import torch

from experiments.benchmarks.measure import Variant, make_runner
from experiments.benchmarks.prepare import in_own_process
from experiments.benchmarks.problem import BATCH, HIDDEN
from experiments.benchmarks.rounds import counts
from stforecast.federated.prototypes import jensen_shannon

SHARE = 0.1
"""Share of the clients that take part in a round."""

BATCHES, ROUNDS = 4, 3
"""Batches of a client's epoch, and timed rounds after a first one."""

STATUS = Path("/proc/self/status")


def memory(kind: str) -> float:
    """Return this process's memory in GB: `RssAnon`, current without files, or `VmHWM`, peak."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines[kind].split()[0]) / 1e6


def grow(n_clients: int, method: str, threads: int, allowed: str) -> list[float]:
    """Measure rounds of a federation of this size.

    Returns:
        Number of participants, seconds of a round, those of the server, milliseconds per
        participant, and GB of this process's memory without files.
    """
    torch.set_num_threads(threads)
    some = (("participation", SHARE), ("full_start", False))
    settings = (("method", method), ("memory", allowed), *some)
    run_round = make_runner(Variant("ours", threads=threads, settings=settings), n_clients, BATCHES)
    rounds = [run_round() for _ in range(1 + ROUNDS)][1:]
    seconds, server = (
        statistics.median(getattr(r, name) for r in rounds)
        for name in ("seconds", "server_seconds")
    )
    taking_part = round(SHARE * n_clients)
    return [taking_part, seconds, server, 1e3 * (seconds - server) / taking_part, memory("RssAnon")]


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


@click.command()
@click.option("--clients", default="1000,2000,5000,10000", show_default=True, callback=counts)
@click.option("--method", multiple=True, default=["fedavg", "fuels"], show_default=True)
@click.option("--pairs", default="500,1000,2000,5000", show_default=True, callback=counts)
@click.option("--memory", "allowed", default="1GB", show_default=True, help="Memory of a run.")
@click.option("--threads", default=os.cpu_count(), show_default=True)
def main(
    clients: list[int], method: tuple[str, ...], pairs: list[int], allowed: str, threads: int
) -> None:
    """Measure rounds and the server's divergences as the number of clients grows."""
    rows = [
        [name, n, *in_own_process(grow, n, name, threads, allowed)]
        for name in method
        for n in clients
    ]
    headers = [
        "method", "clients", "take part", "s/round", "server s", "ms/participant", "memory GB",
    ]  # fmt: skip
    formats = ("", "d", ".0f", ".3g", ".3g", ".3g", ".2f")
    click.echo(tabulate.tabulate(rows, headers, floatfmt=formats) + "\n")
    rows = [[n, *in_own_process(compare, n, threads)] for n in pairs]
    headers = ["clients", "s, all pairs", "s, a tenth against all", "memory GB"]
    click.echo(tabulate.tabulate(rows, headers, floatfmt=("d", ".3g", ".3g", ".2f")))


if __name__ == "__main__":
    main()
