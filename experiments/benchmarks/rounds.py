"""Compare the time of a federated round between this project's variants and loops over clients.

Every variant runs FUELS's round on the same data and seeds (dual GRU of 128, batches of 24, the
batch and its augmentation encoded, all three losses, Adam, prototypes aggregated) in a separate
process. Variants take turns; results are medians. The first two rounds are not timed; their losses
are compared, to check that all variants compute the same.

An epoch has 37 batches. With many clients all variants measure fewer: the time of these batches is
scaled to an epoch, and the server's and the cohorts' fixed costs of a round are added. With the
fewest clients, variants are measured on one thread and on all; after that on the better of the two,
or on both if they are close, or loops.

The limit by torch's matrix products is the round's arithmetic divided by the measured rate of
single-precision batched products of the round's shapes, on all cores.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import click
import torch

from experiments.benchmarks import frame
from experiments.benchmarks.client_loop import (
    BATCH,
    EPOCH,
    HIDDEN,
    STEPS,
    ClientLoop,
    make_federation,
)
from experiments.benchmarks.frame import CORES
from stforecast.federated.kernels.compiler import supported

WARM_UP = 2
"""Rounds that are not timed; in the first, clients have no prototypes to compare with."""

WORK, FEWEST_BATCHES = 2000, 2
"""Measured batches of all clients in total, to bound the time, and the minimum for each client."""

CLOSE = 1.15
"""Ratio of times up to which both numbers of threads are measured again with more clients."""

COLUMNS = {
    "clients": ("clients", "d"),
    "variant": ("path", ""),
    "threads": ("threads", ""),
    "seconds": ("s/round", ".3g"),
    "batch_ms": ("ms/batch", ".3g"),
    "cpu_seconds": ("CPU s", ".3g"),
    "speedup": ("× loop", ".1f"),
    "speedup_tuned": ("× tuned", ".1f"),
    "by_turn": ("× first, turn by turn", ""),
    "share": ("of limit", ".0%"),
    "difference": ("loss differs", ".0e"),
    "batches": ("batches", "d"),
}
"""Medians of rounds; a row also has `once_seconds` and the `losses` of the rounds not timed.

