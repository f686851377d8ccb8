"""Measure what nodes cost: many SuperNodes on this machine, and secure aggregation."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch

from experiments.benchmarks import frame
from experiments.benchmarks.hostile import cubes_of
from experiments.federation_demo import SETTINGS
from experiments.local_flower import LocalFlower, events_of, follow
from stforecast.federated.core.tensors import joined, total_bytes, weighted_mean
from stforecast.federated.nodes.masker import UPLOAD, Masker
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.messages import Link, Message
from stforecast.federated.nodes.secure_sum import SecureSum
from stforecast.federated.nodes.summing import weighted_sums
from stforecast.federated.uploads.masking import PublicKeys, SecureSums
from stforecast.flower.settings import RunSettings, write_app
from stforecast.forecasting.config import resolve

CLIENTS, DAYS = 4, 10
"""Clients of a node, and days of the city."""

PATIENCE = Patience(start=3000, answer=600)

POLL = 1.0
"""Seconds between two looks for work, as Flower has it."""

NODES = {
    "nodes": ("nodes", ""),
    "start": ("start-up s", ".0f"),
    "round": ("s a round", ".1f"),
    "cpu_of_message": ("CPU s a message", ".2f"),
    "kb_down": ("kB down", ".0f"),
    "kb_up": ("kB up", ".0f"),
    "server_mb": ("SuperLink MB", ".0f"),
    "node_mb": ("a node MB", ".0f"),
    "test_mse": ("test MSE", ".6f"),
}

OF_ROUND = ("bytes_up", "bytes_down", "node_ms", "server_ms")
"""What is measured of a round, by a node and by the server."""

SUMS = {
    "nodes": ("nodes", ""),
    "round": ("round", ""),
    "mb_up": ("MB sent by a node", ".3f"),
    "mb_down": ("MB more received", ".3f"),
    "node_ms": ("CPU ms of a node", ".1f"),
    "server_ms": ("CPU ms of the server", ".1f"),
}


@frame.benchmark("nodes-{nodes}.json")
def nodes(
    results: frame.Results,
    *,
    nodes: int = 50,
    rounds: int = 4,
    method: str = "fedavg",
) -> str:
    """Measure a federation of many SuperNodes on this machine; needs the extra flower.

    Each node has four clients of an invented city and is started by `stforecast node`. Start-up
    lasts until all clients are connected; a round's seconds and bytes are the server's own.
    Processor time counts all processes from the second round on, by message and node. Memory is the
    proportional set size after the last round, in which pages that processes share count once. All
    processes are stopped at the end.

    The SuperLink keeps its state in memory. With some eight nodes on one machine, its SQLite file
    was locked for longer than the five seconds that Flower 1.41 waits, and messages were lost.

    Args:
        results: gets what the federation took.
        nodes: number of nodes.
        rounds: number of rounds.
        method: method of the run.
    """
    with cubes_of(nodes, CLIENTS, DAYS) as cubes:
        measured = measure_nodes(cubes, rounds, method)
    results.about |= {"clients": CLIENTS, "cores": psutil.cpu_count(), **measured}
    results.add()
    return table_of_nodes([results.about])


@frame.benchmark("secure_sum.json")
def secure_sum(
    results: frame.Results,
    *,
    nodes: str = "3,10,50",
    clients: int = 4,
    values: int = 100_737,
    repeat: int = 3,
) -> str:
    """Measure what secure aggregation adds to a round: bytes, and processor time on both sides.

    Every node sends a model's values for its clients, once as they are and once under masks; nodes
    and server are in this process and take turns, and nodes read and write their secrets as on a
    real one. With a node lost, it deals its shares and sends no values, so that its masks are
    recomputed. What a link adds, three more messages in each round, is not part of it.

    Args:
        results: gets a row for each number of nodes and kind of round.
        nodes: numbers of nodes.
        clients: clients of a node.
        values: values of a model.
        repeat: rounds; the median counts.
    """
    torch.set_num_threads(1)
    for n in frame.listed_numbers(nodes):
        kinds = {
            "plain": partial(unmasked_round, n, clients, values),
            "secure": partial(secure, n, clients, values, lost=False),
            "secure, a node lost": partial(secure, n, clients, values, lost=True),
        }
        with frame.quiet():
            turns = frame.in_turns(kinds, repeat)
        for kind, found in turns.items():
            medians = map(statistics.median, zip(*found, strict=True))
            results.add({"nodes": n, "round": kind, **dict(zip(OF_ROUND, medians, strict=True))})
    return secure_table(results.rows)


def measure_nodes(cubes: list[Path], rounds: int, method: str) -> dict[str, Any]:
    """Run the federation once and return what it took."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        config = resolve(method, **SETTINGS, lr=0.01, rounds=rounds)
        run = RunSettings(config, CLIENTS * len(cubes), PATIENCE, str(out / "server"))
        app = write_app(out / "app", run)
        with LocalFlower(out / "logs", keeps=False, poll=POLL) as flower:
            start = time.perf_counter()
            for i, cube in enumerate(cubes):
                flower.start_node(f"node-{i}", cube, CLIENTS * i, f"--out={out / f'node-{i}'}")
            number = flower.run(app)
            began = time.time() - (time.perf_counter() - start)
            pids = {name: p.pid for name, p in flower.running.items()}
            before: list[float] = []
            scenes = {1: lambda: before.append(frame.processor_time(pids.values()))}
            about = follow(flower, number, out / "server", 7200.0, scenes)
            spent = frame.processor_time(pids.values()) - before[0]
            server = frame.memory([pids.pop("superlink")])
            of_nodes = frame.memory(pids.values()) / len(cubes)
        table = pd.read_csv(out / "server" / "rounds.csv")
        gathered = events_of(out / "server", "gathered")[0]["time"]
    return {
        "start": pd.Timestamp(gathered).timestamp() - began,
        "round": statistics.median(table["seconds"][1:]),
        "bytes_down": int(table["bytes_down"].iloc[-1]),
        "bytes_up": int(table["bytes_up"].iloc[-1]),
        "left_out": int(table["failed"].sum()),
        # Round 1 is told after two messages; one to validate and one to finish come at the end.
        "cpu_of_message": spent / (rounds * len(cubes)),
        "server_mb": server,
        "node_mb": of_nodes,
        "test_mse": about["test"]["mse"],
    }


