"""Flat settings: assign each to the dataclass with a field of its name, and check its type."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from data_prep.errors import InputError, choose
from stforecast.federated.options import converted


def distribute(
    owner: str, types: Mapping[str, type], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Make one instance of each dataclass from settings under flat names.

    Args:
        owner: owner of the settings, for messages.
        types: name of each section to its dataclass.
        settings: flat name to value; only lossless conversions are made.

    Returns:
        Name of each section to its instance; missing fields have their defaults.

    Raises:
        InputError: for an unknown name (with similar ones) or an invalid value.
        ValueError: if two sections have a field of the same name.
    """
    owned = [(f.name, section) for section, t in types.items() for f in dataclasses.fields(t)]
    section_of = dict(owned)
    if len(section_of) < len(owned):
        names = [name for name, _ in owned]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{owner}: several of its sections have a field {', '.join(twice)}")
    if unknown := settings.keys() - section_of.keys():
        raise _unknown(f"option of {owner}", min(unknown), section_of)
    chosen: dict[str, dict[str, Any]] = {section: {} for section in types}
    for name, value in settings.items():
        chosen[section_of[name]][name] = value
    # Dataclasses of other packages may not convert their values.
    return {section: t(**converted(t, chosen[section])) for section, t in types.items()}


def flatten(*parts: Any) -> dict[str, Any]:
    """Return the fields of dataclass instances under their flat names."""
    return {name: value for part in parts for name, value in dataclasses.asdict(part).items()}


def _unknown(kind: str, name: str, valid: Iterable[str]) -> InputError:
    """Return an error that suggests similar names, or lists all."""
    if close := difflib.get_close_matches(name, list(valid)):
        return InputError(f"unknown {kind} {name!r}; did you mean {' or '.join(close)}?")
    return choose(kind, name, valid)
