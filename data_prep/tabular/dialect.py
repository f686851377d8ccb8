"""How a table is written to a file, which its reader must know."""

from __future__ import annotations

from dataclasses import dataclass

from data_prep.errors import InputError, choose
from data_prep.tabular.decimals import DECIMALS, Decimal

MAX_COLUMNS = 20_000  # twice the cells of Milan; the parser needs kilobytes for each
ROW, FIELD = 32, 16  # minimum bytes of memory for each while a table is read


@dataclass(frozen=True)
class Dialect:
    """How a file is written.

    Args:
        header: whether the first row holds the names of the columns.
        decimal: decimal mark; `"auto"` takes a comma if nothing else fits.
        sheet: sheet of a workbook; None takes its only one.

    Raises:
        InputError: if the decimal mark is unknown.
    """

    header: bool = True
    decimal: Decimal = "auto"
    sheet: str | None = None

    def __post_init__(self) -> None:
        if self.decimal not in DECIMALS:
            raise choose("decimal mark", self.decimal, DECIMALS)

    @staticmethod
    def numbered(n: int) -> list[str]:
        """Return the names of the columns of a file without a header: 1, 2, and so on."""
        return [str(i) for i in range(1, n + 1)]


def check_columns(n: int, name: str) -> None:
    """Refuse a table with too many columns.

    Raises:
        InputError: if there are too many.
    """
    if n > MAX_COLUMNS:
        raise InputError(
            f"{name}: {n} columns, expected at most {MAX_COLUMNS}; write a long table, with a row "
            "for each time and cell"
        )
