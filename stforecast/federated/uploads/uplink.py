"""Coding of uploads: clipping, noise, delta coding, quantisation.

A method's upload is encoded on the client and decoded on the server, and bytes are counted on the
encoded upload, so any method can use it. The order is clip, noise, difference, quantise: steps
after the noise do not weaken privacy.

Delta coding sends the difference to the server's copy of the client's previous upload. Client and
server both have that copy, including quantisation errors, so the errors do not accumulate.

The guarantee of the Gaussian mechanism holds for each client against everyone, including the server
(local differential privacy): its whole training series may be replaced by any other. A client's
clipped upload then changes by at most twice the clipping norm. Sampling of clients gives no
amplification, since the server sees who uploads. Selecting the best round by a validation loss is
not accounted for.

Its accounting needs the extra `privacy` (dp-accounting, maintained by Google).
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from data_prep.base.errors import InputError, needing
from stforecast.federated.core.options import CheckedOptions, Probability, ReadIf
from stforecast.federated.core.tensors import Like, Payload, client_sums, with_axes

log = logging.getLogger(__name__)

CODES, SCALE = "/codes", "/scale"
"""Suffixes of the names of a quantised tensor's parts."""


@dataclass(frozen=True)
class Uplink(CheckedOptions):
    """Settings of the processing of uploads; the defaults do nothing.

    Attributes:
        noise: distribution of the noise added to each value: none, laplace, gaussian or exponential
            (FUELS, appendix D.2). Noise alone is not differential privacy: see clip.
        noise_std: standard deviation of the noise; of the exponential distribution also the mean.
        clip: largest L2 norm of a client's whole upload, 0 for no limit. With Gaussian noise this
            is the Gaussian mechanism, and its (ε, δ) is reported.
        privacy_delta: the δ for which ε is reported.
        bits: bits per value: 32 sends floats, 8 and 4 integers with one scale per row (last axis).
        delta_coding: send differences to the previous upload.
    """

    noise: Literal["none", "laplace", "gaussian", "exponential"] = "none"
    noise_std: Annotated[
        NonNegativeFloat, ReadIf("there is noise", lambda s: s["noise"] != "none")
    ] = 1.0
    clip: NonNegativeFloat = 0.0
    privacy_delta: Annotated[
        Probability,
        ReadIf(
            "noise is gaussian and clip is above 0",
            lambda s: s["noise"] == "gaussian" and s["clip"] != 0,
        ),
    ] = 1e-5
    bits: Literal[32, 8, 4] = 32
    delta_coding: bool = False

    @property
    def plain(self) -> bool:
        """Return whether uploads are sent unchanged."""
        return self.noise == "none" and not self.clip and self.bits == 32 and not self.delta_coding

    @property
    def private(self) -> bool:
        """Return whether this is the Gaussian mechanism, which has an (ε, δ)."""
        return self.noise == "gaussian" and self.clip > 0 and self.noise_std > 0

    def encode(
        self, upload: Payload, known: Payload, generators: Sequence[torch.Generator | None]
    ) -> Payload:
        """Encode an upload.

        Args:
            upload: the method's upload; integer tensors (counters) are sent unchanged.
            known: the server's copies of these clients' previous uploads; may be empty.
            generators: one for each client, for the noise; None draws from the machine's entropy.

        Raises:
            InputError: if the Gaussian mechanism is set and the upload has integers.

        Returns:
            The message, with `NAME/codes` and `NAME/scale` in place of a quantised `NAME`.
        """
        if self.plain:
            return upload
        values = {name: t for name, t in upload.items() if t.is_floating_point()}
        wire = {name: t for name, t in upload.items() if name not in values}
        if self.private and wire:
            raise InputError(
                f"the method also sends counters ({', '.join(wire)}), which the Gaussian mechanism "
                "does not cover; leave clip at 0 or take another method"
            )
        if self.clip:
            values = clip_uploads(values, self.clip)
        for name, t in values.items():
            if (law := self.noise) != "none":  # Keyed by client, so that cohorts do not matter.
                shape = t.shape[1:]
                rows = [_draw(law, shape, g) if g else secret_draws(law, shape) for g in generators]
                t = t + self.noise_std * torch.stack(rows).to(t)
            if self.delta_coding and name in known:
                t = t - known[name]
            if self.bits == 32:
                wire[name] = t
            else:
                wire[name + CODES], wire[name + SCALE] = quantise(t, self.bits)
        return wire

    def decode(self, wire: Payload, known: Payload, like: Like) -> Payload:
        """Decode what `encode` made of an upload like that, with the same `known`."""
        if self.plain:
            return wire
        upload = {}
        for name, (dtype, *shape) in like.items():
            value = wire.get(name)
            if value is None:
                codes, scale = wire[name + CODES], wire[name + SCALE]
                t = torch.empty(len(codes), *shape, dtype=getattr(torch, dtype), device="meta")
                value = dequantise(codes, scale, t, self.bits)
            differs = self.delta_coding and name in known and value.is_floating_point()
            upload[name] = value + known[name] if differs else value
        return upload


