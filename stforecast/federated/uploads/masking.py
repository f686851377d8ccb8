"""Masks that cancel in a sum: a server that adds up masked vectors learns their sum alone.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure
Aggregation for Privacy-Preserving Machine Learning, CCS 2017, Figure 4. Each pair of members of a
sum agrees on a seed, from which both expand the same random mask: the member of the lower number
adds it, the other one subtracts it. Each member also adds a mask of its own. All arithmetic is that
of integers modulo 2⁶⁴, so a masked vector is uniformly random for whoever lacks one of its seeds.

Members hold shares of each other's secrets. For a member whose masked vector arrived they reveal
the seed of its own mask; for one that was lost before, the key of its pairwise masks. They never
reveal both for one member. The server can then remove all masks that did not cancel.

X25519, HKDF, AES in counter mode and AES-GCM are those of `cryptography`, which Flower needs, too.
Keys serve one sum only.

Shamir: How to Share a Secret, Communications of the ACM, 1979: any `threshold` shares give the
secret, fewer tell nothing of it. The secret is the value at 0 of a random polynomial of degree
`threshold` - 1 over the integers modulo a prime; holder i has its value at i + 1. `cryptography`
has no secret sharing, and that of PyCryptodome takes 16 bytes only.

Vectors are of fixed-point integers, which can be masked and added up without rounding. A value x is
sent as the integer nearest to 2²⁸ x, modulo 2⁶⁴. The sum of the integers is exact, and is returned
as a double, of 53 bits. So a sum s over n members differs from the exact sum of their values by at
most n / 2²⁹ + |s| / 2⁵³; where s is near the limit, the second part is 2⁻¹⁸. A mean of weight w
differs by a w-th of it. Each member's values are below 2³⁵ / n in size, so that no sum overflows.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Lt
from torch import Tensor

from data_prep.base.errors import InputError, Words, needing
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.tensors import Payload

with needing("flower", "secure aggregation needs cryptography"):
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY = 32
"""Bytes of a key, seed or other secret."""


class PublicKeys(NamedTuple):
    """Public keys of a member of a sum.

    Attributes:
        seal: key with which others seal its shares.
        mask: key of its pairwise masks.
    """

    seal: bytes
    mask: bytes


def new_key() -> bytes:
    """Return a new seed or private key."""
    return os.urandom(KEY)


def public(private: bytes) -> bytes:
    """Return the public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, other: bytes, purpose: str) -> bytes:
    """Return the key that only the owners of two private keys know, given the other's public one.

    The `purpose` sets this key apart from all others.

    Raises:
        ValueError: if the public key is invalid.
    """
    secret = X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(other)
    )
    return HKDF(SHA256(), KEY, None, purpose.encode()).derive(secret)


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt and authenticate a text by a key that seals nothing else."""
    return AESGCM(key).encrypt(bytes(12), text, None)


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """Return the text that was sealed; None if it was damaged, or sealed by another key."""
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, None)
    except (InvalidTag, ValueError):
        return None


def commitment(secret: bytes) -> bytes:
    """Return a hash that identifies a random secret and does not reveal it."""
    return hashlib.sha256(b"stforecast commitment" + secret).digest()


def mask_of(seed: bytes, n: int) -> Tensor:
    """Expand a seed to a mask, `(n,)` uniform integers of 64 bits."""
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return torch.from_numpy(np.frombuffer(bytearray(stream.update(bytes(8 * n))), np.int64))


def pair_mask(own: int, private: bytes, other: int, public: bytes, session: str, n: int) -> Tensor:
    """Return what a member adds for its pair with another one; the other adds the opposite.

    The keys are the member's private one of masks, and the other's public one.
    """
    low, high = sorted((own, other))
    mask = mask_of(agreed(private, public, f"{session}/mask/{low}/{high}"), n)
    return mask if own == low else -mask


def masked(
    vector: Tensor, own: int, seed: bytes, private: bytes, others: Mapping[int, bytes], session: str
) -> Tensor:
    """Add a member's masks to its vector `(n,)` of integers of 64 bits.

    They are that of its own `seed`, and those that its private key has with the `others'` public
    keys, by their numbers.
    """
    total = vector + mask_of(seed, len(vector))
    for other, key in others.items():
        total += pair_mask(own, private, other, key, session, len(vector))
    return total


SHARE = 33
"""Bytes of a share."""

PRIME = 2**256 + 297
"""The smallest prime above all secrets."""


def split(secret: bytes, holders: Iterable[int], threshold: int) -> dict[int, bytes]:
    """Split a secret of `KEY` bytes; `threshold` of the holders' shares give it again.

    >>> shares = split(b"x" * KEY, range(5), threshold=3)
    >>> rejoin({i: shares[i] for i in (0, 2, 4)}) == b"x" * KEY
    True
    """
    terms = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = {}
    for i in holders:
        value = 0
        for term in reversed(terms):  # Horner's rule.
            value = (value * (i + 1) + term) % PRIME
        shares[i] = value.to_bytes(SHARE)
    return shares


def rejoin(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of `threshold` shares by their holders, by Lagrange's interpolation at 0.

    Raises:
        ValueError: if they are not shares of a secret. Wrong shares may also give a wrong secret.
    """
    total = 0
    for i, share in shares.items():
        above, below = 1, 1
        for j in shares.keys() - {i}:
            above, below = above * (j + 1) % PRIME, below * (j - i) % PRIME
        total += int.from_bytes(share) * above * pow(below, -1, PRIME)
    try:
        return (total % PRIME).to_bytes(KEY)
    except OverflowError as e:
        raise ValueError("these are not shares of a secret") from e


