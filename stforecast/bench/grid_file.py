"""Parsing of benchmark files: TOML, keys and their types, rows, seeds, and published numbers."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import StrictFloat, StrictInt, TypeAdapter, ValidationError

from data_prep.base.errors import InputError, choose, shown, slug
from data_prep.base.limits import read_bounded
from stforecast.bench.tables import number

Keys = Mapping[str, tuple[Any, str]]
"""Keys of a file, with their types and descriptions."""

ROWS = (
    list[str | dict[str, Any]],
    "a list of names, or { method, label, table, seeds, settings… }",
)
"""Type and description of a list of rows."""

COMMON_KEYS: dict[str, tuple[Any, str]] = {
    "task": (str, "text: the kind of the runs, such as images"),
    "title": (str, "text"),
    "note": (str, "text, printed above the table"),
    "seeds": (list[StrictInt], "a list of whole numbers"),
    "methods": ROWS,
    "figures": (list[str | dict[str, Any]], "a list of names, or { plot, name, methods, seeds… }"),
    "settings": (dict[str, Any], "a table"),
    "reference": (str, "the label of a row"),
    "published": (dict[str, Any], "a table"),
    "presets": (dict[str, dict[str, Any]], "tables of the other keys, by name"),
}
"""Keys common to the files of all kinds."""


@dataclass(frozen=True)
class Entry:
    """A row of the table: a method with its settings.

    Attributes:
        method: name of the method.
        label: name of the row.
        settings: its flat settings, in addition to the grid's.
        table: title of the table of comparisons that it stands in, such as "Ablations"; empty for
            that of the main methods.
        seeds: seeds of its own, such as one for a method that draws no random numbers; empty for
            those of the benchmark.
    """

    method: str
    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    table: str = ""
    seeds: tuple[int, ...] = ()


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; errors name it."""
    try:
        text = read_bounded(path, 2**16)  # The parser is slow, and files are small.
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
    try:
        return tomllib.loads(text.decode())
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path}: is not TOML ({e})") from e


def check_keys(table: Mapping[str, Any], keys: Keys, needed: Set[str]) -> dict[str, Any]:
    """Return a file's keys converted to their types; refuse unknown, missing and empty ones."""
    if unknown := table.keys() - keys.keys():
        raise choose("key", min(unknown), keys)
    if missing := needed - table.keys():
        raise InputError(f"no key {min(missing)!r}; give {keys[min(missing)][1]}")
    return {key: _check(key, value, *keys[key]) for key, value in table.items()}


def _check(key: str, value: Any, kind: Any, words: str) -> Any:
    try:
        found = TypeAdapter(kind).validate_python(value)
    except ValidationError as e:
        raise InputError(f"{key} is {value!r}; it must be {words}") from e
    if found == []:
        raise InputError(f"{key} is empty; give at least one entry")
    # The bound is that of scikit-learn's generators.
    if key == "seeds" and (odd := [seed for seed in found if not 0 <= seed < 2**32]):
        raise InputError(f"seeds has {odd[0]}; give whole numbers from 0 to {2**32 - 1}")
    return found


def parse_entries(
    entries: Sequence[str | dict[str, Any]],
    shared: Mapping[str, Any],
    check: Callable[..., Any],
) -> tuple[Entry, ...]:
    """Parse the key `methods`: names, or `{ method, label, table, seeds, settings… }`.

    `check` is called with each method and its settings, to find errors before the first run.
    """
    if "method" in shared:
        raise InputError("settings has a method; name it in methods, where each has a row")
    made = []
    for entry in entries:
        own = {"method": entry} if isinstance(entry, str) else dict(entry)
        if "method" not in own:
            raise InputError(f"an entry of methods names no method: {entry}")
        method = str(own.pop("method"))
        label, table = str(own.pop("label", "")) or method, str(own.pop("table", ""))
        made.append(Entry(method, label, own, table, _seeds_of(label, own)))
        check(method, **{**shared, **own})
    folders = [slug(entry.label) for entry in made]
    if twice := next((e.label for e in made if folders.count(slug(e.label)) > 1), None):
        raise InputError(f"several methods are called {twice!r}; give each its own `label`")
    return tuple(made)


