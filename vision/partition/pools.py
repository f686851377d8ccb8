"""Pools of images that some clients share, and division of a pool's classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from data_prep.base.errors import InputError, Words, choose
from stforecast.federated.core.state import generator
from vision.datasets.image_set import ImageSet

DOMAINS = (2, 0, 0)
"""Key of the generator of the clients' domains."""


@dataclass(frozen=True, eq=False)
class Pool:
    """The images of one domain, or of all, and the clients that share them.

    Attributes:
        images: the whole set.
        domain: name of the pool in messages: `domain usps` or `all domains`.
        clients: numbers of the clients.
        train: ids of the pool's training images.
        test: ids of the pool's test images.
    """

    images: ImageSet
    domain: str
    clients: Sequence[int]
    train: Tensor
    test: Tensor

    def with_train(self, train: Tensor) -> Pool:
        """Return the same pool with other training images."""
        return replace(self, train=train)

    def for_clients(self, clients: Sequence[int]) -> Pool:
        """Return the same pool for other clients."""
        return replace(self, clients=clients)

    def counts(self, ids: Tensor) -> Tensor:
        """Count the images of each class among `ids`, `(classes,)`."""
        return self.images.labels[ids].bincount(minlength=len(self.images.class_names))

    @property
    def classes(self) -> list[int]:
        """Classes of the training images, increasing."""
        return self.images.labels[self.train].unique().tolist()


def make_pools(images: ImageSet, domains: str, clients: int, seed: int) -> list[Pool]:
    """Make one pool for each domain that some client has, or one for all domains.

    `domains` is `mixed`, `random` or counts, see `Partitioner.domains`. A pool without training or
    test images is an error, and so are counts that do not add up to `clients`.
    """
    if domains == "mixed":
        pools = [_pool(images, "all domains", range(clients), torch.ones_like(images.is_test))]
    else:
        n_domains = len(images.domain_names)
        if domains == "random":
            rng = generator(seed, *DOMAINS)
            drawn = torch.randint(n_domains, (clients,), generator=rng).tolist()
        else:
            drawn = _domains_in_counts(domains, images.domain_names, clients)
        pools = [
            _pool(
                images,
                f"domain {images.domain_names[d]}",
                [i for i in range(clients) if drawn[i] == d],
                images.domains == d,
            )
            for d in sorted(set(drawn))
        ]
    for pool in pools:
        if not len(pool.train) or not len(pool.test):
            raise InputError(
                f"{pool.domain} of {images.name} has {len(pool.train)} training and "
                f"{len(pool.test)} test images; each part needs at least one"
            )
    return pools


def _pool(images: ImageSet, domain: str, clients: Sequence[int], inside: Tensor) -> Pool:
    train, test = inside & ~images.is_test, inside & images.is_test
    return Pool(images, domain, clients, train.nonzero()[:, 0], test.nonzero()[:, 0])


def _domains_in_counts(counts: str, names: Sequence[str], clients: int) -> list[int]:
    """Parse counts such as `mnist:6,usps:4` to the domain of each client."""
    drawn: list[int] = []
    for item in counts.split(","):
        name, _, number = (part.strip() for part in item.rpartition(":"))
        if not name or not number.isdecimal():
            raise InputError(
                f"domains is {counts!r}; expected mixed, random or counts such as "
                f"{','.join(f'{n}:5' for n in names[:2])}"
            )
        if name not in names:
            raise choose("domain", name, names)
        drawn += [names.index(name)] * int(number)
    if len(drawn) != clients:
        raise InputError(
            f"domains is {counts!r}, which are {len(drawn)} clients in all; clients is {clients}: ",
            Words("give {clients}, or other domains", clients=len(drawn)),
        )
    return drawn


