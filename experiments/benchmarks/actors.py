"""Compare rounds of clients in actors of Ray with rounds of one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.benchmarks.client_loop import EPOCH, make_federation
from experiments.benchmarks.frame import (
    Results,
    Timed,
    benchmark,
    in_turns,
    largest_difference,
    ratio,
    table,
    timed,
)
from experiments.benchmarks.rounds import WARM_UP
from stforecast.bench.ray_actors import RayActors, ray_actors
from stforecast.federated.core.tensors import total_bytes
from stforecast.federated.engine.actors import spread_trainer

ACTORS = {
    "clients_in": ("clients in", ""),
    "seconds": ("s a round", ".3g"),
    "cpu_seconds": ("CPU s", ".3g"),
    "by_turn": ("× one process, turn by turn", ""),
}


@benchmark()
def actors(
    results: Results,
    *,
    clients: int = 100,
    batches: int = EPOCH,
    actors: int = 2,
    repetitions: int = 3,
    method: str = "fuels",
) -> str:
    """Compare rounds of clients in actors of Ray with rounds of one process with as many threads.

    Both run the same method on the same data and seeds as the benchmark `rounds`. The first rounds
    are not timed. Tells the median seconds of a round, the median CPU seconds over all processes,
    the size of the clients' state, which actors return after each round, and the largest difference
    of the losses.

    Args:
        results: gets a row for each side.
        clients: number of clients.
        batches: batches of a client's epoch.
        actors: number of actors, and of threads.
        repetitions: timed rounds of each.
        method: method of the round.
    """
    make = partial(make_federation, clients, batches, method=method)
    with ray_actors(actors, 1, clients) as running:
        import ray

        spread = make(make_trainer=partial(spread_trainer, actors=running))
        sides: dict[str, Callable[[], Timed]] = {
            f"one process, {actors} threads": partial(timed, make(workers=actors).run_round),
            f"{actors} actors of one core": partial(
                timed, spread.run_round, cpu=partial(_cpu_seconds, ray, running)
            ),
        }
        turns = in_turns(sides, WARM_UP + repetitions)
        returned = total_bytes(spread.state.clients.flat()) / 1e6
    threads, spreads = ([t.value.train_loss for t in of] for of in turns.values())
    apart = largest_difference(spreads, threads)
    results.about |= {"returned_mb": returned, "difference": apart}
    wall = {name: [t.seconds for t in of[WARM_UP:]] for name, of in turns.items()}
    one = next(iter(wall.values()))
    for name, of_one in turns.items():
        cpu = statistics.median(t.cpu_seconds for t in of_one[WARM_UP:])
        times = {"seconds": statistics.median(wall[name]), "cpu_seconds": cpu}
        results.add({"clients_in": name, **times, "by_turn": str(ratio(one, wall[name]))})
    told = f"returned by actors a round: {returned:.0f} MB; losses differ by {apart:.0e}"
    return f"{table(results.rows, ACTORS)}\n{told}"


def _cpu_seconds(ray: Any, actors: RayActors) -> float:
    """Return the CPU seconds of this process and all actors."""
    used = [h.__ray_call__.remote(lambda _: time.process_time()) for h in actors.handles.values()]
    return time.process_time() + float(sum(ray.get(used)))
