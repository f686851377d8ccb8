"""Convert published traffic matrices to a cube, whose cells are pairs of routers.

A matrix is a file of its own, as TOTEM and SNDlib publish them:

- TOTEM: `IntraTM-2005-01-01-00-15.xml`; elements `src` (id) with `dst` (id) that hold numbers, and
  `unit` with the value `bps`, `kbps`, `mbps`, `gbps` or `tbps`
  (totem.run.montefiore.ulg.ac.be/doc/UserGuide/node5.html).
- SNDlib: `demandMatrix-NETWORK-5min-20040301-0000.xml`, elements `demand` of `source`, `target` and
  `demandValue`, and `meta` with the unit `MBITPERSEC`; or the same as text in SNDlib's native
  format, `.txt` (sndlib.put.poznan.pl/html/docu/io-formats). Demands of 0 are left out there.

Or it is a line of Abilene's weeks, `X01.gz` to `X24.gz`. It has five values for each pair of
routers, the measured one and four estimates of it, in units of 100 bytes in 5 minutes; 100 is the
sampling rate of packets. The files have no times; the publisher's readme dates the first day of
each file (www.cs.utexas.edu/~yzhang/research/AbileneTM/).
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, no_file, reading
from data_prep.base.files import checksum
from data_prep.base.limits import check_size, gunzip, read_bounded
from data_prep.base.progress import each
from data_prep.cube import make_cube, write_cube
from data_prep.readers.resampling import step_of_multiple
from data_prep.sets.roads.common import average

TOTEM = "IntraTM-*.xml"
MBPS = {"bps": 1e-6, "kbps": 1e-3, "mbps": 1.0, "gbps": 1e3, "tbps": 1e6, "MBITPERSEC": 1.0}
"""Mbit/s in each unit."""

MOST = 2**22
"""Maximum bytes of a matrix."""

REMEDY = "unpack or download it again"
_TIME = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)-(\d\d)-?(\d\d)\.(?:xml|txt)")
_DEMAND = re.compile(r"\s*\S+\s*\(\s*(\S+)\s+(\S+)\s*\)\s+\S+\s+(\S+)")

Demands = dict[tuple[str, str], float]


def time_of(path: Path) -> pd.Timestamp:
    """Return the time at the end of a matrix's name.

    >>> time_of(Path("demandMatrix-abilene-zhang-5min-20040301-0005.xml"))
    Timestamp('2004-03-01 00:05:00')
    >>> time_of(Path("IntraTM-2005-01-01-00-15.xml"))
    Timestamp('2005-01-01 00:15:00')
    """
    found = _TIME.search(path.name)
    with reading(path.name, "as a matrix of a time", "keep the published names"):
        if found is None:
            raise ValueError("its name does not end in a time")
        year, month, day, hour, minute = map(int, found.groups())
        return pd.Timestamp(year, month, day, hour, minute)


def read_snapshot(path: Path) -> Demands:
    """Return the traffic in Mbit/s by origin and destination."""
    text = read_bounded(path, MOST)
    native = path.suffix == ".txt"
    with reading(path.name, "as a traffic matrix", REMEDY):
        unit, demands = _native(text.decode()) if native else _xml(text)
        values = {}
        for origin, destination, value in demands:
            if (origin, destination) in values:
                raise ValueError(f"{origin} to {destination} is there twice")
            values[origin, destination] = float(value) * MBPS[unit]
    for (origin, destination), number in values.items():
        if not 0 <= number < np.inf:
            raise InputError(
                f"{path.name}: {number} Mbit/s from {origin} to {destination}, expected a number "
                f"from 0 up; {REMEDY}"
            )
    return values


def _xml(text: bytes) -> tuple[str, list[tuple[str, str, str]]]:
    """Return the unit, and origin, destination and value of each demand, of either XML format."""
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:  # entities can unpack to gigabytes
        raise ValueError("it defines its own entities")
    root = ET.fromstring(text)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    unit = root.find(".//unit")
    if unit is None:
        raise ValueError("it states no unit")
    name = unit.get("value") or (unit.text or "").strip()
    if name not in MBPS:
        raise ValueError(f"its unit is {name!r}, expected one of {', '.join(MBPS)}")
    return name, [*_totem(root), *_sndlib(root)]


def _totem(root: ET.Element) -> Iterator[tuple[str, str, str]]:
    for source in root.iter("src"):
        for target in source.iter("dst"):
            yield source.attrib["id"], target.attrib["id"], target.text or ""


def _sndlib(root: ET.Element) -> Iterator[tuple[str, str, str]]:
    for demand in root.iter("demand"):
        parts = [demand.findtext(tag) for tag in ("source", "target", "demandValue")]
        origin, destination, value = ((part or "").strip() for part in parts)
        yield origin, destination, value


def _native(text: str) -> tuple[str, list[tuple[str, str, str]]]:
    """Return the unit and the demands of SNDlib's native format."""
    if not re.search(r"unit\s*=\s*MBITPERSEC", text):
        raise ValueError("its unit is not MBITPERSEC")
    _, heading, rest = text.partition("DEMANDS (")
    if not heading:
        raise ValueError("it has no section DEMANDS")
    lines = rest.partition("\n)")[0].splitlines()
    found = [(line, _DEMAND.match(line)) for line in lines if line.strip(" )")]
    if odd := [line for line, match in found if match is None]:
        raise ValueError(f"{odd[0].strip()!r:.100} is no demand")
    return "MBITPERSEC", [(m[1], m[2], m[3]) for _, m in found if m]


