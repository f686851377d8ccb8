"""Flat settings: each goes to the dataclass that has a field of its name, types checked."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from data_prep.errors import InputError, choose

LARGEST = 2**32 - 1
"""Largest whole number of any setting: generators take no larger seed, and no count is above."""


def distribute(
    owner: str, types: Mapping[str, type], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Make one instance of each dataclass from settings under flat names.

    Args:
        owner: whose settings they are, for messages.
        types: name of each section to its dataclass.
        settings: flat name to value, converted where it can be without loss.

    Returns:
        Name of each section to its instance; fields that are not given have their defaults.

    Raises:
        InputError: for an unknown name (with those like it) or a value that does not fit.
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
    return {section: _build(t, chosen[section]) for section, t in types.items()}


def flatten(*parts: Any) -> dict[str, Any]:
    """The fields of dataclass instances under their flat names."""
    return {name: value for part in parts for name, value in dataclasses.asdict(part).items()}


def _unknown(kind: str, name: str, valid: Iterable[str]) -> InputError:
    """An error that suggests the names most like it, or lists all."""
    if close := difflib.get_close_matches(name, list(valid)):
        return InputError(f"unknown {kind} {name!r}; did you mean {' or '.join(close)}?")
    return choose(kind, name, valid)


def _build(options: type, values: Mapping[str, Any]) -> Any:
    """An instance, of numbers that a setting can have."""
    hints = get_type_hints(options)
    for name, value in values.items():
        _check_switch(name, value, hints[name] is bool)
        # Before the dataclass sees it, which may count up to it.
        if isinstance(value, int) and value > LARGEST:
            raise InputError(f"{name} is {value:.4g}; it must be at most {LARGEST}")
    built = _validated(options, values)
    for field in dataclasses.fields(built):
        value = getattr(built, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{field.name} is {value}; it must be finite")
    return built


def _check_switch(name: str, value: Any, is_switch: bool) -> None:
    """Refuse true and false where another value is meant, and numbers where one of them is.

    Raises:
        InputError: as that would count as 1 and 0.
    """
    if is_switch and isinstance(value, (int, float)) and not isinstance(value, bool):
        raise InputError(f"{name} is {value}; it must be true or false")
    if not is_switch and isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} is {str(value).lower()}; it is no switch, give it a value")


def _validated(options: type, values: Mapping[str, Any]) -> Any:
    try:
        return TypeAdapter(options).validate_python(dict(values))
    except ValidationError as e:
        first = e.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            raise InputError(message) from e
        raise InputError(f"{first['loc'][0]} is {first['input']!r}: {message}") from e
