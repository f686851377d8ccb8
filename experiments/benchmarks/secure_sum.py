"""Measure what secure aggregation adds to a round: bytes, and processor time on both sides.

    python -m experiments.benchmarks.secure_sum --nodes 3,10,50 --out FOLDER

Every node sends a model's values for its clients, once as they are and once under masks; nodes and
server are in this process and take turns, and nodes read and write their secrets as on a real one.
With a node lost, it deals its shares and sends no values, so that its masks are recomputed. What a
link adds, three more messages in each round, is not part of it.
"""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import tabulate
import torch

from experiments.benchmarks.results import save
from stforecast.federated.core.algebra import weighted_mean
from stforecast.federated.nodes.messages import Link, Message
from stforecast.federated.nodes.secure_node import UPLOAD, Masker, weighted_sums
from stforecast.federated.nodes.secure_sum import SecureSum
from stforecast.federated.uploads.masking import PublicKeys, SecureSums
from stforecast.federated.uploads.payload import joined, total_bytes


class Members(Link):
    """A link to nodes in this process.

    Args:
        folder: folder of the nodes' secrets.
        nodes: number of nodes.
        clients: clients of each.
        values: values of an upload.
        lost: node that is lost after it dealt its shares, or None.

    Attributes:
        seconds: seconds of all nodes together.
    """

    def __init__(
        self, folder: Path, nodes: int, clients: int, values: int, lost: int | None
    ) -> None:
        self.settings, self.lost, self.seconds = SecureSums(), lost, 0.0
        self.maskers = {n: Masker(folder / str(n), n * clients, self.settings)
                        for n in range(nodes)}  # fmt: skip
        draw = torch.Generator().manual_seed(0)
        self.uploads = [{"w": torch.randn(clients, values, generator=draw)} for _ in range(nodes)]
        self.weights = torch.full((clients,), 1000.0, dtype=torch.float64)

    def nodes(self) -> set[int]:
        """Return all nodes."""
        return set(self.maskers)

    def begin(self) -> dict[int, PublicKeys]:
        """Return the nodes' public keys for a sum."""
        keys = {}
        start = time.process_time()
        for n, masker in self.maskers.items():
            of_node = masker.begin("sum", weighted_sums(self.uploads[n], self.weights))
            keys[n] = PublicKeys(*(bytes.fromhex(of_node[k]) for k in PublicKeys._fields))
        self.seconds += time.process_time() - start
        return keys

    def ask(self, messages: Mapping[int, Message], timeout: float) -> dict[int, Message | str]:
        """Return the nodes' answers, as JSON and tensors."""
        start, answers = time.process_time(), {}
        for n, message in messages.items():
            if n == self.lost and message.about["task"] != "share":
                continue
            answer = self.maskers[n].answer(Message(json.loads(json.dumps(message.about))))
            answers[n] = Message(json.loads(json.dumps(answer.about)), answer.payload)
        self.seconds += time.process_time() - start
        return {**answers}


def secure(nodes: int, clients: int, values: int, lost: bool) -> list[float]:
    """Measure a round under masks.

    Returns:
        Bytes that a node sends and receives beyond its model, and CPU milliseconds of a node
        and of the server.
    """
    with tempfile.TemporaryDirectory() as folder:
        members = Members(Path(folder), nodes, clients, values, nodes - 1 if lost else None)
        start = time.process_time()
        of_sum = SecureSum(
            members, 0.0, members.settings, {"run": "run", "session": "sum"},
            {UPLOAD + "w": [values]}, {n: n * clients for n in range(nodes)}, members.begin(),
        )  # fmt: skip
        of_sum.run()
        server = time.process_time() - start - members.seconds
    sent = [of_sum.bytes_up / nodes, of_sum.bytes_down / nodes]
    return [*sent, 1e3 * members.seconds / nodes, 1e3 * server]


def plain(nodes: int, clients: int, values: int) -> list[float]:
    """Measure the same round without masks; the server joins the uploads and averages them."""
    draw = torch.Generator().manual_seed(0)
    uploads = [(torch.arange(clients) + n * clients,
                {"w": torch.randn(clients, values, generator=draw)})
               for n in range(nodes)]  # fmt: skip
    start = time.process_time()
    ids, upload = joined(uploads)
    weighted_mean(upload["w"], torch.full((len(ids),), 1000))
    return [total_bytes(uploads[0][1]), 0.0, 0.0, 1e3 * (time.process_time() - start)]


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Tabulate rounds.

    Args:
        rows: number of nodes, kind of round, bytes and CPU milliseconds, by name.
    """
    headers = [
        "nodes", "round", "MB sent by a node", "MB more received", "CPU ms of a node",
        "CPU ms of the server",
    ]  # fmt: skip
    values = [
        [r["nodes"], r["round"], r["bytes_up"] / 1e6, r["bytes_down"] / 1e6, r["node_ms"],
         r["server_ms"]] for r in rows
    ]  # fmt: skip
    formats = ("", "", ".3f", ".3f", ".1f", ".1f")
    return tabulate.tabulate(values, headers, "github", floatfmt=formats)


@click.command()
@click.option("--nodes", default="3,10,50", show_default=True, help="Numbers of nodes.")
@click.option("--clients", default=4, show_default=True, help="Clients of a node.")
@click.option("--values", default=100_737, show_default=True, help="Values of a model.")
@click.option("--repeat", default=3, show_default=True, help="Rounds, of which the median counts.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of results.")
def main(nodes: str, clients: int, values: int, repeat: int, out: Path | None) -> None:
    """Print a table of rounds with and without secure aggregation."""
    torch.set_num_threads(1)
    logging.disable()  # The lost nodes are named.
    rows = []
    for n in map(int, nodes.split(",")):
        kinds = {
            "plain": lambda n=n: plain(n, clients, values),
            "secure": lambda n=n: secure(n, clients, values, lost=False),
            "secure, a node lost": lambda n=n: secure(n, clients, values, lost=True),
        }
        for name, measure in kinds.items():
            up, down, node, server = map(
                statistics.median, zip(*(measure() for _ in range(repeat)), strict=True)
            )
            rows.append({"nodes": n, "round": name, "bytes_up": up, "bytes_down": down,
                         "node_ms": node, "server_ms": server})  # fmt: skip
    click.echo(table_of(rows))
    if out:
        save({"clients": clients, "values": values, "rows": rows}, out / "secure_sum.json")


if __name__ == "__main__":
    main()
