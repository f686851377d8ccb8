"""Read a raw day of Telecom Italia's call detail records: check and sum it in a single pass.

A raw file holds one local day: no header, eight tab-separated fields per row (square id, start of
the ten-minute interval in epoch milliseconds, country code, SMS in, SMS out, calls in, calls out,
internet), one row per (square, interval, country), an empty field where no activity was recorded.

The file is read in blocks of whole lines. This way, the checksum, the field count and the parser
see the same bytes, memory does not grow with the file, a packed file is read like a plain one, and
the line of an error is found by checking one block again.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from data_prep.base.errors import InputError
from data_prep.base.limits import check_expansion, most_from
from data_prep.sets.telecom_italia import raw_day

SERVICES = ("sms_in", "sms_out", "call_in", "call_out", "internet")
"""The measured services, in the order of the raw fields."""

BLOCK_BYTES = 4 << 20
MAX_BYTES = 4 << 30
"""Maximum bytes of a day once unpacked."""

RATIO = 12
"""Maximum unpacked bytes per byte of a packed day; published days have about 6."""

_COUNTRY_BITS = 31


@dataclass(frozen=True)
class DaySums:
    """The activity of one day, summed over country codes and over each step.

    Args:
        values: `(service, step, cell)` sums in the order of `SERVICES`, without physical unit; 0
            where no activity was recorded, NaN in a step with an interval that the file lacks.
        cells: `(cell,)` ids that occur in the file, ascending.
        recorded: `(interval,)` bool: whether the file has a row in each ten-minute interval.
        checksum: `"sha256:…"` of the text, unpacked if the file is gzip: the file as published.
    """

    values: np.ndarray
    cells: np.ndarray
    recorded: np.ndarray
    checksum: str


def read_day(day: raw_day.RawDay, per_step: int = 1) -> DaySums:
    """Read, check and sum the file of one day, for every cell that occurs in it.

    `per_step` is the number of ten-minute intervals in a step.
    """
    sums, digest = _Sums(day, per_step), hashlib.sha256()
    with raw_day.open_raw(day.path) as f:
        for block in _blocks(f, day.path):
            digest.update(block)
            try:
                sums.add(block)
            except (_BadRowsError, pl.exceptions.PolarsError) as e:
                raise raw_day.block_error(day, block, sums.n_rows, e) from e
    if not sums.n_rows:
        raise InputError(
            f"{day.path}: the file is empty, expected the rows of a day; {raw_day.AGAIN}"
        )
    # A file may be truncated in its last field, where the row still looks complete. Published rows
    # are sorted by cell and time, so a complete file ends with the day's last interval. An editor
    # may have removed the newline after it; truncation there is very unlikely.
    if not block.endswith(b"\n") and sums.last_interval != day.n_intervals - 1:
        raise InputError(
            f"{day.path}: line {sums.n_rows} ends without a newline, at "
            f"{day.clock(sums.last_interval)} local: the file is cut; {raw_day.AGAIN}"
        )
    if repeated := sums.repeated_row():
        raise raw_day.repeat_error(day, *repeated)
    return sums.result(f"sha256:{digest.hexdigest()}")


def text_checksum(path: Path) -> str:
    """Return `DaySums.checksum` of a file, in about a tenth of the time of summing it."""
    digest = hashlib.sha256()
    with raw_day.open_raw(path) as f:
        for block in _blocks(f, path):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def _blocks(f: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the file in blocks of whole lines; an overlong line is cut, so `add` refuses it."""
    n_bytes, most = 0, most_from(path, RATIO)
    while block := f.read(BLOCK_BYTES) + f.readline(raw_day.MAX_LINE):
        n_bytes += len(block)
        if n_bytes > MAX_BYTES:
            raise InputError(
                f"{path}: holds more than {MAX_BYTES / 1e9:.3g} GB of rows, published days have "
                f"about 0.3; {raw_day.AGAIN}"
            )
        if n_bytes > most:
            check_expansion(n_bytes, path, f"{path}: unpacked, it", RATIO)
        yield block


class _BadRowsError(Exception):
    """A row of a block violates a rule of `RawDay`."""


