"""Sums of forecasts over groups of cells, such as sites, sectors and a city, with bounds.

The forecast of a group is the sum of its cells' forecasts, so levels add up. Its bounds are not the
sums of bounds, which cover too much, as errors cancel in part. The distances from forecast to bound
are added, and multiplied by a factor for each group, step ahead and side. It follows the errors of
the same sums in the tested forecasts, in the way that the bounds of cells follow theirs
(`stforecast.intervals.radii`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, choose, counted, some
from data_prep.readers.units import is_speed
from stforecast.data.events import read_texts
from stforecast.data.series import Series
from stforecast.forecasting.planning import Threshold
from stforecast.forecasting.tables import Interval
from stforecast.intervals.calibration import tracked_side

log = logging.getLogger(__name__)

CELL, ALL = "cell", "all"
"""Level of cells, and level of their total."""

BLOCK = 512
"""Cells whose tested forecasts are in memory at a time."""

REMEDY = "give a CSV file with a column cell and one for each level, such as cell,site,sector"


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of each cell on one or more levels.

    Attributes:
        levels: `(groups,)` level of each group, such as `site`.
        names: `(groups,)` its name within the level.
        of: `(levels, cells)` number of the group of each cell.
        cells: `(cells,)` ids.
    """

    levels: tuple[str, ...]
    names: tuple[str, ...]
    of: np.ndarray
    cells: np.ndarray

    @classmethod
    def of_columns(cls, columns: Mapping[str, Sequence[str]], cells: np.ndarray) -> Groups:
        """Return the groups of columns `(cells,)` by level; the total is added if none has it.

        >>> found = Groups.of_columns({"site": ["a", "a", "b"]}, np.array([1, 2, 3]))
        >>> found.labels, found.sum(np.array([1.0, 2.0, 4.0])).tolist()
        (['site a', 'site b', 'all'], [3.0, 4.0, 7.0])
        """
        if all(len(set(texts)) > 1 for texts in columns.values()):
            columns = {**columns, ALL: [ALL] * len(cells)}
        levels: list[str] = []
        names: list[str] = []
        numbers = []
        for level, texts in columns.items():
            codes, found = pd.factorize(pd.Series(texts, dtype=str), sort=True)
            numbers.append(codes + len(names))
            levels += [level] * len(found)
            names += [str(name) for name in found]
        return cls(tuple(levels), tuple(names), np.array(numbers), cells)

    @property
    def labels(self) -> list[str]:
        """Level and name of each group."""
        pairs = zip(self.levels, self.names, strict=True)
        return [level if level == ALL else f"{level} {name}" for level, name in pairs]

    @property
    def sizes(self) -> np.ndarray:
        """Number of cells of each group."""
        return np.bincount(self.of.ravel(), minlength=len(self.names))

    def sum(self, values: np.ndarray, some_cells: slice = slice(None)) -> np.ndarray:
        """Return the sums `(groups, …)` of values `(cells, …)`, of all cells or of some."""
        found = np.zeros((len(self.names), *values.shape[1:]))
        for numbers in self.of[:, some_cells]:
            np.add.at(found, numbers, values)
        return found

    def sum_table(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the sums (time × group) of a table (time × cell), over the cells that it knows."""
        values = self.sum(table.fillna(0.0).to_numpy().T).T
        some_known = self.sum(table.notna().to_numpy(float).T).T > 0
        found = pd.DataFrame(np.where(some_known, values, np.nan), table.index, self.labels)
        # A sum may lie at a limit of cells without having been cut there.
        found.attrs = {name: v for name, v in table.attrs.items() if name != "limits"}
        return found

    def leveled(self, table: pd.DataFrame) -> pd.DataFrame:
        """Insert a column `level`, with names in place of labels of groups in the column `cell`."""
        pairs = zip(self.levels, self.names, strict=True)
        known = dict(zip(self.labels, pairs, strict=True))
        of = [known.get(label, (CELL, label)) for label in table["cell"]]
        table["cell"] = [name for _, name in of]
        table.insert(list(table).index("cell"), "level", [level for level, _ in of])
        return table

    def thresholds(self, threshold: Threshold | None) -> dict[object, float] | None:
        """Return the threshold of each group, by its label.

        It is given for the group, as for `site north`, or for all groups of its level, as for
        `site`. Otherwise it is the sum of its cells' thresholds: capacities add up.
        """
        if threshold is None:
            return None
        own: dict[str, float] = {}
        common = np.nan
        if isinstance(threshold, Mapping):
            own = {str(cell): float(value) for cell, value in threshold.items()}
        else:
            common = float(threshold)
        sums = self.sum(np.array([own.get(str(cell), common) for cell in self.cells]))
        rows = zip(self.labels, self.levels, sums.tolist(), strict=True)
        return {name: own.get(name, own.get(level, total)) for name, level, total in rows}


def read_groups(text: str, series: Series, *, percent: bool = False) -> Groups:
    """Return the groups of a series' cells, by a table of members or by columns of the cube.

    Args:
        text: a CSV file with a column `cell` and one for each level, or names of columns of the
            cube, separated by commas. Cells of the file that the series has not are ignored.
        series: the series to forecast.
        percent: whether to accept loads in %, whose sums mean nothing.

    Raises:
        InputError: if a cell has no group on a level, or sums of the service mean nothing.
    """
    if not (percent and series.units == "%"):
        check_adds_up(series.service, series.units)
    columns = _of_file(Path(text), series) if text.endswith(".csv") else _of_cube(text, series)
    for level, texts in columns.items():
        if lost := [c for c, name in zip(series.cells, texts, strict=True) if not name]:
            raise InputError(
                f"{text}: {counted(len(lost), 'cell')} without a {level}: {some(lost)}; name one "
                "for each cell"
            )
    return Groups.of_columns(columns, series.cells)


def check_adds_up(service: str, units: str) -> None:
    """Refuse sums of a service that mean nothing."""
    if is_speed(service, units) or units == "%":
        raise InputError(
            f"groups add values up, and sums of {service} ({units}) mean nothing; leave them out, "
            "or forecast a service of counts or volumes"
        )


def _of_file(path: Path, series: Series) -> dict[str, list[str]]:
    table = read_texts(path, "table of groups", (CELL,), REMEDY)
    if len(table.columns) < 2 or CELL in table.columns[table.columns.duplicated()]:
        raise InputError(f"{path}: no column of a level, only cells; {REMEDY}")
    table = table.set_index(CELL).reindex([str(cell) for cell in series.cells]).fillna("")
    return {str(level): table[level].tolist() for level in table}


def _of_cube(text: str, series: Series) -> dict[str, list[str]]:
    known = series.columns
    columns = {}
    for name in [part.strip() for part in text.split(",")]:
        if name not in known:
            if not known:
                raise InputError(f"group {name!r}: {series.name} has no columns by cell; {REMEDY}")
            raise InputError(choose("group", name, list(known)), f"; or {REMEDY}")
        columns[name] = ["" if pd.isna(v) else str(v) for v in known[name].tolist()]
    return columns


@dataclass(frozen=True, eq=False)
class SumErrors:
    """Errors of sums in tested forecasts, and the factors that follow from them.

    Attributes:
        forecasts: `y`, `y_hat`, `lower` and `upper` of groups, with dimensions `(cell, time,
            horizon)`, of the second half of the windows.
        factor: `(groups, horizon, 2)` by which added distances are multiplied, down and up.
        coverage: share of the sums within these bounds, by level.
    """

    forecasts: xr.Dataset
    factor: np.ndarray
    coverage: Mapping[str, float]

    @classmethod
    def of(cls, tested: xr.Dataset, groups: Groups) -> SumErrors:
        """Return the errors of tested forecasts with bounds, see `Forecaster.test_forecasts`.

        The first half of the windows begins the factors, and the second half moves them. A cell
        that is missing or without finite bounds is left out of both forecast and sum.
        """
        return cls.of_sums(added(tested, groups), groups, float(tested.attrs["coverage"]))

    @classmethod
    def of_sums(cls, sums: np.ndarray, groups: Groups, coverage: float) -> SumErrors:
        """Return the errors of sums `(5, groups, windows, horizon)` of `added`; see `of`."""
        y, y_hat, down, up = np.where(sums[4] > 0, sums[:4], np.nan)
        n = y.shape[1] // 2
        sides, after, one = [], [], np.ones(1)
        for error, reach in ((y_hat - y, down), (y - y_hat, up)):
            with np.errstate(divide="ignore", invalid="ignore"):
                scores = np.where(reach > 0, error / reach, np.nan)
            factors, last = tracked_side(
                scores[:, :n], scores[:, n:], (one, one), 0 * one, (1 + coverage) / 2
            )
            factors = np.minimum(factors, last)
            factors[groups.sizes == 1] = 1.0  # Its bounds are its cell's.
            sides.append(factors[:, :-1] * reach[:, n:])
            after.append(factors[:, -1])
        y, y_hat = y[:, n:], y_hat[:, n:]
        values = {"y": y, "y_hat": y_hat, "lower": y_hat - sides[0], "upper": y_hat + sides[1]}
        dims = ("cell", "time", "horizon")
        found = xr.Dataset(
            {name: (dims, v) for name, v in values.items()},
            {"cell": groups.labels},
            {"coverage": coverage},
        )
        known = np.isfinite(y) & np.isfinite(sides[0] + sides[1])
        inside = (values["lower"] <= y) & (y <= values["upper"])
        shares = {}
        for level in dict.fromkeys(groups.levels):
            # Windows whose factors read no target that was unknown then.
            own = (np.array(groups.levels) == level)[:, None, None] & known
            own[:, : y.shape[2]] = False
            if own.any():
                shares[level] = float(inside[own].mean())
        return cls(found, np.stack(after, axis=-1), shares)

    def bounds(
        self, forecast: pd.DataFrame, of_cells: tuple[pd.DataFrame, Interval], groups: Groups
    ) -> Interval:
        """Return bounds of sums (time × group) from the forecasts and bounds of their cells.

        Cells with infinite bounds, as too few errors are known, add no distance; beyond the
        tested steps there are no bounds.
        """
        centre, interval = of_cells
        factor = np.full((len(forecast), len(groups.names), 2), np.nan)
        steps = min(len(forecast), self.factor.shape[1])
        factor[:steps] = self.factor[:, :steps].transpose(1, 0, 2)
        endless = np.isinf((interval.upper - interval.lower).to_numpy()).any(axis=0)
        if endless.any():
            log.warning(
                "bounds of groups leave out %s, whose own are infinite: %s",
                counted(int(endless.sum()), "cell"),
                some(centre.columns[endless].tolist()),
            )
        tables = []
        for side, bound in enumerate(interval):
            reach = (bound - centre).mask(np.isinf(bound), 0.0)
            table = forecast + factor[..., side] * groups.sum_table(reach)
            table.attrs = {**forecast.attrs, "coverage": bound.attrs["coverage"]}
            tables.append(table)
        return Interval(*tables)


def added(tested: xr.Dataset, groups: Groups) -> np.ndarray:
    """Return sums of targets, forecasts and both distances to bounds, and numbers of known cells.

    Their shape is `(5, groups, windows, horizon)`. They add up over parts of the cells.
    """
    tested = tested.reindex(cell=groups.cells)
    shape = (len(groups.names), tested.sizes["time"], tested.sizes["horizon"])
    found = np.zeros((5, *shape))
    for start in range(0, tested.sizes["cell"], BLOCK):
        cells = slice(start, start + BLOCK)
        block = tested.isel(cell=cells)
        y, y_hat, lower, upper = (
            block[name].to_numpy().astype(float) for name in ("y", "y_hat", "lower", "upper")
        )
        known = np.isfinite(y) & np.isfinite(upper - lower) & np.isfinite(y_hat)
        y_hat = np.clip(y_hat, lower, upper)
        parts = (y, y_hat, y_hat - lower, upper - y_hat)
        for total, part in zip(found, (*parts, 1.0), strict=True):
            total += groups.sum(np.where(known, part, 0.0), cells)
    return found
