"""Deliveries that are held back, each as a cube with why, until it is taken or replaced."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import xarray as xr

from data_prep.base.files import atomic_path
from data_prep.cube import local_time, write_cube
from stforecast.federated.runs.model_files import IN_SERVICE
from stforecast.service.delivery import Doubt

HELD = "held"
"""Folder of the held deliveries in the folder `service` of a run."""


@dataclass(frozen=True)
class Held:
    """A delivery that is held back.

    Attributes:
        records: as it was given.
        kind: kind of `Doubt`.
        reason: why.
        remedy: what to do.
        first: local time of its first step.
        last: local time of its last step.
        since: when it came, in UTC.
        kept: its cube.
    """

    records: str
    kind: str
    reason: str
    remedy: str
    first: str
    last: str
    since: str
    kept: str

    def __str__(self) -> str:
        return f"{self.records}: held back: {self.reason}; kept in {self.kept}; {self.remedy}"


def hold(run: Path, records: xr.Dataset, name: str, doubt: Doubt, present: pd.Timestamp) -> Held:
    """Keep a delivery aside; one of the same steps is replaced."""
    times = local_time(records)
    first, last = times[0], times[-1]
    path = _folder(run) / f"{first:%Y-%m-%dT%H%M}_{last:%Y-%m-%dT%H%M}_{doubt.kind}.nc"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as part:
        write_cube(records, part)
    found = Held(
        name, doubt.kind, doubt.reason, doubt.remedy, str(first), str(last),
        f"{present:%Y-%m-%dT%H:%M}Z", str(path),
    )  # fmt: skip
    with atomic_path(path.with_suffix(".json")) as part:
        part.write_text(json.dumps(asdict(found), indent=2) + "\n")
    return found


def held_back(run: Path) -> list[Held]:
    """Return the deliveries that are held back, in the order of their steps."""
    files = sorted(_folder(run).glob("*.json"))
    return [
        Held(**json.loads(file.read_text())) for file in files if file.with_suffix(".nc").exists()
    ]


def release(run: Path, name: str, records: xr.Dataset) -> None:
    """Drop held deliveries that were taken: of the same file, or of steps that now have come."""
    times = local_time(records)
    for one in held_back(run):
        covered = str(times[0]) <= one.first and one.last <= str(times[-1])
        if covered or name in (one.records, one.kept):
            Path(one.kept).with_suffix(".json").unlink()
            Path(one.kept).unlink()


def _folder(run: Path) -> Path:
    return run / IN_SERVICE.parts[0] / HELD
