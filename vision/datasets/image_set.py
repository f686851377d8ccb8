"""A set of labelled images from one or several domains, in memory, and random parts of it.

Parts that are held out and long tails keep the proportions of classes and domains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from data_prep.base.errors import InputError, Words
from data_prep.base.limits import check_size
from vision.draws import Draw

ROWS = 4096
"""Images that are resized at once, to bound the memory of intermediate results."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images of equal size.

    Attributes:
        name: name of the set, e.g. `mnist+usps`.
        images: `(n, channels, height, width)` uint8, 0 to 255; 1 channel (grey) or 3 (RGB).
        labels: `(n,)` int64 index into `class_names`.
        domains: `(n,)` int64 index into `domain_names`.
        is_test: `(n,)` bool: whether an image belongs to the test part.
        class_names: names of the classes.
        domain_names: names of the domains; one if the set has no domains.
        source: origin and split of the images, for the record of a run.

    Raises:
        InputError: if shapes, types or ranges are inconsistent.

    >>> pixels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> one = torch.tensor([0, 1])
    >>> a = ImageSet("a", pixels, one, 0 * one, one == 1, ("cat", "dog"), ("photo",), "drawn")
    >>> len(a), a.resized(4).as_rgb().images.shape
    (2, torch.Size([2, 3, 4, 4]))
    """

    name: str
    images: Tensor
    labels: Tensor
    domains: Tensor
    is_test: Tensor
    class_names: tuple[str, ...]
    domain_names: tuple[str, ...]
    source: str

    def __post_init__(self) -> None:
        shape = tuple(self.images.shape)
        fits = len(shape) == 4 and shape[1] in (1, 3) and min(shape[2:]) > 0
        if not fits or self.images.dtype != torch.uint8:
            raise InputError(
                f"{self.name}: images are {self.images.dtype} {shape}; "
                "expected uint8 (n, 1 or 3 channels, height, width)"
            )
        dtypes = {"labels": torch.int64, "domains": torch.int64, "is_test": torch.bool}
        for field, dtype in dtypes.items():
            values = getattr(self, field)
            if values.shape != shape[:1] or values.dtype != dtype:
                raise InputError(
                    f"{self.name}: {field} are {values.dtype} {tuple(values.shape)}; "
                    f"expected {dtype} ({shape[0]},), one for each image"
                )
        _check_index(self.name, "labels", self.labels, self.class_names)
        _check_index(self.name, "domains", self.domains, self.domain_names)

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of_one_domain(
        cls, name: str, images: Tensor, labels: Tensor, is_test: Tensor, classes: tuple[str, ...],
        source: str,
    ) -> ImageSet:  # fmt: skip
        """Return a set whose only domain has its name; the other arguments are the fields."""
        domains = torch.zeros(len(labels), dtype=torch.int64)
        return cls(name, images, labels, domains, is_test, classes, (name,), source)

    @property
    def channels(self) -> int:
        """Number of channels: 1 for grey images, 3 for RGB."""
        return self.images.shape[1]

    def identity(self) -> tuple[dict[str, Tensor], str, str]:
        """Return tensors by name, class names and domain names, for `fingerprint`."""
        names = ("images", "labels", "domains", "is_test")
        tensors = {name: getattr(self, name) for name in names}
        return tensors, str(self.class_names), str(self.domain_names)

    def take(self, ids: Tensor) -> ImageSet:
        """Select images by `ids` (an index or a mask)."""
        return replace(
            self,
            images=self.images[ids],
            labels=self.labels[ids],
            domains=self.domains[ids],
            is_test=self.is_test[ids],
        )

    def resized(self, size: int) -> ImageSet:
        """Resize all images to `size` × `size`: bilinear, antialiased; proportions are not kept.

        Raises:
            InputError: if `size` is not positive, or the images would not fit in memory.
        """
        if size < 1:
            raise InputError(f"{self.name}: size is {size}; it must be 1 or more")
        if self.images.shape[2:] == (size, size):
            return self
        n_bytes = len(self) * self.channels * size * size
        check_size(n_bytes, f"{self.name} at {size} × {size} pixels")
        images = self.images.new_empty(len(self), self.channels, size, size)
        for old, new in zip(self.images.split(ROWS), images.split(ROWS), strict=True):
            new.copy_(interpolate(old, size=(size, size), mode="bilinear", antialias=True))
        return replace(self, images=images)

    def as_rgb(self) -> ImageSet:
        """Convert the images to three channels, which are equal for grey images."""
        if self.channels == 3:
            return self
        return replace(self, images=self.images.repeat(1, 3, 1, 1))


def _check_index(name: str, field: str, values: Tensor, names: tuple[str, ...]) -> None:
    if len(set(names)) != len(names):
        raise InputError(f"{name}: the names {', '.join(names)} of {field} are not all different")
    if len(names) > 1 and "all" in names:
        raise InputError(
            f"{name}: one of the {field} is named all, as tables name all of them; rename it"
        )
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < len(names):
        raise InputError(
            f"{name}: {field} run from {values.min()} to {values.max()}; "
            f"{len(names)} names allow 0 to {len(names) - 1}"
        )


def join(sets: Sequence[ImageSet], size: int | None = None) -> ImageSet:
    """Join sets with the same classes; each adds its own domains.

    Grey sets are converted to RGB if any set is RGB.
    """
    parts = sets if size is None else [s.resized(size) for s in sets]
    name = "+".join(s.name for s in sets)
    for other in parts[1:]:
        _check_fit(name, parts[0], other)
    domain_names = tuple(d for s in sets for d in s.domain_names)
    if len(set(domain_names)) < len(domain_names):
        raise InputError(f"{name}: two domains have the same name ({', '.join(domain_names)})")
    if any(s.channels == 3 for s in parts):
        parts = [s.as_rgb() for s in parts]
    starts = torch.tensor([0] + [len(s.domain_names) for s in parts[:-1]]).cumsum(0)
    return ImageSet(
        name=name,
        images=torch.cat([s.images for s in parts]),
        labels=torch.cat([s.labels for s in parts]),
        domains=torch.cat([s.domains + d for s, d in zip(parts, starts, strict=True)]),
        is_test=torch.cat([s.is_test for s in parts]),
        class_names=parts[0].class_names,
        domain_names=domain_names,
        source="; ".join(s.source for s in parts),
    )


def _check_fit(name: str, one: ImageSet, other: ImageSet) -> None:
    if one.class_names != other.class_names:
        differ = sorted(set(one.class_names) ^ set(other.class_names))
        raise InputError(
            f"{name}: {one.name} has {len(one.class_names)} classes and {other.name} "
            f"{len(other.class_names)}, which differ in {', '.join(differ[:5]) or 'their order'}; "
            "join sets with the same classes"
        )
    if one.images.shape[2:] != other.images.shape[2:]:
        h, w = one.images.shape[2:]
        height, width = other.images.shape[2:]
        raise InputError(
            f"{name}: images of {one.name} are {h} × {w} and of {other.name} {height} × {width}; "
            "give the size of all images, e.g. 32"
        )


def check_trained(where: str, labels: Tensor, is_test: Tensor, names: Sequence[str]) -> None:
    """Raise an error that names `where` if a class has test images only."""
    trained, tested = (labels[part].unique().tolist() for part in (~is_test, is_test))
    if missing := set(tested) - set(trained):
        raise InputError(
            f"{where}: class {names[min(missing)]} has test images, but no training images; add "
            "some, or remove its test images"
        )


def chosen_share(strata: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """Choose a share of each stratum `(n,)` at random; returns `(n,)` bool.

    Of m items, `share * m` are chosen, rounded half up, but at least one.
    """
    quota = (share * strata.bincount().double() + 0.5).floor().long().clamp(min=1)
    return random_ranks(strata, rng) < quota[strata]


def random_ranks(strata: Tensor, rng: torch.Generator) -> Tensor:
    """Rank the items of each stratum `(n,)` in random order, `(n,)` from 0."""
    order = torch.randperm(len(strata), generator=rng)
    order = order[strata[order].argsort(stable=True)]
    counts = strata.bincount()
    first = counts.cumsum(0) - counts
    rank = torch.empty_like(strata)
    rank[order] = torch.arange(len(strata)) - first[strata[order]]
    return rank


def hold_out(labels: Tensor, domains: Tensor) -> Tensor:
    """Hold out a fifth of the images of each class in each domain as a test part, `(n,)` bool.

    Every class of a domain keeps at least one training image; a single image is for training.
    """
    _, strata = torch.stack([domains, labels]).unique(dim=1, return_inverse=True)
    # At least one item is chosen, so choosing the training part leaves no class without one.
    return ~chosen_share(strata, 0.8, Draw.TEST_SPLIT.generator(0))


def long_tailed(images: ImageSet, factor: float, seed: int = 0) -> ImageSet:
    """Thin the training part so that classes become exponentially rarer with their index.

    Class c of C keeps `n_max · factor^(-c/(C-1))` images, rounded down but at least one, where
    n_max is the size of the smallest class (Cao et al., "Learning Imbalanced Datasets with
    Label-Distribution-Aware Margin Loss", NeurIPS 2019, arXiv 1906.07413). The factor is the ratio
    of the first class's size to the last's; 1 keeps all images. The test part is not changed.
    """
    if factor < 1:
        raise InputError(f"imbalance is {factor:g}; it must be 1 or more")
    if factor == 1:
        return images
    n_classes = len(images.class_names)
    rank = _rank_in_class(images, Draw.LONG_TAIL.generator(seed))
    n_max = _smallest_class(images)
    exponent = -torch.arange(n_classes, dtype=torch.float64) / max(n_classes - 1, 1)
    # A rounding error may put the product just below a whole number.
    quota = (n_max * factor**exponent + 1e-9).floor().clamp(min=1)
    kept = images.take(images.is_test | (rank < quota[images.labels]))
    return replace(kept, source=f"{images.source}; long tail of factor {factor:g}, seed {seed}")


def hold_out_for_server(images: ImageSet, shots: int, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Return the set without `shots` training images of each class, and these, for the server."""
    if (least := _smallest_class(images)) <= shots:
        raise InputError(
            f"surrogate is {shots}; a class of {images.name} has {least} training images and must "
            "keep at least one; ",
            Words("use a smaller {surrogate}"),
        )
    taken = ~images.is_test & (_rank_in_class(images, Draw.SURROGATE.generator(seed)) < shots)
    rest = replace(images.take(~taken), source=f"{images.source}; {shots} a class for the server")
    return rest, images.take(taken)


def _rank_in_class(images: ImageSet, rng: torch.Generator) -> Tensor:
    """Rank the images of each class and part in random order, `(n,)` from 0."""
    strata = images.labels + len(images.class_names) * images.is_test
    return random_ranks(strata, rng)


def _smallest_class(images: ImageSet) -> int:
    """Return the number of training images of the smallest class."""
    counts = images.labels[~images.is_test].bincount(minlength=len(images.class_names))
    if not counts.all():
        name = images.class_names[int(counts.argmin())]
        raise InputError(f"{images.name}: class {name} has no training images; leave it out")
    return int(counts.min())
