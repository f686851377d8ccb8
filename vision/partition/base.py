"""Base class of partitions: the pools that clients share, and their training and test images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pandas as pd
import torch
from pydantic import PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError, Words, choose, counted
from stforecast.federated.core.options import CheckedOptions, PositiveShare
from stforecast.federated.core.state import generator
from vision.datasets.image_set import ImageSet, chosen_share
from vision.draws import Draw


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

    def counts(self, ids: Tensor) -> Tensor:
        """Count the images of each class among `ids`, `(classes,)`."""
        return self.images.labels[ids].bincount(minlength=len(self.images.class_names))

    @property
    def classes(self) -> list[int]:
        """Classes of the training images, increasing."""
        return self.images.labels[self.train].unique().tolist()

    def shuffled(self, rng: torch.Generator) -> Tensor:
        """Return the ids of the training images in random order."""
        return self.train[torch.randperm(len(self.train), generator=rng)]

    def sorted_by_class(self, rng: torch.Generator) -> Tensor:
        """Return the ids of the training images by class, in random order within each."""
        shuffled = self.shuffled(rng)
        return shuffled[self.images.labels[shuffled].argsort(stable=True)]


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
            rng = Draw.DOMAINS.generator(seed)
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
    found: list[tuple[int, int]] = []
    for item in counts.split(","):
        name, _, number = (part.strip() for part in item.rpartition(":"))
        if not name or not number.isdecimal():
            raise InputError(
                f"domains is {counts!r}; expected mixed, random or counts such as "
                f"{','.join(f'{n}:5' for n in names[:2])}"
            )
        if name not in names:
            raise choose("domain", name, names)
        found.append((names.index(name), int(number)))
    if (total := sum(n for _, n in found)) != clients:
        raise InputError(
            f"domains is {counts!r}, which are {total} clients in all; clients is {clients}; ",
            Words("give {clients}, or other {domains}", clients=total),
        )
    return [domain for domain, n in found for _ in range(n)]


def deal_classes(
    pool: Pool,
    part: Literal["train", "test"],
    classes: Sequence[Sequence[int]],
    shots: Sequence[int | None],
    rng: torch.Generator,
) -> list[Tensor]:
    """Give each client images of its classes; clients share no image.

    `classes` lists the classes of each client. `shots` are images per class for each client; None
    divides all images evenly among the clients that have the class.
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
    less than one. `train` are the ids of each client's training images. `shots` are test images per
    class, on average over a client's classes; None takes as many as the rarest class allows, with
    one ratio of test to training images for all clients.
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
            f"{pool.clients[i]} gives it none of them; ",
            Words("use {shared_test} or fewer {clients}"),
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
    kind = {"train": "training", "test": "test"}[part]
    remedy = "use fewer {clients}" if high == 1 else "use fewer {shots}, {ways} or {clients}"
    if part == "test":  # A client that asks alone shares test images, or needs no other's.
        fewer, shared = high > 1, len(wanted) > 1
        remedy = " or ".join(["use fewer {test_shots}"] * fewer + ["use {shared_test}"] * shared)
    return InputError(
        f"class {pool.images.class_names[label]} of {pool.domain} has "
        f"{counted(n, f'{kind} image')} and {who}; ",
        Words(remedy if n else "add some or leave the class out"),
    )


def check_dealt(origin: str, dealt: Sequence[Tensor], clients: int, allowed: Tensor) -> None:
    """Refuse what are no ids `(n,)` of images for each client.

    `allowed` `(images,)` marks the images in the part that is dealt.
    """
    n = len(dealt) if isinstance(dealt, Sequence) else 0
    if n != clients or not all(isinstance(ids, Tensor) for ids in dealt):
        wanted = f"a tensor of ids for each of {clients} clients"
        raise InputError(f"{origin}: deal returned {n} parts, expected {wanted}")
    for client, ids in enumerate(dealt):
        for other in ids[~torch.isin(ids, allowed.nonzero())].tolist():
            raise InputError(f"{origin}: client {client} gets image {other}, which is none of them")


@dataclass(frozen=True, eq=False)
class Partition:
    """Training and test images of each client.

    Attributes:
        train: ids `(n,)` of each client's training images, increasing; clients share no image.
        test: the same for test images, which clients may share.
    """

    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]

    def table(self, images: ImageSet) -> pd.DataFrame:
        """Count each client's images of each class and domain in the set that was split.

        The columns are `client` (from 0), `part` ("train" or "test"), `domain`, `class` (names) and
        `samples`, with a row for each combination that occurs, in that order.
        """
        rows = []
        for part, clients in (("train", self.train), ("test", self.test)):
            for client, ids in enumerate(clients):
                pairs = torch.stack([images.domains[ids], images.labels[ids]])
                found, counts = pairs.unique(dim=1, return_counts=True)
                for (domain, label), n in zip(found.T.tolist(), counts.tolist(), strict=True):
                    names = images.domain_names[domain], images.class_names[label]
                    rows.append((client, part, *names, n))
        return pd.DataFrame(rows, columns=["client", "part", "domain", "class", "samples"])


