"""Series: one service of a cube as plain arrays with a calendar."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor

from data_prep.base.errors import InputError, Words, reading
from data_prep.cube import check_finite, check_values, observed
from data_prep.preparation import preparation_of
from data_prep.readers.times import OFFSET
from data_prep.readers.units import factor
from stforecast.data.clock import Calendar
from stforecast.data.covariates import Covariates, read_covariates
from stforecast.data.cubes import Data, choose_service, name_of, open_cube
from stforecast.data.events import Events, read_events
from stforecast.data.window_spec import WindowSpec

log = logging.getLogger(__name__)

LOCAL = "local"
"""Zone of times on a wall clock that is never converted."""


@dataclass(frozen=True, eq=False)
class Series:
    """Values of one service.

    Attributes:
        values: `(steps, cells)` float64 in `units`, NaN where nothing was recorded.
        cells: `(cells,)` ids.
        times: `(steps,)` start of each step, on the cube's clock.
        calendar: local time of the series, with its events if a table was read.
        service: name of the variable.
        units: unit of the variable.
        name: name of the data in messages: the path or the title.
        locations: `(cells, 2)` longitude and latitude in degrees, or None if not known.
        adjacency: `(cells, cells)` weights of the roads from row to column, or None if not known.
        covariates: further services and static columns, or None if no window reads any.
        zone: time zone of the index of forecasts, as that of the data; None for times without one.
        columns: name to `(cells,)` values of the cube that are the same at all times: `lon`, `lat`
            and others, such as an operator.
        preparation: how the cube was prepared, see `data_prep.preparation`; empty if not known.
        prepared_by: the command that prepared it; empty if not known.
        zero_is_missing: whether values of 0 were read as missing.
    """

    values: np.ndarray
    cells: np.ndarray
    times: pd.DatetimeIndex
    calendar: Calendar
    service: str
    units: str
    name: str
    locations: np.ndarray | None = None
    adjacency: np.ndarray | None = None
    covariates: Covariates | None = None
    zone: str | datetime.tzinfo | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    preparation: Mapping[str, Any] = field(default_factory=dict)
    prepared_by: str = ""
    zero_is_missing: bool = False

    @property
    def clock(self) -> str:
        """Clock of `times`: `"utc"` or `"local"`."""
        return "local" if self.calendar.time_zone is None else "utc"

    @property
    def time_zone(self) -> str:
        """Zone of the wall clock that calendar and lags follow, as a model remembers it.

        An IANA name; `LOCAL` for a cube on a wall clock; empty for a table without a zone.
        """
        if self.calendar.time_zone is None:
            return LOCAL
        return "" if self.zone is None else self.calendar.time_zone

    def zoned(self, times: pd.DatetimeIndex) -> pd.DatetimeIndex:
        """Return times on the clock of the series in `zone`, without a zone if that is None."""
        if self.zone is None:
            return times
        if self.clock == "local":  # Days of a zone, whose clock may skip a midnight.
            summer = np.ones(len(times), dtype=bool)
            return times.tz_localize(self.zone, ambiguous=summer, nonexistent="shift_forward")
        return times.tz_localize("UTC").tz_convert(self.zone)

    def in_zone(self, zone: str, of: str) -> Series:
        """Return the series with the wall clock of a zone; its instants stay as they are.

        Times of a table without a zone are taken as UTC or as a cube's wall clock, which are
        counted alike, never as those of a place. Messages name the zone `of` something, such as
        "the model".
        """
        own = self.time_zone
        # Times of a table without a zone count as those of a wall clock or of UTC.
        if own == zone or {own, zone} in ({"", LOCAL}, {"", "UTC"}):
            return self
        if own in ("", LOCAL):
            raise InputError(
                f"{self.name} has {_times_in(own)}, those of {of} are {_times_in(zone)}: its "
                "times cannot be placed; ",
                Words("prepare them with their {time_zone}, "),
                f"or a DataFrame by table.tz_localize('{zone}')",
            )
        if zone in ("", LOCAL):
            raise InputError(
                f"{self.name} has {_times_in(own)}, those of {of} are {_times_in(zone)}, which "
                "cannot be placed in a zone; give times on the same clock without a zone "
                "(table.tz_localize(None)), or fit again on data with a zone"
            )
        log.info("%s: %s are converted to %s, as %s has it", self.name, _times_in(own), zone, of)
        return dataclasses.replace(
            self, calendar=dataclasses.replace(self.calendar, time_zone=zone)
        )

    def in_units(self, units: str, of: str) -> Series:
        """Return the series in the unit `of` something, such as "the model", for messages."""
        if self.units == units:
            return self
        try:
            scale = factor(self.units, units)
        except InputError as e:
            raise InputError(
                f"{self.name}: {self.service} is in {_unit(self.units)}, that of {of} in "
                f"{_unit(units)}; ",
                Words("give it in that unit, and prepare it with {units}", units=units),
            ) from e
        if scale == 1.0:
            return dataclasses.replace(self, units=units)
        log.info("%s: %s times %g is in %s, as %s has it", self.name, self.units, scale, units, of)
        return dataclasses.replace(self, values=self.values * scale, units=units)

    def identity(self) -> tuple[dict[str, Tensor], str, str]:
        """Return the content for `fingerprint`: arrays by name, cells and clock."""
        arrays = {
            "values": self.values,
            "times": self.times.asi8,
            "locations": self.locations,
            "adjacency": self.adjacency,
            **(vars(self.covariates) if self.covariates else {}),
            **(self.calendar.events.arrays() if self.calendar.events else {}),
        }
        tensors = {n: torch.from_numpy(a) for n, a in arrays.items() if a is not None}
        return tensors, str(self.cells.tolist()), f"{self.service} {self.calendar}"

    def ordered(self) -> Series:
        """Return the series with its cells ordered by name, numbers within names by size.

        Random draws go by the place of a client, so forecasts of a cell do not depend on the order
        of columns.
        """
        names = [re.split(r"(\d+)", str(cell)) for cell in self.cells]
        keys = [[int(part) if i % 2 else part for i, part in enumerate(name)] for name in names]
        order = sorted(range(len(keys)), key=lambda i: (keys[i], str(self.cells[i])))
        return self if order == list(range(len(order))) else self.select(self.cells[order])

    def select(self, cells: np.ndarray) -> Series:
        """Select cells, in the given order; "10" is the cell 10."""
        position = cells_as_text(self.cells).get_indexer(cells_as_text(cells))
        if (position < 0).any():
            absent = np.asarray(cells)[position < 0]
            raise InputError(
                f"{self.name}: {len(absent)} of the {len(cells)} cells that the model was fitted "
                f"on are missing, e.g. {absent[0]}; give the history of all of them"
            )
        same = np.array_equal(position, np.arange(len(self.cells)))  # Copies take gigabytes.
        own = self if same else self.of_cells(position)
        return dataclasses.replace(own, cells=np.asarray(cells))

    def of_cells(self, position: np.ndarray) -> Series:
        """Return the series of the cells at these places, in this order."""
        return dataclasses.replace(
            self,
            values=self.values.take(position, axis=1),  # of the layout that was read
            cells=self.cells[position],
            locations=None if self.locations is None else self.locations[position],
            adjacency=(
                None if self.adjacency is None else self.adjacency[np.ix_(position, position)]
            ),
            columns={name: values[position] for name, values in self.columns.items()},
            calendar=self.calendar.of_cells(position),
            covariates=self.covariates and self.covariates.of_cells(position),
        )

    def with_events(
        self, table: str | os.PathLike[str], known: Sequence[str] | None = None
    ) -> Series:
        """Return the series with a table's events; `known` are the kinds that a model knows."""
        events = read_events(table, self.cells, self.calendar, self.name, known)
        return dataclasses.replace(self, calendar=dataclasses.replace(self.calendar, events=events))

    def preceded(self, n_steps: int) -> Series:
        """Return the series begun earlier by a number of steps, where nothing was recorded."""
        gap = np.full((n_steps, self.values.shape[1]), np.nan)
        times = self.times[0] - self.calendar.step * np.arange(n_steps, 0, -1)
        covariates = self.covariates and self.covariates.preceded(n_steps)
        before = pd.DatetimeIndex([*times, *self.times])
        return self._from(-n_steps, np.concatenate([gap, self.values]), before, covariates)

    def since(self, first: int) -> Series:
        """Return the series from a step on."""
        covariates = self.covariates and self.covariates.between(first)
        return self._from(first, self.values[first:], self.times[first:], covariates)

    def _from(
        self, first: int, values: np.ndarray, times: pd.DatetimeIndex, covariates: Covariates | None
    ) -> Series:
        """Return a series of other steps, whose calendar begins at the step `first` of this one."""
        start = self.calendar.start + first * self.calendar.step
        calendar = dataclasses.replace(self.calendar, start=start)
        return dataclasses.replace(
            self, values=values, times=times, covariates=covariates, calendar=calendar
        )


