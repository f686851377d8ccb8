"""Units whose values can be converted into each other: volumes and rates of data."""

from __future__ import annotations

from data_prep.base.errors import InputError

PREFIXES = {"": 1.0} | {
    prefix + binary: (1024.0 if binary else 1000.0) ** (i + 1)
    for i, prefix in enumerate("kMGTP")
    for binary in ("", "i")
}
"""Factors of prefixes: k, M, ... of 1,000 and ki, Mi, ... of 1,024."""

BASES = {"B": ("volume", 8.0), "bit": ("volume", 1.0)}
BASES |= {f"{unit}/s": ("rate", bits) for unit, (_, bits) in BASES.items()}
BASES |= {"bps": ("rate", 1.0)}
"""What a unit without a prefix measures, and its bits."""


def factor(of: str, to: str) -> float:
    """Return what to multiply values in one unit by to have them in another.

    >>> factor("GB", "MB"), factor("Mbit/s", "kB/s"), factor("KiB", "B")
    (1000.0, 125.0, 1024.0)
    """
    (quantity, bits), (other, other_bits) = _parsed(of), _parsed(to)
    if not quantity or quantity != other:
        raise InputError(f"no factor is known from {of!r} to {to!r}")
    return bits / other_bits


def _parsed(unit: str) -> tuple[str, float]:
    """Return what a unit measures, empty if it is not known, and its bits."""
    text = unit.strip().replace("K", "k")
    for base, (quantity, bits) in BASES.items():
        prefix = text.removesuffix(base)
        if text.endswith(base) and prefix in PREFIXES:
            return quantity, PREFIXES[prefix] * bits
    return "", 1.0
