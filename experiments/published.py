"""Numbers that a paper prints, to stand beside measured ones and never among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from data_prep.errors import InputError, choose

METRICS = {"mse": "MSE", "mae": "MAE", "accuracy": "accuracy"}
"""What papers print, and the headings."""

MARK = "*"

Numbers = Mapping[str, Mapping[str, float]]
"""Number of each label, by service."""


@dataclass(frozen=True)
class Published:
    """A table of a paper.

    Attributes:
        source: where it is printed, such as "FUELS, Table 1".
        numbers: what it prints, by metric.
    """

    source: str
    numbers: Mapping[str, Numbers]

    def columns(self, service: str, labels: Sequence[str]) -> dict[str, list[str]]:
        """A column for each metric that the paper prints of this service.

        Args:
            service: name of the service.
            labels: labels of the rows; "" for a row that no paper could print.

        Returns:
            By heading, the number of each label, or "-"; all as long as the longest.
        """
        return {
            f"{METRICS[metric]} as published{MARK}": _column(by_service[service], labels)
            for metric, by_service in self.numbers.items()
            if service in by_service
        }

    @property
    def footnote(self) -> str:
        """What a reader of the columns must know."""
        return (
            f"\\{MARK} printed in {self.source}: their data and split are not ours, so "
            "compare the order of rows, not the numbers"
        )


def _column(numbers: Mapping[str, float], labels: Sequence[str]) -> list[str]:
    decimals = max(len(str(number).partition(".")[2]) for number in numbers.values())
    return [f"{numbers[x]:.{decimals}f}" if x in numbers else "-" for x in labels]


def parse_published(
    table: Mapping[str, Any], labels: Iterable[str], services: Iterable[str | None]
) -> Published:
    """The section `[published]` of a benchmark.

    Args:
        table: `source`, and for each metric a table of services, in it numbers by label.
        labels: labels of the benchmark's rows.
        services: services of the benchmark; with None among them any name may be one.

    Raises:
        InputError: for a label, service or metric that is not there, or what is no number.
    """
    parts = dict(table)
    source = parts.pop("source", None)
    if not isinstance(source, str) or not parts:
        raise InputError('published needs source = "…" and numbers, as in mse.sms = { solo = 1.9 }')
    numbers = {name: _numbers(name, part) for name, part in parts.items()}
    labels, services = set(labels), set(services)
    for metric, by_service in numbers.items():
        for service, by_label in by_service.items():
            if None not in services and service not in services:
                raise InputError(f"published.{metric}: {choose('service', service, services)}")
            if unknown := by_label.keys() - labels:
                raise InputError(
                    f"published.{metric}.{service}: {choose('label', min(unknown), labels)}"
                )
    return Published(source, numbers)


def _numbers(metric: str, part: Any) -> Numbers:
    if metric not in METRICS:
        raise InputError(f"published: {choose('metric', metric, METRICS)}")
    try:
        found = TypeAdapter(dict[str, dict[str, float]]).validate_python(part)
    except ValidationError as e:
        raise InputError(f"published.{metric} must hold, by service, a number by label") from e
    if not all(found.values()):
        raise InputError(f"published.{metric}: a service has no numbers; leave it out")
    return found