STEPS = 7 * 288
ESTIMATES = 5
"""Values of each pair; the first one is measured."""

MBPS_OF_100_BYTES = 100 * 8 / 300 / 1e6
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

WEEK_REMEDY = "download it again"


def read_week(path: Path) -> pd.DataFrame:
    """Return the measured traffic of a week in Mbit/s, `(time, pair)`; it has 2,016 lines."""
    with reading(path.name, "as a week of traffic matrices", WEEK_REMEDY):
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
        values = (
            np.array([line[::ESTIMATES] for line in fields]).astype(np.float64) * MBPS_OF_100_BYTES
        )
    wrong = np.argwhere(~(values >= 0) | np.isinf(values))
    if wrong.size:
        row, pair = wrong[0]
        raise InputError(
            f"{path.name}, line {row + 1}: pair {pair + 1} has {values[row, pair]} Mbit/s, "
            f"expected a number from 0 up; {WEEK_REMEDY}"
        )
    times = pd.date_range(FIRST_DAYS[path.stem], periods=STEPS, freq="5min")
    return pd.DataFrame(values, index=times)


def read_pairs(path: Path, n_pairs: int) -> list[tuple[str, str]]:
    """Read the file `demands`: lines of `origin,destination number`, after a line of comment."""
    lines = read_bounded(path, 2**20).decode(errors="replace").splitlines()
    found = [re.fullmatch(r"([^\s,]+),([^\s,]+)\s+(\d+)\s*", line) for line in lines]
    pairs = {int(match[3]): (match[1], match[2]) for match in found if match}
    if sorted(pairs) != list(range(1, n_pairs + 1)) or len(set(pairs.values())) != n_pairs:
        raise InputError(
            f"{path.name}: {len(pairs)} pairs of routers, expected lines such as 'ATLAng,NYCMng "
            f"10' for the numbers 1 to {n_pairs}; {WEEK_REMEDY}"
        )
    return [pairs[number] for number in sorted(pairs)]


