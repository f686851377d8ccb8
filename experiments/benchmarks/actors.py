"""Compare rounds of clients in actors of Ray with rounds of one process with as many threads.

    python -m experiments.benchmarks.actors --clients 100 --actors 2

Both run the same method on the same data and seeds (see `experiments.benchmarks.rounds`), in turns,
so that other load on the machine affects both equally. The first rounds are not timed. Prints the
median seconds of a round, the median CPU seconds over all processes, the size of the clients'
state, which actors return after each round, and the largest difference of the losses.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import tabulate

from experiments.benchmarks.measure import WARM_UP
from experiments.benchmarks.problem import EPOCH, make_federation
from experiments.benchmarks.results import processor
from stforecast.bench.ray_actors import RayActors, ray_actors
from stforecast.federated.engine.actors import SpreadTrainer
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.uploads.payload import total_bytes


class Measured:
    """A federation and the cost of its rounds.

    Args:
        federation: the federation before its first round.
        cpu: returns the CPU seconds of its processes so far.
    """

    def __init__(self, federation: Federation, cpu: Callable[[], float]) -> None:
        self.federation, self._cpu = federation, cpu
        self.wall, self.cpu = list[float](), list[float]()

    def round(self) -> None:
        """Run and measure a round."""
        wall, cpu = time.perf_counter(), self._cpu() if self.federation.reports else 0.0
        self.federation.run_round()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(self._cpu() - cpu)

    @property
    def losses(self) -> list[float]:
        """Training losses of all rounds."""
        return [report.train_loss for report in self.federation.reports]


def cpu_seconds(ray: Any, actors: RayActors) -> float:
    """Return the CPU seconds of this process and all actors."""
    used = [h.__ray_call__.remote(_process_time) for h in actors.handles.values()]
    return time.process_time() + float(sum(ray.get(used)))


def _process_time(_: object) -> float:
    return time.process_time()


@click.command()
@click.option("--clients", default=100, show_default=True, help="Number of clients.")
@click.option("--batches", default=EPOCH, show_default=True, help="Batches of a client's epoch.")
@click.option("--actors", "n", default=2, show_default=True, help="Actors, and threads.")
@click.option("--repetitions", default=3, show_default=True, help="Timed rounds of each.")
@click.option("--method", default="fuels", show_default=True, help="Method of the round.")
def main(clients: int, batches: int, n: int, repetitions: int, method: str) -> None:
    """Compare clients in actors of Ray with threads of one process."""
    click.echo(f"{processor()}; {method}, {clients} clients, {batches} batches")
    make = partial(make_federation, clients, batches, method=method)
    with ray_actors(n, 1, clients) as actors:
        import ray

        spread = make(make_trainer=partial(SpreadTrainer, actors=actors))
        compared = {
            f"one process, {n} threads": Measured(make(workers=n), time.process_time),
            f"{n} actors of one core": Measured(spread, partial(cpu_seconds, ray, actors)),
        }
        for _ in range(WARM_UP + repetitions):
            for measured in compared.values():
                measured.round()
    rows = [
        [name, statistics.median(m.wall[WARM_UP:]), statistics.median(m.cpu[WARM_UP:])]
        for name, m in compared.items()
    ]
    click.echo(tabulate.tabulate(rows, ["clients in", "s a round", "CPU s"], floatfmt=".3g"))
    returned = total_bytes(spread.state.clients.flat()) / 1e6
    threads, actor = compared.values()
    difference = max(abs(a / b - 1) for a, b in zip(actor.losses, threads.losses, strict=True))
    click.echo(f"returned by actors a round: {returned:.0f} MB; losses differ by {difference:.0e}")


if __name__ == "__main__":
    main()
