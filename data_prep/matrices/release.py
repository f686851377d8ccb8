"""Convert published traffic matrices to a cube, whose cells are pairs of routers."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from tqdm import tqdm

from data_prep.checksum import checksum
from data_prep.cube import make_cube, write_cube
from data_prep.errors import InputError, no_file
from data_prep.limits import check_size
from data_prep.matrices.snapshots import Demands, read_snapshot, time_of
from data_prep.matrices.weeks import find_weeks, read_pairs, read_week
from data_prep.roads.steps import average, step_length, values_of

MANY = 100
"""Number of files above which one checksum stands for all of them."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrafficMatrices:
    """A published set; its module uses this class's `read` and `prepare`.

    Args:
        title: title of the cube.
        source: origin of the matrices.
        step: length of a step.
        patterns: globs of files that hold a matrix each, tried in this order.
        weekly: whether Abilene's weekly files are read, too, if there are any.
        advice: what to do about a folder without files.
    """

    title: str
    source: str
    step: str
    patterns: Sequence[str]
    weekly: bool
    advice: str

    def prepare(self, raw: Path, out: Path, *, progress: bool = False, **options: Any) -> Path:
        """Turn the published matrices into a cube.

        Args:
            raw: The folder of the published files.
            out: The cube to write, a .nc file.
            progress: Show a progress bar.
            **options: Options of `read`.

        Returns:
            The path of the cube.

        Raises:
            InputError: as `read`.
        """
        return write_cube(self._read(raw, progress=progress, **options), out)

    def read(self, raw: Path, *, step: str | None = None) -> xr.Dataset:
        """Read the published matrices as a cube.

        Args:
            raw: The folder of the published files.
            step: Length of a time step, by default as published, or a multiple that divides a day.
                Longer steps hold the mean traffic of the matrices that exist.

        Returns:
            The cube.

        Raises:
            InputError: if a file is invalid, or there is none; names it.
        """
        return self._read(raw, step=step)

    def _read(self, raw: Path, step: str | None = None, progress: bool = False) -> xr.Dataset:
        base = pd.Timedelta(self.step)
        length = step_length(step or self.step, base)
        raw = Path(raw)
        if raw.is_file():
            raise InputError(f"{raw}: a file, expected a folder of traffic matrices; {self.advice}")
        if not raw.is_dir():
            raise no_file(raw, "folder of traffic matrices", self.advice)
        paths = find_weeks(raw) if self.weekly else []
        found = _read_weeks(paths, raw, progress) if paths else None
        for pattern in self.patterns:
            if found is None and (paths := sorted(raw.glob(pattern))):
                found = _read_snapshots(paths, progress)
        if found is None:
            raise InputError(f"{raw}: no traffic matrix in this folder; {self.advice}")
        frame = average(self._on_axis(found, base), length, zero_is_missing=False)
        return make_cube(
            values_of({"traffic": frame}),
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
    for path in tqdm(paths, desc="prepare", unit="file", disable=not progress):
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
    read = tqdm(paths, desc="prepare", unit="file", disable=not progress)
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
