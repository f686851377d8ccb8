"""A frozen network that all clients share, with optional prompts and a cache of its features."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from data_prep.base.errors import InputError, reading
from data_prep.base.files import atomic_path
from stforecast.federated.core.population import PicklableLock
from vision.backbones.vit import ViT

DIGEST = 16
"""Bytes of a digest: among 10⁹ images a collision has a probability of 10⁻²¹."""


class FeatureCache:
    """Cache of vectors by digest; safe to use from several threads.

    On disk, each call of `add` writes a `.npy` file of single-precision records `(digest, feature)`
    whose name is a hash of the digests. No file is rewritten, so parallel runs may share a folder.

    Args:
        width: length of a vector.
        folder: folder that keeps vectors between runs; None keeps them in memory only.
        limit: largest number of vectors in memory, 0 for none; the oldest are dropped.

    Raises:
        InputError: if a file is damaged or of another width; names the file.
    """

    def __init__(self, width: int, folder: Path | None = None, limit: int | None = None) -> None:
        self._record = np.dtype([("digest", f"V{DIGEST}"), ("feature", "<f4", (width,))])
        self._folder, self._limit = folder, limit
        self._rows: dict[bytes, Tensor] = {}
        self._lock = PicklableLock()
        for path in sorted(folder.glob("*.npy")) if folder else ():
            self._read(path)

    def __len__(self) -> int:
        return len(self._rows)

    def known(self, digests: Sequence[bytes]) -> dict[bytes, Tensor]:
        """Return the vectors `(width,)` of the digests that are cached."""
        with self._lock:
            return {d: self._rows[d] for d in digests if d in self._rows}

    def add(self, digests: Sequence[bytes], features: Tensor) -> None:
        """Add vectors `(n, width)`."""
        rows = features.detach().cpu().clone()
        with self._lock:
            self._rows.update(zip(digests, rows, strict=True))
            surplus = 0 if self._limit is None else len(self._rows) - self._limit
            for digest in list(self._rows)[: max(0, surplus)]:
                del self._rows[digest]
        if self._folder and len(rows):
            records = np.empty(len(rows), self._record)
            records["digest"] = [np.void(d) for d in digests]
            records["feature"] = rows.numpy()
            name = hashlib.blake2b(b"".join(digests), digest_size=DIGEST).hexdigest()
            with atomic_path(self._folder / f"{name}.npy") as part, part.open("wb") as file:
                np.save(file, records, allow_pickle=False)

    def _read(self, path: Path) -> None:
        with reading(path, "as features", "delete it"):
            records = np.load(path, allow_pickle=False)
        if records.dtype != self._record:
            raise InputError(
                f"{path}: holds {records.dtype}, expected {self._record}; delete it or give "
                "another cache folder"
            )
        features = torch.from_numpy(records["feature"].copy())
        digests = [d.tobytes() for d in records["digest"]]
        self._rows.update(zip(digests, features, strict=True))


def digests_of(*tensors: Tensor, salt: str = "") -> list[bytes]:
    """Return a digest of the content of each row of tensors `(n, …)` together.

    The salt distinguishes different computations on the same tensors.

    >>> a, b, c = digests_of(torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]))
    >>> a == b, a == c
    (True, False)
    """
    arrays = [t.detach().cpu().contiguous().numpy() for t in tensors]
    found = []
    for rows in zip(*arrays, strict=True):
        digest = hashlib.blake2b(salt.encode(), digest_size=DIGEST)
        for row in rows:
            digest.update(row.tobytes())
        found.append(digest.digest())
    return found


Pool = Literal["cls", "mean"]
Precision = Literal["float32", "bfloat16"]
Read = Literal["feature", "prompts"]

TOKENS = -1
"""Key of the prompt tokens among the inputs of a run; they enter before block 0."""

CHUNK_ON_CPU, CHUNK_ON_GPU = 16, 256
"""Images that run through the network at once without gradients.

