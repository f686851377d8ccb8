"""The server's part in a secure sum: it learns the sum of the nodes' vectors, and nothing else.

Bonawitz et al., CCS 2017, Figure 4, with the names of the messages' tasks. Public keys came with
the answers to a message before.

1. `share`: the server passes on the public keys; each node deals sealed shares of its two secrets.
2. `mask`: the server passes on the shares of the nodes that dealt; these answer with vectors under
   masks for each pair of them. A node that is lost from here on leaves masks that do not cancel.
3. `unmask`: for each node whose vector arrived, all nodes reveal shares of the seed of its own
   mask; for each that was lost after it dealt, they reveal shares of the key of its pairwise masks.

Beyond the paper, dealers commit themselves to shares, so that a false share is found and its sender
named. Each secret needs as many shares as the threshold says; with fewer, the sum is lost. All
answers of nodes are untrusted, and checked.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from stforecast.federated.core.tensors import Payload, total_bytes
from stforecast.federated.nodes.masker import SUM
from stforecast.federated.nodes.membership import event
from stforecast.federated.nodes.messages import (
    FEW_CELLS,
    Answer,
    Finished,
    Link,
    Message,
    Rejected,
    message_of,
    read_trained,
    untrusted,
)
from stforecast.federated.uploads import masking

log = logging.getLogger(__name__)

T = TypeVar("T")

FEWEST = 2
"""Fewest nodes of a sum."""

HASH = 32
"""Bytes of a commitment."""


@dataclass(frozen=True)
class Dealt:
    """Shares that a member dealt.

    Attributes:
        sealed: shares for each other member, as hexadecimal text.
        checks: commitments to the shares of both secrets for each member, as hexadecimal text.
        own: commitment to the seed of its own mask.
    """

    sealed: dict[str, str]
    checks: dict[str, list[str]]
    own: bytes


@untrusted
def check_advert(answer: Message | str, asked: Collection[int]) -> Answer:
    """Return a node's answer to a round, without its values."""
    about = message_of(answer).about
    ids, like = read_trained(about, asked)
    masking.length({name: shape for name, (_, *shape) in like.items()})
    if unknown := [t for t, *_ in like.values() if not isinstance(getattr(torch, t), torch.dtype)]:
        raise Rejected(f"it sums values of type {unknown[0]!r:.20}")
    trained = torch.tensor(sorted(ids), dtype=torch.long)
    cells, fewest = (
        min(max(int(about.get(n, 0)), 0), FEW_CELLS) for n in ("cells", "fewest_cells")
    )
    return Answer(
        trained, {}, like, (0.0, 0.0), (0.0, 0.0), 0, _keys(about), cells=cells, fewest_cells=fewest
    )


@untrusted
def check_finish_advert(answer: Message | str) -> Finished:
    """Return a node's answer at the end, without its values."""
    about = message_of(answer).about
    return Finished({}, 0, about.get("has_best") is True, keys=_keys(about))


def _keys(about: Mapping[str, Any]) -> masking.PublicKeys:
    keys = masking.PublicKeys(
        *(_read_bytes(about["keys"][name], masking.KEY) for name in masking.PublicKeys._fields)
    )
    for key in keys:
        masking.agreed(masking.new_key(), key, "")  # Some keys agree with no other.
    return keys


@untrusted
def check_shares(answer: Message | str, dealer: int, members: Collection[int]) -> Dealt:
    """Return the shares that a member dealt."""
    about = message_of(answer).about
    sealed, checks = dict(about["sealed"]), dict(about["checks"])
    everyone = {str(i) for i in members}
    if sealed.keys() != everyone - {str(dealer)} or checks.keys() != everyone:
        raise Rejected("its shares are not for the members of the sum")
    for text in sealed.values():
        _read_bytes(text, 2 * masking.SHARE + 16)
    for pair in checks.values():
        for text, _ in zip(pair, range(2), strict=True):
            _read_bytes(text, HASH)
    return Dealt(sealed, checks, _read_bytes(about["own"], HASH))


@untrusted
def check_masked(
    answer: Message | str, shapes: masking.Shapes, others: Collection[int]
) -> tuple[Tensor, list[int]]:
    """Return a member's masked vector, and the members whose shares it could not use."""
    message = message_of(answer)
    vector, n = message.payload[SUM], sum(math.prod(shape) for shape in shapes.values())
    if vector.dtype != torch.int64 or vector.shape != (n,) or len(message.payload) > 1:
        raise Rejected(f"it sent {tuple(vector.shape)} of {vector.dtype}, expected {n} integers")
    return vector, [i for i in others if i in message.about["unusable"]]


