"""Convert the raw days of Telecom Italia's open data to a cube, for Milan and Trentino.

`cdr` sums each day and `folder` caches the sums; then the cube is written one day at a time.
Neither step holds more than one day in memory.

Source: G. Barlacchi et al., "A multi-source dataset of urban life in the city of Milan and the
Province of Trentino", Scientific Data 2, 150055 (2015).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.base.files import check_target
from data_prep.base.progress import each
from data_prep.city.simulate import read_marker
from data_prep.cube import make_cube, write_chunks
from data_prep.preparation import as_attribute
from data_prep.readers.resampling import step_of_multiple
from data_prep.sets.telecom_italia import folder
from data_prep.sets.telecom_italia.cdr import SERVICES
from data_prep.sets.telecom_italia.cells import CellGrid, Selection, read_grid
from data_prep.sets.telecom_italia.raw_day import INTERVAL, RawDay

LONG_NAMES = {
    "sms_in": "SMS received",
    "sms_out": "SMS sent",
    "call_in": "calls received",
    "call_out": "calls made",
    "internet": "internet activity",
    "sms": "SMS received and sent",
    "call": "calls received and made",
    "net": "internet activity",
}
"""The cube's variables. Activity is proportional to the number of records and has no unit."""


Spread = Callable[
    [Callable[[RawDay], folder.StoredDay], Sequence[RawDay]], Iterable[folder.StoredDay]
]
"""Calls a function with each raw day and returns the results in order."""


@dataclass(frozen=True)
class TelecomItalia:
    """A published data set, whose raw files' names begin with `prefix`; its module uses `prepare`.

    The smallest valid cell id is 1, the largest `max_cell`.
    """

    name: str
    title: str
    prefix: str
    source: str
    max_cell: int
    time_zone: str = "Europe/Rome"

    def prepare(
        self,
        raw: Path,
        out: Path,
        *,
        step: str = "1h",
        cells: str | None = None,
        sample: int | None = None,
        seed: int = 1,
        grid: Path | None = None,
        allow_gaps: bool = False,
        progress: bool = False,
        spread: Spread | None = None,
    ) -> Path:
        """Sum the raw days over country codes and time steps, and write them as a cube.

        Args:
            raw: Folder of the daily files (`.txt`, or packed as `.txt.gz`), or a single one.
            out: The netCDF file to write.
            step: Length of a time step: 10min, or a multiple of it that divides a day.
            cells: Cells to keep: ids and ranges separated by commas, such as 1-100,5060; or, after
                not:, those to leave out.
            sample: Number of cells to draw at random, as FedDA's code does.
            seed: Random seed of the sample.
            grid: The official GeoJSON grid, the source of each cell's longitude and latitude.
            allow_gaps: Leave missing days and intervals as NaN instead of refusing them.
            progress: Show a progress bar.
            spread: Map that sums several days at once, such as
                `stforecast.bench.ray.ray_map`; by default one by one.

        Raises:
            InputError: if raw files are damaged, foreign, doubled or incomplete, or an option is
                invalid; names the file and line, or the option.
        """
        check_target(out)
        about = as_attribute(self.name, {"step": step, "allow_gaps": allow_gaps})
        selection = Selection(self.name, cells, sample, seed)
        per_step = step_of_multiple(step, INTERVAL) // INTERVAL
        places = read_grid(grid) if grid else None
        known = np.arange(1, self.max_cell + 1) if places is None else places.cells
        selection.check(known)
        raw_days = folder.find_days(raw, self.prefix, known, self.time_zone)
        origin = self._origin(raw_days)
        folder.check_dates(raw_days, self.name, allow_gaps=allow_gaps)
        store = folder.DayStore(out, per_step)
        days = []
        read = iter((spread or map)(store.day, raw_days))
        for day in each(read, self.name, "file", len(raw_days), progress=progress):
            folder.check_intervals(day, self.name, allow_gaps=allow_gaps)
            days.append(day)
        chosen = selection.choose(folder.occurring_cells(days), known if grid else None)
        cube = self._describe(days, chosen, per_step, places, origin).assign_attrs(about)
        write_chunks(cube, _chunks(days, chosen, per_step), out, steps_per_chunk=144 // per_step)
        store.clear()
        return out

    def _origin(self, days: Sequence[RawDay]) -> dict[str, str]:
        place = days[0].path.parent
        simulation = read_marker(place)
        if simulation is None:
            return {"title": self.title, "source": self.source, "license": "ODbL-1.0"}
        simulation.check_days(self.name, (day.date for day in days), place)
        return {
            "title": f"Simulated telecommunication activity in the layout of {self.name}",
            "source": simulation.source,
            "license": "none, the records are invented",
        }

    def _describe(
        self,
        days: Sequence[folder.StoredDay],
        cells: np.ndarray,
        per_step: int,
        places: CellGrid | None,
        origin: Mapping[str, str],
    ) -> xr.Dataset:
        """Return the cube with its times, cells and attributes; its values take no memory."""
        first, last = days[0].raw, days[-1].raw
        end = last.start + last.n_intervals * INTERVAL
        time = pd.date_range(first.start, end, freq=INTERVAL * per_step, inclusive="left")
        nothing = np.broadcast_to(np.float64(np.nan), (len(time), len(cells)))
        checksums = {day.raw.path.name: day.checksum for day in days}
        here = places.at(cells) if places else None
        return make_cube(
            dict.fromkeys(LONG_NAMES, nothing),
            time.tz_convert("UTC").tz_localize(None),
            cells,
            units="1",
            time_zone=self.time_zone,
            long_names=LONG_NAMES,
            checksums=checksums | ({places.path.name: places.checksum} if places else {}),
            lon=here.lon if here else None,
            lat=here.lat if here else None,
            title=origin["title"],
            source=origin["source"],
            license=origin["license"],
        )


def _chunks(
    days: Sequence[folder.StoredDay], cells: np.ndarray, per_step: int
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yield each day's first time step and its values of all variables, `(step, cell)`.

    They are 0 for cells that are not in the day.
    """
    step = INTERVAL * per_step
    for day in days:
        first, rest = divmod(day.raw.start - days[0].raw.start, step)
        if rest:
            raise InputError(
                f"{day.raw.path}: the days before {day.raw.date} do not make whole steps of "
                f"{step}; choose a step that divides every day"
            )
        n_steps = len(day.recorded) // per_step
        complete = day.recorded.reshape(n_steps, per_step).all(axis=1)
        sums = np.zeros((len(SERVICES), n_steps, len(cells)))
        sums[:, ~complete] = np.nan
        _, to, of = np.intersect1d(cells, day.cells, assume_unique=True, return_indices=True)
        sums[:, :, to] = day.values()[:, :, of]
        found = dict(zip(SERVICES, sums, strict=True))
        with np.errstate(over="ignore"):  # `write_chunks` checks for overflow
            sms, call = (found[f"{name}_in"] + found[f"{name}_out"] for name in ("sms", "call"))
        yield first, found | {"sms": sms, "call": call, "net": found["internet"]}
