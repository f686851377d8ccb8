"""Where the rows of a table stand, and what its reader says of them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from data_prep.base.errors import Words, for_command, plain

if TYPE_CHECKING:
    import polars as pl


STEPS = ("open", "decode", "head", "rows", "numbers", "units", "join", "times", "layout", "cells",
         "steps", "places")  # fmt: skip
"""The steps of reading, in the order of use; see `readers.reading`."""


class Note(NamedTuple):
    """What a step of reading found or decided in a table, and why."""

    step: str
    level: int
    table: str
    text: str

    @property
    def is_warning(self) -> bool:
        """Whether something was changed or left out."""
        return self.level >= logging.WARNING


_NOTES: ContextVar[list[Note] | None] = ContextVar("notes", default=None)


FIRST: ContextVar[Mapping[str, Any]] = ContextVar("first")
"""What was noted of the first records, while later ones are read in the same way."""

NAMED: ContextVar[str] = ContextVar("named", default="")
"""What follows options in notices: whose they are, if not of the command that reads."""


@contextmanager
def collecting_notes() -> Iterator[list[Note]]:
    """Collect what steps say, in the words of the command, instead of logging it."""
    notes: list[Note] = []
    token = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(token)


class StepLog:
    """The log of one step of reading.

    Args:
        step: name of the step.
    """

    def __init__(self, step: str) -> None:
        self.step = step
        self._log = logging.getLogger(f"{__package__}.{step}")

    def note(self, table: str | Origin, *parts: object) -> None:
        """Note what is worth a line only where all steps are shown; see `info`."""
        self._say(logging.DEBUG, table, parts)

    def info(self, table: str | Origin, *parts: object) -> None:
        """Say what was decided that the user may want otherwise.

        Args:
            table: the table, or its name.
            *parts: the text, whose parts that name options are `Words`, as in an `InputError`.
        """
        self._say(logging.INFO, table, parts)

    def warning(self, table: str | Origin, *parts: object) -> None:
        """Say what was changed or left out; see `info`."""
        self._say(logging.WARNING, table, parts)

    def _say(self, level: int, table: str | Origin, parts: tuple[object, ...]) -> None:
        name = table if isinstance(table, str) else table.name
        parts = (*parts, NAMED.get()) if any(isinstance(one, Words) for one in parts) else parts
        if (notes := _NOTES.get()) is None:
            self._log.log(level, "%s: " + "%s" * len(parts), name, *parts)
        else:
            text = "".join(str(for_command(part)) for part in parts)
            notes.append(Note(self.step, level, name, plain(text)))


@dataclass(frozen=True)
class Origin:
    """Location of a table's rows, for error messages.

    Rows of a file or object are named by `unit`, such as "line", and a number from `first` on; if
    some were left out, `rows` `(rows,)` are their positions. `is_file` says whether options apply.
    In a `stack` of several files, each begins at a row. `texts` reads a column of a text file once
    more, as it is written.

    >>> Origin("speed.csv", "line", 2).at(3)
    'speed.csv, line 5'
    """

    name: str = "the DataFrame"
    unit: str = "row"
    first: int = 0
    is_file: bool = False
    rows: np.ndarray | None = field(default=None, compare=False)
    stack: Sequence[tuple[int, Origin]] = ()
    texts: Callable[[str, np.ndarray | None], pl.Series] | None = field(default=None, compare=False)

    def of_rows(self, at: np.ndarray) -> Origin:
        """Return the place of some rows, of one file if they all stand in the first."""
        rows = at if self.rows is None else self.rows[at]
        if len(self.stack) > 1 and rows.max(initial=0) < self.stack[1][0]:
            return self.stack[0][1].of_rows(rows)
        return dataclasses.replace(self, rows=rows)

    def as_written(self, column: str) -> pl.Series | None:
        """Return a column as text, such as `007`; None if it was not read from texts."""
        if not self.stack:
            return None if self.texts is None else self.texts(column, self.rows)
        parts = [part.as_written(column) for _, part in self.stack]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        import polars as pl  # slow to import, which a cube need not wait for

        return pl.concat(known) if self.rows is None else pl.concat(known)[self.rows]

    def at(self, row: int) -> str:
        """Return the name of a row, counted from 0."""
        return self.place(row) if self.stack else f"{self.name}, {self.place(row)}"

    def place(self, row: int) -> str:
        """Return the number of a row in its file, and the file if there are several."""
        if not self.stack:
            return f"{self.unit} {self.number(row)}"
        start, part = next(s for s in reversed(self.stack) if s[0] <= self.number(row))
        return part.at(self.number(row) - start)

    def number(self, row: int) -> int:
        """Return the number of a row in the file, or in the frame."""
        return self.first + int(row if self.rows is None else self.rows[row])

    def either(self, option: Words, *steps: str) -> str | Words:
        """Return advice: an option for a file, statements that change the frame `df` otherwise."""
        return option if self.is_file else f"`{'; '.join(steps)}`"
