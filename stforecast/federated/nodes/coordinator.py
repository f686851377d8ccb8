"""The server's part of a federation of nodes: rounds over whatever nodes there are.

A `Coordinator` knows the nodes through a `Link` alone. Every client has a number from the start;
a node that joins says which numbers are its own. The first round waits for all clients; from then
on a node may be lost, come back, come late, or answer nonsense: the round is done with the others,
and a warning says so.

A node answers once a round. It first judges its clients as the last round left them (with what the
server now sends), then trains. So a round's validation loss is known a round later than in one
process, and patience ends the run one round later.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from data_prep.errors import InputError
from stforecast.federated.method import Method, Participants
from stforecast.federated.nodes.membership import Patience, Roster
from stforecast.federated.nodes.messages import (
    Answer,
    Letter,
    Link,
    Rejected,
    check_round,
    most_common,
)
from stforecast.federated.rounds import RoundReport
from stforecast.federated.state import Clients, generator
from stforecast.federated.uploads.payload import joined, total_bytes
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink

log = logging.getLogger(__name__)

FRUITLESS = 3
"""Rounds in a row without one usable answer after which the run ends."""


class Coordinator:
    """Trains a method on nodes.

    Args:
        method: the method, with its model, task and settings.
        link: to the nodes.
        n_clients: clients of the whole federation.
        seed: seed of the run.
        uplink: what nodes do to uploads on their way.
        robust: how the server guards itself against bad uploads.
        patience: how long to wait.

    Attributes:
        server: the method's state here.
        reports: one entry a round.
        best_round: the round of the lowest validation loss so far, from 1; None without one.

    Raises:
        InputError: if the uplink wants both sides to agree on what was sent before.
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
        self.method, self.link, self.seed = method, link, seed
        self.uplink, self.robust = uplink or Uplink(), robust or Robust()
        self.patience = patience or Patience()
        if self.uplink.delta_coding:
            raise InputError("an upload may get lost between nodes: no delta_coding there")
        self.roster = Roster(link, n_clients, self.patience)
        self.server: dict[str, Tensor] = {}
        self.round, self.reports = 0, list[RoundReport]()
        self.best_round: int | None = None
        self._like: dict[str, Any] | None = None
        self._fruitless, self._told = 0, 0

    def run(self, after_round: Callable[[RoundReport], None] | None = None) -> dict[int, Letter]:
        """Train for the settings' number of rounds and let the nodes finish.

        Args:
            after_round: called with each round's report.

        Returns:
            The nodes' last words.

        Raises:
            InputError: if the clients do not come, or no node answers any more.
        """
        self.roster.gather()
        self.server = self._initial_server()
        while not self.finished:
            self.run_round()
            self._tell(self.reports[:-1], after_round)
        self._judge(self._ask_round(torch.tensor([], dtype=torch.long)))
        self._tell(self.reports, after_round)
        return self._finish()

    def _tell(
        self, complete: list[RoundReport], after_round: Callable[[RoundReport], None] | None
    ) -> None:
        for report in complete[self._told :]:
            if after_round:
                after_round(report)
        self._told = max(self._told, len(complete))

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or patience has run out."""
        training, best = self.method.training, self.best_round
        if self.round >= training.rounds:
            return True
        return best is not None and 0 < training.patience <= self.round - 1 - best

    def _initial_server(self) -> dict[str, Tensor]:
        population, sizes = self.method.population, self.roster.known_sizes()
        params, buffers = (
            {name: t.expand(len(sizes), *t.shape[1:]) for name, t in group.items()}
            for group in (population.parameters(1), population.buffers(1))
        )
        clients = Clients(params, buffers, moments={}, sizes=sizes)
        return self.method.init(clients, sizes, self.seed)

    def participants(self) -> Tensor:
        """Numbers of the clients of the coming round, as the in-process executor draws them."""
        n, training = len(self.roster.sizes), self.method.training
        ids = torch.arange(n)
        if training.participation < 1 and (self.round > 0 or not training.full_start):
            drawn = torch.randperm(n, generator=generator(self.seed, self.round))
            ids = drawn[: max(1, round(training.participation * n))].sort().values
        return ids

    def run_round(self) -> None:
        """Do one round with the nodes that are there."""
        start = time.perf_counter()
        self.roster.welcome(self.round)
        asked = self.participants()
        answers = self._ask_round(asked)
        self._judge(answers)
        uploads = [a for a in answers.values() if len(a.ids)]
        if not uploads:
            self._fruitless += 1
            if self._fruitless == FRUITLESS:
                raise InputError(f"no node gave a usable answer {FRUITLESS} times in a row")
            time.sleep(self.patience.poll)
            return
        self._fruitless = 0
        here = [i for numbers in self.roster.numbers.values() for i in numbers]
        n_asked = int(torch.isin(asked, torch.tensor(here)).sum())
        n = self._aggregate(uploads)
        self.round += 1
        losses = [math.fsum(v) / n for v in zip(*(a.losses for a in uploads), strict=True)]
        self.reports.append(
            RoundReport(
                round=self.round,
                train_loss=losses[0],
                train_task_loss=losses[1],
                validation_loss=math.nan,
                participants=n_asked,
                bytes_down=sum(a.bytes_down for a in answers.values()),
                bytes_up=sum(a.bytes_up for a in uploads),
                seconds=time.perf_counter() - start,
                failed=n_asked - n,
            )
        )

    def _ask_round(self, asked: Tensor) -> dict[int, Answer]:
        """What the nodes answer that can be used; `asked` are the clients that should train."""
        letters, down = {}, {}
        for node, numbers in self.roster.numbers.items():
            ids = torch.tensor(numbers)
            to = Participants(ids, self.roster.sizes[ids], self.round)
            payload = self.method.broadcast(self.server, to)
            training = asked[torch.isin(asked, ids)].tolist()
            about = {"task": "round", "round": self.round, "train": training}
            letters[node] = Letter({**about, "best": self.best_round}, payload)
            down[node] = total_bytes(payload)
        found = self.link.ask(letters, self.patience.answer) if letters else {}
        answers: dict[int, Answer] = {}
        for node, letter in letters.items():
            try:
                of_node = found.get(node, f"no answer in {self.patience.answer:g} s")
                answer = check_round(of_node, letter.about["train"], self.uplink)
                answers[node] = dataclasses.replace(answer, bytes_down=down[node])
            except Rejected as e:
                log.warning(
                    "round %d goes on without %s: %s", self.round + 1, self.roster.name(node), e
                )
        return self._alike(answers)

    def _alike(self, answers: dict[int, Answer]) -> dict[int, Answer]:
        """Only those answers whose tensors are like those of most clients."""
        like = most_common([a for a in answers.values() if len(a.ids)], self._like)
        self._like = like or self._like
        for node in [n for n, a in answers.items() if len(a.ids) and a.like != like]:
            log.warning(
                "round %d goes on without %s: it sent %s, others sent %s",
                self.round + 1, self.roster.name(node), answers[node].like, like,
            )  # fmt: skip
            del answers[node]
        return answers

    def _judge(self, answers: Mapping[int, Answer]) -> None:
        """Note the validation loss after the last round done, and whether it is the best."""
        total, count = (
            math.fsum(v) for v in zip((0.0, 0.0), *(a.score for a in answers.values()), strict=True)
        )
        if not self.reports or not count:
            return
        if not math.isnan(self.reports[-1].validation_loss):
            return
        loss = total / count
        before = [r.validation_loss for r in self.reports[:-1]]
        if not any(earlier <= loss for earlier in before):
            self.best_round = self.round
        self.reports[-1] = dataclasses.replace(self.reports[-1], validation_loss=loss)

    @torch.no_grad()
    def _aggregate(self, answers: list[Answer]) -> int:
        """Hand the uploads to the method; returns of how many clients they are."""
        ids, upload = joined([(a.ids, a.upload) for a in answers])
        upload = self.robust.guard(upload, self.method.keeps_apart, self.method.population.names)
        of = Participants(ids, self.roster.sizes[ids], self.round)
        self.server = self.method.aggregate(self.server, of, upload)
        return len(ids)

    def _finish(self) -> dict[int, Letter]:
        """Tell the nodes which round was best; each keeps its own models."""
        letters = {}
        for node in self.roster.numbers:
            letters[node] = Letter({"task": "finish", "best": self.best_round})
        answers = self.link.ask(letters, self.patience.answer) if letters else {}
        for node in letters:
            if not isinstance(answers.get(node), Letter):
                log.warning(
                    "%s did not finish: %s", self.roster.name(node), answers.get(node, "silent")
                )
        return {node: a for node, a in answers.items() if isinstance(a, Letter)}
