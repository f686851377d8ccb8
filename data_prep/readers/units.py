"""Units of values: as names end in them, as they stand after numbers, and how they convert."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from data_prep.base.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_UNITS = {
    **{f"{p}{b}".lower(): f"{p}{u}" for p in ("k", "M", "G", "T") for b, u in
       [("B", "B"), ("byte", "B"), ("bytes", "B"), ("bit", "bit"), ("bps", "bit/s"),
        ("bit/s", "bit/s"), ("B/s", "B/s")]},
    **{f"{p}i{b}".lower(): f"{p}i{b}" for p in ("K", "M", "G", "T") for b in ("B", "B/s")},
    "b": "B", "b/s": "B/s", "bit/s": "bit/s",
    "bytes": "B", "byte": "B", "bps": "bit/s", "%": "%", "percent": "%", "pct": "%", "erl": "Erl",
    "erlang": "Erl", "ms": "ms", "s": "s", "sec": "s", "min": "min", "h": "h", "km/h": "km/h",
    "kph": "km/h", "mph": "mile/hour", "mi/h": "mile/hour",
    "mile/hour": "mile/hour", "m/s": "m/s", "veh/h": "veh/h", "veh": "veh",
    "vehicles": "veh", "users": "users", "calls": "calls", "persons": "persons", "pax": "persons",
    "passengers": "persons", "dbm": "dBm", "db": "dB", "mhz": "MHz", "kwh": "kWh", "w": "W",
    "count": "1", "number": "1", "times": "1", "bit": "bit", "bits": "bit", "minute": "min",
    "minutes": "min", "hour": "h", "hours": "h", "second": "s", "seconds": "s",
}  # fmt: skip
_KPI = frozenset({
    "traffic", "throughput", "thrput", "thp", "volume", "vol", "user", "users", "ue", "ues",
    "util", "utilization", "utilisation", "prb", "drop", "rate", "ratio", "erlang", "erl", "dl",
    "ul", "downlink", "uplink", "download", "upload", "rx", "tx", "speed", "flow", "occupancy",
    "rsrp", "rsrq", "sinr", "cqi", "latency", "delay", "packet", "packets", "bytes", "session",
    "sessions", "call", "calls", "attempt", "attempts", "att", "success", "succ", "fail",
    "failures", "handover", "ho", "rrc", "erab", "rab", "availability", "avail", "load", "power",
    "energy", "entries", "exits", "entry", "exit", "inbound", "outbound", "boardings",
    "alightings", "passengers", "trips", "internet", "sms", "voice", "data", "payload", "pax",
    "volte", "csfb", "kpi", "num", "avg", "max", "min", "active", "count", "downtime", "var", "std",
    "mcs", "rnti", "rb", "points", "occupation", "debit", "vitesse", "geschwindigkeit", "verkehr",
})  # fmt: skip
"""Words in names of what cells measure."""


HALF_WIDTH = {0xFEE0 + code: code for code in range(0x21, 0x7F)} | str.maketrans("【】", "[]")
"""Letters, brackets and signs of units as in Chinese texts, and as in others."""


def canonical(unit: str) -> str:
    """Return a known unit in its usual spelling; empty if it is not known.

    >>> canonical("KByte"), canonical("Mb"), canonical("mb"), canonical("apples")
    ('kB', 'Mbit', 'MB', '')
    >>> canonical("kb/s"), canonical("MB/s"), canonical("Mib/s")
    ('kbit/s', 'MB/s', 'Mibit/s')
    """
    unit = unit.translate(HALF_WIDTH)
    if bits := re.fullmatch("([KMGT]i?)b|([kKmMgGtT]?i?)b/s", unit):
        prefix = (bits[1] or bits[2]).upper().replace("I", "i")
        return f"{'k' if prefix == 'K' else prefix}bit{'' if bits[1] else '/s'}"
    return _UNITS.get(unit.lower(), "")


def usual(unit: str) -> str:
    """Return a unit in its usual spelling, or as it is if it is not known.

    >>> usual("mph"), usual("apples")
    ('mile/hour', 'apples')
    """
    return canonical(unit) or unit


PREFIXES = {"": 1.0} | {
    prefix + binary: (1024.0 if binary else 1000.0) ** (i + 1)
    for i, prefix in enumerate("kMGTP")
    for binary in ("", "i")
}
"""Factors of prefixes: k, M, ... of 1,000 and ki, Mi, ... of 1,024."""

BASES = {"B": ("volume", 8.0), "bit": ("volume", 1.0)}
BASES |= {f"{unit}/s": ("rate", bits) for unit, (_, bits) in BASES.items()}
BASES |= {"bps": ("rate", 1.0), "s": ("time", 1.0), "km/h": ("speed", 1.0)}
"""What a unit without a prefix measures, and its bits, seconds or km/h."""

SCALED = {"ms": ("s", 0.001), "min": ("s", 60.0), "h": ("s", 3600.0)}
SCALED |= {"mile/hour": ("km/h", 1.609344), "m/s": ("km/h", 3.6)}
"""Units that are not a base with a prefix: their base, and how much of it they are."""


def scale_of(unit: str) -> tuple[str, float]:
    """Return a unit without its prefix, and the factor of the prefix.

    >>> scale_of("GB"), scale_of("KiB"), scale_of("Mbit/s"), scale_of("%")
    (('B', 1000000000.0), ('B', 1024.0), ('bit/s', 1000000.0), ('%', 1.0))
    """
    text = unit.strip().replace("K", "k")
    if (known := usual(text)) in SCALED:
        return SCALED[known]
    for base in BASES:
        if text.endswith(base) and (prefix := text.removesuffix(base)) in PREFIXES:
            return base, PREFIXES[prefix]
    return unit, 1.0


def factor(of: str, to: str) -> float:
    """Return what to multiply values in one unit by to have them in another.

    >>> factor("GB", "MB"), factor("Mbit/s", "kB/s"), factor("KiB", "B"), factor("mph", "mi/h")
    (1000.0, 125.0, 1024.0, 1.0)
    >>> factor("h", "min"), factor("m/s", "km/h")
    (60.0, 3.6)
    """
    if usual(of) == usual(to):
        return 1.0
    (base, size), (other, other_size) = scale_of(of), scale_of(to)
    quantity, bits = BASES.get(base, ("", 1.0))
    known, other_bits = BASES.get(other, ("", 1.0))
    if not quantity or quantity != known:
        raise InputError(f"no factor is known from {of!r} to {to!r}")
    return size * bits / (other_size * other_bits)


def unit_of(name: str) -> str:
    """Return the unit that a column's name ends in; empty without one.

    The unit of a class, as of vehicles in a range of speeds, is that of its limits.

    >>> unit_of("DL Traffic (GB)"), unit_of("thp_mbps"), unit_of("PRB [%]"), unit_of("Cell (3)")
    ('GB', 'Mbit/s', '%', '')
    >>> unit_of("下行流量(MB)"), unit_of("上行流量（ＭＢ）"), unit_of("利用率【％】")
    ('MB', 'MB', '%')
    >>> unit_of("31 - 35 mph"), unit_of("Flow > 70 km/h"), unit_of("80+ mph")
    ('', '', '')
    """
    match = _unit_at_end(name)
    return canonical(match[1]) if match else ""


def without_unit(name: str) -> str:
    """Return a column's name without the unit that it ends in.

    >>> without_unit("Flow (veh/h)"), without_unit("Cell (3)")
    ('Flow', 'Cell (3)')
    """
    match = _unit_at_end(name)
    return name[: match.start()].rstrip() or name if match and canonical(match[1]) else name


def with_unit(name: str, unit: str, power: str = "") -> str:
    """Return a quantity's name and its unit, raised to a power; a unit in the name is replaced.

    >>> with_unit("speed", "mile/hour"), with_unit("speed (mph)", "mile/hour"), with_unit("v", "1")
    ('speed (mile/hour)', 'speed (mile/hour)', 'v')
    """
    return name if unit == "1" else f"{without_unit(name)} ({unit}{power})"


def is_speed(name: str, unit: str) -> bool:
    """Return whether values are speeds of vehicles by their unit, or without one by their name.

    >>> is_speed("v", "km/h"), is_speed("avg_speed", "1"), is_speed("DL Speed", "Mbit/s")
    (True, True, False)
    """
    named_so = re.search(r"(?i)speed|geschwindigkeit|vitesse|^v_(kfz|pkw|lkw)", name)
    of_speed = unit in ("mile/hour", "mile/h", "mph", "km/h", "kph", "m/s")
    return of_speed or (unit == "1" and named_so is not None)


def is_level(name: str, unit: str) -> bool:
    """Return whether a column likely holds levels or rates, of which no sum is meaningful.

    >>> is_level("flow", "veh/h"), is_level("avg_speed", "1"), is_level("flow", "veh")
    (True, True, False)
    """
    named = is_speed(name, unit) or "occupancy" in name.lower()
    return named or re.fullmatch(r"%|dBm?|.+/(s|h)", unit) is not None


def _unit_at_end(name: str) -> re.Match[str] | None:
    name = name.translate(HALF_WIDTH)
    found = re.search(r"[(\[]\s*([^()\[\]]+?)\s*[)\]]\s*$", name)
    if not found and re.search(r"(^|[\s<>≤≥])\d+([.,]\d+)?\s*\+?\s+\S+$", name):
        return None
    bare = r"[ _]([KMGTkmgt](?:B|Byte|bps|bit/s|b/s)|mbps|kbps|gbps|km/h|mph|%)$"
    return found or re.search(bare, name)


def is_service(name: str) -> bool:
    """Return whether a column is named like a quantity: by a unit, or a word such as throughput."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return bool(unit_of(name)) or any(word.lower() in _KPI for word in words)


