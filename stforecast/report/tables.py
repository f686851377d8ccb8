"""Tables of a page, and compact forms of texts and arrays in it."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stforecast.bench.tables import short


@dataclass(frozen=True)
class Table:
    """A table that sorts by any column.

    Attributes:
        caption: what it shows.
        rows: texts by column; a missing entry is a dash.
        notes: sentences below it.
        opens: column whose entries are cells that a click shows; empty for none.
    """

    caption: str
    rows: Sequence[Mapping[str, str]]
    notes: Sequence[str] = field(default=())
    opens: str = ""

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in the order of their first use."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


def number(value: float) -> str:
    """Format a number to three digits; a dash if it is not finite.

    >>> number(0.12345), number(float("nan"))
    ('0.123', '-')
    """
    return short(value) if math.isfinite(value) else "-"


def share(value: float) -> str:
    """Format a share in per cent.

    >>> share(0.876), share(0.00004), share(0.0)
    ('87.6 %', '< 0.1 %', '0 %')
    """
    if not math.isfinite(value):
        return "-"
    if not value:
        return "0 %"
    return "< 0.1 %" if value < 0.0005 else f"{100 * value:.1f} %"


LEVELS = 4094
"""Steps between the lowest and the highest value of a row; the level after marks a missing value.
So a value is exact to four digits of its row's range, and takes 12 bits before compression."""


class Arrays:
    """Arrays of a page, one after the other in one block of bytes, little-endian."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def floats(self, values: np.ndarray) -> dict[str, Any]:
        """Add an array in single precision and return what the page needs to find it."""
        return self._add("floats", np.asarray(values, dtype="<f4"))

    def rows(self, values: np.ndarray) -> dict[str, Any]:
        """Add an array `(rows, columns)` with a scale for each row; high bytes come first.

        What is not finite becomes missing.
        """
        low, step = _scales(values)
        finite = np.isfinite(values)
        levels = np.round(np.where(finite, values - low[:, None], 0.0) / step[:, None])
        levels = np.where(finite, levels, LEVELS + 1).astype(np.uint16)
        planes = np.stack([levels >> 8, levels & 255]).astype(np.uint8)
        return {
            **self._add("rows", planes),
            "shape": list(values.shape),
            "low": self.floats(low),
            "step": self.floats(step),
        }

    def bytes(self) -> bytes:
        """Return the whole block."""
        return b"".join(self._parts)

    def _add(self, kind: str, values: np.ndarray) -> dict[str, Any]:
        start = self._size
        block = values.tobytes()
        self._parts.append(block + bytes(-len(block) % 4))  # views need aligned offsets
        self._size += len(self._parts[-1])
        return {"kind": kind, "at": start, "shape": list(values.shape)}


def _scales(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest value of each row and the size of a level, in double precision."""
    finite = np.isfinite(values)
    low = np.where(finite, values, np.inf).min(axis=1, initial=np.inf)
    high = np.where(finite, values, -np.inf).max(axis=1, initial=-np.inf)
    low = np.where(np.isfinite(low), low, 0.0)
    reach = np.where(np.isfinite(high), high - low, 0.0)
    return low, np.where(reach > 0, reach / LEVELS, 1.0)


def packed(content: bytes | str) -> str:
    """Return a text or bytes, compressed, as ASCII that may stand in any element."""
    raw = content.encode() if isinstance(content, str) else content
    return base64.b64encode(gzip.compress(raw, 9, mtime=0)).decode()


def as_json(content: Any) -> str:
    """Return JSON with six digits a number, and null for numbers that are not finite."""
    return json.dumps(_plain(content), allow_nan=False, separators=(",", ":"))


def _plain(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(name): _plain(value) for name, value in content.items()}
    if isinstance(content, np.ndarray):
        return _plain(content.tolist())
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if isinstance(content, float):
        return float(f"{content:.6g}") if math.isfinite(content) else None
    return content