def _draw(law: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Draw values of standard deviation 1 and mean 0, or mean 1 if exponential."""
    if law == "gaussian":
        return torch.randn(shape, generator=generator)
    positive = torch.empty(shape).exponential_(generator=generator)
    if law == "exponential":
        return positive
    sign = torch.randint(2, shape, generator=generator) * 2 - 1
    return positive * sign / 2**0.5


def secret_draws(law: str, shape: torch.Size) -> Tensor:
    """Draw as `_draw` from the machine's entropy.

    The Mersenne Twister of `torch.Generator` will not do, however it is seeded: its state can be
    computed from its draws.
    """
    bits = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), np.uint64) >> 12
    u = torch.from_numpy((bits + 0.5) * 2.0**-52).view(shape)  # Uniform in (0, 1).
    if law == "gaussian":
        result: Tensor = torch.special.ndtri(u)
        return result
    if law == "exponential":
        return -u.log()
    return (0.5 - u).sign() * (2 * torch.minimum(u, 1 - u)).log() / 2**0.5


def clip_uploads(values: Payload, norm: float) -> Payload:
    """Scale each client's values down so that all of them together have at most this L2 norm."""
    if not values:
        return {}
    length = client_sums(t.square() for t in values.values()).sqrt()
    factor = (norm / length).clamp(max=1.0)
    return {name: t * with_axes(factor, t.ndim) for name, t in values.items()}


def quantise(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Quantise symmetrically and uniformly, with one scale per row.

    Args:
        values: `(clients, …)`; the last axis is a row (one scalar per client is a row of one).
        bits: 8 or 4.

    Returns:
        Codes, uint8 `(clients, …)`, two 4-bit codes per byte; scales, float32 `(clients, rows)`.

    >>> codes, scale = quantise(torch.tensor([[-7.0, 0.0, 3.4]]), bits=4)
    >>> codes.shape, scale.tolist()
    (torch.Size([1, 2]), [[1.0]])
    >>> dequantise(codes, scale, torch.zeros(1, 3), bits=4)
    tensor([[-7.,  0.,  3.]])
    """
    rows = _rows(values).float()
    largest = 2 ** (bits - 1) - 1
    scale = rows.abs().amax(-1) / largest
    steps = (rows / scale.clamp(min=torch.finfo(torch.float32).tiny)[..., None]).round()
    codes = (steps + largest).to(torch.uint8).flatten(1)
    if bits == 4:
        codes = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2))
        codes = codes[:, 0::2] << 4 | codes[:, 1::2]
    return codes, scale


def dequantise(codes: Tensor, scale: Tensor, like: Tensor, bits: int) -> Tensor:
    """Return the values of codes and scales, with the shape and type of `like`."""
    if bits == 4:
        codes = torch.stack([codes >> 4, codes & 15], dim=-1).flatten(1)
    rows = _rows(like)
    largest = 2 ** (bits - 1) - 1
    steps = codes[:, : like[0].numel()].view(rows.shape).to(scale) - largest
    result: Tensor = (steps * scale[..., None]).view(like.shape).to(like.dtype)
    return result


def _rows(values: Tensor) -> Tensor:
    """Return the values as `(clients, rows, width)`."""
    width = values.shape[-1] if values.ndim > 1 else 1
    return values.reshape(len(values), -1, width)


NOT_COVERED = (
    "numbers of samples",
    "which clients trained, and which failed",
    "training losses",
    "validation losses and the choice of the best round",
    "test errors and their numbers of targets",
)
"""What every run shares without noise."""


@dataclass
class Sent:
    """Uploads that have left each client of a federation, at most.

    Attributes:
        uplink: how they were processed.
        uploads: how many.
    """

    uplink: Uplink
    uploads: int = 0


_OPEN: ContextVar[tuple[list[Sent], ...]] = ContextVar("open counts of uploads", default=())


@contextmanager
def counting_uploads() -> Iterator[list[Sent]]:
    """Collect the counts of all federations that begin within the context."""
    found: list[Sent] = []
    token = _OPEN.set((*_OPEN.get(), found))
    try:
        yield found
    finally:
        _OPEN.reset(token)


def count_uploads(sent: Sent) -> Sent:
    """Add a count, which may still grow, to all that are being collected; return it."""
    for found in _OPEN.get():
        found.append(sent)
    return sent


def epsilon(uplink: Uplink, uploads: int | Sequence[Sent]) -> float:
    """Return ε of a client that sent these uploads, at δ = `uplink.privacy_delta`.

    Args:
        uplink: settings of the uploads.
        uploads: a number of uploads of these settings, or uploads of several settings.

    Raises:
        InputError: if the accountant is not installed.
    """
    with needing("privacy", "privacy accounting needs dp-accounting"):
        import dp_accounting
    of = [Sent(uplink, uploads)] if isinstance(uploads, int) else uploads
    # Uploads with Gaussian noise are together as private as one with less: Dong et al., 2022.
    squares = [s.uploads * (2 * s.uplink.clip / s.uplink.noise_std) ** 2 for s in of if s.uploads]
    noise = 1 / math.sqrt(math.fsum(squares))
    return float(dp_accounting.get_epsilon_gaussian(noise, uplink.privacy_delta))


def guarantee(
    uplink: Uplink, uploads: int | Sequence[Sent], of: str, shared: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Return the entry `privacy` of a run's results; empty without the Gaussian mechanism.

    It is also empty, with a warning, if any upload left without the mechanism, as candidates of
    a sweep over `clip` or `noise` may.

    Args:
        uplink: settings of the uploads.
        uploads: number of a client's uploads, or all that left.
        of: what of a client is protected.
        shared: what else crosses clients without noise.
    """
    sent = [Sent(uplink, uploads)] if isinstance(uploads, int) else uploads
    n = sum(s.uploads for s in sent)
    if not uplink.private or not n:
        return {}
    if plain := sum(s.uploads for s in sent if not s.uplink.private):
        log.warning("no ε is reported: %d of %d uploads left without clipping and noise", plain, n)
        return {}
    found = {"epsilon": epsilon(uplink, sent), "delta": uplink.privacy_delta}
    about = {"of": of, "uploads": n, "not_covered": [*NOT_COVERED, *shared]}
    return {"privacy": {**found, **about}}
