"""The connected nodes of a federation, and robust summaries of the numbers that they report.

No single node decides a summary. With fewer than three nodes there is no majority, and the
summaries are plain means.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.nodes.messages import Link, Message, Rejected, check_join

log = logging.getLogger(__name__)

MOST_SAMPLES = 10
"""Largest weight of a client, as a multiple of the median client's."""

FARTHEST = 10
"""Largest distance of a node's mean from the median of all nodes', as a multiple of the median."""

MOST_TARGETS = 2
"""Largest number of a node's test targets per training sample, as a multiple of the median's."""

MOVED = 1.5
"""Factor between the test errors with and without a node from which on the node is named."""

HIGHEST = {"error_rate": 1.0}
"""Highest values of test errors that have one. They cannot move a mean far, so a node's is not
compared with those of others: an honest node may have no error at all."""


class Reported(NamedTuple):
    """Sum over `terms` summands that a node reports, and its clients, or their training samples."""

    total: float
    terms: float
    clients: int

    @property
    def mean(self) -> float:
        """Return the mean of the node's summands; NaN without any."""
        return self.total / self.terms if self.terms else math.nan


def bounded_mean(
    sums: Sequence[Reported], most: float = MOST_SAMPLES, farthest: float = FARTHEST
) -> float:
    """Return the mean of all nodes' summands, with bounds on each node's weight and mean.

    A client counts at most `most` times as much as the median node's client, and a node's mean
    differs from the median of all nodes' by at most `farthest` times that median. It is NaN without
    summands; nodes whose mean is NaN are left out, as those of a method that records no loss.

    >>> honest = [Reported(2.0, 10, 1), Reported(3.0, 10, 1)]
    >>> bounded_mean(honest)
    0.25
    >>> round(bounded_mean([*honest, Reported(1e12, 10, 1)]), 6)
    1.266667
    """
    sums = [s for s in sums if s.terms > 0 and not math.isnan(s.mean)]
    if not sums:
        return math.nan
    return _weighted_mean(_weights(sums, most), _means(sums, farthest))


def bounded_nodes(
    sums: Mapping[int, Reported], most: float = MOST_SAMPLES, farthest: float = FARTHEST
) -> dict[int, str]:
    """Return the nodes whose weight or mean `bounded_mean` bounds or leaves out, and why.

    >>> bounded_nodes({0: Reported(2, 10, 1), 1: Reported(3, 10, 1), 2: Reported(4e9, 10, 1)})
    {2: 'its mean is 4e+08, the median is 0.3'}
    """
    known = {n: s for n, s in sums.items() if s.terms > 0 and not math.isnan(s.mean)}
    if len(known) < 3:
        return {}
    why = {node: "it is not a number" for node, s in sums.items() if math.isnan(s.total)}
    middle = median(s.mean for s in known.values())
    for (node, s), weight in zip(known.items(), _weights([*known.values()], most), strict=True):
        if abs(s.mean - middle) > farthest * abs(middle):
            why[node] = f"its mean is {s.mean:.4g}, the median is {middle:.4g}"
        elif weight < s.terms:
            why[node] = f"it claims {s.terms:.10g} values, which count as {weight:.10g}"
    return why


def sound_errors(
    errors: Mapping[int, Mapping[str, float]], names: Sequence[str]
) -> tuple[list[int], dict[int, str]]:
    """Return the nodes whose mean test errors count, and why those of the others do not.

    An error is finite, not negative and at most the `HIGHEST`. Without such a limit, and with three
    nodes or more, it is between the median node's error divided by `FARTHEST` and this error times
    `FARTHEST`.

    >>> errors = {i: {"mse": e} for i, e in enumerate([0.2, 0.3, -1e9, 0.1, 5.0])}
    >>> sound_errors(errors, ["mse"])[0]
    [0, 1, 3]
    """
    why: dict[int, str] = {}
    for node, of_node in errors.items():
        for name in names:
            highest = HIGHEST.get(name, sys.float_info.max)
            if not 0 <= (value := of_node.get(name, math.nan)) <= highest:
                why.setdefault(node, f"its test {name} is {value:.4g}")
    sound = [node for node in errors if node not in why]
    for name in (n for n in names if n not in HIGHEST and len(sound) > 2):
        middle = median(errors[node][name] for node in sound)
        for node in sound:
            if not middle / FARTHEST <= (value := errors[node][name]) <= FARTHEST * middle:
                far = f"its test {name} is {value:.4g}, the median node's is {middle:.4g}"
                why.setdefault(node, far)
    return [node for node in errors if node not in why], why


