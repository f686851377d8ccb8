"""Tables of pages and the data that they name, read back."""

from __future__ import annotations

import re


def rows_of(text: str, column: str) -> list[dict[str, str]]:
    r"""Return the rows of the first table of methods that has a column; none without it.

    >>> rows_of("| method | MSE |\n|---|---|\n| solo | 0.3 |\n", "MSE")
    [{'method': 'solo', 'MSE': '0.3'}]
    """
    for table in re.findall(r"^\| method .*\n(?:\|.*\n?)+", text, re.M):
        head, _, *body = [_cells(line) for line in table.splitlines()]
        if column in head:
            return [dict(zip(head, cells, strict=True)) for cells in body]
    return []


def data_of(text: str) -> str:
    r"""Return the data of a section of forecasts, such as "milan, 25 cells, 1 step ahead".

    >>> data_of("**milan, calls**: 25 cells, 3 folds of 3 days, 1 step\nahead, z-scores by cell")
    'milan, 25 cells, 1 step ahead'
    """
    found = re.search(
        r"^\*\*([^*,]+),[^*]*\*\*:\s(\d+\scells),[^|]*?\s(\d+\ssteps?)(?:\(s\))?\sahead", text, re.M
    )
    return " ".join(f"{found[1]}, {found[2]}, {found[3]} ahead".split()) if found else ""


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
