"""Parsing of benchmark files: TOML, keys and their types, rows of a table, seeds."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import StrictInt, TypeAdapter, ValidationError

from data_prep.base.errors import InputError, choose, shown, slug
from data_prep.base.limits import read_bounded

MAX_SEED = 2**32
"""Bound of the seeds of scikit-learn's generators."""

Keys = Mapping[str, tuple[Any, str]]
"""Keys of a file, with their types and descriptions."""

ROWS = (
    list[str | dict[str, Any]],
    "a list of names, or { method, label, table, seeds, settings… }",
)
"""Type and description of a list of rows."""

SEEDS = (list[StrictInt], "a list of whole numbers")
"""Type and description of a list of seeds."""

COMMON_KEYS: dict[str, tuple[Any, str]] = {
    "task": (str, "text: the kind of the runs, such as images"),
    "title": (str, "text"),
    "note": (str, "text, printed above the table"),
    "seeds": SEEDS,
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


MAX_BYTES = 2**16
"""Maximum size of a benchmark's file in bytes; the parser is slow, and files are small."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; errors name it."""
    try:
        text = read_bounded(path, MAX_BYTES)
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
    found = {key: _check(key, value, *keys[key]) for key, value in table.items()}
    _check_seeds(found.get("seeds", []))
    return found


def _check(key: str, value: Any, kind: Any, words: str) -> Any:
    try:
        found = TypeAdapter(kind).validate_python(value)
    except ValidationError as e:
        raise InputError(f"{key} is {value!r}; it must be {words}") from e
    if found == []:
        raise InputError(f"{key} is empty; give at least one entry")
    return found


def _check_seeds(seeds: Sequence[int]) -> None:
    if odd := [seed for seed in seeds if not 0 <= seed < MAX_SEED]:
        raise InputError(f"seeds has {odd[0]}; give whole numbers from 0 to {MAX_SEED - 1}")


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
        label, table = str(own.pop("label", method)), str(own.pop("table", ""))
        made.append(Entry(method, label, own, table, _seeds_of(label, own)))
        check(method, **{**shared, **own})
    folders = [slug(entry.label) for entry in made]
    if twice := next((e.label for e in made if folders.count(slug(e.label)) > 1), None):
        raise InputError(f"several methods are called {twice!r}; give each a label of its own")
    return tuple(made)


def _seeds_of(label: str, own: dict[str, Any]) -> tuple[int, ...]:
    """Take a row's seeds out of its settings."""
    if "seed" in own:
        raise InputError(f"{label} has a seed; give seeds = [{own['seed']}]")
    if "seeds" not in own:
        return ()
    try:
        found = _check("seeds", own.pop("seeds"), *SEEDS)
        _check_seeds(found)
    except InputError as e:
        raise InputError(f"{label}: ", e) from e
    return tuple(found)


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
