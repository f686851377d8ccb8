"""Checks that settings share: choices, ranges, and one wording of what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from data_prep.errors import InputError

WIDEST = 8192
"""Most units of a layer: beyond, one client's model alone may fill a machine."""

DEEPEST = 16
"""Most layers of a kind: with dilations of 1, 2, 4, … the last one reaches 32,768 steps."""

MOST_WORKERS = 1024
"""Each is a thread with a model of its own."""


def check_options(
    options: Any,
    *,
    positive: Iterable[str] = (),
    not_negative: Iterable[str] = (),
    share: Iterable[str] = (),
    at_most: Mapping[str, float] | None = None,
) -> None:
    """Refuse settings outside their range, to be called from `__post_init__`.

    Fields annotated as `Literal` must have one of its values, whatever else is asked.

    Args:
        options: a dataclass.
        positive: names of fields that must be finite and above 0.
        not_negative: names of fields that must be finite and not below 0.
        share: names of fields that must be in [0, 1].
        at_most: names of fields that must not be above a number.

    Raises:
        InputError: naming the field, its value and what it must be.
    """
    for name, hint in get_type_hints(type(options)).items():
        value = getattr(options, name)
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise InputError(f"{name} is {value!r}; choose {_either(get_args(hint))}")
    rules: list[tuple[Iterable[str], Callable[[float], bool], str]] = [
        (positive, lambda v: 0 < v < math.inf, "positive"),
        (not_negative, lambda v: 0 <= v < math.inf, "0 or more"),
        (share, lambda v: 0 <= v <= 1, "in [0, 1]"),
    ]
    for names, holds, wanted in rules:
        for name in names:
            if not holds(getattr(options, name)):
                raise InputError(f"{name} is {getattr(options, name)}; it must be {wanted}")
    for name, most in (at_most or {}).items():
        if getattr(options, name) > most:
            raise InputError(f"{name} is {getattr(options, name)}; it must be at most {most}")


def _either(values: tuple[Any, ...]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}" if first else last
