"""What the server of a federation learns under secure aggregation: sums over nodes.

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
from collections.abc import Mapping, Sequence

import torch

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.method import Method
from stforecast.federated.core.tensors import Like, Payload
from stforecast.federated.nodes.masker import ERRORS, FIELDS, METRICS, NUMBERS, UPLOAD
from stforecast.federated.nodes.membership import Membership, event
from stforecast.federated.nodes.messages import ALLOWED, FEW_CELLS_FOUND, Answer, Finished, Link
from stforecast.federated.nodes.secure_sum import SecureSum, SumLost
from stforecast.federated.nodes.summing import means_of, rows_with_mean
from stforecast.federated.uploads.masking import SecureSums, Shapes
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink

log = logging.getLogger(__name__)


def check_sums(method: type[Method], uplink: Uplink, robust: Robust) -> None:
    """Check that a server with this method and these settings needs only sums."""
    if method.sends.sums == "none":
        raise InputError(
            f"{method.name} does not support secure aggregation: {method.sends.needs_each}; ",
            Words("choose another {method}")
            if method.sends.counts
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


def check_uploads(
    method: type[Method], uplink: Uplink, robust: Robust, secure: SecureSums | None
) -> None:
    """Check that nodes, which may lose uploads, support these settings of uploads."""
    if uplink.delta_coding:
        raise InputError(
            Words("nodes may lose an upload, so they do not support {delta_coding}; leave it out")
        )
    if secure:
        check_sums(method, uplink, robust)
        if secure.share_noise and not uplink.private:
            raise InputError(
                Words("{share_noise} needs {clip} and {noise:gaussian}; set both, or leave it out")
            )


class NodeSums:
    """Turns the answers of a `Coordinator`'s nodes, which have no values, into sums over the nodes.

    Attributes:
        session: name of the sum that the nodes were asked for last.
        parties: nodes of the latest round's sum that trained.
        bytes_down: bytes that were sent for the latest sum.
        left: nodes that left the latest sum.
    """

    def __init__(self, settings: SecureSums, link: Link, membership: Membership) -> None:
        self.settings, self.link, self.membership = settings, link, membership
        self.session, self.parties, self.bytes_down = "", 0, 0
        self.left: set[int] = set()

    def begin(self) -> dict[str, str]:
        """Return what tells the nodes the name of a new sum."""
        self.session = secrets.token_hex(8)
        return {"session": self.session}

    def of_round(self, adverts: Mapping[int, Answer], round: int, now: str) -> Answer:
        """Return the answer of all nodes together to a round from 1; `now` says what the sum is of.

        Raises:
            SumLost: if the sum is lost, or too few nodes trained.
        """
        self.bytes_down, fewest = 0, self.membership.patience.min_parties
        parties = sum(len(a.ids) > 0 for a in adverts.values())
        if 0 < parties < fewest:
            raise SumLost(f"{parties} parties trained, at least {fewest} must")
        cells = {n: a.cells for n, a in adverts.items()}
        wanted = max((a.fewest_cells for a in adverts.values()), default=1)
        if parties and sum(cells.values()) < wanted:
            raise SumLost(
                f"the nodes' clients have {sum(cells.values())} cells together, and nodes want "
                f"{wanted} or more in a sum: {FEW_CELLS_FOUND}; let nodes of more cells take part, "
                f"or each owner set {ALLOWED}"
            )
        like: Like = next((a.like for a in adverts.values() if len(a.ids)), {})
        shapes: Shapes = {UPLOAD + name: shape for name, (_, *shape) in like.items()}
        shapes = {NUMBERS: [len(FIELDS)], **shapes}
        nodes, sums, up = self.sum_over(adverts, shapes, round, now, cells)
        trained = [adverts[n].ids for n in nodes if len(adverts[n].ids)]
        self.parties = len(trained)
        ids = torch.cat(trained).sort().values if trained else torch.tensor([], dtype=torch.long)
        numbers = dict(zip(FIELDS, sums.pop(NUMBERS).tolist(), strict=True))
        # Sums of whole numbers are whole, which masks that remain are not.
        weight, *counts = whole = [numbers[n] for n in ("weight", "task_losses", "scored")]
        if (
            not all(v >= 0 and v.is_integer() for v in whole)
            or weight < len(ids)
            or counts[0] not in (0, len(ids))
        ):
            raise SumLost("some node's masked values were not those that it had to send")
        totals = {name: sums[UPLOAD + name] for name in like}
        mean = means_of(totals, like, numbers["weight"]) if len(ids) else {}
        upload = rows_with_mean(mean, torch.ones(len(ids)))
        task_loss = numbers["task_loss"] if numbers["task_losses"] else math.nan
        score = (numbers["score"], numbers["scored"])
        return Answer(ids, upload, like, (numbers["loss"], task_loss), score, up)

    def of_errors(
        self,
        adverts: Mapping[int, Finished],
        round: int,
        now: str,
        metrics: Sequence[str] = METRICS,
    ) -> tuple[list[int], dict[str, float]]:
        """Return the nodes of the last sum, and the mean test errors of all; see `of_round`."""
        self.bytes_down = 0
        nodes, sums, _ = self.sum_over(adverts, {ERRORS: [1 + len(metrics)]}, round, now)
        targets, *totals = sums[ERRORS].tolist()
        errors = {
            name: total / targets
            for name, total in zip(metrics, totals, strict=True)
            if targets > 0 <= total
        }
        if len(errors) < len(metrics):
            log.warning("the sum of all nodes' test errors cannot be one, and is left out")
        return nodes, errors

    def sum_over(
        self,
        adverts: Mapping[int, Answer | Finished],
        shapes: Shapes,
        round: int,
        now: str,
        cells: Mapping[int, int] | None = None,
        fewest: int = 0,
    ) -> tuple[list[int], Payload, int]:
        """Return the nodes of a sum, `fewest` or more, the sums, and the bytes that nodes sent."""
        patience, membership = self.membership.patience, self.membership
        names = {"run": membership.token, "session": self.session}
        members = {n: membership.numbers[n].start for n in adverts}
        keys = {n: a.keys for n, a in adverts.items() if a.keys}
        of_sum = SecureSum(
            self.link,
            patience.answer,
            self.settings,
            names,
            shapes,
            members,
            keys,
            membership.name,
            max(patience.min_parties, fewest),
            cells,
        )
        try:
            nodes, sums = of_sum.run()
        finally:
            self.bytes_down, self.left = of_sum.bytes_down, set(of_sum.left)
            for node, task in of_sum.left.items():
                membership.strike(node, f"it left the sum at {task!r}", sent=False)
        if of_sum.left:
            log.warning(
                "%s: the sum over %d nodes is complete, though %d left it",
                now,
                len(nodes),
                len(of_sum.left),
                extra=event("sum_recovered", round=round, nodes=len(nodes), left=len(of_sum.left)),
            )
        return nodes, sums, of_sum.bytes_up
