"""Read Abilene's weeks of traffic matrices, `X01.gz` to `X24.gz`.

A line is a matrix. It has five values for each pair of routers, the measured one and four estimates
of it, in units of 100 bytes in 5 minutes; 100 is the sampling rate of packets. The files have no
times; the publisher's readme dates the first day of each file
(www.cs.utexas.edu/~yzhang/research/AbileneTM/).
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd

from data_prep.errors import InputError, reading
from data_prep.limits import gunzip, read_bounded

STEPS = 7 * 288
ESTIMATES = 5
"""Values of each pair; the first one is measured."""

MBPS = 100 * 8 / 300 / 1e6
"""Mbit/s in 100 bytes in 5 minutes."""

FIELD = 64
"""Bytes of memory for a value while it is text."""

FIRST_DAYS = {
    "X01": "2004-03-01", "X02": "2004-03-08", "X03": "2004-04-02", "X04": "2004-04-09",
    "X05": "2004-04-22", "X06": "2004-05-01", "X07": "2004-05-08", "X08": "2004-05-15",
    "X09": "2004-05-22", "X10": "2004-05-29", "X11": "2004-06-05", "X12": "2004-06-12",
    "X13": "2004-06-19", "X14": "2004-06-26", "X15": "2004-07-03", "X16": "2004-07-10",
    "X17": "2004-07-17", "X18": "2004-07-24", "X19": "2004-07-31", "X20": "2004-08-07",
    "X21": "2004-08-13", "X22": "2004-08-21", "X23": "2004-08-28", "X24": "2004-09-04",
}  # fmt: skip
"""First day of each week, by the publisher's readme."""

REMEDY = "download it again"


def find_weeks(folder: Path) -> list[Path]:
    """Return the weeks in a folder, in order."""
    paths = [folder / f"{week}.gz" for week in FIRST_DAYS]
    return [path for path in paths if path.is_file()]


def read_week(path: Path) -> pd.DataFrame:
    """Return the measured traffic of a week in Mbit/s, `(time, pair)`.

    Raises:
        InputError: if it does not have 2,016 lines of five values for each pair.
    """
    with reading(path.name, "as a week of traffic matrices", REMEDY):
        text = gunzip(path, lambda part: len(part) + FIELD * part.count(b" "))
        fields = [line.split() for line in text.splitlines()]
        if len(fields) != STEPS:
            raise ValueError(f"{len(fields)} lines, expected {STEPS}, one for each 5 minutes")
        n_pairs, over = divmod(len(fields[0]), ESTIMATES)
        for number, line in enumerate(fields, 1):
            if len(line) != len(fields[0]) or over or math.isqrt(n_pairs) ** 2 != n_pairs:
                raise ValueError(
                    f"line {number}: {len(line)} values, expected 720, five for each of 12 × 12 "
                    "pairs"
                )
        values = np.array([line[::ESTIMATES] for line in fields]).astype(np.float64) * MBPS
    wrong = np.argwhere(~(values >= 0) | np.isinf(values))
    if wrong.size:
        row, pair = wrong[0]
        raise InputError(
            f"{path.name}, line {row + 1}: pair {pair + 1} has {values[row, pair]} Mbit/s, "
            f"expected a number from 0 up; {REMEDY}"
        )
    times = pd.date_range(FIRST_DAYS[path.stem], periods=STEPS, freq="5min")
    return pd.DataFrame(values, index=times)


def read_pairs(path: Path, n_pairs: int) -> list[tuple[str, str]]:
    """Read the file `demands`: lines of `origin,destination number`, after a line of comment.

    Raises:
        InputError: if it does not name each pair once.
    """
    lines = read_bounded(path, 2**20).decode(errors="replace").splitlines()
    found = [re.fullmatch(r"([^\s,]+),([^\s,]+)\s+(\d+)\s*", line) for line in lines]
    pairs = {int(match[3]): (match[1], match[2]) for match in found if match}
    if sorted(pairs) != list(range(1, n_pairs + 1)) or len(set(pairs.values())) != n_pairs:
        raise InputError(
            f"{path.name}: {len(pairs)} pairs of routers, expected lines such as 'ATLAng,NYCMng "
            f"10' for the numbers 1 to {n_pairs}; {REMEDY}"
        )
    return [pairs[number] for number in sorted(pairs)]
