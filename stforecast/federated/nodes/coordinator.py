"""The server of a federation of nodes: rounds over the nodes that are connected.

A `Coordinator` reaches the nodes only through a `Link`. Clients are numbered from the start; a node
that joins reports the numbers of its clients. The first round waits for all clients. After that, a
node may disconnect, return, join late or send an invalid answer: the round continues with the
others, and a warning is logged.

A node answers once a round. It first validates its clients as they were after the last round (with
the server's new message), then trains. So a round's validation loss is known one round later than
in one process, and early stopping ends the run one round later.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from data_prep.errors import InputError
from stforecast.federated.method import Method, Participants, initial_state
from stforecast.federated.nodes.membership import Membership, Patience
from stforecast.federated.nodes.messages import (
    Answer,
    Link,
    Message,
    Rejected,
    check_round,
    most_common,
)
from stforecast.federated.server import RoundReport, Server
from stforecast.federated.state import Clients, State
from stforecast.federated.uploads.payload import joined, total_bytes
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink

log = logging.getLogger(__name__)

MOST_EMPTY = 3
"""Consecutive rounds without a usable answer after which the run ends."""


class Coordinator:
    """Trains a method on nodes.

    Args:
        method: the method, with its model, task and settings.
        link: link to the nodes.
        n_clients: clients of the whole federation.
        seed: seed of the run.
        uplink: processing of uploads before nodes send them.
        robust: the server's defence against Byzantine uploads.
        patience: time limits.

    Attributes:
        server: draws participants, aggregates and keeps the reports.
        membership: the connected nodes.

    Raises:
        InputError: if the uplink uses delta coding.
    """

    def __init__(
        self,
        method: Method,
        link: Link,
        n_clients: int,
        *,
        seed: int = 0,
        uplink: Uplink | None = None,
        robust: Robust | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.method, self.link = method, link
        self.patience = patience or Patience()
        self.membership = Membership(link, n_clients, self.patience)
        state = State(Clients({}, {}, {}, self.membership.sizes), {}, round=0, seed=seed)
        self.server = Server(
            method, state, method.training.rounds, uplink=uplink, robust=robust, lag=1
        )
        if self.server.uplink.delta_coding:
            raise InputError("nodes may lose an upload, so they do not support delta_coding")
        self._like: dict[str, Any] | None = None
        self._n_empty, self._n_reported = 0, 0

    def run(self, after_round: Callable[[RoundReport], None] | None = None) -> dict[int, Message]:
        """Train for the settings' number of rounds and let the nodes finish.

        Args:
            after_round: called with each round's report.

        Returns:
            The nodes' last messages.

        Raises:
            InputError: if clients are missing at the start, or no node answers any more.
        """
        self.membership.gather()
        server = self.server
        sizes = self.membership.known_sizes()
        server.state.server = initial_state(self.method, sizes, server.state.seed).server
        while not server.finished:
            self.run_round()
            self._pass_on(server.reports[:-1], after_round)
        self._record_score(self._ask_round(torch.tensor([], dtype=torch.long)))
        self._pass_on(server.reports, after_round)
        return self._finish()

    def _pass_on(
        self, complete: list[RoundReport], after_round: Callable[[RoundReport], None] | None
    ) -> None:
        """Call `after_round` with the reports that are now complete."""
        for report in complete[self._n_reported :]:
            if after_round:
                after_round(report)
        self._n_reported = max(self._n_reported, len(complete))

    def run_round(self) -> None:
        """Run one round with the connected nodes."""
        start, server = time.perf_counter(), self.server
        self.membership.welcome(server.state.round)
        participants = server.participants().ids
        answers = self._ask_round(participants)
        self._record_score(answers)
        trained = [a for a in answers.values() if len(a.ids)]
        if not trained:
            self._n_empty += 1
            if self._n_empty == MOST_EMPTY:
                raise InputError(f"no node gave a usable answer {MOST_EMPTY} times in a row")
            time.sleep(self.patience.poll)
            return
        self._n_empty = 0
        here = [i for numbers in self.membership.numbers.values() for i in numbers]
        n_asked = int(torch.isin(participants, torch.tensor(here)).sum())
        ids, upload = joined([(a.ids, a.upload) for a in trained])
        server.aggregate(ids, upload)
        losses = [math.fsum(v) / len(ids) for v in zip(*(a.losses for a in trained), strict=True)]
        server.report(
            RoundReport(
                round=server.state.round,
                train_loss=losses[0],
                train_task_loss=losses[1],
                validation_loss=math.nan,
                participants=n_asked,
                bytes_down=sum(a.bytes_down for a in answers.values()),
                bytes_up=sum(a.bytes_up for a in trained),
                seconds=time.perf_counter() - start,
                failed=n_asked - len(ids),
            )
        )

    def _ask_round(self, participants: Tensor) -> dict[int, Answer]:
        """Ask the nodes to train the participants; return the usable answers."""
        state, messages, down = self.server.state, {}, {}
        for node, numbers in self.membership.numbers.items():
            ids = torch.tensor(numbers)
            to = Participants(ids, self.membership.sizes[ids], state.round)
            payload = self.method.broadcast(state.server, to)
            train = participants[torch.isin(participants, ids)].tolist()
            about = {"task": "round", "round": state.round, "train": train}
            messages[node] = Message({**about, "best": self.server.best_round}, payload)
            down[node] = total_bytes(payload)
        found = self._ask(messages)
        answers: dict[int, Answer] = {}
        for node, message in messages.items():
            try:
                of_node = found.get(node, f"no answer in {self.patience.answer:g} s")
                answer = check_round(of_node, message.about["train"], self.server.uplink)
                answers[node] = dataclasses.replace(answer, bytes_down=down[node])
            except Rejected as e:
                self._leave_out(node, str(e))
        return self._without_odd_shapes(answers)

    def _ask(self, messages: Mapping[int, Message]) -> dict[int, Message | str]:
        return self.link.ask(messages, self.patience.answer) if messages else {}

    def _leave_out(self, node: int, reason: str) -> None:
        name = self.membership.name(node)
        log.warning("round %d goes on without %s: %s", self.server.state.round + 1, name, reason)

    def _without_odd_shapes(self, answers: dict[int, Answer]) -> dict[int, Answer]:
        """Leave out answers whose tensors differ in type or shape from those of most clients."""
        like = most_common([a for a in answers.values() if len(a.ids)], self._like)
        self._like = like or self._like
        for node in [n for n, a in answers.items() if len(a.ids) and a.like != like]:
            self._leave_out(node, f"it sent {answers[node].like}, others sent {like}")
            del answers[node]
        return answers

    def _record_score(self, answers: Mapping[int, Answer]) -> None:
        """Record the validation loss after the last round done, unless it is known already."""
        scores: Sequence[tuple[float, float]] = [a.score for a in answers.values()]
        total, count = math.fsum(t for t, _ in scores), math.fsum(c for _, c in scores)
        reports = self.server.reports
        if reports and count and math.isnan(reports[-1].validation_loss):
            self.server.record_score(total / count)

    def _finish(self) -> dict[int, Message]:
        """Send the nodes the number of the best round; each keeps its own models."""
        messages = {
            node: Message({"task": "finish", "best": self.server.best_round})
            for node in self.membership.numbers
        }
        answers = self._ask(messages)
        for node in messages:
            if not isinstance(answers.get(node), Message):
                log.warning(
                    "%s did not finish: %s", self.membership.name(node), answers.get(node, "silent")
                )
        return {node: a for node, a in answers.items() if isinstance(a, Message)}
