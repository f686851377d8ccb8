"""Validated options: types, ranges and choices, with the same wording in errors and help.

The range of an option is part of its type, as in `lr: PositiveFloat` or `shift: Share`. Pydantic
checks it; `range_of` describes it in words. Users give the settings of a run under flat names; each
is assigned to the dataclass with a field of that name, one for each part of the system.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from annotated_types import Ge, Gt, Le, Lt, Predicate
from pydantic import ConfigDict, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from data_prep.base.errors import InputError, choose, some

LARGEST = 2**32 - 1
"""Largest integer of any option, which is the largest seed that generators take."""

Share = Annotated[float, Ge(0), Le(1)]
"""Number in [0, 1]."""

PositiveShare = Annotated[float, Gt(0), Le(1)]
"""Number in (0, 1]."""

ShareBelowOne = Annotated[float, Ge(0), Lt(1)]
"""Number in [0, 1)."""

Probability = Annotated[float, Gt(0), Lt(1)]
"""Number in (0, 1)."""

Width = Annotated[PositiveInt, Le(8192)]
"""Units of a layer; with more, one client's model alone may fill the memory."""

Depth = Annotated[PositiveInt, Le(16)]
"""Number of layers; with dilations of 1, 2, 4, … the largest dilation is 32,768 steps."""

Workers = Annotated[NonNegativeInt, Le(1024)]
"""Number of workers; each is a thread with its own copy of the model."""

Device = Annotated[str, Predicate(lambda name: bool(re.fullmatch(r"auto|cpu|cuda(:\d+)?", name)))]
"""Name of a device to compute on."""


@dataclass(frozen=True)
class ReadIf:
    """Mark of an option that is read only if flat settings, defaults among them, ask for it.

    `momentum: Annotated[float, ReadIf("optimizer is sgd", lambda s: s["optimizer"] == "sgd")]`
    """

    condition: str
    holds: Callable[[Mapping[str, Any]], bool]


Grid = Mapping[str, Sequence[Any]]
"""Values to try by the name of their setting."""


class CheckedOptions:
    """Base of frozen dataclasses whose values are converted and checked at construction.

    >>> @dataclass(frozen=True)
    ... class Ties(CheckedOptions):
    ...     mu: Share = 0.5
    >>> Ties(mu=1)
    Ties(mu=1.0)
    >>> Ties(mu=2)
    Traceback (most recent call last):
    data_prep.base.errors.InputError: mu is 2; it must be in [0, 1]

    Raises:
        InputError: with the field, its value and the expected range or type.
    """

    def __post_init__(self) -> None:
        """Convert the values to the types of their fields and check their ranges."""
        self.__dict__.update(converted(type(self), self.__dict__))


class Estimator:
    """Parameters of a forecaster or learner: the method and the settings that were given."""

    _given: dict[str, Any]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the method and the settings that were given, for scikit-learn."""
        return dict(self._given)

    def set_params(self, **settings: Any) -> Self:
        """Change settings; the estimator is then to be fitted again.

        Raises:
            InputError: for an unknown method, setting or value.
        """
        type(self).__init__(self, **{**self._given, **settings})
        return self


@dataclass(frozen=True)
class NoOptions:
    """Options of a method, model or reference forecaster that has none."""


def converted(options: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values by field name to the types of a dataclass's fields, if nothing is lost.

    Raises:
        InputError: with the first invalid value and the expected range or type.
    """
    hints = type_hints(options)
    return {name: _convert(name, hints[name], value) for name, value in values.items()}


@functools.cache
def type_hints(options: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields, including their ranges."""
    hints = get_type_hints(options, include_extras=True)
    return {field.name: hints[field.name] for field in fields(options)}


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    """Return a cached validator; making one takes about a millisecond.

    A number in a file, as in `extra_lags = 168`, may be given for text.
    """
    rules = ConfigDict(allow_inf_nan=False, coerce_numbers_to_str=True)
    return TypeAdapter(hint, config=rules)


def unmet(options: Collection[type], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of dataclasses whose `ReadIf` does not hold, with its condition."""
    full = {f.name: f.default for kind in options for f in fields(kind)} | dict(settings)
    return {
        name: rule.condition
        for kind in options
        for name, hint in type_hints(kind).items()
        for rule in getattr(hint, "__metadata__", ())
        if isinstance(rule, ReadIf) and not rule.holds(full)
    }


def names_of(*options: type) -> frozenset[str]:
    """Return the names of the fields of dataclasses."""
    return frozenset(field.name for kind in options for field in fields(kind))


def is_switch(hint: Any) -> bool:
    """Return whether a type, with or without rules, is that of a switch."""
    return getattr(hint, "__origin__", hint) is bool


def _convert(name: str, hint: Any, value: Any) -> Any:
    # Pydantic would convert true and false to 1 and 0, and these to a switch.
    if is_switch(hint) and isinstance(value, (int, float)) and not isinstance(value, bool):
        raise InputError(f"{name} is {value}; it must be true or false")
    if not is_switch(hint) and isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} is {str(value).lower()}; give a value, since it is not a switch")
    if isinstance(value, int) and value > LARGEST:
        shown = f"{float(min(value, 10**300)):.4g}"  # A float holds no more than 308 digits.
        raise InputError(f"{name} is {shown}; it must be at most {LARGEST}")
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as e:
        raise InputError(f"{name} is {_describe_error(hint, value, e.errors()[0])}") from e


