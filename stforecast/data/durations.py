"""Lengths of time: written as 30min, 23h or 7d, and counted in steps of a series."""

from __future__ import annotations

import pandas as pd

from data_prep.errors import InputError
from data_prep.text import counted

DAY, WEEK = pd.Timedelta(days=1), pd.Timedelta(days=7)

UNITS = {"min": pd.Timedelta(minutes=1), "h": pd.Timedelta(hours=1), "d": DAY}
"""Units of a length of time."""

DURATION = rf"[0-9]{{1,7}}({'|'.join(UNITS)})"
"""Format of a length of time."""


def unit_of(text: str) -> str:
    """Return the unit of a length of time; empty for a number of steps, or a range of them."""
    return text.lstrip("0123456789-")


def in_steps(text: str, step: pd.Timedelta) -> int | None:
    """Convert a length of time to steps; None if it is not a whole number of them.

    >>> in_steps("7d", pd.Timedelta("1h")), in_steps("90min", pd.Timedelta("1h"))
    (168, None)

    Args:
        text: length of time in the format `DURATION`.
        step: length of a step.
    """
    unit = unit_of(text)
    n_steps, rest = divmod(int(text.removesuffix(unit)) * _ns(UNITS[unit]), _ns(step))
    return None if rest else n_steps


def in_words(n_steps: int, step: pd.Timedelta) -> str:
    """Format the length of a number of steps, in the largest unit that it is a multiple of.

    >>> [in_words(n, pd.Timedelta("30min")) for n in (48, 50, 51)]
    ['1 day', '25 hours', '1530 minutes']
    """
    length = n_steps * _ns(step)
    for unit, name in ((DAY, "day"), (UNITS["h"], "hour")):
        if length % _ns(unit) == 0:
            return counted(length // _ns(unit), name)
    return f"{length / _ns(UNITS['min']):.10g} minutes"


def steps_in(span: pd.Timedelta, step: pd.Timedelta) -> int:
    """Number of steps in `span`.

    Raises:
        InputError: if it is not a whole number.
    """
    if span % step != pd.Timedelta(0):
        raise InputError(
            f"a step of {in_words(1, step)} does not divide {in_words(1, span)}; resample to one "
            "that does"
        )
    return int(span // step)


def divides_a_day(step: pd.Timedelta) -> bool:
    """Return whether days have a whole number of steps."""
    return bool(DAY % step == pd.Timedelta(0))


def natural_period(step: pd.Timedelta) -> int:
    """Return the steps of a day, or of a week where a day is not several whole steps.

    >>> [natural_period(pd.Timedelta(step)) for step in ("10min", "1h", "1D", "7h")]
    [144, 24, 7, 24]

    Args:
        step: length of a step.

    Raises:
        InputError: if a week is not several whole steps either.
    """
    for span in (DAY, WEEK):
        n_steps, rest = divmod(_ns(span), _ns(step))
        if n_steps > 1 and not rest:
            return n_steps
    raise InputError(
        f"steps are {in_words(1, step)} long: neither a day nor a week is several whole steps; "
        "give the steps of a period, such as --period 52 for a year of weeks"
    )


def period_warning(step: pd.Timedelta, period: int) -> str | None:
    """Return a warning if the period is not a whole number of days, else None.

    >>> period_warning(pd.Timedelta("1h"), 24)
    >>> period_warning(pd.Timedelta("5min"), 24)
    'a period of 24 steps of 5 minutes is 2 hours, not whole days; a day is 288 steps'

    Args:
        step: length of a step.
        period: steps in a period.
    """
    length = period * _ns(step)
    if length % _ns(DAY) == 0:
        return None
    minutes, hours = step / UNITS["min"], length / _ns(UNITS["h"])
    return (
        f"a period of {period} steps of {minutes:g} minutes is {hours:g} hours, not whole days; "
        f"a day is {DAY / step:g} steps"
    )


def _ns(span: pd.Timedelta) -> int:
    return span.as_unit("ns").value  # A Python integer, which cannot overflow.
