"""Location of a table's rows, for error messages, and repairs in pandas."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Origin:
    """Location of a table's rows, for error messages.

    Args:
        name: the file or object.
        unit: name of a row, such as `"line"`.
        first: number of the first row of data.
        is_file: whether the table is a file, whose reading has options.
        rows: `(rows,)` position of each row in the file if some rows were left out, else None.

    >>> Origin("speed.csv", "line", 2).at(3)
    'speed.csv, line 5'
    """

    name: str = "the DataFrame"
    unit: str = "row"
    first: int = 0
    is_file: bool = False
    rows: np.ndarray | None = field(default=None, compare=False)

    def at(self, row: int) -> str:
        """Return the name of a row, counted from 0."""
        return f"{self.name}, {self.unit} {self.number(row)}"

    def number(self, row: int) -> int:
        """Return the number of a row in the file, or in the frame."""
        return self.first + int(row if self.rows is None else self.rows[row])

    def either(self, option: str, *steps: str) -> str:
        """Return advice: an option for a file, statements that change the frame `df` otherwise."""
        return option if self.is_file else f"`{'; '.join(steps)}`"
