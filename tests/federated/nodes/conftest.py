"""Nodes without a network: hosts that answer letters, each with data and a folder of its own."""

import json
import logging

import pytest
import torch

from stforecast.federated.data import ClientData
from stforecast.federated.nodes.coordinator import Coordinator
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.messages import Letter
from stforecast.federated.nodes.node import Host
from stforecast.federated.nodes.shard import Shard
from stforecast.federated.rounds import Federation

QUICK = Patience(start=0.2, answer=1, poll=0.01)


class Nodes:
    """A link to hosts in this process. Every answer is made by a host that was just started.

    `absent(node, round)` says who is not there, `spoil(node, round, answer)` changes an answer or
    raises; rounds count from 0, -1 is before the first.
    """

    def __init__(self, hosts):
        self.hosts = hosts
        self.letters, self.round = [], -1
        self.absent = lambda node, round: False
        self.spoil = lambda node, round, answer: answer

    def nodes(self):
        return {n for n in self.hosts if not self.absent(n, self.round + 1)}

    def ask(self, letters, timeout):
        answers = {}
        for node, letter in letters.items():
            task = letter.about["task"]
            self.round = max(self.round, letter.about.get("round", -1))
            round = self.round + (task == "join")
            if self.absent(node, round):
                continue
            try:
                answer = self.spoil(node, round, self._answer(node, task, letter))
            except RuntimeError as e:
                answer = str(e)
            answers[node] = answer if isinstance(answer, str) else self._post(answer)
        return answers

    def _answer(self, node, task, letter):
        host = self.hosts[node]()
        letter = self._post(letter)
        if task == "join":
            return host.join()
        if task == "finish":
            host.finish(letter)
            return Letter({"round": host.best.round if host.best else 0})
        return host.round(letter)

    def _post(self, letter):
        """What arrives: JSON and copies of tensors."""
        self.letters.append(letter)
        about = json.loads(json.dumps(letter.about))
        return Letter(about, {name: t.clone() for name, t in letter.payload.items()})


def rows(data, ids):
    """The clients' own data, as a file of theirs would hold it: nothing shared with the others."""
    tensors = {name: t[ids].clone() for name, t in data.tensors.items()}
    return ClientData(tensors, data.sizes[ids].clone())


@pytest.fixture
def split(tmp_path):
    """Splits an in-process federation, before its first round, into nodes of these sizes.

    Returns the coordinator and the nodes.
    """

    def make(federation: Federation, shares, seed=1, patience=QUICK):
        n = len(federation.train)
        ends = torch.tensor(shares).cumsum(0).tolist()
        link = Nodes({})
        for node, (end, share) in enumerate(zip(ends, shares, strict=True)):
            ids = torch.arange(end - share, end)

            def start(ids=ids, node=node):
                shard = Shard(
                    federation.method,
                    rows(federation.train, ids),
                    rows(federation.validation, ids),
                    first=int(ids[0]),
                    n_clients=n,
                    seed=seed,
                    uplink=federation.uplink,
                )
                return Host(shard, tmp_path / f"node-{node}", {"test": True})

            link.hosts[node] = start
        guards = {"uplink": federation.uplink, "robust": federation.robust}
        coordinator = Coordinator(
            federation.method, link, n, seed=seed, patience=patience, **guards
        )
        return coordinator, link

    return make


@pytest.fixture
def told(caplog):
    """What was said, as one text."""
    caplog.set_level(logging.INFO)
    return lambda: caplog.text
