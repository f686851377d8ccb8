"""Recognise dates and headers, to understand a table and to give advice in error messages."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

_DATE = re.compile(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(.*)", re.DOTALL)
_CLOCKS = {
    r"": "",
    r"\d{1,2}:\d{2}": "%H:%M",
    r"\d{1,2}:\d{2}:\d{2}": "%H:%M:%S",
    r"\d{1,2}:\d{2} ?[AP]M": "%I:%M %p",
    r"\d{1,2}:\d{2}:\d{2} ?[AP]M": "%I:%M:%S %p",
}


WITH_COMMA = r"^\s*[+-]?(\d+|[1-9]\d{0,2}(\.\d{3})+)(,\d+)?\s*$"
"""Numbers with a decimal comma or without, and separators of thousands, which follow no 0."""


def date_formats(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return the possible orders of day and month in dates, in words and as pandas formats.

    >>> date_formats(["10/23/2017 03:00:00"])
    [('month/day/year', '%m/%d/%Y %H:%M:%S')]
    >>> date_formats(["01/02/2017", "02/02/2017"])
    [('day/month/year', '%d/%m/%Y'), ('month/day/year', '%m/%d/%Y')]
    """
    found = [_DATE.fullmatch(text.strip()) for text in texts]
    dates = [match for match in found if match]
    if not dates or len(dates) < len(found):
        return []
    clock = dates[0][5]
    pattern = next((p for p in _CLOCKS if re.fullmatch(p, clock.strip(), re.IGNORECASE)), None)
    if pattern is None:
        return []
    gap = clock[: len(clock) - len(clock.lstrip())]
    mark = dates[0][2]
    orders = []
    if all(int(match[3]) <= 12 for match in dates):
        orders.append(("day/month/year", f"%d{mark}%m{mark}%Y{gap}{_CLOCKS[pattern]}"))
    if all(int(match[1]) <= 12 for match in dates):
        orders.append(("month/day/year", f"%m{mark}%d{mark}%Y{gap}{_CLOCKS[pattern]}"))
    return orders


def has_comma(text: str) -> bool:
    """Return whether a text may be a number with a decimal comma.

    >>> has_comma("1,5"), has_comma("1.234,5"), has_comma("1.5"), has_comma("a,5")
    (True, True, False, False)
    """
    return "," in text and re.match(WITH_COMMA, text) is not None


def looks_like_values(names: Sequence[str]) -> bool:
    """Return whether a file's first line holds values: a time, or numbers with a decimal point.

    >>> looks_like_values(["2017-10-23 03:00", "a", "7"]), looks_like_values(["time", "1", "2"])
    (True, False)
    >>> looks_like_values(["1", "2", "3"]), looks_like_values(["1", "0.5", "0.5"])
    (False, True)
    """
    if any(re.fullmatch(r"\d{4}-\d{2}-\d{2}([T ]\d.*)?", n) or _DATE.fullmatch(n) for n in names):
        return True
    numbers = [n for n in names if re.fullmatch(r"-?\d*\.?\d+(e[+-]?\d+)?", n, re.IGNORECASE)]
    return len(numbers) == len(names) > 1 and any("." in n for n in numbers)


def frequency(step: pd.Timedelta) -> str:
    """Return a step as a pandas frequency, such as `"2min"`."""
    return str(pd.tseries.frequencies.to_offset(step).freqstr)
