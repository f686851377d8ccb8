"""Read a traffic matrix that is a file of its own, as TOTEM and SNDlib publish them.

- TOTEM: `IntraTM-2005-01-01-00-15.xml`; elements `src` (id) with `dst` (id) that hold numbers, and
  `unit` with the value `bps`, `kbps`, `mbps`, `gbps` or `tbps`
  (totem.run.montefiore.ulg.ac.be/doc/UserGuide/node5.html).
- SNDlib: `demandMatrix-NETWORK-5min-20040301-0000.xml`, elements `demand` of `source`, `target` and
  `demandValue`, and `meta` with the unit `MBITPERSEC`; or the same as text in SNDlib's native
  format, `.txt` (sndlib.put.poznan.pl/html/docu/io-formats). Demands of 0 are left out there.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from data_prep.errors import InputError, reading
from data_prep.limits import read_bounded

TOTEM = "IntraTM-*.xml"
MBPS = {"bps": 1e-6, "kbps": 1e-3, "mbps": 1.0, "gbps": 1e3, "tbps": 1e6, "MBITPERSEC": 1.0}
"""Mbit/s in each unit."""

MOST = 2**22
"""Maximum bytes of a matrix."""

REMEDY = "unpack or download it again"
_TIME = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)-(\d\d)-?(\d\d)\.(?:xml|txt)")
_DEMAND = re.compile(r"\s*\S+\s*\(\s*(\S+)\s+(\S+)\s*\)\s+\S+\s+(\S+)")

Demands = dict[tuple[str, str], float]


def time_of(path: Path) -> pd.Timestamp:
    """Return the time at the end of a matrix's name.

    Raises:
        InputError: if there is none.

    >>> time_of(Path("demandMatrix-abilene-zhang-5min-20040301-0005.xml"))
    Timestamp('2004-03-01 00:05:00')
    >>> time_of(Path("IntraTM-2005-01-01-00-15.xml"))
    Timestamp('2005-01-01 00:15:00')
    """
    found = _TIME.search(path.name)
    with reading(path.name, "as a matrix of a time", "keep the published names"):
        if found is None:
            raise ValueError("its name does not end in a time")
        year, month, day, hour, minute = map(int, found.groups())
        return pd.Timestamp(year, month, day, hour, minute)


def read_snapshot(path: Path) -> Demands:
    """Return the traffic in Mbit/s by origin and destination.

    Raises:
        InputError: if the file is not as published, or a value is negative or no number.
    """
    text = read_bounded(path, MOST)
    native = path.suffix == ".txt"
    with reading(path.name, "as a traffic matrix", REMEDY):
        unit, demands = _native(text.decode()) if native else _xml(text)
        values = {}
        for origin, destination, value in demands:
            if (origin, destination) in values:
                raise ValueError(f"{origin} to {destination} is there twice")
            values[origin, destination] = float(value) * MBPS[unit]
    for (origin, destination), number in values.items():
        if not 0 <= number < np.inf:
            raise InputError(
                f"{path.name}: {number} Mbit/s from {origin} to {destination}, expected a number "
                f"from 0 up; {REMEDY}"
            )
    return values


def _xml(text: bytes) -> tuple[str, list[tuple[str, str, str]]]:
    """Return the unit, and origin, destination and value of each demand, of either XML format."""
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:  # entities can unpack to gigabytes
        raise ValueError("it defines its own entities")
    root = ET.fromstring(text)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    unit = root.find(".//unit")
    if unit is None:
        raise ValueError("it states no unit")
    name = unit.get("value") or (unit.text or "").strip()
    if name not in MBPS:
        raise ValueError(f"its unit is {name!r}, expected one of {', '.join(MBPS)}")
    return name, [*_totem(root), *_sndlib(root)]


def _totem(root: ET.Element) -> Iterator[tuple[str, str, str]]:
    for source in root.iter("src"):
        for target in source.iter("dst"):
            yield source.attrib["id"], target.attrib["id"], target.text or ""


def _sndlib(root: ET.Element) -> Iterator[tuple[str, str, str]]:
    for demand in root.iter("demand"):
        parts = [demand.findtext(tag) for tag in ("source", "target", "demandValue")]
        origin, destination, value = ((part or "").strip() for part in parts)
        yield origin, destination, value


def _native(text: str) -> tuple[str, list[tuple[str, str, str]]]:
    """Return the unit and the demands of SNDlib's native format."""
    if not re.search(r"unit\s*=\s*MBITPERSEC", text):
        raise ValueError("its unit is not MBITPERSEC")
    _, heading, rest = text.partition("DEMANDS (")
    if not heading:
        raise ValueError("it has no section DEMANDS")
    lines = rest.partition("\n)")[0].splitlines()
    found = [(line, _DEMAND.match(line)) for line in lines if line.strip(" )")]
    if odd := [line for line, match in found if match is None]:
        raise ValueError(f"{odd[0].strip()!r:.100} is no demand")
    return "MBITPERSEC", [(m[1], m[2], m[3]) for _, m in found if m]
