"""The connected nodes of a federation and their clients."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from data_prep.errors import InputError
from stforecast.federated.nodes.events import event
from stforecast.federated.nodes.messages import Link, Message, Rejected, Taken, check_join
from stforecast.federated.nodes.reported import MOST_SAMPLES
from stforecast.federated.options import CheckedOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience(CheckedOptions):
    """Time limits of the server.

    Attributes:
        start: seconds for all clients to join before the first round.
        answer: seconds for the answers of a round.
        poll: seconds between two checks for new nodes.
        enough: clients that suffice for the first round once `start` is over; 0 needs all.
    """

    start: NonNegativeFloat = 600.0
    answer: PositiveFloat = 600.0
    poll: PositiveFloat = 3.0
    enough: NonNegativeInt = 0


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
        self._refused: dict[int, str] = {}
        self._unusable: set[int] = set()

    def restore(self, declared: Tensor) -> None:
        """Restore what the nodes had declared before the server was ended.

        Args:
            declared: `(clients,)` training samples.
        """
        self.declared.copy_(declared)
        self._bound_sizes()

    def known_sizes(self) -> Tensor:
        """Return the clients' sizes; for those that never connected, the smallest known size."""
        return torch.where(self.sizes > 0, self.sizes, self.sizes[self.sizes > 0].min())

    def gather(self) -> None:
        """Wait until all clients are connected.

        Raises:
            InputError: if too few connect in time.
        """
        end, before = time.monotonic() + self.patience.start, -1
        while (n := self.welcome(0)) < len(self.sizes):
            if n != before:
                log.info(
                    "%d of %d clients are connected; waiting", n, len(self.sizes),
                    extra=event("waiting", clients=n),
                )  # fmt: skip
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
        log.info(
            "%d clients are connected, on %d nodes", n, len(self.numbers),
            extra=event("gathered", clients=n),
        )  # fmt: skip

    def welcome(self, round: int) -> int:
        """Admit new nodes and drop those that are gone; return the number of connected clients.

        Args:
            round: rounds done.
        """
        here = self.link.nodes()
        for node in self.numbers.keys() - here:
            log.warning(
                "round %d: lost %s", round + 1, self.name(node),
                extra=event("lost", node=node, round=round + 1),
            )  # fmt: skip
            del self.numbers[node]
        if new := here - self.numbers.keys() - self._unusable:
            about = {
                "task": "join", "run": self.token, "clients": len(self.sizes), "round": round,
            }  # fmt: skip
            answers = self.link.ask({n: Message(about) for n in new}, self.patience.answer)
            for node in sorted(new):
                self._join(node, answers.get(node, "no answer"), round)
        return sum(len(numbers) for numbers in self.numbers.values())

    def _join(self, node: int, answer: Message | str, round: int) -> None:
        try:
            numbers, sizes = check_join(answer, len(self.sizes), self.numbers.values())
            self._check_owner(node, numbers)
        except Rejected as e:
            if self._refused.get(node) != str(e):
                log.warning(
                    "node %d is not let in: %s", node, e,
                    extra=event("refused", node=node, reason=str(e)),
                )  # fmt: skip
            self._refused[node] = str(e)
            if isinstance(answer, Message) and not isinstance(e, Taken):
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

    def _check_owner(self, node: int, numbers: range) -> None:
        """Raise `Rejected` if the clients are not the node's."""
        if self.owners and self.owners.get(node) != numbers:
            own = self.owners.get(node)
            raise Rejected(
                f"it claims the clients {numbers.start} to {numbers.stop - 1}; "
                + (f"its own are {own.start} to {own.stop - 1}" if own else "it has none")
            )

    def expel(self, node: int) -> None:
        """Drop a node, and do not let it in again."""
        log.warning("%s is not let in again", self.name(node), extra=event("expelled", node=node))
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