def most_improved(now: Mapping[int, Reported], before: Mapping[int, Reported]) -> bool:
    """Return whether nodes of more than half of the clients report a lower mean than before.

    A node's mean is compared only with its own, as nodes' data differ. A vote weighs as much as the
    node has clients: numbers of summands, of which a node may claim more than it has, do not count.
    With fewer than three nodes in both, the means over all nodes are compared. Scores are by the
    number of a node's first client.
    """
    both = [k for k in now if k in before and now[k].terms and before[k].terms]
    if len(both) < 3:
        return bounded_mean([now[k] for k in both]) < bounded_mean([before[k] for k in both])
    better = sum(now[k].clients for k in both if now[k].mean < before[k].mean)
    return 2 * better > sum(now[k].clients for k in both)


def moved_by(
    sums: Mapping[int, Reported], most: float, farthest: float = FARTHEST
) -> dict[int, tuple[float, float]]:
    """Return the nodes that alone change the bounded mean by a factor of more than `MOVED`.

    Each has the mean of all nodes and that without it. Fewer than three are not told apart.
    """
    weights, means = _weights([*sums.values()], most), _means([*sums.values()], farthest)
    found, mean = {}, _weighted_mean(weights, means)
    for i, node in enumerate(sums if len(sums) > 2 else ()):
        rest = _weighted_mean(weights[:i] + weights[i + 1 :], means[:i] + means[i + 1 :])
        if not mean / MOVED <= rest <= MOVED * mean:
            found[node] = (mean, rest)
    return found


def _weighted_mean(weights: Sequence[float], values: Sequence[float]) -> float:
    return math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)


def _means(sums: Sequence[Reported], farthest: float) -> list[float]:
    """Return the nodes' means, bounded if there are enough nodes to tell what is usual."""
    means = [s.mean for s in sums]
    if len(sums) < 3 or math.isinf(farthest):
        return means
    middle = median(means)
    far = farthest * abs(middle)
    return [min(max(m, middle - far), middle + far) for m in means]


def _weights(sums: Sequence[Reported], most: float) -> list[float]:
    """Return the counts, bounded if there are enough nodes to tell what is usual."""
    if len(sums) < 3:
        return [s.terms for s in sums]
    usual = median(s.terms / s.clients for s in sums)
    return [min(s.terms, most * usual * s.clients) for s in sums]


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
        self._refused: dict[int, str] = {}
        self._unusable: set[int] = set()

    def restore(self, declared: Tensor) -> None:
        """Restore the `(clients,)` training samples that nodes declared before."""
        self.declared.copy_(declared)
        self._bound_sizes()

    def known_sizes(self) -> Tensor:
        """Return the clients' sizes; for those that never connected, the smallest known size."""
        return torch.where(self.sizes > 0, self.sizes, self.sizes[self.sizes > 0].min())

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
                Words("start more nodes or ask for fewer {min_parties}"),
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
        about = {"task": "join", "run": self.token, "clients": len(self.sizes), "round": round}
        answers = self.link.knock({n: Message(about) for n in new}, self.patience.answer)
        for node in sorted(new & answers.keys()):
            self._join(node, answers[node], round)
        return sum(len(numbers) for numbers in self.numbers.values())

    def await_any(self, round: int) -> None:
        """Admit new nodes; if none is connected then, wait for one as long as for an answer."""
        end = time.monotonic() + self.patience.answer
        while not self.welcome(round) and time.monotonic() < end:
            time.sleep(self.patience.poll)

    def _join(self, node: int, answer: Message | str, round: int) -> None:
        try:
            numbers, sizes = check_join(answer, len(self.sizes), self.numbers.values())
            self._check_owner(node, numbers)
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

    def _check_owner(self, node: int, numbers: range) -> None:
        """Raise `Rejected` if the clients are not the node's."""
        if self.owners and self.owners.get(node) != numbers:
            own = self.owners.get(node)
            raise Rejected(
                f"it claims the clients {numbers.start} to {numbers.stop - 1}; "
                + (f"its own are {own.start} to {own.stop - 1}" if own else "it has none")
            )

    def strike(self, node: int, reason: str, sent: bool) -> int:
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