def table_of_nodes(measured: Iterable[Mapping[str, Any]]) -> str:
    """Tabulate the measurements of several numbers of nodes."""
    rows = [
        {**r} | {f"kb_{way}": r[f"bytes_{way}"] / 1e3 for way in ("down", "up")} for r in measured
    ]
    return frame.table(rows, NODES)


class Members(Link):
    """A link to nodes in this process; one may be lost after it dealt its shares.

    `seconds` are of all nodes together.
    """

    def __init__(
        self, folder: Path, nodes: int, clients: int, values: int, lost: int | None
    ) -> None:
        self.settings, self.lost, self.seconds = SecureSums(), lost, 0.0
        self.maskers = {
            n: Masker(folder / str(n), n * clients, self.settings) for n in range(nodes)
        }
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
            sums = weighted_sums(self.uploads[n], self.weights)
            of_node = masker.begin("sum", {UPLOAD + name: t for name, t in sums.items()})
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

    It returns what `OF_ROUND` names: bytes that a node sends and receives beyond its model, and CPU
    milliseconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        members = Members(Path(folder), nodes, clients, values, nodes - 1 if lost else None)
        start = time.process_time()
        about, first = {"run": "run", "session": "sum"}, {n: n * clients for n in range(nodes)}
        shapes, keys = {UPLOAD + "w": [values]}, members.begin()
        of_sum = SecureSum(members, 0.0, members.settings, about, shapes, first, keys)
        of_sum.run()
        server = time.process_time() - start - members.seconds
    sent = [of_sum.bytes_up / nodes, of_sum.bytes_down / nodes]
    return [*sent, 1e3 * members.seconds / nodes, 1e3 * server]


def unmasked_round(nodes: int, clients: int, values: int) -> list[float]:
    """Measure the same round without masks; the server joins the uploads and averages them."""
    draw = torch.Generator().manual_seed(0)
    uploads = [
        (torch.arange(clients) + n * clients, {"w": torch.randn(clients, values, generator=draw)})
        for n in range(nodes)
    ]

    def average() -> None:
        ids, upload = joined(uploads)
        weighted_mean(upload["w"], torch.full((len(ids),), 1000))

    return [total_bytes(uploads[0][1]), 0.0, 0.0, 1e3 * frame.timed(average).cpu_seconds]


def secure_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Tabulate what `secure_sum` measured."""
    in_mb = [{**r, "mb_up": r["bytes_up"] / 1e6, "mb_down": r["bytes_down"] / 1e6} for r in rows]
    return frame.table(in_mb, SUMS)
