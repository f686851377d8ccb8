"""Settings of a service: the rule of `stforecast update` and the alarms of `stforecast monitor`.

They stand in `service.toml` in the run's folder, which the first update writes with each setting's
meaning. A change counts from the next update on.
"""

from __future__ import annotations

import dataclasses
import json
import textwrap
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import NonNegativeFloat, PositiveFloat

from data_prep.base.errors import choose, reading
from data_prep.base.files import atomic_path
from data_prep.base.registry import entries
from stforecast.federated.core.options import CheckedOptions, PositiveShare, Probability, distribute

FILE = "service.toml"
"""Name of the file in the run's folder."""


@dataclass(frozen=True)
class UpdateOptions(CheckedOptions):
    """When a model is renewed; days are days of data.

    Attributes:
        check_days: days back over which errors and coverage are judged; nothing is judged before so
            many days were forecast.
        coverage_tolerance: bounds are calibrated again if their coverage is further than this from
            the nominal one; 0 calibrates them every time.
        error_tolerance: a challenger is trained if the MASE is above the lowest that a model in
            service had in its trial, or the run in its test part, by more than this share.
        further_days: a challenger is trained further from the present weights after so many days
            since the last training, whatever the errors; 0 for never.
        anew_days: a challenger is trained anew after so many days since the last time, whatever the
            errors; 0 for never.
        rest_days: fewest days between two trainings.
        trial_days: last days, on which no challenger is trained, and on which it must win; at most
            `check_days` where errors grew, and fewer if the model in service has learnt some of
            them, but at least four horizons.
        level: confidence with which the challenger must be better: the interval of the difference
            over the days of the trial must lie below 0.
        history_days: days of records that are kept, at least what inputs and trials need; 0 for as
            many as the parts of the run have and those of a trial, which training anew reads.
    """

    check_days: PositiveFloat = 7.0
    coverage_tolerance: NonNegativeFloat = 0.02
    error_tolerance: NonNegativeFloat = 0.1
    further_days: NonNegativeFloat = 7.0
    anew_days: NonNegativeFloat = 28.0
    rest_days: NonNegativeFloat = 3.0
    trial_days: PositiveFloat = 14.0
    level: Probability = 0.9
    history_days: NonNegativeFloat = 0.0


@dataclass(frozen=True)
class MonitorOptions(CheckedOptions):
    """Thresholds of alarms; 0 turns one off.

    Attributes:
        most_mase: highest MASE over the last 7 days; 1 is the error of the value one day before in
            training.
        most_bias: highest mean of forecast less value over the last 7 days, of either sign, as a
            share of the mean value.
        coverage_below: how far the coverage over the last 7 days may be below the nominal one.
        late_hours: hours after the end of the records' last step when they count as late.
        missing_share: share of values of the last day that a cell may lack.
        stuck_hours: hours from which on a cell that repeats one value, 0 included, or reports none
            is broken, unless its earlier values did so, too.
        drift: largest distance of Kolmogorov and Smirnov between a cell's values of the last 7 days
            and those before, from 0 to 1; a cell has drifted if it is further than the median of
            all cells by so much.
        anomaly_in: readings of which one is listed as an anomaly where nothing is wrong.
        name_cells: whether an alarm names each broken cell; else only their share raises one.
        cells_share: share of cells that may be broken, missing or drifting.
    """

    most_mase: NonNegativeFloat = 1.5
    most_bias: NonNegativeFloat = 0.2
    coverage_below: NonNegativeFloat = 0.1
    late_hours: NonNegativeFloat = 36.0
    missing_share: PositiveShare = 0.5
    stuck_hours: NonNegativeFloat = 12.0
    drift: NonNegativeFloat = 0.4
    anomaly_in: PositiveFloat = 1000.0
    name_cells: bool = True
    cells_share: NonNegativeFloat = 0.1


@dataclass(frozen=True)
class ServiceSettings:
    """All settings of a service.

    Attributes:
        update: the rule of `stforecast update`.
        monitor: the alarms of `stforecast monitor`.
    """

    update: UpdateOptions = field(default_factory=UpdateOptions)
    monitor: MonitorOptions = field(default_factory=MonitorOptions)

    @classmethod
    def read(cls, run: Path) -> ServiceSettings:
        """Read the settings of a run; write the defaults if it has none.

        Raises:
            InputError: if the file is no TOML, or a setting is unknown or out of range.
        """
        path, tables = run / FILE, {"update": UpdateOptions, "monitor": MonitorOptions}
        if not path.exists():
            with atomic_path(path) as part:
                part.write_text(cls().text())
        with reading(path, "as TOML", "correct it, or delete it for the defaults"):
            found = tomllib.loads(path.read_text())
        chosen: dict[str, Any] = {}
        for name, given in found.items():
            if name not in tables:
                raise choose(f"table in {path}", name, tables)
            chosen |= distribute(f"[{name}] in {path}", {name: tables[name]}, given)
        return cls(**chosen)

    def text(self) -> str:
        """Return the file's text, each setting below its meaning."""
        lines = []
        for table in dataclasses.fields(self):
            options = getattr(self, table.name)
            about = entries(type(options).__doc__, "Attributes")
            lines.append(f"[{table.name}]")
            for name, value in dataclasses.asdict(options).items():
                text = textwrap.fill(about[name], 98, break_on_hyphens=False)
                lines += [textwrap.indent(text, "# "), f"{name} = {json.dumps(value)}"]
            lines.append("")
        return "\n".join(lines)