All chunks have this size; the last image is repeated to fill one. With equal shapes, a feature does
not depend, not even in its last bit, on the other images of its chunk.
"""


class Backbone:
    """A frozen Vision Transformer whose weights are never trained or sent.

    Images may be bytes or floats from 0 to 1, grey or RGB and of any size; they are resized to
    `input_size` here, so that they are stored and sent small.

    Args:
        vit: the network.
        input_size: height and width of its input, a multiple of its patch size.
        pool: the feature: the class token (`cls`) or the mean of the patch tokens (`mean`).
        mean: mean of each colour over the pre-training images, on a scale of 0 to 1.
        std: standard deviation of each colour, likewise.
        precision: numeric precision: `float32`, or `bfloat16`, which is twice as fast on processors
            that support it, with an error of about 1 % of a feature.
        cache: folder that keeps features between runs; None caches in memory only.

    Attributes:
        width: size of a feature and of a token.
        depth: number of blocks.

    Raises:
        InputError: if the input size is not a multiple of the patch size.
    """

    def __init__(
        self,
        vit: ViT,
        *,
        input_size: int,
        pool: Pool = "cls",
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.5,),
        precision: Precision = "float32",
        cache: Path | None = None,
    ) -> None:
        patch = vit.geometry.patch
        if input_size < patch or input_size % patch:
            raise InputError(
                f"input_size is {input_size}; with patches of {patch} pixels it must be a multiple "
                f"of {patch}"
            )
        self._vit = vit.eval().requires_grad_(False)
        self._mean, self._std = (torch.tensor(v).view(-1, 1, 1) for v in (mean, std))
        self._size, self._pool, self._precision = input_size, pool, precision
        self.width, self.depth = vit.geometry.width, len(vit.blocks)
        folder = cache / self.fingerprint() if cache else None
        self._queries = FeatureCache(self.width, folder)
        self._prompted = FeatureCache(self.width, limit=65536)  # 100 MB at a width of 384.

    def __deepcopy__(self, memo: dict[int, Any]) -> Backbone:
        """Return itself: copies of a method (for other threads) share the frozen backbone."""
        return self

    def fingerprint(self) -> str:
        """Return a digest of the weights and of the settings that affect features."""
        digest = hashlib.blake2b(digest_size=DIGEST)
        pixels = (self._mean.tolist(), self._std.tolist())
        digest.update(repr((self._size, self._pool, self._precision, *pixels)).encode())
        for name, t in sorted(self._vit.state_dict().items()):
            digest.update(name.encode() + t.cpu().numpy().tobytes())
        return digest.hexdigest()

    def query(self, images: Tensor) -> Tensor:
        """Return features `(…, width)` of images `(…, channels, height, width)`, without gradient.

        Each distinct image is computed once, then looked up.
        """
        with torch.no_grad():
            features = self._remembered(self._queries, _flat(images, 3), {}, "feature")
        return features.view(*images.shape[:-3], self.width)

    def prompted(
        self,
        images: Tensor,
        prompts: Tensor | None = None,
        prefixes: Mapping[int, Tensor] | None = None,
        read: Read = "feature",
    ) -> Tensor:
        """Return features of images under prompts; gradients flow to the prompts.

        Without gradients (`torch.no_grad`), the latest features are cached.

        Args:
            images: `(…, channels, height, width)`.
            prompts: `(…, length, width)`, tokens in addition to the patches'.
            prefixes: additional keys and values of attention, by block (from 0),
                `(…, 2, length, width)`.
            read: result: the pooled `feature`, or the mean of the outputs of the `prompts`.

        Returns:
            `(…, width)`.
        """
        inputs = {block: _flat(t, 3) for block, t in (prefixes or {}).items()}
        if prompts is not None:
            inputs[TOKENS] = _flat(prompts, 2)
        run = self._run if torch.is_grad_enabled() else partial(self._remembered, self._prompted)
        return run(_flat(images, 3), inputs, read).view(*images.shape[:-3], self.width)

    def _remembered(
        self, cache: FeatureCache, images: Tensor, inputs: Mapping[int, Tensor], read: Read
    ) -> Tensor:
        digests = digests_of(images, *inputs.values(), salt=read)
        rows = cache.known(digests)
        if missing := list(dict.fromkeys(d for d in digests if d not in rows)):
            first = {d: i for i, d in reversed(list(enumerate(digests)))}
            where = torch.tensor([first[d] for d in missing], device=images.device)
            chunk = CHUNK_ON_CPU if images.device.type == "cpu" else CHUNK_ON_GPU
            parts = []
            for start in range(0, len(where), chunk):
                at = torch.arange(start, start + chunk, device=images.device)
                at = where[at.clamp(max=len(where) - 1)]
                own = {i: t[at] for i, t in inputs.items()}
                parts.append(self._run(images[at], own, read))
            features = torch.cat(parts)[: len(where)]
            cache.add(missing, features)
            rows.update(zip(missing, features, strict=True))
        return torch.stack([rows[d].to(images.device) for d in digests])

    def _run(self, images: Tensor, inputs: Mapping[int, Tensor], read: Read) -> Tensor:
        prompts, first = inputs.get(TOKENS), self._vit.geometry.prefix
        prefixes = {i: (t[:, 0], t[:, 1]) for i, t in inputs.items() if i != TOKENS}
        scale = 255 if images.dtype == torch.uint8 else 1
        pixels = images.to(self._vit.cls_token.dtype) / scale
        size = (self._size, self._size)
        if pixels.shape[2:] != size:
            pixels = F.interpolate(pixels, size, mode="bilinear", antialias=True)
        pixels = (pixels - self._mean.to(images.device)) / self._std.to(images.device)
        pixels = pixels.expand(-1, 3, -1, -1)
        narrow = self._precision == "bfloat16"
        with torch.autocast(images.device.type, torch.bfloat16, enabled=narrow):
            tokens = self._vit.to(images.device)(pixels, prompts, prefixes).to(pixels.dtype)
        patches = first if prompts is None else first + prompts.shape[1]
        if read == "prompts":
            return tokens[:, first:patches].mean(1)
        return tokens[:, 0] if self._pool == "cls" else tokens[:, patches:].mean(1)


def _flat(t: Tensor, inner: int) -> Tensor:
    """Flatten all axes but the last `inner` into one."""
    return t.reshape(-1, *t.shape[-inner:])