@dataclass(frozen=True)
class Partitioner(CheckedOptions, ABC):
    """Division of a set's training and test part among clients.

    A kind of partition is a subclass in its own file with a `name`. Its `deal` divides the training
    images of one domain among the domain's clients (label skew). The assignment of domains to
    clients (domain shift) and the choice of test images are independent of it.

    Test images always come from the set's test part, so no client trains on them. PFLlib instead
    joins both parts, divides all images and holds out a random quarter of each client's images; the
    class shares of its test images then match the training images' only approximately.

    Attributes:
        clients: number of clients.
        domains: `mixed` (every client draws from all domains), `random` (each client draws one
            domain with equal probability) or the number of clients of each domain, such as
            `mnist:6,usps:4,svhn:10`; clients are then numbered in this order.
        share: share of the training images of each class and domain to use, rounded, but at least
            one image.
        test: number of a client's test images of each class: `by-class`, `test_shots` of each;
            `own-mix`, in the class shares of its training images.
        test_shots: test images of each class; with `own-mix` their mean over a client's classes. By
            default all images, divided evenly if they are not shared; with `own-mix` as many as
            keep the class shares exact to less than one image per class.
        shared_test: whether clients may be tested on the same images. If not, each test image
            belongs to at most one client.
    """

    name: ClassVar[str] = ""

    clients: PositiveInt = 20
    domains: str = "mixed"
    share: PositiveShare = 1.0
    test: Literal["by-class", "own-mix"] = "by-class"
    test_shots: PositiveInt | None = None
    shared_test: bool = True

    @abstractmethod
    def deal(self, pool: Pool, rng: torch.Generator) -> list[Tensor]:
        """Return the ids of the training images of each of the pool's clients."""

    def split(self, images: ImageSet, seed: int = 0) -> Partition:
        """Divide a set.

        Args:
            images: set with a training and a test part.
            seed: the same seed gives the same partition.

        Raises:
            InputError: if the division is impossible; gives the numbers.
        """
        if self.clients > (n_train := int((~images.is_test).sum())):
            raise InputError(
                f"{images.name} has {counted(n_train, 'training image')} for {self.clients} "
                "clients; ",
                Words("use fewer {clients}; each needs an image"),
            )
        pools = make_pools(images, self.domains, self.clients, seed)
        train: dict[int, Tensor] = {}
        test: dict[int, Tensor] = {}
        for number, pool in enumerate(pools):
            # Keys of generators have three numbers; those of rounds have two.
            kept = self._thin(pool, generator(seed, 3, number, 0))
            dealt = self.deal(kept, generator(seed, 4, number, 0))
            allowed = torch.zeros_like(images.is_test)
            allowed[kept.train] = True
            origin = f"partition {self.name}, training images of {pool.domain}"
            check_dealt(origin, dealt, len(pool.clients), allowed)
            if len(ids := torch.cat(tuple(dealt))) > len(ids.unique()):
                raise InputError(f"{origin}: deal returned one twice, expected once at most")
            rng = generator(seed, 5, number, 0)
            if self.shared_test:
                tested = [
                    self._test(replace(pool, clients=[client]), [ids], rng)[0]
                    for client, ids in zip(pool.clients, dealt, strict=True)
                ]
            else:
                tested = self._test(pool, dealt, rng)
            train.update(zip(pool.clients, dealt, strict=True))
            test.update(zip(pool.clients, tested, strict=True))
        return Partition(
            *(tuple(d[i].sort().values for i in range(self.clients)) for d in (train, test))
        )

    def _thin(self, pool: Pool, rng: torch.Generator) -> Pool:
        """Return the pool with a `share` of the training images of each class and domain."""
        if self.share == 1:
            return pool
        images = pool.images
        strata = images.domains[pool.train] * len(images.class_names) + images.labels[pool.train]
        return replace(pool, train=pool.train[chosen_share(strata, self.share, rng)])

    def _test(self, pool: Pool, dealt: Sequence[Tensor], rng: torch.Generator) -> list[Tensor]:
        """Choose test images for each of the pool's clients; clients share no image."""
        if self.test == "own-mix":
            return deal_mix(pool, dealt, self.test_shots, rng)
        labels = pool.images.labels
        classes = [labels[ids].unique().tolist() for ids in dealt]
        return deal_classes(pool, "test", classes, [self.test_shots] * len(classes), rng)