def deal_classes(
    pool: Pool,
    part: Literal["train", "test"],
    classes: Sequence[Sequence[int]],
    shots: Sequence[int | None],
    rng: torch.Generator,
) -> list[Tensor]:
    """Give each client images of its classes; clients share no image.

    Args:
        pool: images and clients.
        part: training or test images.
        classes: classes of each client.
        shots: images per class for each client; None divides all images evenly among the clients
            that have the class.
        rng: random generator.
    """
    ids = pool.train if part == "train" else pool.test
    there = pool.counts(ids).tolist()
    counts = torch.zeros(len(classes), len(there), dtype=torch.long)
    for label in sorted({c for own in classes for c in own}):
        holders = [i for i, own in enumerate(classes) if label in own]
        wanted = [1 if (n := shots[i]) is None else n for i in holders]
        if sum(wanted) > there[label]:
            raise _too_few(pool, part, label, there[label], wanted)
        if shots[holders[0]] is None:
            each, more = divmod(there[label], len(holders))
            wanted = [each + (i < more) for i in range(len(holders))]
        counts[holders, label] = torch.tensor(wanted)
    return _deal(pool, ids, counts, rng)


def deal_mix(
    pool: Pool, train: Sequence[Tensor], shots: int | None, rng: torch.Generator
) -> list[Tensor]:
    """Give each client test images in the class shares of its training images.

    Clients share no image. A client's number of images of a class differs from its exact share by
    less than one.

    Args:
        pool: images and clients.
        train: ids of each client's training images.
        shots: test images per class, on average over a client's classes; None takes as many as the
            rarest class allows, with one ratio of test to training images for all clients.
        rng: random generator.
    """
    have = torch.stack([pool.counts(ids) for ids in train])
    there, sent = pool.counts(pool.test), have.sum(0)
    known = sent.nonzero()[:, 0]
    for label in known[there[known] == 0].tolist():
        raise InputError(
            f"class {pool.images.class_names[label]} of {pool.domain} has training images and no "
            "test images, so own-mix is impossible; remove the class or use by-class"
        )
    if shots is None:
        ratio = (there[known].double() / sent[known]).min().expand(len(train))
    else:
        ratio = shots * (have > 0).sum(1).double() / have.sum(1)
    # Rounding cumulative sums over clients never exceeds the number of images.
    edges = (have * ratio[:, None]).cumsum(0).round().long()
    counts = edges.diff(dim=0, prepend=torch.zeros_like(edges[:1]))
    for label in (counts.sum(0) > there).nonzero()[:, 0].tolist():
        raise _too_few(pool, "test", label, int(there[label]), counts[:, label].tolist())
    for i in (counts.sum(1) == 0).nonzero()[:, 0].tolist():
        raise InputError(
            f"{pool.domain} has {len(pool.test)} test images, and the training mix of client "
            f"{pool.clients[i]} gives it none of them; share test images or use fewer clients"
        )
    return _deal(pool, pool.test, counts, rng)


def _deal(pool: Pool, ids: Tensor, counts: Tensor, rng: torch.Generator) -> list[Tensor]:
    """Divide random images of `ids` by `counts` `(clients, classes)`; clients share no image."""
    labels = pool.images.labels[ids]
    dealt: list[list[Tensor]] = [[ids[:0]] for _ in counts]
    for label in counts.sum(0).nonzero()[:, 0].tolist():
        members = ids[labels == label]
        shuffled = members[torch.randperm(len(members), generator=rng)]
        wanted = counts[:, label].tolist()
        for own, piece in zip(dealt, shuffled[: sum(wanted)].split(wanted), strict=True):
            own.append(piece)
    return [torch.cat(pieces) for pieces in dealt]


def _too_few(pool: Pool, part: str, label: int, n: int, wanted: Sequence[int]) -> InputError:
    """Return the error for a class with too few images."""
    wanted = [n for n in wanted if n]
    low, high = min(wanted), max(wanted)
    each = f"{low} each" if low == high else f"{low} to {high} each, {sum(wanted)} in all"
    who = f"{len(wanted)} clients ask for {each}" if len(wanted) > 1 else f"a client asks for {low}"
    kind, remedy = {
        "train": ("training", "use fewer shots, ways or clients, or a larger share"),
        "test": ("test", "use fewer test_shots, share test images or use a larger test_share"),
    }[part]
    return InputError(
        f"class {pool.images.class_names[label]} of {pool.domain} has {n} {kind} images and {who}; "
        f"{remedy}"
    )
