"""Markdown tables of pages, read back."""

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


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