MANY = 100
"""Number of files above which one checksum stands for all of them."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrafficMatrices:
    """A published set; its module uses this class's `read` and `prepare`.

    Globs of files that hold a matrix each are tried in their order; a `weekly` set may also have
    Abilene's weekly files. `advice` is what to do about a folder without files.
    """

    title: str
    source: str
    step: str
    patterns: Sequence[str]
    weekly: bool
    advice: str

    def prepare(self, raw: Path, out: Path, **options: Any) -> Path:
        """Write the cube that `read` returns, a .nc file."""
        return write_cube(self.read(raw, **options), out)

    def read(self, raw: Path, *, step: str | None = None, progress: bool = False) -> xr.Dataset:
        """Read the published matrices as a cube.

        Args:
            raw: The folder of the published files.
            step: Length of a time step, by default as published, or a multiple that divides a day.
                Longer steps hold the mean traffic of the available matrices.
            progress: Show a progress bar.

        Raises:
            InputError: if a file is invalid, or there is none; names it.
        """
        base = pd.Timedelta(self.step)
        length = step_of_multiple(step or self.step, base)
        raw = Path(raw)
        if raw.is_file():
            raise InputError(f"{raw}: a file, expected a folder of traffic matrices; {self.advice}")
        if not raw.is_dir():
            raise no_file(raw, "folder of traffic matrices", self.advice)
        weeks = [raw / f"{week}.gz" for week in FIRST_DAYS] if self.weekly else []
        paths = [path for path in weeks if path.is_file()]
        found = _read_weeks(paths, raw, progress) if paths else None
        for pattern in self.patterns:
            if found is None and (paths := sorted(raw.glob(pattern))):
                found = _read_snapshots(paths, progress)
        if found is None:
            raise InputError(f"{raw}: no traffic matrix in this folder; {self.advice}")
        frame = average(self._on_axis(found, base), length, zero_is_missing=False)
        return make_cube(
            {"traffic": frame.to_numpy(dtype=np.float64)},
            pd.DatetimeIndex(frame.index),
            frame.columns.to_numpy(dtype=str),
            title=self.title,
            source=self.source,
            license="not stated by the publishers",
            units="Mbit/s",
            long_names={"traffic": "mean traffic from one router to another"},
            checksums=_checksums(paths),
        )

    def _on_axis(self, frame: pd.DataFrame, base: pd.Timedelta) -> pd.DataFrame:
        """Put matrices on an even time axis, NaN where there is none."""
        times = pd.DatetimeIndex(frame.index)
        axis = pd.date_range(times[0], times[-1], freq=base)
        odd = times[~times.isin(axis)]
        if len(odd):
            raise InputError(
                f"a matrix of {odd[0]} is between the steps of {self.step} from {times[0]}; give "
                "the published files only"
            )
        check_size(8 * len(axis) * frame.shape[1], "the cube")
        absent = len(axis) - int(frame.notna().any(axis=1).sum())
        if absent:
            log.warning("%d of %d steps have no matrix; left as NaN", absent, len(axis))
        return frame.reindex(axis)


def _read_weeks(paths: Sequence[Path], folder: Path, progress: bool) -> pd.DataFrame:
    """Return the traffic of Abilene's weeks, `(time, pair)`."""
    frames: list[pd.DataFrame] = []
    for path in each(paths, "matrices", "file", progress=progress):
        frame = read_week(path)
        if frames and frame.shape[1] != frames[0].shape[1]:
            raise InputError(
                f"{path.name}: {frame.shape[1]} pairs of routers, {paths[0].name} has "
                f"{frames[0].shape[1]}; download them again"
            )
        frames.append(_without_overlap(frame, frames, path))
    traffic = pd.concat(frames)
    n_pairs = traffic.shape[1]
    names = folder / "demands"
    if names.is_file():
        columns = ["_".join(pair) for pair in read_pairs(names, n_pairs)]
    else:
        log.warning("%s: no file demands here; pairs of routers are numbered from 1", folder)
        columns = [str(number) for number in range(1, n_pairs + 1)]
    return traffic.set_axis(columns, axis="columns")


def _without_overlap(
    frame: pd.DataFrame, before: Sequence[pd.DataFrame], path: Path
) -> pd.DataFrame:
    """Return the rows of a week that the one before it does not hold; both must agree."""
    if not before:
        return frame
    common = frame.index.intersection(before[-1].index)
    if not frame.loc[common].equals(before[-1].loc[common]):
        raise InputError(
            f"{path.name}: differs from the week before on {common[0]:%Y-%m-%d}, which both hold "
            "by the publisher's dates; download both again"
        )
    return frame.drop(common)


def _read_snapshots(paths: Sequence[Path], progress: bool) -> pd.DataFrame:
    """Return the traffic of matrices in files of their own, `(time, pair)`.

    A pair that a matrix leaves out has no traffic; a matrix without any traffic is missing.
    """
    times = [time_of(path) for path in paths]
    read = each(paths, "matrices", "file", progress=progress)
    matrices: list[Demands] = [read_snapshot(path) for path in read]
    pairs = sorted({pair for matrix in matrices for pair in matrix}, key=_by_number)
    if not pairs:
        raise InputError(f"{paths[0].parent}: all matrices are empty; download them again")
    check_size(8 * len(times) * len(pairs), "the traffic")
    traffic = np.full((len(times), len(pairs)), np.nan)
    for row, matrix in zip(traffic, matrices, strict=True):
        if any(matrix.values()):
            row[:] = [matrix.get(pair, 0.0) for pair in pairs]
    frame = pd.DataFrame(traffic, index=times, columns=["_".join(pair) for pair in pairs])
    return frame.sort_index()


def _by_number(pair: tuple[str, str]) -> tuple[int, str, int, str]:
    """Sort key of a pair of routers that puts 2 before 12."""
    origin, destination = pair
    return len(origin), origin, len(destination), destination


def _checksums(paths: Sequence[Path]) -> dict[str, str]:
    """Return the checksum of each file, or one of their list if there are many."""
    sums = {path.name: checksum(path) for path in paths}
    if len(sums) <= MANY:
        return sums
    listed = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    return {f"{len(sums)} files": f"sha256:{hashlib.sha256(listed.encode()).hexdigest()}"}