def cells_as_text(cells: np.ndarray) -> pd.Index:
    """Return ids of cells as text, so that those of a table match those of a cube."""
    return pd.Index(cells).astype(str)


def as_series(
    data: Data,
    service: str | None = None,
    window: WindowSpec | None = None,
    unread: Sequence[str] = (),
) -> Series:
    """Read one service from data of any accepted kind, and the covariates of windows.

    Further services that no model reads are `unread`, see `read_covariates`.
    """
    cube, name = open_cube(data), name_of(data)
    calendar = Calendar.from_cube(cube)
    values = observed(cube, choose_service(cube, service, name))
    check_values(values, name)
    with reading(name, f"at {values.name}", "prepare it again"):
        array = values.to_numpy().astype(np.float64, copy=False)
    cells = values["cell"].to_numpy()
    check_finite(array, str(values.name), values.indexes["time"], cells, name)
    by_cell = [n for n, v in cube.variables.items() if v.dims == ("cell",) and n != "cell"]
    with reading(name, f"at {', '.join(map(str, by_cell))}", "prepare it again"):
        columns = {str(n): cube[n].to_numpy() for n in by_cell}
    placed = {"lon", "lat"} <= columns.keys()
    return Series(
        values=array,
        cells=cube.indexes["cell"].to_numpy(),
        times=pd.DatetimeIndex(cube.indexes["time"]),
        calendar=calendar,
        service=str(values.name),
        units=str(values.attrs.get("units", "1")),
        name=name,
        locations=np.stack([columns["lon"], columns["lat"]], axis=1) if placed else None,
        adjacency=_adjacency(cube, name),
        covariates=read_covariates(cube, str(values.name), window, columns, name, unread),
        zone=_zone(data.index) if isinstance(data, pd.DataFrame) else calendar.time_zone,
        columns=columns,
        preparation=preparation_of(cube),
        prepared_by=str(cube.attrs.get("prepared_by", "")),
        zero_is_missing=bool(values.attrs.get("zero_is_missing", 0)),
    )