Where fewer batches than an epoch's were measured, their time is scaled to an epoch in `seconds` and
the rest of the round is added; milliseconds of a batch and CPU seconds are as measured. `speedup`
and `speedup_tuned` are over the faster of the plain and of the tuned loops, `share` is of the limit
by arithmetic, and `difference` is the largest relative difference of a loss from the reference's.
"""


@frame.benchmark()
def rounds(
    results: frame.Results,
    *,
    clients: str = "10,100,1000",
    batches: int | None = None,
    repetitions: int = 3,
    threads: int = CORES,
) -> str:
    """Compare the time of a federated round with loops over clients.

    Args:
        results: gets a row for each variant.
        clients: numbers of clients.
        batches: batches measured of an epoch's 37; fewer for many clients.
        repetitions: timed rounds of each variant.
        threads: maximum threads.
    """
    rate = product_rate(threads)
    results.about["gigaflops"] = rate
    compared = variants(threads)
    for n in sorted(frame.listed_numbers(clients)):
        n_batches = batches or batches_for(n)
        of_size = measure(compared, n, n_batches, repetitions, rate)
        compared = better_threads(compared, [row["seconds"] for row in of_size])
        results.add(*of_size)
        click.echo(f"{frame.table(of_size, COLUMNS)}\n")
    return f"batched products of the round's shapes: {rate:.0f} GFLOP/s on {threads} cores"


@dataclass(frozen=True)
class Variant:
    """An implementation of the round.

    Attributes:
        name: name in the table, whatever the number of threads.
        loop: kind of loop over clients, `peers` or `tuned`; empty for stacked clients.
        threads: number of threads; with stacked clients each one trains its own cohorts.
        kernel: whether to use the compiled kernels.
        settings: further settings of the run.
    """

    name: str
    loop: str = ""
    threads: int = 1
    kernel: bool = True
    settings: tuple[tuple[str, Any], ...] = ()


def variants(threads: int) -> list[Variant]:
    """Return the variants to compare, the reference first."""
    found = [
        Variant("loop over clients, nn.GRU", "peers"),
        Variant("loop, tuned", "tuned"),
        Variant("stacked, torch only", kernel=False),
        Variant("stacked, compiled kernels"),
    ]
    if torch.bfloat16 in supported():
        bf16 = (("mixed_precision", "bf16"),)
        found.append(Variant("stacked, compiled kernels, bf16", settings=bf16))
    return [*found, *(replace(v, threads=threads) for v in found if threads > 1)]


def batches_for(n_clients: int) -> int:
    """Return the measured batches of a client's epoch: all, or fewer with many clients."""
    return min(EPOCH, max(FEWEST_BATCHES, WORK // n_clients))


@dataclass(frozen=True)
class Round:
    """Loss, wall-clock and CPU seconds of one round.

    The seconds of the server's aggregation, and of creating cohorts with the broadcast payload and
    writing them back, do not depend on the number of batches.
    """

    loss: float
    seconds: float
    cpu_seconds: float
    server_seconds: float
    cohort_seconds: float

    @property
    def once_seconds(self) -> float:
        """Wall-clock seconds that are independent of the number of batches."""
        return self.server_seconds + self.cohort_seconds

    @property
    def batch_seconds(self) -> float:
        """Wall-clock seconds of all batches."""
        return self.seconds - self.once_seconds

    def epoch_seconds(self, n_batches: int) -> float:
        """Return the seconds of a round with a full epoch, if this one had so many batches."""
        return self.batch_seconds * EPOCH / n_batches + self.once_seconds


def make_runner(variant: Variant, n_clients: int, n_batches: int) -> Callable[[], Round]:
    """Return a function that runs and measures one round."""
    workers = variant.threads if not variant.loop else 1
    federation = make_federation(n_clients, n_batches, workers, **dict(variant.settings))
    at_server: list[float] = []
    in_cohorts: list[float] = []
    of_batches: list[float] = []
    watch(federation.method, "aggregate", at_server)
    if variant.loop:
        watch(federation.method, "broadcast", in_cohorts)
        run_round = ClientLoop(federation, tuned=variant.loop == "tuned").run_round
    else:
        watch(federation.trainer, "_train", in_cohorts)
        for method in federation.trainer.workers.methods:
            watch(method, "local_update", of_batches)
        run_round = lambda: federation.run_round().train_loss  # noqa: E731

    def timed_round() -> Round:
        for seconds in (at_server, in_cohorts, of_batches):
            seconds.clear()
        found = frame.timed(run_round)
        return Round(*found, sum(at_server), (sum(in_cohorts) - sum(of_batches)) / workers)

    return timed_round


def watch(owner: object, name: str, seconds: list[float]) -> None:
    """Add the seconds of all further calls of a method of an object, in all threads, to a list."""
    function = getattr(owner, name)

    def watched(*given: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*given)
        finally:
            seconds.append(time.perf_counter() - start)

    setattr(owner, name, watched)


def variant_runner(variant: Variant, n_clients: int, n_batches: int) -> Callable[[], Round]:
    """Return the runner of a variant, with its kernels and threads set for this process."""
    os.environ["STFORECAST_KERNELS"] = "on" if variant.kernel else "off"
    torch.set_num_threads(variant.threads)
    return make_runner(variant, n_clients, n_batches)


def gigaflop(n_clients: int, n_batches: int) -> float:
    """Return the arithmetic of the GRUs' matrix products in a round, in 10⁹ operations.

    The backward pass takes twice as many operations as the forward pass. Both encode the batch and
    its augmentation with two GRUs, whose first step has no hidden product.
    """
    product = 2 * (2 * BATCH) * HIDDEN * 3 * HIDDEN
    return n_clients * n_batches * 2 * 3 * (STEPS - 1) * product / 1e9


def product_rate(cores: int) -> float:
    """Return the rate of batched float32 products of the round's shapes, in 10⁹ operations/s.

    This is torch's best rate of several tries on one core, times the number of cores: clients are
    independent, so ideal scaling is possible.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    a, b = torch.rand(16, 2 * BATCH, HIDDEN), torch.rand(16, HIDDEN, 3 * HIDDEN)
    c = torch.bmm(a, b)
    seconds = min(frame.timed(partial(torch.bmm, a, b, out=c)).seconds for _ in range(100))
    torch.set_num_threads(before)
    return cores * 2 * a.numel() * b.shape[2] / 1e9 / seconds


def measure(
    compared: Sequence[Variant], n_clients: int, n_batches: int, repetitions: int, rate: float
) -> list[dict[str, Any]]:
    """Time variants, the reference first, in turns of one round each; the `rate` is of products."""
    sides = {v: (v, n_clients, n_batches) for v in compared}
    turns = frame.processes_in_turns(variant_runner, sides, WARM_UP + repetitions)
    times = {v: [r.epoch_seconds(n_batches) for r in of[WARM_UP:]] for v, of in turns.items()}
    seconds = {v: statistics.median(of_one) for v, of_one in times.items()}
    losses = {v: [r.loss for r in of_one[:WARM_UP]] for v, of_one in turns.items()}
    fastest = {k: min(s for v, s in seconds.items() if v.loop == k) for k in ("peers", "tuned")}

    def median(variant: Variant, value: Callable[[Round], float]) -> float:
        return statistics.median(map(value, turns[variant][WARM_UP:]))

    return [
        {
            "clients": n_clients,
            "variant": v.name,
            "threads": v.threads,
            "seconds": s,
            "batch_ms": 1e3 * median(v, lambda r: r.batch_seconds) / n_clients / n_batches,
            "cpu_seconds": median(v, lambda r: r.cpu_seconds),
            "speedup": fastest["peers"] / s,
            "speedup_tuned": fastest["tuned"] / s,
            "by_turn": str(frame.ratio(times[compared[0]], times[v])),
            "share": gigaflop(n_clients, EPOCH) / rate / s,
            "difference": frame.largest_difference(losses[v], losses[compared[0]]),
            "batches": n_batches,
            "once_seconds": median(v, lambda r: r.once_seconds),
            "losses": losses[v],
        }
        for v, s in seconds.items()
    ]


def better_threads(compared: Sequence[Variant], times: Sequence[float]) -> list[Variant]:
    """Return each variant with its faster number of threads, or with both if they are close.

    Of loops, both stay: with more clients, another one may be the faster.
    """
    best: dict[str, float] = {}
    for v, seconds in zip(compared, times, strict=True):
        best[v.name] = min(seconds, best.get(v.name, seconds))
    pairs = zip(compared, times, strict=True)
    return [v for v, s in pairs if v.loop or s <= CLOSE * best[v.name]]
