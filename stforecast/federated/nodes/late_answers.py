"""Rounds that go on without the slowest nodes, whose answers count when they arrive.

With `--slow-share`, a round ends when the other nodes have answered it or an earlier one. This is
FedBuff, or with `--mixing` FedAsync, as in `stforecast.federated.engine.stragglers`, but nodes are
late by themselves. A node that still trains is asked for nothing else.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Mapping

import torch

from stforecast.federated.core.method import Method
from stforecast.federated.core.state import State
from stforecast.federated.engine.stragglers import check_only_model, lateness_weight, moved
from stforecast.federated.nodes.membership import Membership, event
from stforecast.federated.nodes.messages import Answer, Link, Message, index_of

log = logging.getLogger(__name__)


class LateAnswers:
    """Asks nodes for rounds, and knows which of them have not answered yet."""

    def __init__(self, method: Method, link: Link, membership: Membership) -> None:
        self.method, self.link, self.membership = method, link, membership
        self._asked: dict[int, tuple[Message, float]] = {}

    @property
    def awaited(self) -> int:
        """Return how many clients train on nodes that have not answered."""
        return sum(len(message.about["train"]) for message, _ in self._asked.values())

    def busy(self) -> set[int]:
        """Return the nodes that have not answered, of those that are still connected."""
        here = self.membership.numbers.keys()
        self._asked = {node: asked for node, asked in self._asked.items() if node in here}
        return set(self._asked)

    def ask(
        self, messages: Mapping[int, Message], *, wait: bool
    ) -> dict[int, tuple[Message, Message | str]]:
        """Send messages; return those that were answered, by node, each with its answer.

        Of a node that is silent for too long, this is the answer. `wait` waits for the answers to
        all of these messages, also of busy nodes, and forgets others.
        """
        limit, start = self.membership.patience.answer, time.monotonic()
        new = {node: (message, start) for node, message in messages.items()}
        asked = new if wait else self._asked | new
        if wait or not self.method.training.slow_share:
            found, over = self.link.ask(messages, limit) if messages else {}, math.inf
        else:
            n = len(self.membership.numbers)
            enough = n - int(self.method.training.slow_share * n)
            found = self.link.ask_some(messages, limit, enough)
            over = time.monotonic() - limit
        done = [node for node, (_, since) in asked.items() if node in found or since <= over]
        self._asked = {node: of for node, of in asked.items() if node not in done}
        return {n: (asked[n][0], found.get(n, f"no answer in {limit:g} s")) for n in done}

    def up_to_date(
        self, answers: Mapping[int, Answer], asked: Mapping[int, Message], state: State
    ) -> dict[int, Answer]:
        """Return answers as if they were given to the present model, see `stragglers.moved`.

        Models that are mixed in turn stay as they are; their weights allow for the delay.
        """
        training, current = self.method.training, {}
        for node, answer in answers.items():
            upload, ids, late = answer.upload, answer.ids, state.round - index_of(asked[node])
            if (training.slow_share or training.mixing) and len(ids):
                check_only_model(self.method, state, ids, upload)
            if late and len(ids):
                if not training.mixing:
                    rows, began = ids - self.membership.numbers[node].start, asked[node].payload
                    change = {name: t - began[name][rows] for name, t in upload.items()}
                    upload = moved(self.method, state, ids, change, late)
                self._tell(node, late, state.round)
            current[node] = dataclasses.replace(answer, upload=upload, late=late)
        return current

    def _tell(self, node: int, late: int, round: int) -> None:
        known: dict[str, float] = {"node": node, "round": round + 1, "late": late}
        counts = "its model is mixed in"
        if not self.method.training.mixing:
            known["weight"] = float(lateness_weight(self.method.training, torch.tensor(late)))
            counts = f"its change weighs {known['weight']:.2g}"
        log.info(
            "round %d: %s answers round %d; %s",
            round + 1,
            self.membership.name(node),
            round + 1 - late,
            counts,
            extra=event("late", **known),
        )