UNIT_AFTER = (
    r"^(\s*[+-]?[0-9][0-9.,\s'’]*?(?:[0-9][eE][+-]?[0-9]+)?)\s*([%％]|[A-Za-z]+(?:/[a-z]+)?)\s*$"
)
"""Pattern of a number and a unit after it."""


def units_after(texts: pl.Series) -> pl.Series | None:
    """Return the unit after each number as it is written; None if these are not such texts.

    Zeros may lack one. Letters right behind a number are one only if they are known, else an id's.

    >>> import polars as pl
    >>> units_after(pl.Series(["3.2 kB", "0", "1 MB"])).to_list()
    ['kB', '', 'MB']
    >>> [units_after(pl.Series(texts)) for texts in (["3.2 kB", "1"], ["101a", "102a"])]
    [None, None]
    """
    filled = texts.drop_nulls()
    if not len(filled) or not filled[:8].str.contains(UNIT_AFTER).any():
        return None
    units = texts.str.extract(UNIT_AFTER, 2)
    glued = filled.str.extract(r"\d([A-Za-z]+)\s*$").drop_nulls().unique()
    if not all(map(canonical, glued)):
        return None
    bare = texts.filter(units.is_null() & texts.is_not_null())
    whole = bool(bare.str.contains(r"^\s*0+([.,]0+)?\s*$").all())
    return units.fill_null("") if whole and units.n_unique() else None


def common_unit(units: list[str]) -> str | None:
    """Return the unit to which written units convert: the one, or the base of all; None if none.

    >>> common_unit(["GB", "gb"]), common_unit(["kB", "MB"]), common_unit(["MB", "%"])
    ('GB', 'B', None)
    >>> common_unit(["ms", "min"]), common_unit(["MB", ""])
    ('s', None)
    """
    known = set(map(usual, units))
    if len(known) == 1:
        return known.pop()
    bases = {scale_of(unit)[0] for unit in known if canonical(unit)}
    return bases.pop() if len(bases) == 1 and all(map(canonical, known)) else None


def factors(units: pl.Series, to: str) -> np.ndarray:
    """Return by what numbers in written units are multiplied to be in another, `(rows,)`."""
    base = scale_of(to)[1]
    sizes = {u: scale_of(canonical(u))[1] / base for u in units.drop_nulls().unique() if u}
    return units.replace_strict(sizes, default=1.0).to_numpy()
