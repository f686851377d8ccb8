"""Published numbers of a paper, shown next to measured ones in separate columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import StrictFloat, TypeAdapter, ValidationError

from data_prep.base.errors import InputError, choose

METRICS = {
    "mse": "MSE", "mae": "MAE", "accuracy": "accuracy", "A_glo": "A^glo", "A_loc": "A^loc",
}  # fmt: skip
"""Headings of the published metrics."""

MARK = "*"

NOT_OURS = "their data and split are not ours, so compare the order of rows, not the numbers"
"""Default note on a paper's numbers."""

Numbers = Mapping[str, Mapping[str, float]]
"""Number of each label, by service."""

ByHorizon = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Numbers of each label by minutes ahead, or "mean", by service."""


@dataclass(frozen=True)
class Published:
    """A table of a paper.

    Attributes:
        source: its source, such as "FUELS, Table 1".
        numbers: its numbers, by metric.
        horizons: MAE in data units, by service, label (of any method, not only of the benchmark)
            and minutes ahead, "mean" for the mean of the steps.
        note: comparability of its numbers with ours.
    """

    source: str
    numbers: Mapping[str, Numbers]
    horizons: ByHorizon = field(default_factory=dict)
    note: str = NOT_OURS

    def columns(self, service: str, labels: Sequence[str]) -> dict[str, list[str]]:
        """Return the columns of the metrics that the paper reports for a service, by heading.

        Columns are equally long; a label without a published number has "-".
        """
        return {
            f"{METRICS[metric]} as published{MARK}": _column(by_service[service], labels)
            for metric, by_service in self.numbers.items()
            if service in by_service
        }

    @property
    def services(self) -> set[str]:
        """Services of which the paper reports numbers."""
        return {service for by_service in self.numbers.values() for service in by_service}

    @property
    def footnote(self) -> str:
        """Return the note on source and comparability of the columns."""
        return f"\\{MARK} printed in {self.source}: {self.note}"


def _column(numbers: Mapping[str, float], labels: Sequence[str]) -> list[str]:
    decimals = max(len(str(number).partition(".")[2]) for number in numbers.values())
    return [f"{numbers[x]:.{decimals}f}" if x in numbers else "-" for x in labels]


def parse_published(
    table: Mapping[str, Any], labels: Iterable[str], services: Iterable[str | None]
) -> Published:
    """Parse the section `[published]` of a benchmark.

    It has a `source`, an optional `note`, and for each metric a table of services with numbers by
    label; in `horizons`, tables of `minutes = number` by label, also of methods that are not in the
    benchmark. If the services include None, any name is valid.
    """
    parts = dict(table)
    source = parts.pop("source", None)
    if not isinstance(source, str) or not parts:
        raise InputError('published needs source = "…" and numbers, as in mse.sms = { solo = 1.9 }')
    note, horizons = str(parts.pop("note", NOT_OURS)), _horizons(parts.pop("horizons", {}))
    numbers = {name: _numbers(name, part) for name, part in parts.items()}
    labels, services = set(labels), set(services)
    for metric, by_service in {**numbers, "horizons": horizons}.items():
        for service, by_label in by_service.items():
            if None not in services and service not in services:
                raise InputError(f"published.{metric}: {choose('service', service, services)}")
            if metric in METRICS and (unknown := by_label.keys() - labels):
                raise InputError(
                    f"published.{metric}.{service}: {choose('label', min(unknown), labels)}"
                )
    return Published(source, numbers, horizons, note)


def _horizons(part: Any) -> ByHorizon:
    words = "by service and label, numbers by minutes ahead or mean"
    return _validated("horizons", dict[str, dict[str, dict[str, StrictFloat]]], part, words)


def _numbers(metric: str, part: Any) -> Numbers:
    if metric not in METRICS:
        raise InputError(f"published: {choose('metric', metric, METRICS)}")
    words = "by service, a number by label"
    found = _validated(metric, dict[str, dict[str, StrictFloat]], part, words)
    if not all(found.values()):
        raise InputError(f"published.{metric}: a service has no numbers; leave it out")
    return found


def _validated(name: str, kind: Any, part: Any, words: str) -> Any:
    try:
        return TypeAdapter(kind).validate_python(part)
    except ValidationError as e:
        raise InputError(f"published.{name} must hold, {words}") from e