def _times_in(zone: str) -> str:
    """Describe times by their zone, see `Series.time_zone`."""
    clock = {"": "times without a zone", LOCAL: "times of a wall clock without a zone"}
    return clock.get(zone) or f"times in {zone}"


def _unit(units: str) -> str:
    return "no unit (1)" if units == "1" else units


def zeros(
    times: pd.DatetimeIndex,
    cells: np.ndarray,
    service: str,
    window: WindowSpec,
    units: str,
    zone: str,
) -> Series:
    """Return a series of zeros with the covariates that windows read, zeros too, and no event.

    `zone` is as `Series.time_zone`.
    """
    n_steps, n_cells = len(times), len(cells)
    covariates = None
    if window.n_covariates:
        observed = np.zeros((n_steps, n_cells, len(window.services)))
        covariates = Covariates(observed, np.zeros((n_cells, len(window.columns))))
    events = Events.none(window.kinds, n_cells)
    place = None if zone in ("", LOCAL) else zone
    calendar = Calendar(times[0], times[1] - times[0], place, events)
    return Series(
        np.zeros((n_steps, n_cells)), cells, times, calendar, service, units, "zeros",
        covariates=covariates, zone=place,
    )  # fmt: skip


def _zone(index: pd.Index) -> datetime.tzinfo | str | None:
    """Return the time zone of a table's index; None if its times have none."""
    if isinstance(index, pd.DatetimeIndex):
        return index.tz
    if pd.api.types.is_numeric_dtype(index):
        return "UTC"  # Numbers count from 1970 UTC.
    return "UTC" if re.search(OFFSET, str(index[0])) else None


def _adjacency(cube: xr.Dataset, name: str) -> np.ndarray | None:
    """Return `(cells, cells)` weights in the order of the cells, without other ends of roads."""
    if "adjacency" not in cube or set(cube["adjacency"].dims) != {"cell", "cell_to"}:
        return None
    check_values(cube["adjacency"], name)
    weights, cells = cube["adjacency"].transpose("cell", "cell_to"), cube.indexes["cell"]
    position = pd.Index(cube["cell_to"].to_numpy()).get_indexer(cells)
    if (position < 0).any():
        raise InputError(
            f"{name}: cell {cells[position < 0][0]} is not in 'cell_to' of the adjacency; prepare "
            "the cube again"
        )
    with reading(name, "at adjacency", "prepare it again"):
        array = weights.to_numpy()[:, position].astype(np.float64)
    if not (np.isfinite(array) & (array >= 0)).all():
        raise InputError(
            f"{name}: the adjacency has weights that are negative or not finite, expected 0 or "
            "more; prepare the cube again"
        )
    return array