def _describe_error(hint: Any, value: Any, error: ErrorDetails) -> str:
    """Describe the value and what is wrong with it."""
    if error["type"] == "literal_error":
        choices = error["ctx"]["expected"].replace("'", "")
        return f"{value!r}; choose {choices}"
    too_high = error["type"] in ("less_than", "less_than_equal")
    if too_high or error["type"] in ("greater_than", "greater_than_equal", "finite_number"):
        return f"{value!s:.200}; it must be {range_of(hint).wanted(too_high=too_high)}"
    if hint == Device:
        return f"{value!r}; choose auto, cpu or cuda"
    return f"{value!r}: {error['msg']}"


@dataclass(frozen=True)
class Range:
    """Range of an option's numbers: `above` and `below` say whether a bound is excluded."""

    whole: bool
    low: float | None = None
    above: bool = False
    high: float | None = None
    below: bool = False

    def wanted(self, *, too_high: bool) -> str:
        """Describe the range, or the violated bound if the range is no share, in words.

        >>> range_of(Share).wanted(too_high=True), range_of(Width).wanted(too_high=True)
        ('in [0, 1]', 'at most 8192')
        """
        if self.low is not None and self.high is not None and not self.whole:
            return f"in {'[('[self.above]}{self.low}, {self.high}{'])'[self.below]}"
        if too_high:
            return f"{'below' if self.below else 'at most'} {self.high}"
        if self.low is None:
            return "finite"
        if self.above:
            return f"above {self.low}" if self.low else "positive"
        return f"{self.low} or more"

    def __str__(self) -> str:
        """Format the range as click does; empty without bounds.

        >>> print(range_of(PositiveShare), range_of(PositiveInt | None))
        0<x<=1 x>0
        """
        high = "" if self.high is None else f"{'<' if self.below else '<='}{self.high}"
        if self.low is None:
            return high and f"x{high}"
        if high:
            return f"{self.low}{'<' if self.above else '<='}x{high}"
        return f"x{'>' if self.above else '>='}{self.low}"


def range_of(hint: Any) -> Range:
    """Return the range of a type such as `PositiveInt`, or `Share | None` with rules of its own."""
    kind, rules = hint, list[Any]()
    while get_origin(kind) is Annotated or NoneType in get_args(kind):
        kind, *further = (part for part in get_args(kind) if part is not NoneType)
        rules += further
    bounds: dict[str, Any] = {}
    for rule in rules:
        if isinstance(rule, Gt):
            bounds |= {"low": rule.gt, "above": True}
        elif isinstance(rule, Ge):
            bounds |= {"low": rule.ge}
        elif isinstance(rule, Lt):
            bounds |= {"high": rule.lt, "below": True}
        elif isinstance(rule, Le):
            bounds |= {"high": rule.le}
    return Range(kind is int, **bounds)


def sections_of(owner: str, types: Mapping[str, type]) -> dict[str, str]:
    """Return the section of each setting.

    Raises:
        InputError: if two sections have a field of the same name.
    """
    owned = [(f.name, section) for section, t in types.items() for f in dataclasses.fields(t)]
    if len(found := dict(owned)) < len(owned):
        names = [name for name, _ in owned]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InputError(
            f"{owner}: {', '.join(twice)} is already an option of all methods or of the model; "
            "rename it in its Options"
        )
    return found


