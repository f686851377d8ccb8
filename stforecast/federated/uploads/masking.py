"""Masks that cancel in a sum: a server that adds up masked vectors learns their sum alone.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth: Practical Secure
Aggregation for Privacy-Preserving Machine Learning, CCS 2017, Figure 4. Each pair of members of a
sum agrees on a seed, from which both expand the same random mask: the member of the lower number
adds it, the other one subtracts it. Each member also adds a mask of its own. All arithmetic is that
of integers modulo 2⁶⁴, so a masked vector is uniformly random for whoever lacks one of its seeds.

Members hold shares of each other's secrets (`masking_shares`). For a member whose masked vector
arrived they reveal the seed of its own mask; for one that was lost before, the key of its pairwise
masks. They never reveal both for one member. The server can then remove all masks that did not
cancel.

X25519, HKDF, AES in counter mode and AES-GCM are those of `cryptography`, which Flower needs, too.
Keys serve one sum only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from data_prep.errors import InputError

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as e:
    raise InputError(
        "secure aggregation needs cryptography; pip install 'stforecast[flower]'"
    ) from e

KEY = 32
"""Bytes of a key or seed."""

NONCE = bytes(12)
"""Nonce of sealed shares; each of their keys seals one message."""


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
    """Return the key that only the owners of two private keys know.

    Args:
        private: one's own private key.
        other: the other's public key.
        purpose: text that sets this key apart from all others.

    Raises:
        ValueError: if the public key is none.
    """
    secret = X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(other)
    )
    return HKDF(SHA256(), KEY, None, purpose.encode()).derive(secret)


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt and authenticate a text by a key that seals nothing else."""
    return AESGCM(key).encrypt(NONCE, text, None)


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """Return the text that was sealed; None if it was damaged, or sealed by another key."""
    try:
        return AESGCM(key).decrypt(NONCE, sealed, None)
    except (InvalidTag, ValueError):
        return None


def commitment(secret: bytes) -> bytes:
    """Return what identifies a random secret without telling it."""
    return hashlib.sha256(b"stforecast commitment" + secret).digest()


def mask_of(seed: bytes, n: int) -> Tensor:
    """Expand a seed to a mask, `(n,)` uniform integers of 64 bits."""
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return torch.from_numpy(np.frombuffer(bytearray(stream.update(bytes(8 * n))), np.int64))


def pair_mask(own: int, private: bytes, other: int, public: bytes, session: str, n: int) -> Tensor:
    """Return what a member adds for its pair with another one; the other adds the opposite.

    Args:
        own: the member's number.
        private: its private key of masks.
        other: the other's number.
        public: its public key of masks.
        session: name of the sum.
        n: length.
    """
    low, high = sorted((own, other))
    mask = mask_of(agreed(private, public, f"{session}/mask/{low}/{high}"), n)
    return mask if own == low else -mask


def masked(
    vector: Tensor, own: int, seed: bytes, private: bytes, others: Mapping[int, bytes], session: str
) -> Tensor:
    """Add a member's masks to its vector.

    Args:
        vector: `(n,)` integers of 64 bits.
        own: the member's number.
        seed: seed of its own mask.
        private: its private key of pairwise masks.
        others: public keys of the other members' masks, by number.
        session: name of the sum.
    """
    total = vector + mask_of(seed, len(vector))
    for other, key in others.items():
        total += pair_mask(own, private, other, key, session, len(vector))
    return total
