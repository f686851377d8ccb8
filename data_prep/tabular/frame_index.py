"""The index of a user's frame, which must hold the times."""

from __future__ import annotations

import pandas as pd
from pandas.api import types

from data_prep.errors import InputError
from data_prep.tabular.names import CELLS, TIMES, named
from data_prep.tabular.times import EPOCH_SECONDS


def check_index(df: pd.DataFrame, name: str) -> None:
    """Refuse a frame whose index counts its rows, as those of `read_csv` and `reset_index` do.

    Args:
        df: `(time, cell)` values.
        name: name of the frame in errors.

    Raises:
        InputError: naming the column that may hold the times, and what to write.
    """
    if not isinstance(df.index, pd.RangeIndex) or max(df.index) >= EPOCH_SECONDS[0]:
        return
    texts = [c for c in df.columns if isinstance(c, str)]
    dates = [c for c in df.columns if types.is_datetime64_any_dtype(df[c])]
    time = next(iter([*dates, *named(texts, TIMES)]), None)
    cell = next(iter(named(texts, CELLS)), None)
    if time is None:
        columns = ", ".join(map(repr, df.columns[:8]))
        advice = f"set the column of times, one of {columns}, as index: `df.set_index(NAME)`"
    elif cell is None or not df[time].duplicated().any():
        advice = f"write `df.set_index({time!r})` if this column holds them"
    else:
        value = next((c for c in df.columns if c not in (time, cell)), "value")
        advice = (
            "a row for each time and cell becomes a row for each time by "
            f"`df.pivot(index={time!r}, columns={cell!r}, values={value!r})`"
        )
    raise InputError(f"{name}: its index counts rows (RangeIndex), expected times; {advice}")
