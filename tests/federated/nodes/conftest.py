"""Nodes without a network: each answers messages, and has data and a folder of its own."""

import json
import logging

import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.federated.core.data import ClientData
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.nodes.coordinator import Coordinator
from stforecast.federated.nodes.masker import Fewest, masker_beside
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.messages import OF_SUMS, Link, Message
from stforecast.federated.nodes.node import Node
from stforecast.federated.nodes.received import behind_link

QUICK = Patience(start=0.2, answer=1, poll=0.01)


class Nodes(Link):
    """A link to nodes in this process. Every answer is made by a node that was just started.

    `absent(node, round)` says who is not there, `spoil(node, round, answer)` changes an answer or
    raises; rounds count from 0, -1 is before the first.
    """

    def __init__(self, factories):
        self.factories, self.maskers = factories, {}
        self.messages, self.round = [], -1
        self.absent = lambda node, round: False
        self.spoil = lambda node, round, answer: answer

    def nodes(self):
        return {n for n in self.factories if not self.absent(n, self.round + 1)}

    def ask(self, messages, timeout):
        answers = {}
        for node, message in messages.items():
            task = self.task = message.about["task"]
            if task == "round":
                self.round = max(self.round, message.about["round"])
            round = self.round + (task == "join")
            if self.absent(node, round):
                continue
            try:
                answer = self.spoil(node, round, self._answer(node, task, message))
            except (RuntimeError, InputError) as e:
                answer = str(e)
            answers[node] = answer if isinstance(answer, str) else self._post(answer)
        return answers

    def _answer(self, node, task, message):
        if task in OF_SUMS:
            return self.maskers[node].answer(self._post(message))
        started = self.factories[node](message.about.get("round") if task == "round" else None)
        message = self._post(message)
        if task == "join":
            return started.join()
        if task == "finish":
            started.finish(message)
            errors, has_best = {"mse": (node + 1) / 2, "mae": 0.25}, started.has_best(message)
            return started.report(message, errors, 4, has_best=has_best)
        return started.round(message)

    def _post(self, message):
        """What arrives: JSON and copies of tensors."""
        self.messages.append(message)
        about = json.loads(json.dumps(message.about))
        return Message(about, {name: t.clone() for name, t in message.payload.items()})


def rows(data, ids):
    """The clients' own data, as a file of theirs would hold it: nothing shared with the others."""
    tensors = {name: t[ids].clone() for name, t in data.tensors.items()}
    return ClientData(tensors, data.sizes[ids].clone())


@pytest.fixture
def split(tmp_path):
    """Splits an in-process federation, before its first round, into nodes of these sizes.

    Returns the coordinator and the nodes.
    """

    def make(
        federation: Federation, shares, seed=1, patience=QUICK, folder=None, secure=None, cells=1
    ):
        fewest = Fewest(cells=cells)
        n = len(federation.train)
        ends = torch.tensor(shares).cumsum(0).tolist()
        link = Nodes({})
        for node, (end, share) in enumerate(zip(ends, shares, strict=True)):
            ids = torch.arange(end - share, end)

            def start(before=None, ids=ids, node=node):
                trainer = Trainer(
                    behind_link(federation.method),
                    rows(federation.train, ids),
                    rows(federation.validation, ids),
                    first=int(ids[0]),
                    n_clients=n,
                    seed=seed,
                    uplink=federation.trainer.uplink,
                )
                own = tmp_path / f"node-{node}" / "checkpoints"
                return Node(trainer, own, {"test": True}, before, secure, fewest=fewest)

            link.factories[node] = start
            if secure:
                own = tmp_path / f"node-{node}" / "checkpoints"
                link.maskers[node] = masker_beside(own, int(ids[0]), secure, fewest)
        guards = {"uplink": federation.server.uplink, "robust": federation.server.robust}
        coordinator = Coordinator(
            federation.method, link, n, seed=seed, patience=patience, folder=folder,
            secure=secure, **guards,
        )  # fmt: skip
        return coordinator, link

    return make


@pytest.fixture
def logged(caplog):
    """What was said, as one text."""
    caplog.set_level(logging.INFO)
    return lambda: caplog.text