@untrusted
def check_revealed(answer: Message | str, checks: Mapping[int, str]) -> dict[int, bytes]:
    """Return the shares that a member reveals, given the commitment to each, by dealer."""
    shares = {
        int(i): _read_bytes(text, masking.SHARE)
        for i, text in message_of(answer).about["shares"].items()
    }
    for i, check in checks.items():
        if i not in shares or masking.commitment(shares[i]).hex() != check:
            raise Rejected(f"its share of the secret of client {i}'s node is not the one dealt")
    return {i: shares[i] for i in checks}


def _read_bytes(text: object, n: int) -> bytes:
    """Read bytes from hexadecimal text."""
    if not isinstance(text, str) or len(text) != 2 * n:
        raise Rejected(f"it sent {text!r:.40}, expected {n} bytes")
    return bytes.fromhex(text)


class SumLost(Exception):
    """Raised if a sum cannot be found; the false shares of `guilty` nodes are the reason."""

    def __init__(self, reason: str, guilty: frozenset[int] = frozenset()) -> None:
        super().__init__(reason)
        self.guilty = guilty


class SecureSum:
    """Adds up the nodes' values.

    Args:
        link: link to the nodes.
        timeout: seconds for the answers to each message.
        settings: the run's settings.
        session: name of the sum, and of the run, as the nodes know them.
        shapes: names and shapes of the tensors of the sum.
        members: number of each node's first client, by which the others know it.
        keys: each node's public keys.
        name: describes a node in words.
        fewest: nodes that the sum is of at least.
        cells: cells of each node's upload; none if there are no uploads.

    Attributes:
        bytes_up: bytes that nodes sent so far, with keys and shares.
        bytes_down: bytes sent to them.
        left: nodes that left the sum, by the task of the message that they did not answer usably.
        complaints: by member, the members whose shares it could not use.
        liars: members that revealed false shares.
    """

    def __init__(
        self,
        link: Link,
        timeout: float,
        settings: masking.SecureSums,
        session: Mapping[str, str],
        shapes: masking.Shapes,
        members: Mapping[int, int],
        keys: Mapping[int, masking.PublicKeys],
        name: Callable[[int], str] = str,
        fewest: int = FEWEST,
        cells: Mapping[int, int] | None = None,
    ) -> None:
        self.link, self.timeout, self.session, self.shapes = link, timeout, session, shapes
        self.members, self.name = members, name
        self.node_of = {member: node for node, member in members.items()}
        self.keys = {members[node]: of_node for node, of_node in keys.items()}
        self.cells = {str(members[node]): n for node, n in (cells or {}).items()}
        self.threshold = settings.threshold(len(keys))
        self.fewest = max(self.threshold, fewest, FEWEST)
        self.bytes_up = self.bytes_down = 0
        self.left: dict[int, str] = {}
        self._first_reason = ""
        self.complaints: dict[int, set[int]] = {}
        self.liars: set[int] = set()

    def run(self) -> tuple[list[int], Payload]:
        """Return the nodes of the sum, and the sums in double precision.

        Raises:
            SumLost: if fewer nodes than the threshold are there to the end.
        """
        self._need("are there", len(self.keys))
        peers = {str(i): [part.hex() for part in keys] for i, keys in self.keys.items()}
        about = {"peers": peers, "shapes": self.shapes, "cells": self.cells}
        dealt = self._ask(
            "share", dict.fromkeys(self.keys, about), lambda i, a: check_shares(a, i, self.keys)
        )
        self._need("dealt shares", len(dealt))
        vectors = self._mask(dealt)
        self._need("sent their values", len(vectors))
        total = -self._leftover(dealt, vectors.keys())
        for vector in vectors.values():
            total += vector
        return [self.node_of[i] for i in vectors], masking.from_vector(total, self.shapes)

    def _need(self, did: str, n: int) -> None:
        if n < self.fewest:
            why = f" ({self._first_reason:.200})" if self._first_reason else ""
            raise SumLost(f"{n} nodes {did}{why}; a secure sum takes {self.fewest}")

    def _mask(self, dealt: Mapping[int, Dealt]) -> dict[int, Tensor]:
        about = {}
        for i in dealt:
            others = {str(j): of for j, of in dealt.items() if j != i}
            about[i] = {
                "sealed": {j: of.sealed[str(i)] for j, of in others.items()},
                "checks": {j: of.checks[str(i)] for j, of in others.items()},
            }
        found = self._ask(
            "mask", about, lambda i, a: check_masked(a, self.shapes, dealt.keys() - {i})
        )
        for i, (_, unusable) in found.items():
            self.complaints[i] = set(unusable)
            for j in unusable:
                log.warning("%s cannot use the share of %s", self._name(i), self._name(j))
        return {i: vector for i, (vector, _) in found.items()}

    def _leftover(self, dealt: Mapping[int, Dealt], stayed: Collection[int]) -> Tensor:
        """Return the masks that did not cancel."""
        revealed, n = self._unmask(dealt, stayed), masking.length(self.shapes)
        total = torch.zeros(n, dtype=torch.int64)
        for i, of in dealt.items():
            shares = {j: found[i] for j, found in revealed.items() if i in found}
            if len(shares) < self.threshold:
                complaints = sum(i in found for found in self.complaints.values())
                dealt_badly = complaints > max(1, (len(self.complaints) - 1) / 2)
                guilty = {i} if len(revealed) >= self.threshold and dealt_badly else self.liars
                raise SumLost(
                    f"{len(shares)} nodes revealed a share of the secret of {self._name(i)}; "
                    f"{self.threshold} are needed",
                    self._nodes(guilty),
                )
            secret = self._secret(i, shares, of.own if i in stayed else None)
            if i in stayed:
                total += masking.mask_of(secret, n)
                continue
            for j in stayed:
                total += masking.pair_mask(
                    j, secret, i, self.keys[j].mask, self.session["session"], n
                )
        return total

    def _unmask(
        self, dealt: Mapping[int, Dealt], stayed: Collection[int]
    ) -> dict[int, dict[int, bytes]]:
        """Return the shares that each node reveals."""

        def check(i: int, answer: Message | str) -> dict[int, bytes]:
            checks = {
                j: of.checks[str(i)][j not in stayed]
                for j, of in dealt.items()
                if j not in self.complaints[i]
            }
            try:
                return check_revealed(answer, checks)
            except Rejected:
                if isinstance(answer, Message):
                    self.liars.add(i)
                raise

        return self._ask("unmask", {i: {"stayed": list(map(str, stayed))} for i in stayed}, check)

    def _secret(self, i: int, shares: Mapping[int, bytes], own: bytes | None) -> bytes:
        """Return the secret of a node: the seed of its `own` mask if that is given, else its key.

        It is given as the commitment to the seed.
        """
        with contextlib.suppress(ValueError):  # The shares belong to no secret.
            secret = masking.rejoin(dict(list(shares.items())[: self.threshold]))
            if own == masking.commitment(secret) or (
                own is None and self.keys[i].mask == masking.public(secret)
            ):
                return secret
        raise SumLost(
            f"the shares that {self._name(i)} dealt give no secret of its", self._nodes({i})
        )

    def _ask(
        self,
        task: str,
        about: Mapping[int, Mapping[str, Any]],
        check: Callable[[int, Message | str], T],
    ) -> dict[int, T]:
        """Return the members' usable answers to a message, in order of their numbers."""
        messages = {
            self.node_of[i]: Message({"task": task, **self.session, **of})
            for i, of in sorted(about.items())
        }
        self.bytes_down += sum(map(_bytes, messages.values()))
        answers, found = self.link.ask(messages, self.timeout), {}
        for node in messages:
            answer = answers.get(node, f"no answer in {self.timeout:g} s")
            if isinstance(answer, Message):
                self.bytes_up += _bytes(answer)
            try:
                found[self.members[node]] = check(self.members[node], answer)
            except Rejected as e:
                self.left[node] = task
                self._first_reason = self._first_reason or f"{self.name(node)}: {e}"
                known = event("left_sum", node=node, task=task, reason=str(e))
                log.warning("%s leaves the sum at %r: %s", self.name(node), task, e, extra=known)
        return found

    def _name(self, member: int) -> str:
        return self.name(self.node_of[member])

    def _nodes(self, members: Collection[int]) -> frozenset[int]:
        return frozenset(self.node_of[i] for i in members)


def _bytes(message: Message) -> int:
    return len(json.dumps(message.about)) + total_bytes(message.payload)
