"""Output of SUMO's detectors (E1, E2, E3) and of its edges and lanes, by intervals.

Source: https://sumo.dlr.de/docs/Simulation/Output. Times are seconds of the simulation, which
begins at `--start`; -1 means that no vehicle was there.
"""

from __future__ import annotations

import re
from collections.abc import Container
from contextlib import suppress
from datetime import datetime, timedelta

from data_prep.base.errors import InputError, Words
from data_prep.readers.formats import Format, Part
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import StepLog
from data_prep.readers.resampling import step_length
from data_prep.readers.table import Table
from data_prep.readers.xml import Values, read_values

log = StepLog("times")


class _Intervals(Values):
    """Collects the numbers of detectors, edges and lanes; `start_at` is the time of second 0."""

    def __init__(self, start_at: datetime) -> None:
        super().__init__()
        self.start_at = self.time = start_at
        self.lengths: set[float] = set()

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "interval":
            begin, end = float(attributes["begin"]), float(attributes["end"])
            self.time = self.start_at + timedelta(seconds=begin)
            self.lengths.add(end - begin)
        elif tag not in ("edge", "lane"):
            return
        for name, text in attributes.items():
            with suppress(ValueError):
                if name not in ("begin", "end", "id"):
                    value = None if float(text) == -1 else float(text)
                    self.take(self.time, attributes["id"], name, value)


class Sumo(Format):
    """Intervals of SUMO's detectors, edges or lanes."""

    name, how, suffixes = "sumo", "as output of SUMO", (".xml", ".xml.gz")
    begins = re.compile(rb"<interval\s[^>]*\bbegin=")
    together = True

    @classmethod
    def read(cls, part: Part, options: TableOptions, keys: Container[str]) -> Table:
        """Read the intervals of all files of a part.

        Returns:
            `time` (begin of the interval), `cell` and a column for each attribute with numbers.

        Raises:
            InputError: as `read_values`; if `--step` is not the length of the intervals.
        """
        start = datetime.fromisoformat(options.start or "2000-01-01")
        intervals = _Intervals(start)
        table = read_values(part, intervals, "intervals of detectors, edges or lanes")
        if options.step is None:
            way = Words("pass {start} and {step} for others")
            log.info(part.name, "seconds of the simulation are counted from 2000-01-01; ", way)
        elif step_length(options.step, "step").total_seconds() not in intervals.lengths:
            listed = ", ".join(f"{length:g} s" for length in sorted(intervals.lengths))
            raise InputError(f"{part.name}: intervals of {listed}; ", Words("give {step} so"))
        return table.deciding(start=options.start, step=options.step)
