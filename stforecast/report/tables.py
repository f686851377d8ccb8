"""Tables of a page, and the formats of their entries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stforecast.bench.numbers import short


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
