"""Leave out values that another column marks as spoilt: unreliable, suspect, not observed."""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from data_prep.base.errors import Words
from data_prep.readers.origin import StepLog
from data_prep.readers.table import Table, as_numbers
from data_prep.readers.units import is_speed, unit_of

GOOD = r"(is|data)?[ _-]?(reliab(le|ility)|valid(ity)?)$"
BAD = r"(is|data)?[ _-]?(suspect|error|fault|invalid|imputed|estimated)$"
STATE = r"(status|flag|qc|quality|qualit[äa]e?t|quality[ _]?(index|flag|code))$"
OBSERVED = r"(%|percent|pct)[ _]?observed$|observed[ _]?%$"
"""Ends of names of flags: 1 or true is good, or bad; a word; a share of 100."""

SPOILT = (
    r"(?i)^(not[ _]?reliable|unreliable|suspect|invalid|bad|error|err|fault(y)?|fail(ed|ure)?|"
    r"defect(ive)?|estimated|imputed|missing|out of order|no[ _]?data|fehler(haft)?|"
    r"ung[üu]e?ltig|不可信)$"
)
"""Pattern of words for a spoilt value; the last is Huawei's."""

log = StepLog("layout")


def is_flag(column: str) -> bool:
    """Return whether a column is named like a flag of good or bad values.

    >>> [is_flag(c) for c in ("Reliability", "Lane 1-status", "% Observed", "flow", "errors")]
    [True, True, True, False, False]
    """
    kinds = "|".join((GOOD, BAD, STATE, OBSERVED))
    return re.search(rf"(?i)(^|[^a-z])({kinds})", column) is not None


def apply(table: Table) -> Table:
    """Return a table without spoilt values: those that a flag marks, and speeds of -1."""
    known = {*table.times, *table.cells, *table.values}
    for flag in (c for c in table.names if c not in known and is_flag(c)):
        subject = re.sub(r"[ _-]+[^ _-]+$", "", flag)
        values = [c for c in table.values if c == subject] or table.values
        table = _without(table, _spoilt(table[flag]), values, f"by {flag!r}")
    for name in () if table.kind == "wide" else table.values:
        numbers = as_numbers(table[name])
        unit = table.units.get(name) or unit_of(name) or "1"
        if is_speed(name, unit) and numbers.filter(numbers < 0).unique().to_list() == [-1]:
            table = _without(table, numbers == -1, [name], "as speeds of -1")
    return table


def _spoilt(flag: pl.Series) -> pl.Series:
    """Return which rows a flag marks as spoilt."""
    if re.search(OBSERVED, flag.name, re.IGNORECASE):
        return as_numbers(flag) < 100
    texts = flag.cast(pl.String).str.strip_chars().str.to_lowercase()
    spoilt = texts.str.contains(SPOILT)
    yes, no = (texts.is_in(words) for words in (["true", "yes", "1"], ["false", "no", "0"]))
    if re.search(BAD, flag.name, re.IGNORECASE):
        return spoilt | yes
    return spoilt | no if re.search(GOOD, flag.name, re.IGNORECASE) else spoilt


def _without(table: Table, rows: pl.Series, values: Sequence[str], why: str) -> Table:
    """Return a table whose values are missing in some rows; say how many there are."""
    rows = rows.fill_null(value=False)
    n = sum(int((rows & table[c].is_not_null()).sum()) for c in values)
    if not n:
        return table
    keep = Words("; pass {values} with the column's name to keep them") if "by " in why else ""
    log.warning(table.origin, f"{n:,} values are spoilt {why} and missing", keep)
    missing = [pl.select(pl.when(~rows).then(table[c]).alias(c)).to_series() for c in values]
    return table.with_columns(*missing)
