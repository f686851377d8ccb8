"""Table of errors in peak hours and in the others."""

from __future__ import annotations

from collections.abc import Sequence

from stforecast.bench.tables import markdown, spread
from stforecast.comparison.hours import busy_hours
from stforecast.comparison.rows import Row, by_seed, joined_errors, joined_targets
from stforecast.forecasting.results import units_of


def peak_table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Tabulate the MAE in peak hours, whose mean load lies above the day's mean, and in the others.

    Args:
        rows: rows that were tested on the same targets.
        names: name of each row in the table.

    Returns:
        Markdown; an empty string if all hours have the same load.
    """
    targets = joined_targets(run for row in rows for run in row.group.runs)
    busy, zone = busy_hours(targets), targets.attrs.get("time_zone", "local time")
    if not busy:
        return ""
    others = [hour for hour in range(24) if hour not in busy]
    body = []
    for row, name in zip(rows, names, strict=True):
        selection = row.selection("best")
        errors = [joined_errors(r, "raw_mae", selection) for r in by_seed(row.group.runs)]
        peak, off_peak = (
            spread([of_seed.in_hours(hours) for of_seed in errors]) for hours in (busy, others)
        )
        body.append({"method": name, "peak": peak, "off-peak": off_peak})
    caption = (
        f"MAE in {units_of(rows[0].first)} in peak hours, whose mean load is above the day's mean "
        f"({spans(busy)}, {zone}), and off-peak."
    )
    return f"{caption}\n\n{markdown(body)}"


def spans(hours: Sequence[int]) -> str:
    """Return hours of the day as spans of time.

    >>> spans([0, 8, 9, 10, 22, 23])
    '00:00–01:00, 08:00–11:00, 22:00–24:00'
    """
    begins = [hour for hour in hours if hour - 1 not in hours]
    ends = [hour + 1 for hour in hours if hour + 1 not in hours]
    return ", ".join(f"{b:02}:00–{e:02}:00" for b, e in zip(begins, ends, strict=True))
