"""Options check themselves, however they are made."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from data_prep.base.errors import InputError
from stforecast.federated.core.options import (
    LARGEST,
    CheckedOptions,
    PositiveShare,
    Share,
    Width,
    range_of,
)


@dataclass(frozen=True)
class Plain(CheckedOptions):
    rounds: PositiveInt = 3
    width: Width | None = None
    rate: NonNegativeFloat = 0.5
    mean: float = 0.0
    part: PositiveShare = 1.0
    kind: Literal["a", "b", "c"] = "a"
    code: Literal[1, 2] | None = None
    switch: bool = False
    name: str = ""


@dataclass(frozen=True)
class Further(Plain):
    rate: Share = 0.25


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rounds", 0, "rounds is 0; it must be positive"),
        ("rounds", math.nan, "rounds is nan; it must be positive"),
        ("rounds", 2.5, "rounds is 2.5: Input should be a valid integer"),
        ("rounds", True, "rounds is true; give a value, since"),
        ("rounds", LARGEST + 1, "rounds is 4.295e+09; it must be at most 4294967295"),
        ("rounds", 10**400, "rounds is 1e+300; it must be at most 4294967295"),
        ("width", 0, "width is 0; it must be positive"),
        ("width", 9999, "width is 9999; it must be at most 8192"),
        ("rate", -1.0, "rate is -1.0; it must be 0 or more"),
        ("rate", math.inf, "rate is inf; it must be 0 or more"),
        ("mean", math.nan, "mean is nan; it must be finite"),
        ("part", 0, "part is 0; it must be in (0, 1]"),
        ("part", math.nan, "part is nan; it must be in (0, 1]"),
        ("kind", "d", "kind is 'd'; choose a, b or c"),
        ("code", 3, "code is 3; choose 1 or 2"),
        ("switch", 1, "switch is 1; it must be true or false"),
        ("name", [3], "name is [3]: Input should be a valid string"),
    ],
)
def test_values_outside_are_refused_in_plain_words(name, value, message):
    for make in (Plain, lambda **given: dataclasses.replace(Plain(), **given)):
        with pytest.raises(InputError) as error:
            make(**{name: value})
        assert str(error.value).startswith(message)


def test_values_are_converted_and_the_rest_is_a_dataclass_as_any():
    made = Plain(rounds="7", width=np.int64(4), rate=1)
    assert made == Plain(7, 4, 1.0)
    assert hash(made) == hash(Plain(7, 4, 1.0))
    assert [type(made.rounds), type(made.width), type(made.rate)] == [int, int, float]
    assert Plain(name=168).name == "168", "a number may be the text of a list of one number"
    assert dataclasses.asdict(made)["rate"] == 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.rounds = 1


def test_a_subclass_may_narrow_a_range():
    assert Plain(rate=2).rate == 2
    assert Further().rate == 0.25
    with pytest.raises(InputError, match=r"rate is 2; .*\[0, 1\]"):
        Further(rate=2)


@pytest.mark.parametrize(
    ("hint", "signs", "low", "high"),
    [
        (int, "", "finite", None),
        (str | None, "", "finite", None),
        (PositiveInt, "x>0", "positive", None),
        (NonNegativeInt | None, "x>=0", "0 or more", None),
        (Annotated[NonNegativeInt | None, "a mark"], "x>=0", "0 or more", None),
        (Annotated[float, Gt(2)], "x>2", "above 2", None),
        (Annotated[float, Lt(2)], "x<2", "finite", "below 2"),
        (Annotated[int, Ge(2), Le(4)], "2<=x<=4", "2 or more", "at most 4"),
        (Annotated[float, Ge(0), Lt(0.5)], "0<=x<0.5", "in [0, 0.5)", "in [0, 0.5)"),
    ],
)
def test_a_range_is_told_in_signs_and_in_words(hint, signs, low, high):
    found = range_of(hint)
    assert str(found) == signs
    assert found.wanted(too_high=False) == low
    if high:
        assert found.wanted(too_high=True) == high