def distribute(
    owner: str, types: Mapping[str, type], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Make one instance of each dataclass from settings under flat names.

    Raises:
        InputError: for an unknown name (with similar ones) or an invalid value.
    """
    section_of = sections_of(owner, types)
    if unknown := settings.keys() - section_of.keys():
        kind, name = f"option of {owner}", min(unknown)
        if close := difflib.get_close_matches(name, section_of, cutoff=0.65):
            raise InputError(f"unknown {kind} {name!r}; did you mean {' or '.join(close)}?")
        raise choose(kind, name, section_of)
    chosen: dict[str, dict[str, Any]] = {section: {} for section in types}
    for name, value in settings.items():
        chosen[section_of[name]][name] = value
    # Dataclasses of other packages may not convert their values.
    return {section: t(**converted(t, chosen[section])) for section, t in types.items()}


def read_settings(owner: str, options: type, texts: Sequence[str]) -> Any:
    """Make a dataclass of settings from texts such as `hidden_size=16`.

    Texts without a name belong to the fields in their order.

    Raises:
        InputError: for an unknown name, an invalid value or a field without a value.
    """
    known = [f.name for f in fields(options) if f.init]
    given: dict[str, str] = {}
    for place, text in enumerate(texts):
        name, _, value = text.rpartition("=")
        name = name or (known[place] if place < len(known) else value)
        if name not in known:
            raise choose(f"setting of {owner}", name, known)
        given[name] = value
    needed = {f.name for f in fields(options) if f.init and f.default is dataclasses.MISSING}
    if absent := sorted(needed - given.keys()):
        raise InputError(f"{owner} needs {' and '.join(absent)}")
    return options(**given)


def flatten(*parts: Any) -> dict[str, Any]:
    """Return the fields of dataclass instances under their flat names."""
    return {name: value for part in parts for name, value in dataclasses.asdict(part).items()}


C = TypeVar("C")


class Settings(ABC, Generic[C]):
    """Resolves the settings of one kind of run; a subclass says what these are.

    Args:
        config: type of the resolved settings: the method, and a field for each section.
    """

    depends_on: ClassVar[tuple[str, ...]] = ("model",)
    """Settings that the sections depend on, besides the method."""

    def __init__(self, config: Callable[..., C]) -> None:
        self.config = config

    @abstractmethod
    def methods(self) -> Iterable[str]:
        """Return the names of all methods."""

    @abstractmethod
    def defaults(self, method: str, model: str | None = None) -> dict[str, Any]:
        """Return a method's own defaults of shared settings, with those of `depends_on`.

        The help of the command line and `resolve` both start from them. With another `model` than
        the method's own, defaults of options of the latter are left out.
        """

    @abstractmethod
    def sections(self, method: str, *names: str) -> dict[str, type]:
        """Return the dataclass of each section, for a method and the values of `depends_on`."""

    @abstractmethod
    def conditions(self, method: str, chosen: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings that a method does not read, each with a condition as in `unread`."""

    def _sections(self, method: str, chosen: Mapping[str, Any]) -> dict[str, type]:
        return self.sections(method, *(str(chosen[name]) for name in self.depends_on))

    def unread(self, method: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings that are not read, each with its condition, "" if it is never read.

        The seed is read by all: one that draws no random numbers gives the same with every seed.
        """
        chosen = self.defaults(method, settings.get("model")) | dict(settings)
        found = unmet(self._sections(method, chosen).values(), chosen)
        found |= self.conditions(method, chosen)
        return {name: why for name, why in found.items() if name in settings}

    def check_read(self, method: str, settings: Mapping[str, Any]) -> None:
        """Refuse settings that a method does not read."""
        for name, condition in self.unread(method, settings).items():
            if condition:
                raise InputError(f"{name} is read only if {condition}; otherwise leave it out")
            own = {name: settings[name]}
            readers = (m for m in self.methods() if self.unread(m, own).get(name) != "")
            raise InputError(
                f"{method} does not read {name}; leave it out, or choose a method that reads it: "
                f"{some(readers, 9)}"
            )

    def read_by(self, method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that are read, such as those of a record that has all."""
        left_out = self.unread(method, settings)
        return {name: value for name, value in settings.items() if name not in left_out}

    def resolve(self, method: str, **settings: Any) -> C:
        """Build the config from flat settings, with types checked and converted.

        Settings that the method does not read are accepted here, since records have all settings;
        see `check_read` for those that a user gives.

        Raises:
            InputError: for an unknown name (suggesting similar ones) or an invalid value.
        """
        chosen = self.defaults(method, settings.get("model")) | settings
        return self.config(method, **distribute(method, self._sections(method, chosen), chosen))
