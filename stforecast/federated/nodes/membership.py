"""The connected nodes of a federation: who is let in, who is left out, and for how long."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.nodes.messages import Link, Message, Rejected, check_join
from stforecast.federated.nodes.reported import MOST_SAMPLES

log = logging.getLogger(__name__)


def event(name: str, **fields: Any) -> dict[str, dict[str, Any]]:
    """Return the argument `extra` of a log call, for programs that read the log.

    >>> event("lost", node=7)
    {'fields': {'event': 'lost', 'node': 7}}
    """
    return {"fields": {"event": name, **fields}}


def tell_left_out(left_out: Mapping[int, str]) -> None:
    """Name the nodes whose test errors do not count, with the reasons."""
    for node, why in left_out.items():
        known = event("errors_left_out", node=node, reason=why)
        log.warning("node %d does not count in the test errors: %s", node, why, extra=known)


@dataclass(frozen=True)
class Patience(CheckedOptions):
    """Limits of the server's waiting.

    Attributes:
        start: seconds to wait for all clients before the first round.
        answer: seconds to wait for the answers of a round.
        poll: seconds between two checks for new nodes.
        enough: clients required to begin after `start` seconds; 0 requires all.
        strikes: rounds in a row without a usable answer after which a node is left out: a silent
            one until it answers again, one that sent something unusable for good; 0 for never.
        min_parties: nodes that each round needs; with 2, each can compute what the other sent.
    """

    start: NonNegativeFloat = 600.0
    answer: PositiveFloat = 600.0
    poll: PositiveFloat = 3.0
    enough: NonNegativeInt = 0
    strikes: NonNegativeInt = 3
    min_parties: PositiveInt = 1


class Membership:
    """The nodes of a federation.

    Args:
        link: link to the nodes.
        n_clients: clients of the whole federation.
        patience: time limits.
        token: name of the run.
        owners: clients of each node that may join; empty admits any node, and the first to claim
            a client has it as long as it is connected.

    Attributes:
        numbers: clients' numbers by connected node.
        declared: `(clients,)` training samples as the nodes declare them.
        sizes: `(clients,)` training samples, at most `MOST_SAMPLES` times those of the median
            client; 0 for a client that never connected.
        refit: name of the refit whose samples nodes count; empty in the run itself.
        strikes: by node, the rounds in a row that ended without a usable answer of it.
    """

    def __init__(
        self,
        link: Link,
        n_clients: int,
        patience: Patience,
        token: str,
        owners: Mapping[int, range] | None = None,
    ) -> None:
        self.link, self.patience, self.token = link, patience, token
        self.owners = owners or {}
        self.sizes = torch.zeros(n_clients, dtype=torch.long)
        self.declared = self.sizes.clone()
        self.numbers: dict[int, range] = {}
        self.strikes: Counter[int] = Counter()
        self._struck: dict[int, str] = {}
        self._suspensions: Counter[int] = Counter()
        self._not_before: dict[int, float] = {}
        self.refit = ""
        self._refused: dict[int, str] = {}
        self._unusable: set[int] = set()

    def restore(self, declared: Tensor) -> None:
        """Restore the `(clients,)` training samples that nodes declared before."""
        self.declared.copy_(declared)
        self._bound_sizes()

    def gather(self) -> None:
        """Wait until all clients are connected, on enough nodes."""
        end, before = time.monotonic() + self.patience.start, -1
        while (n := self.welcome(0)) < len(self.sizes):
            if n != before:
                known = event("waiting", clients=n)
                log.info("%d of %d clients are connected; waiting", n, len(self.sizes), extra=known)
                before = n
            if time.monotonic() > end:
                if 0 < self.patience.enough <= n:
                    break
                absent = ", ".join(map(str, (self.sizes == 0).nonzero().flatten().tolist()[:10]))
                raise InputError(
                    f"{n} of {len(self.sizes)} clients came within {self.patience.start:g} s "
                    f"(without {absent}); start their nodes or wait longer"
                )
            time.sleep(self.patience.poll)
        if len(self.numbers) < self.patience.min_parties:
            raise InputError(
                f"{len(self.numbers)} nodes have the {n} connected clients, at least "
                f"{self.patience.min_parties} must; ",
                Words("start more nodes, ask for fewer {min_parties}, with which two parties can "),
                Words("compute each other's uploads, or for {plain_uploads}"),
            )
        known = event("gathered", clients=n)
        log.info("%d clients are connected, on %d nodes", n, len(self.numbers), extra=known)

    def welcome(self, round: int) -> int:
        """Admit new nodes and drop those that are gone; return the number of connected clients."""
        here = self.link.nodes()
        for node in self.numbers.keys() - here:
            known = event("lost", node=node, round=round + 1)
            log.warning("round %d: lost %s", round + 1, self.name(node), extra=known)
            del self.numbers[node]
        now = time.monotonic()
        new = {
            n
            for n in here - self.numbers.keys() - self._unusable
            if self._not_before.get(n, now) <= now
        }
        answers = self.link.knock(self._asked_to_join(new, round), self.patience.answer)
        for node in sorted(new & answers.keys()):
            self._join(node, answers[node], round)
        return sum(len(numbers) for numbers in self.numbers.values())

    def _asked_to_join(self, nodes: Iterable[int], round: int) -> dict[int, Message]:
        about = {"task": "join", "run": self.token, "clients": len(self.sizes), "round": round}
        about |= {"refit": self.refit} if self.refit else {}
        return {node: Message(about) for node in nodes}

    def enter(self, refit: str, round: int) -> None:
        """Ask all nodes for their samples in a refit; who gives none joins again later."""
        self.refit, here = refit, self.numbers
        answers = self.link.ask(self._asked_to_join(here, round), self.patience.answer)
        self.numbers = {}
        for node, numbers in here.items():
            answer = answers.get(node, "silent")
            try:
                found, sizes = check_join(answer, len(self.sizes), self.numbers.values())
            except Rejected as e:
                known = event("lost", node=node, round=round + 1)
                log.warning("round %d: lost node %d: %s", round + 1, node, e, extra=known)
                continue
            if found == numbers:
                self.numbers[node] = numbers
                self.declared[numbers.start : numbers.stop] = torch.tensor(sizes)
        self._bound_sizes()

    def await_enough(self, round: int) -> None:
        """Admit new nodes; if there are too few then, wait for more as long as for an answer."""
        end, fewest = time.monotonic() + self.patience.answer, self.patience.min_parties
        while not self.welcome(round) or len(self.numbers) < fewest:
            if time.monotonic() > end:
                return
            time.sleep(self.patience.poll)

    def _join(self, node: int, answer: Message | str, round: int) -> None:
        try:
            numbers, sizes = check_join(answer, len(self.sizes), self.numbers.values())
            if self.owners and (own := self.owners.get(node)) != numbers:
                raise Rejected(
                    f"it claims the clients {numbers.start} to {numbers.stop - 1}; "
                    + (f"its own are {own.start} to {own.stop - 1}" if own else "it has none")
                )
        except Rejected as e:
            if self._refused.get(node) != str(e):
                known = event("refused", node=node, reason=str(e))
                log.warning("node %d is not let in: %s", node, e, extra=known)
            self._refused[node] = str(e)
            if isinstance(answer, Message) and not e.taken:
                self._unusable.add(node)
            return
        self.numbers[node] = numbers
        self.declared[numbers.start : numbers.stop] = torch.tensor(sizes)
        self._bound_sizes()
        known = event(
            "joined", node=node, round=round + 1, first=numbers.start, last=numbers.stop - 1
        )
        if round:
            log.warning("round %d: %s joins", round + 1, self.name(node), extra=known)
        else:
            log.info("%s is connected", self.name(node), extra=known)

    def strike(self, node: int, reason: str, *, sent: bool) -> int:
        """Count a round for which a node has no usable answer; return its strikes.

        `sent` says that it sent something that cannot be used, rather than nothing.
        """
        if node not in self._struck:
            self.strikes[node] += 1
        self._struck[node] = reason if sent else ""
        return self.strikes[node]

    def settle(self, busy: Collection[int] = ()) -> None:
        """Leave out nodes with too many strikes; those without a new one have none any more.

        Those that are `busy` with an earlier round keep theirs.
        A silent node that comes back is left out again at its next silence, each time for twice as
        long before it is asked again, so that a slow node costs ever less time.
        """
        most = self.patience.strikes
        for node in list(self.numbers):
            if node not in self._struck:
                if node not in busy and self.strikes.pop(node, 0):
                    known = event("answered", node=node)
                    log.info("%s answers again", self.name(node), extra=known)
            elif 0 < most <= self.strikes[node]:
                if reason := self._struck[node]:
                    self.expel(node, reason)
                else:
                    self._suspend(node)
        self._struck.clear()

    def _suspend(self, node: int) -> None:
        log.warning(
            "%s gave no answer in %d rounds in a row; nobody waits for it until it answers again",
            self.name(node),
            self.strikes[node],
            extra=event("suspended", node=node),
        )
        del self.numbers[node]
        pause = self.patience.answer * (2 ** self._suspensions[node] - 1)
        self._not_before[node] = time.monotonic() + pause
        self._suspensions[node] += 1
        self.strikes[node] = self.patience.strikes - 1

    def expel(self, node: int, reason: str) -> None:
        """Drop a node, and do not let it in again."""
        known = event("expelled", node=node, reason=reason)
        log.warning("%s is not let in again: %s", self.name(node), reason, extra=known)
        del self.numbers[node]
        self._unusable.add(node)

    def _bound_sizes(self) -> None:
        """Bound the clients' sizes, which weigh their uploads, once there are three to compare."""
        declared = self.declared
        known = declared[declared > 0]
        most = MOST_SAMPLES * int(known.median()) if len(known) > 2 else int(known.max())
        for i in ((declared > most) & (self.sizes < most)).nonzero().flatten().tolist():
            log.warning("client %d says it has %d samples; it counts as %d", i, declared[i], most)
        self.sizes.copy_(declared.clamp(max=most))

    def name(self, node: int) -> str:
        """Describe a node and its clients in words."""
        numbers = self.numbers[node]
        return f"node {node} (clients {numbers.start} to {numbers.stop - 1})"
