"""Cells, hours and days with the highest errors."""

from __future__ import annotations

import numpy as np

from stforecast.report.method_numbers import MethodNumbers
from stforecast.report.tables import Table, number, share

N_WORST = 10


def worst_tables(
    cells: np.ndarray, best: MethodNumbers, name: str, error: str, quantity: str, clock: str
) -> tuple[Table, ...]:
    """Return tables of the cells, hours and days where the best method is worst.

    Args:
        cells: `(cells,)` ids.
        best: numbers of the method.
        name: its name.
        error: title of its errors.
        quantity: service and unit.
        clock: clock of hours and days, such as "UTC".
    """
    own = f"{error} of {name}"
    return (
        _cells(cells, best, name, own, quantity),
        _hours(best, name, own, clock),
        _days(best, name, own, clock),
    )


def _cells(cells: np.ndarray, best: MethodNumbers, name: str, own: str, quantity: str) -> Table:
    errors = best.errors.by_cell
    rows = []
    for i in highest(errors):
        naive = {} if best.naive is None else {"of seasonal naive": best.naive.by_cell[i]}
        inside = {} if best.coverage is None else {"inside the interval": best.coverage[i]}
        rows.append(
            {"cell": str(cells[i]), own: number(errors[i])}
            | {column: number(value) for column, value in naive.items()}
            | {f"mean {quantity}": number(best.load[i])}
            | {column: share(value) for column, value in inside.items()}
        )
    return Table(f"Cells with the highest errors of {name}", rows, opens="cell")


def _hours(best: MethodNumbers, name: str, own: str, clock: str) -> Table:
    errors = best.errors.by_hour
    rows = [
        {"hour": f"{hour:02d}:00", own: number(errors[hour])}
        | ({} if best.naive is None else {"of seasonal naive": number(best.naive.by_hour[hour])})
        for hour in highest(errors)
    ]
    return Table(f"Hours with the highest errors of {name}, {clock}", rows)


def _days(best: MethodNumbers, name: str, own: str, clock: str) -> Table:
    errors = best.errors.by_day
    rows = [
        {"day": f"{errors.index[i]:%Y-%m-%d}", "weekday": f"{errors.index[i]:%A}"}
        | {own: number(errors.iloc[i])}
        | ({} if best.naive is None else {"of seasonal naive": number(best.naive.by_day.iloc[i])})
        for i in highest(errors.to_numpy())
    ]
    return Table(f"Days with the highest errors of {name}, {clock}", rows)


def highest(errors: np.ndarray) -> list[int]:
    """Return the positions of the highest errors, the highest first.

    >>> highest(np.array([1.0, np.nan, 3.0, np.inf]))
    [3, 2, 0]
    """
    known = np.flatnonzero(~np.isnan(errors))
    order = known[np.argsort(-errors[known], kind="stable")]
    return [int(i) for i in order[:N_WORST]]
