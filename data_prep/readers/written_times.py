"""Dates and times as exports write them: orders, names of months, clocks and spans.

They are recognised in usual languages, and turned into forms that pandas reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pandas as pd

MONTHS = {
    "Jan": "jan|jän|gen|ene", "Feb": "feb|fév|fev", "Mar": "mar|mär|mrz|maa", "Apr": "apr|avr|abr",
    "May": "may|mai|mag|mei", "Jun": "jun|juin|giu", "Jul": "jul|juil|lug",
    "Aug": "aug|août|aout|ago", "Sep": "sep|set", "Oct": "oct|okt|ott|out", "Nov": "nov",
    "Dec": "dec|déc|dez|dic",
}  # fmt: skip
"""How names of months begin in English, German, French, Italian, Spanish, Portuguese and Dutch."""

_LETTERS = r"[^\W\d_]*\.?"
_MONTH = rf"(?i:{'|'.join(MONTHS.values())}){_LETTERS}"
MONTH = rf"^\s*{_MONTH}\s*$"
"""Pattern of the name of a month."""

_YEAR = r"(19|20)\d\d"
MONTH_OF_YEAR = (
    rf"^\s*({_YEAR}[-/](\d{{1,2}}|{_MONTH})|\d{{1,2}}[-/]{_YEAR}|{_MONTH}[-/ ](\d\d)?\d\d)\s*$"
)
"""Pattern of a month without a day."""

_DAY_NAMES = (
    "mon|tue|wed|thu|fri|sat|sun|die|mittw|don|fre|sam|son|lun|mar|mer|jeu|ven|dim|gio|sab|sáb|"
    "dom|mié|mie|jue|vie|seg|ter|qua|qui|sex|maa|din|woe|vri|zat|zon"
)
_WEEKDAY = rf"(?i:(?:{_DAY_NAMES}){_LETTERS}|mo|di|mi|do|fr|sa|so|ma|wo|vr|za|zo)[,.]* "
_OF = r"(?:(?i:del?) )?"
TIME_LIKE = (
    rf"^\s*(({_WEEKDAY})?(\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}"
    r"|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})"
    rf"|\d{{1,2}}(?:er|\.)?[-/. ]{_OF}{_MONTH}[-/., ]+{_OF}\d{{2,4}}"
    rf"|{_MONTH} \d{{1,2}},? \d{{4}})([T_ ,].*)?"
    r"|\d{4} ?[年년] ?\d{1,2} ?[月월] ?\d{1,2} ?[日일].*"
    r"|(19|20)\d{6}([T ]?\d{2,6}Z?|[T. ]?\d{4,6}[+-]\d{2}:?\d{2}|[T ]\d{1,2}:\d\d.*)?"
    r"|1\d{9}(\.0+)?|1\d{12}(\d{3}){0,2})\s*$"
)
"""Pattern of a date, with or without a time of day, or of a number since 1970."""

_CLOCK = r"([0-2]?\d)(:[0-5]\d){1,2}(\.\d+)?( ?[aApP]\.? ?[mM]\.?)?"
CLOCK_LIKE = (
    rf"^\s*({_CLOCK}|(0?\d|1[0-2]) ?[aApP]\.? ?[mM]\.?"
    r"|([01]?\d|2[0-4]) ?([hH]|Uhr|[时時시点])([0-5]\d[分분]?)?)(\s*(-|–|~|to|bis|a)\s*\d.*)?\s*$"
)
"""Pattern of a time of day, or of a span that begins with one."""

SIX_DIGITS = r"^(\d\d)(\d\d)(\d\d)$"
"""Pattern of a date such as 240131."""

SPAN = r"(\d:\d{2}(?::\d{2})?(?: ?[AP]M)?)\s*(?:-|–|~|to|bis|a)\s*\d.*$"
"""Pattern of the first time of a span, and its end."""

_PLAINER: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"\s+(DST|ST)$", ""),
    (r"^(\d{1,2})([A-Za-z]{3})(\d{4}):", r"\1-\2-\3 "),
    (r"(?<= )(\d{1,2})\.(\d{2})\.(\d{2})(?:\.0+)?(?= ?[AP]M$|$)", r"\1:\2:\3"),
    (r"^(\d{4}) ?[年년] ?(\d{1,2}) ?[月월] ?(\d{1,2}) ?[日일] ?", r"\1-\2-\3 "),
    (r"(\d{1,2}) ?[时時시点](?: ?(\d{1,2})[分분]?)?", lambda m: f"{m[1]}:{m[2] or '00'}"),
    (rf"^{_WEEKDAY}(?={_MONTH} |\d{{1,4}}[-/. ])", ""),
    (r"\b(\d{1,2}) ?(?:[hH]|Uhr)\b ?(\d{2})?(?!:)", lambda m: f"{m[1]}:{m[2] or '00'}"),
    (r"\b(\d{1,2}) ?[hH](\d{2})\b", r"\1:\2"),
    (r"(?i)(?<=\d)( ?)([ap])\.? ?m\b\.?", lambda m: f"{m[1]}{m[2].upper()}M"),
    (SPAN, r"\1"),
    *((rf"(?i)(?<![^\W\d_])(?:{names}){_LETTERS}", month) for month, names in MONTHS.items()),
    (r"^([A-Za-z]{3}) (\d{1,2}),? (\d{4})", r"\2 \1 \3"),
    (rf"^(\d{{1,2}})(?:er|\.)? {_OF}([A-Z][a-z]{{2}}),? {_OF}(\d{{4}}),?", r"\1 \2 \3"),
]


def are_times(texts: Sequence[str]) -> bool:
    """Return whether all texts are times, and not numbers of places such as 02-00-01.

    >>> are_times(["2024-03-04 00:15"]), are_times(["02-00-00", "02-05-01"])
    (True, False)
    """
    short = all(re.fullmatch(r"\s*\d{1,2}([-/.]\d{1,2}){2}\s*", text) for text in texts)
    return all(re.match(TIME_LIKE, text) for text in texts) and (
        not short or bool(date_formats(texts))
    )


def plain_times(texts: pd.Series) -> tuple[pd.Series, pd.TimedeltaIndex]:
    """Return times without weekdays, marks of summer, ends of spans, and what to add to each.

    Names of months are English, have three letters and follow the day; 24:00 is 0:00 of the next
    day, and 25:10, as of a night bus, 1:10.

    >>> plain_times(pd.Series(["November 01, 2009 05:00:00 PM"]))[0].tolist()
    ['01 Nov 2009 05:00:00 PM']
    >>> plain, later = plain_times(pd.Series(["1.5.2024 24:00", "1.5.2024 01:00 - 02:00 DST"]))
    >>> plain.tolist(), later.days.tolist()
    (['1.5.2024 00:00', '1.5.2024 01:00'], [1, 0])
    >>> plain_times(pd.Series(["mar. 5 août 2024 8h30", "lunes, 4 de mayo de 2024 1:00 p. m."]))[0]
    0       5 Aug 2024 8:30
    1    4 May 2024 1:00 PM
    dtype: ...
    >>> plain_times(pd.Series(["2024年3月4日 08时", "04-MAR-24 12.15.00.000000 AM"]))[0].tolist()
    ['2024-3-4 08:00', '04-Mar-24 12:15:00 AM']
    >>> plain_times(pd.Series(["04MAR2024:08:15:00"]))[0].tolist()
    ['04-Mar-2024 08:15:00']
    """
    plain = texts.str.strip()
    for pattern, plainer in _PLAINER:
        plain = plain.str.replace(pattern, plainer, regex=True)
    return next_days(plain.str.strip())


def next_days(texts: pd.Series) -> tuple[pd.Series, pd.TimedeltaIndex]:
    """Return times with 0:00 for 24:00 and 1:10 for 25:10, and the day to add to each of these."""
    after = r"([T ])2([4-9])(:\d\d(?::\d\d)?)$"
    plain = texts.str.replace(after, lambda m: f"{m[1]}0{int(m[2]) - 4}{m[3]}", regex=True)
    return plain, pd.to_timedelta((plain != texts).to_numpy(dtype=int), unit="D")


_DATE = re.compile(
    rf"(\d{{1,4}})([/. -])(\d{{1,2}}|(?:{'|'.join(MONTHS)})[a-z]*)([/., -])(\d{{1,4}})"
    r"(?![^\s T_,])(.*)",
    re.DOTALL | re.IGNORECASE,
)
_CLOCKS = {
    r"": "",
    r"\d{1,2}": "%H",
    r"\d{1,2}:\d{2}": "%H:%M",
    r"\d{1,2}:\d{2}:\d{2}": "%H:%M:%S",
    r"\d{1,2}:\d{2}:\d{2}\.\d{1,6}": "%H:%M:%S.%f",
    r"\d{1,2} ?[AP]M": "%I %p",
    r"\d{1,2}:\d{2} ?[AP]M": "%I:%M %p",
    r"\d{1,2}:\d{2}:\d{2} ?[AP]M": "%I:%M:%S %p",
}
_FORMS = {"day/month/year": "dmy", "month/day/year": "mdy", "year/month/day": "ymd"}


def date_formats(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return the possible orders of day, month and year in dates, in words and as pandas formats.

    >>> date_formats(["10/23/2017 03:00:00"])
    [('month/day/year', '%m/%d/%Y %H:%M:%S')]
    >>> date_formats(["01/02/2017", "02/02/2017"])
    [('day/month/year', '%d/%m/%Y'), ('month/day/year', '%m/%d/%Y')]
    >>> date_formats(["31-Jan-24 10 PM"]), date_formats(["31-Jan-24 10:00 PM"])
    ([('day/month/year', '%d-%b-%y %I %p')], [('day/month/year', '%d-%b-%y %I:%M %p')])
    """
    found = [_DATE.fullmatch(text.strip()) for text in texts]
    dates = [match for match in found if match]
    if not dates or len(dates) < len(found):
        return []
    _, mark, month, other, _, clock = dates[0].groups()
    pattern = next((p for p in _CLOCKS if re.fullmatch(p, clock.strip("T_ ,"), re.I)), None)
    if pattern is None or any(match[2] != mark or match[4] != other for match in dates):
        return []
    gap = clock[: len(clock) - len(clock.lstrip("T_ ,"))]
    named = not month.isdigit()
    letter = ("%B" if len(month) > 3 else "%b") if named else "%m"
    orders = []
    for order, parts in _FORMS.items():
        if all(_fits(match, parts, named=named) for match in dates):
            years = {len(match[1 + 2 * parts.index("y")]) for match in dates}
            codes = {"d": "%d", "m": letter, "y": "%Y" if years == {4} else "%y"}
            one, two, three = (codes[part] for part in parts)
            orders.append((order, f"{one}{mark}{two}{other}{three}{gap}{_CLOCKS[pattern]}"))
    return orders


def _fits(date: re.Match[str], parts: str, *, named: bool) -> bool:
    """Return whether the fields of a date can be the `parts`, such as `"dmy"`."""
    fields = dict(zip(parts, date.group(1, 3, 5), strict=True))
    if named:
        fits = parts == "dmy" or (parts == "ymd" and len(fields["y"]) == 4)
        return fits and len(fields["d"]) <= 2 and not fields["m"].isdigit()
    if len(fields["d"]) > 2 or len(fields["m"]) > 2 or len(fields["y"]) == 3:
        return False
    month, day = int(fields["m"]), int(fields["d"])
    return 1 <= month <= 12 and 1 <= day <= 31 and len(fields["y"]) in (2, 4)