class _Sums:
    """Running sums of a day; `add` applies the rules of `RawDay.fault` to one block at a time."""

    def __init__(self, day: raw_day.RawDay, per_step: int) -> None:
        self.day = day
        self.per_step = per_step
        self.n_steps = day.n_steps(per_step)
        self.n_intervals = day.n_intervals
        self.totals = np.zeros((len(SERVICES), self.n_steps * len(day.cells)))
        self.recorded = np.zeros(self.n_intervals, dtype=bool)
        self.occurs = np.zeros(len(day.cells), dtype=bool)
        self.n_rows = 0
        self.last_interval = 0
        self._position = np.full(day.cells[-1] + 1, -1)
        self._position[day.cells] = np.arange(len(day.cells))
        self._keys: list[np.ndarray] = []
        self._ascending = True

    def add(self, block: bytes) -> None:
        """Add a block of whole lines."""
        # Polars drops a byte order mark before a block and carriage returns after a number.
        _require(not block.startswith(codecs.BOM_UTF8))
        if b"\r" in block:  # a search is much faster than a count
            _require(block.count(b"\r") == block.count(b"\r\n") + block.endswith(b"\r"))
        keys = {"cell": pl.Int32, "interval": pl.Int64, "country": pl.Int32}
        schema = keys | dict.fromkeys(SERVICES, pl.Float64)
        frame = pl.read_csv(block, schema=schema, separator="\t", has_header=False, quote_char=None)
        # Polars fills a short row with nulls; only its tabs distinguish it from empty fields.
        n_tabs = np.count_nonzero(np.frombuffer(block, dtype=np.uint8) == ord("\t"))
        _require(n_tabs == frame.height * (len(raw_day.FIELDS) - 1))
        _require(not any(frame[key].null_count() for key in keys))
        ids = frame["cell"].to_numpy()
        _require(ids.min() >= 0 and ids.max() < len(self._position))
        cell = self._position[ids]
        _require(cell.min() >= 0)
        elapsed = frame["interval"].to_numpy() - self.day.start_ms
        interval = elapsed // raw_day.INTERVAL_MS
        _require(interval.min() >= 0 and interval.max() < self.n_intervals)
        _require((interval * raw_day.INTERVAL_MS == elapsed).all())
        bins = interval // self.per_step * len(self.occurs) + cell
        activity = frame.select(pl.col(SERVICES).fill_null(0.0))
        for total, service in zip(self.totals, activity, strict=True):
            values = service.to_numpy()
            _require(values.min() >= 0 and values.max() < np.inf)
            with np.errstate(over="ignore"):  # `write_chunks` checks for overflow
                np.add.at(total, bins, values)
        self.occurs[cell] = True
        self.recorded[interval] = True
        country = frame["country"].to_numpy()
        _require(country.min() >= 0)
        keys = ((cell * self.n_intervals + interval) << _COUNTRY_BITS) | country
        after = not self._keys or keys[0] > self._keys[-1][-1]
        self._ascending &= bool(after and (keys[1:] > keys[:-1]).all())
        self._keys.append(keys)
        self.last_interval = int(interval[-1])
        self.n_rows += len(cell)

    def repeated_row(self) -> tuple[int, int, int] | None:
        """Return cell id, interval and country code of a repeated row; None if there is none."""
        if self._ascending:  # the published order
            return None
        keys = np.sort(np.concatenate(self._keys))
        twice = keys[1:][keys[1:] == keys[:-1]]
        if not len(twice):
            return None
        place, country = divmod(int(twice[0]), 1 << _COUNTRY_BITS)
        cell, interval = divmod(place, self.n_intervals)
        return int(self.day.cells[cell]), interval, country

    def result(self, checksum: str) -> DaySums:
        """Return the sums of the cells that occur, NaN in incomplete steps."""
        complete = self.recorded.reshape(self.n_steps, self.per_step).all(axis=1)
        values = self.totals.reshape(len(SERVICES), self.n_steps, -1)[:, :, self.occurs]
        values[:, ~complete] = np.nan
        return DaySums(values, self.day.cells[self.occurs], self.recorded, checksum)


def _require(condition: object) -> None:
    if not condition:
        raise _BadRowsError("a row breaks the rules of the format")
