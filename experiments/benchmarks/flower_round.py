"""Measure FUELS's round in Flower's simulation.

    python -m experiments.benchmarks.flower_round --clients 10

This needs `flwr[simulation]`, in a separate environment if its pinned versions conflict. Each
client is a node that trains as in the tuned loop. Its model and moments are stored in the node's
context, since any worker may run it next. Prints the mean loss and the seconds of each round;
ignore the first rounds, which start the workers.
"""

from __future__ import annotations

import functools
import json
import os
import time
from typing import Any

import click
import torch
from torch import Tensor

from experiments.benchmarks.client_loop import LoneClient
from experiments.benchmarks.problem import make_federation

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


@click.command()
@click.option("--clients", default=10, show_default=True, help="Number of clients.")
@click.option("--batches", default=37, show_default=True, help="Batches of a client's epoch.")
@click.option("--rounds", default=4, show_default=True, help="Rounds.")
def main(clients: int, batches: int, rounds: int) -> None:
    """Time rounds in Flower's simulation."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from flwr.simulation import run_simulation

    # Import by module name, because Ray's workers cannot import __main__.
    from experiments.benchmarks.flower_round import client_app, server_app

    report: list[dict[str, float]] = []
    run_simulation(
        server_app=server_app(clients, batches, rounds, report),
        client_app=client_app(clients, batches),
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    click.echo(json.dumps(report))


if __name__ == "__main__":
    main()