FRACTION = 28
"""Bits after the binary point."""

Shapes = dict[str, list[int]]
"""Name of a tensor of a sum to its shape."""


@dataclass(frozen=True)
class SecureSums(CheckedOptions):
    """Settings of secure aggregation.

    Attributes:
        secure_threshold: share of the nodes of a round, more than which have to stay to its end.
            From 0.5 on, a server cannot divide the nodes into two parts that each reveal half of
            another node's secrets; 2/3 also holds if a third of them help it to.
        share_noise: nodes share the Gaussian noise of `clip` and `noise`: each adds as much to its
            sum that the nodes that have to stay add up to `noise_std`, which protects a client from
            all but its own node if so many do not collude. Each client counts equally. Otherwise
            each client adds `noise_std` itself, which protects it from everyone.
    """

    secure_threshold: Annotated[float, Ge(0.5), Lt(1)] = 0.5
    share_noise: bool = False

    def threshold(self, n: int) -> int:
        """Return the number of n nodes that have to stay, at least 2.

        >>> [SecureSums().threshold(n) for n in (2, 3, 4, 50)]
        [2, 2, 3, 26]
        >>> SecureSums(0.58).threshold(50)
        30
        """
        # As it is written: in binary, .58 of 50 is less than 29.
        return max(2, math.floor(Fraction(str(self.secure_threshold)) * n) + 1)


class ValuesTooLarge(InputError):
    """Raised for values that no secure sum can hold; the server learns the name of this class."""


def length(shapes: Shapes) -> int:
    """Return the number of values of a sum.

    Raises:
        ValueError: if these are more than 2 GiB, or a shape is negative.
    """
    n = sum(math.prod(shape) for shape in shapes.values())
    if n > 2**28 or any(size < 0 for shape in shapes.values() for size in shape):
        raise ValueError(f"a sum of {n} values")
    return n


def to_vector(values: Mapping[str, Tensor], shapes: Shapes, n: int) -> Tensor:
    """Return values as fixed-point integers `(length,)`, in the order of the sum's `shapes`.

    Missing ones are 0. The sum has n summands.

    Raises:
        InputError: if a tensor is not in `shapes`.
        ValuesTooLarge: if values are not finite, or too large.

    >>> to_vector({"b": torch.tensor([0.5])}, {"a": [2], "b": [1]}, n=2)
    tensor([        0,         0, 134217728])
    """
    for name, t in values.items():
        if list(t.shape) != shapes.get(name):
            raise InputError(f"the sum has no {name} of shape {list(t.shape)}, as this node has")
        if not (t.abs() < 2.0 ** (63 - FRACTION) / n).all():
            raise ValuesTooLarge(
                f"{name} has a sum of size {t.abs().max():.3g}; secure aggregation over {n} nodes "
                f"takes finite ones below {2.0 ** (63 - FRACTION) / n:.3g}; ",
                Words("a smaller {lr} may keep them there"),
            )
    nothing = torch.zeros((), dtype=torch.float64)
    parts = [
        values.get(name, nothing.expand(shape)).double().flatten() for name, shape in shapes.items()
    ]
    return (torch.cat(parts) * 2.0**FRACTION).round().long()


def from_vector(vector: Tensor, shapes: Shapes) -> Payload:
    """Return the values of a vector of fixed-point integers, in double precision."""
    values = vector.double() / 2.0**FRACTION
    parts = values.split([math.prod(shape) for shape in shapes.values()])
    return {name: t.view(s) for (name, s), t in zip(shapes.items(), parts, strict=True)}
