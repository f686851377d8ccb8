"""Compare rounds of this project with rounds in simulators: actors of Ray, and Flower's nodes."""

from __future__ import annotations

import functools
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.benchmarks.client_loop import EPOCH, LoneClient, make_federation
from experiments.benchmarks.frame import Results, Timed, benchmark, in_turns, ratio, table, timed
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
    threads, spreads = turns.values()
    apart = max(
        abs(a.value.train_loss / b.value.train_loss - 1)
        for a, b in zip(spreads, threads, strict=True)
    )
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


@benchmark()
def flower_round(
    results: Results, *, clients: int = 10, batches: int = EPOCH, rounds: int = 4
) -> str:
    """Measure FUELS's round in Flower's simulation.

    This needs `flwr[simulation]`, in a separate environment if its pinned versions conflict. Each
    client is a node that trains as in the tuned loop. Its model and moments are stored in the
    node's context, since any worker may run it next. Tells the mean loss and the seconds of each
    round; ignore the first rounds, which start the workers.

    Args:
        results: gets a row for each round.
        clients: number of clients.
        batches: batches of a client's epoch.
        rounds: number of rounds.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from flwr.simulation import run_simulation

    report: list[dict[str, float]] = []
    run_simulation(
        server_app=server_app(clients, batches, rounds, report),
        client_app=client_app(clients, batches),
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    results.add(*report)
    return json.dumps(report)


STATE, PAYLOAD = "state", "payload"


@functools.cache
def _federation(n_clients: int, n_batches: int) -> Any:
    torch.set_num_threads(1)
    return make_federation(n_clients, n_batches)


def client_app(n_clients: int, n_batches: int) -> Any:
    """Return the node's app: it restores its client, trains it and returns the prototypes."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        number = int(context.node_config["partition-id"])
        client = LoneClient(_federation(n_clients, n_batches), number, tuned=True)
        if STATE in context.state:
            restore(client, context.state[STATE].to_torch_state_dict())
        payload = message.content[PAYLOAD].to_torch_state_dict()
        about = message.content["about"]
        own = {name: t for name, t in payload.items() if t.numel()}
        loss, prototypes = client.train(int(about["round"]), own)
        context.state[STATE] = ArrayRecord(snapshot(client))
        answer = {
            "prototypes": ArrayRecord({"prototypes": prototypes}),
            "metrics": MetricRecord({"loss": loss, "client": number}),
        }
        return Message(content=RecordDict(answer), reply_to=message)

    return app


def snapshot(client: LoneClient) -> dict[str, Tensor]:
    """Return a client's parameters and Adam moments as named tensors."""
    named = dict(client.model.named_parameters())
    moments = {
        f"{moment}/{name}": t
        for name, p in named.items()
        for moment, t in client.optimizer.state[p].items()
    }
    return {name: p.detach() for name, p in named.items()} | moments


def restore(client: LoneClient, tensors: dict[str, Tensor]) -> None:
    """Load a snapshot into a client."""
    with torch.no_grad():
        for name, p in client.model.named_parameters():
            p.copy_(tensors[name])
            client.optimizer.state[p] = {
                moment: tensors[f"{moment}/{name}"].clone()
                for moment in ("step", "exp_avg", "exp_avg_sq")
            }


def server_app(n_clients: int, n_batches: int, rounds: int, report: list[dict[str, float]]) -> Any:
    """Return the server's app, which aggregates with the method between rounds."""
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        federation = make_federation(n_clients, n_batches)
        everyone, server = federation.participants(), federation.state.server
        of_node: dict[int, int] = {}
        while len(nodes := list(grid.get_node_ids())) < n_clients:
            time.sleep(0.1)
        for round in range(rounds):
            start = time.perf_counter()
            payload = federation.method.broadcast(server, everyone)
            messages = []
            for node in nodes:
                # A node's first answer names its client; in that round no payload is sent.
                own = {name: t[of_node[node]] for name, t in payload.items()} if of_node else {}
                content = {
                    PAYLOAD: ArrayRecord(own or {"nothing": torch.zeros(0)}),
                    "about": ConfigRecord({"round": round}),
                }
                message = Message(RecordDict(content), dst_node_id=node, message_type="train")
                messages.append(message)
            answers = list(grid.send_and_receive(messages))
            of_node = {m.metadata.src_node_id: int(m.content["metrics"]["client"]) for m in answers}
            answers.sort(key=lambda m: of_node[m.metadata.src_node_id])
            prototypes = [
                m.content["prototypes"].to_torch_state_dict()["prototypes"] for m in answers
            ]
            uploads = {"prototypes": torch.stack(prototypes)}
            server = federation.method.aggregate(server, everyone, uploads)
            losses = [float(m.content["metrics"]["loss"]) for m in answers]
            seconds = time.perf_counter() - start
            report.append({"loss": sum(losses) / len(losses), "seconds": seconds})

    return app