def _seeds_of(label: str, own: dict[str, Any]) -> tuple[int, ...]:
    """Take a row's seeds out of its settings."""
    if "seed" in own:
        raise InputError(f"{label} has a seed; give seeds = [{own['seed']}]")
    if "seeds" not in own:
        return ()
    try:
        return tuple(_check("seeds", own.pop("seeds"), *COMMON_KEYS["seeds"]))
    except InputError as e:
        raise InputError(f"{label}: ", e) from e


def command_words(
    flags: Mapping[str, Sequence[Any]], settings: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the words of a command line: each flag with each of its values, then the settings.

    Files are given by name only, since their folders mean nothing to other readers.

    >>> command_words({"--seed": [1, 2]}, {"rounds": 5, "lr": 0.1, "weights": "/far/away/vit.bin"})
    ('--seed', '1', '--seed', '2', '--rounds', '5', '--set', 'lr=0.1', '--set', 'weights=vit.bin')
    """
    words = [(flag, str(value)) for flag, values in flags.items() for value in values]
    for name, value in settings.items():
        path = Path(str(value))
        text = shown(path) if path.is_absolute() or name == "images" else value
        own = name in ("images", "rounds")
        words.append((f"--{name}", str(text)) if own else ("--set", f"{name}={text}"))
    return tuple(word for pair in words for word in pair)


MARK = "*"

Numbers = dict[str, dict[str, StrictFloat]]
"""Number of each label, by service."""


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
    horizons: Mapping[str, Numbers] = field(default_factory=dict)
    note: str = "their data and split are not ours, so compare the order of rows, not the numbers"

    headings: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"mse": "MSE", "mae": "MAE", "accuracy": "accuracy", "A_glo": "A^glo", "A_loc": "A^loc"}
    )
    """Headings of the metrics."""

    def columns(self, service: str, labels: Sequence[str]) -> dict[str, list[str]]:
        """Return the columns of the metrics that the paper reports for a service, by heading.

        Columns are equally long; a label without a published number has "-".
        """
        found = {}
        for metric, by_service in self.numbers.items():
            if numbers := by_service.get(service):
                decimals = max(len(str(value).partition(".")[2]) for value in numbers.values())
                found[f"{self.headings[metric]} as published{MARK}"] = [
                    number(numbers.get(label, math.nan), f".{decimals}f") for label in labels
                ]
        return found

    @property
    def services(self) -> set[str]:
        """Services with numbers in the paper."""
        return {service for by_service in self.numbers.values() for service in by_service}

    @property
    def footnote(self) -> str:
        """Return the note on source and comparability of the columns."""
        return f"\\{MARK} printed in {self.source}: {self.note}"


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
    note = str(parts.pop("note", Published.note))
    words = "by service and label, numbers by minutes ahead or mean"
    horizons = _validated("horizons", dict[str, Numbers], parts.pop("horizons", {}), words)
    numbers, known = {}, Published.headings
    for name, part in parts.items():
        if name not in known:
            raise InputError(f"published: {choose('metric', name, known)}")
        numbers[name] = _validated(name, Numbers, part, "by service, a number by label")
        if not all(numbers[name].values()):
            raise InputError(f"published.{name}: a service has no numbers; leave it out")
    labels, services = set(labels), set(services)
    for metric, by_service in {**numbers, "horizons": horizons}.items():
        for service, by_label in by_service.items():
            if None not in services and service not in services:
                raise InputError(f"published.{metric}: {choose('service', service, services)}")
            if metric in known and (unknown := by_label.keys() - labels):
                raise InputError(
                    f"published.{metric}.{service}: {choose('label', min(unknown), labels)}"
                )
    return Published(source, numbers, horizons, note)


def _validated(name: str, kind: Any, part: Any, words: str) -> Any:
    try:
        return TypeAdapter(kind).validate_python(part)
    except ValidationError as e:
        raise InputError(f"published.{name} must hold, {words}") from e
