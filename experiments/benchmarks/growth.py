"""How time and memory grow with the number of clients, a tenth of whom take part in a round.

    python -m experiments.benchmarks.growth --clients 1000,2000,5000,10000 --memory 1GB

Each size trains FUELS's model (a few batches an epoch) in a process of its own. Where the clients'
states do not fit `--memory` they are in memory-mapped files, so that memory is that of those who
take part. FUELS compares every client that takes part with all others, in the server and when it
mixes prototypes for it: that grows with the product of both numbers, and FedAvg has nothing of the
kind. The second table is the divergences' alone: all pairs of clients, with 24 prototypes of 256
values, and anew for a tenth of the clients against all.
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
"""Of the clients that take part in a round."""

BATCHES, ROUNDS = 4, 3
"""Of a client's epoch, and timed after a first one."""

STATUS = Path("/proc/self/status")


def memory(kind: str) -> float:
    """Memory of this process in GB: `RssAnon` is its own now, `VmHWM` the most, files included."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines[kind].split()[0]) / 1e6


def grow(n_clients: int, method: str, threads: int, allowed: str) -> list[float]:
    """Cost of rounds of a federation of this size.

    Returns:
        Participants, seconds of a round, of them the server's, milliseconds that a participant
        adds, and GB of this process's own memory.
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
    """Cost of divergences between the prototypes of all pairs.

    Returns:
        Seconds, seconds of a tenth of the clients against all, and GB that were needed besides the
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
@click.option("--memory", "allowed", default="1GB", show_default=True, help="For the rounds.")
@click.option("--threads", default=os.cpu_count(), show_default=True)
def main(
    clients: list[int], method: tuple[str, ...], pairs: list[int], allowed: str, threads: int
) -> None:
    """Measure rounds of more and more clients, and the server's divergences."""
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
