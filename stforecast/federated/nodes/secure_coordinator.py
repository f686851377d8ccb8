"""The server of a federation under secure aggregation: it learns sums over nodes, see `SecureSum`.

A round's sum is treated as one answer of all nodes that stayed, in which each of their clients has
the mean upload. A method that declares its `sums` computes the same result from it. A round whose
sum is lost is repeated; a node whose false shares were the reason is not let in again.

What a sum hides cannot be compared: there are neither robust aggregation nor votes on the best
round, and a node's numbers are bounded only by what a sum can hold.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.method import Method
from stforecast.federated.nodes.coordinator import Coordinator
from stforecast.federated.nodes.membership import event, tell_left_out
from stforecast.federated.nodes.messages import Answer, Finished, Message
from stforecast.federated.nodes.secure_node import ERRORS, FIELDS, METRICS, NUMBERS, UPLOAD
from stforecast.federated.nodes.secure_sum import (
    FEWEST,
    Advert,
    FinishAdvert,
    Lost,
    SecureSum,
    check_advert,
    check_finish_advert,
)
from stforecast.federated.uploads.masking import SecureSums, Shapes
from stforecast.federated.uploads.payload import Like, Payload
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink

log = logging.getLogger(__name__)

EVERYBODY = -1
"""Number that stands for all nodes of a sum."""


def check_sums(method: type[Method], uplink: Uplink, robust: Robust) -> None:
    """Check that a server needs only sums.

    Args:
        method: the method.
        uplink: processing of uploads.
        robust: the server's defence.

    Raises:
        InputError: naming what needs more than sums.
    """
    if method.sums == "none":
        raise InputError(
            f"{method.name} does not support secure aggregation: {method.needs_each}; ",
            Words("choose another {method}")
            if method.sends_counts
            else Words("instead, bound what each upload reveals by {clip} and {noise:gaussian}"),
        )
    if robust.robust != "none":
        raise InputError(
            Words(
                "{robust} compares uploads, which {secure_aggregation} hides; leave one out",
                robust=robust.robust,
            )
        )
    if uplink.bits != 32 or uplink.delta_coding:
        raise InputError(
            Words(
                "{secure_aggregation} adds up uploads as fixed-point integers; leave out {bits} "
                "and {delta_coding}"
            )
        )


class SecureCoordinator(Coordinator):
    """A `Coordinator` whose nodes are `SecureNode`s.

    Args:
        *args: see `Coordinator`.
        settings: settings of secure aggregation.
        **further: see `Coordinator`.
    """

    def __init__(self, *args: Any, settings: SecureSums, **further: Any) -> None:
        super().__init__(*args, **further)
        self.settings = settings
        self._session, self._n_trained = "", 0
        check_sums(type(self.method), self.server.uplink, self.server.robust)

    def run_round(self) -> None:
        """Run one round with the connected nodes.

        Raises:
            InputError: if the run begins with too few nodes for a sum.
        """
        if not self.server.state.round and len(self.membership.numbers) < FEWEST:
            raise InputError("a single node is connected; secure aggregation needs at least two")
        super().run_round()

    def _extras(self) -> dict[str, Any]:
        self._session = secrets.token_hex(8)
        return {"session": self._session}

    def _check(self, answer: Message | str, asked: Sequence[int]) -> Answer:
        return check_advert(answer, asked)

    def _check_finish(self, answer: Message | str) -> Finished:
        return check_finish_advert(answer)

    def _leave_out(self, node: int, reason: str, sent: bool) -> None:
        if node == EVERYBODY:
            self._lose(reason)
        else:
            super()._leave_out(node, reason, sent)

    def _n_parties(self, trained: Mapping[int, Answer]) -> int:
        return self._n_trained

    def _names(self, nodes: Iterable[int]) -> str:
        return "nobody knows whose values are the reason"

    def _clients_of(self, node: int) -> range:
        if node == EVERYBODY:
            return range(len(self.membership.sizes))
        return super()._clients_of(node)

    def _ask_round(self, participants: Tensor) -> dict[int, Answer]:
        """Return the answer of all nodes together; none if their sum is lost."""
        adverts = {n: a for n, a in super()._ask_round(participants).items()
                   if isinstance(a, Advert)}  # fmt: skip
        parties = sum(len(a.ids) > 0 for a in adverts.values())
        if 0 < parties < self.patience.min_parties:
            self._lose(f"{parties} parties trained, at least {self.patience.min_parties} must")
            return {}
        like: Like = next((a.like for a in adverts.values() if len(a.ids)), {})
        shapes: Shapes = {UPLOAD + name: shape for name, (_, *shape) in like.items()}
        found = self._sum(adverts, {NUMBERS: [len(FIELDS)], **shapes})
        if found is None:
            return {}
        nodes, sums, up = found
        trained = [adverts[n].ids for n in nodes if len(adverts[n].ids)]
        self._n_trained = len(trained)
        ids = torch.cat(trained).sort().values if trained else torch.tensor([], dtype=torch.long)
        numbers = dict(zip(FIELDS, sums.pop(NUMBERS).tolist(), strict=True))
        if not _plausible(numbers, len(ids)):
            self._lose("some node's masked values were not those that it had to send")
            return {}
        upload = _means(sums, like, numbers["weight"], len(ids)) if len(ids) else {}
        task_loss = numbers["task_loss"] if numbers["task_losses"] else math.nan
        everybody = Answer(
            ids, upload, like, (numbers["loss"], task_loss), (numbers["score"], numbers["scored"]),
            up,
        )  # fmt: skip
        return self._without_outliers({EVERYBODY: everybody})

    def _sum(
        self, adverts: Mapping[int, Advert | FinishAdvert], shapes: Shapes
    ) -> tuple[list[int], Payload, int] | None:
        """Return the nodes of a sum, the sums, and the bytes that nodes sent; None if lost."""
        if not adverts:
            return None
        of_sum = SecureSum(
            self.link, self.patience.answer, self.settings,
            {"run": self.token, "session": self._session}, shapes,
            {n: self.membership.numbers[n].start for n in adverts},
            {n: a.keys for n, a in adverts.items()}, self.membership.name,
            self.patience.min_parties,
        )  # fmt: skip
        try:
            nodes, sums = of_sum.run()
        except Lost as e:
            self._lose(str(e))
            for node in e.guilty:
                self.membership.expel(node, "it spoilt a secure sum")
            return None
        finally:
            self._sent += of_sum.bytes_down
            for node, task in of_sum.left.items():
                self.membership.strike(node, f"it left the sum at {task!r}", sent=False)
        if of_sum.left:
            round = self.server.state.round + 1
            log.warning(
                "%s: the sum over %d nodes is complete, though %d left it",
                self._now(), len(nodes), len(of_sum.left),
                extra=event("sum_recovered", round=round, nodes=len(nodes), left=len(of_sum.left)),
            )  # fmt: skip
        return nodes, sums, of_sum.bytes_up

    def _lose(self, reason: str) -> None:
        """Report that a sum is lost."""
        round, self._lost_because = self.server.state.round + 1, reason
        log.warning(
            "%s: the sum is lost: %s", self._now(), reason,
            extra=event("sum_lost", round=round, reason=reason),
        )  # fmt: skip

    def _finish(self) -> dict[int, Finished]:
        """Let the nodes finish; learn their mean test errors as sums."""
        finished = super()._finish()
        adverts = {n: f for n, f in finished.items() if isinstance(f, FinishAdvert)}
        found = self._sum(adverts, {ERRORS: [1 + len(METRICS)]})
        missing = adverts.keys() - self.left_out.keys() - set(found[0] if found else ())
        tell_left_out(new := dict.fromkeys(sorted(missing), "the sum of the errors is without it"))
        self.left_out |= new
        if found:
            targets, *totals = found[1][ERRORS].tolist()
            self.test_errors = {
                name: total / targets
                for name, total in zip(METRICS, totals, strict=True)
                if targets > 0 <= total
            }
            if len(self.test_errors) < len(METRICS):
                log.warning("the sum of all nodes' test errors cannot be one, and is left out")
        return finished


def _plausible(numbers: Mapping[str, float], n_clients: int) -> bool:
    """Return whether sums of whole numbers are whole, which masks that remain are not."""
    whole = [numbers["weight"], numbers["task_losses"], numbers["scored"]]
    return all(v >= 0 and v.is_integer() for v in whole) and (
        numbers["weight"] >= n_clients and numbers["task_losses"] in (0, n_clients)
    )


def _means(sums: Payload, like: Like, weight: float, n: int) -> Payload:
    """Return the mean upload as that of n clients, in the uploads' types."""
    means = {}
    for name, (dtype, *_) in like.items():
        mean, kind = sums[UPLOAD + name] / weight, getattr(torch, dtype)
        mean = mean if kind.is_floating_point else mean.round()
        means[name] = mean.to(kind).expand(n, *mean.shape)
    return means
