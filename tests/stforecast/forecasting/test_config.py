import dataclasses
import pickle

import numpy as np
import pytest

from data_prep.base.errors import InputError
from stforecast.baselines import BASELINES
from stforecast.forecasting.config import resolve, sections
from stforecast.forecasting.trained_method import build_method
from stforecast.methods import METHODS
from stforecast.models import MODELS

EVERY_METHOD = sorted({**METHODS, **BASELINES})


def test_each_setting_reaches_the_dataclass_that_has_it():
    config = resolve("fuels", service="net", closeness=6, rounds=7, seed=3, tau=0.5, hidden_size=16)
    assert (config.method, config.data.service, config.window.closeness) == ("fuels", "net", 6)
    assert (config.training.rounds, config.run.seed) == (7, 3)
    assert (config.method_options.tau, config.model_options.hidden_size) == (0.5, 16)


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_flat_settings_resolve_to_the_same_config(method):
    config = resolve(method, rounds=3, split="fedda", seed=5, scale="global")
    flat = config.flat()
    assert (flat["method"], flat["rounds"], flat["scale"]) == (method, 3, "global")
    assert resolve(**flat) == config


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_no_two_sections_share_a_name(method):
    for model in MODELS:
        names = [f.name for t in sections(method, model).values() for f in dataclasses.fields(t)]
        assert len(names) == len(set(names)), model
        assert "method" not in names


@pytest.mark.quick(4)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_can_be_pickled(method):
    built = build_method(resolve(method, calendar="none", periods=1, period=24, extra_lags=""))
    assert type(pickle.loads(pickle.dumps(built))) is METHODS[method]


def test_reference_forecasters_are_not_federated():
    assert resolve("fuels").federated
    assert not resolve("ridge").federated


@pytest.mark.parametrize(
    "method", [name for name, kind in BASELINES.items() if not kind.reads_windows]
)
def test_a_forecaster_that_reads_no_windows_needs_no_history_in_them(method):
    window = resolve(method).window
    assert (window.closeness, window.periods) == (1, 0)
    assert resolve(method, periods=2).window.periods == 2


@pytest.mark.parametrize("name", ["seed", "rounds", "lr", "checkpoint_every", "tau", "memory"])
@pytest.mark.parametrize("value", [True, False, np.True_])
def test_true_and_false_are_no_numbers(name, value):
    with pytest.raises(InputError, match=rf"{name} is {str(value).lower()}; .*value"):
        resolve("fuels", **{name: value})


@pytest.mark.parametrize("value", [0, 1, 1.0])
def test_numbers_are_neither_true_nor_false(value):
    with pytest.raises(InputError, match=f"shuffle is {value}; "):
        resolve("fuels", shuffle=value)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"rounds": "7"}, 7),
        ({"rounds": np.int64(7)}, 7),
        ({"lr": 1}, 1.0),
        ({"shuffle": "true"}, True),
        ({"service": None}, None),
    ],
)
def test_values_are_converted_to_the_type_of_the_field(given, kept):
    ((name, _),) = given.items()
    found = resolve("solo", **given).flat()[name]
    assert (found, type(found)) == (kept, type(kept))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": "many"}, "rounds is 'many': Input should be a valid integer"),
        ({"rounds": 2.5}, "rounds is 2.5: Input should be a valid integer"),
        ({"rounds": 0}, "rounds is 0; it must be positive"),
        ({"lr": float("nan")}, "lr is nan; it must be positive"),
        ({"service": [5]}, "service is [5]: Input should be a valid string"),
        ({"scale": "row"}, "scale is 'row'; choose cell or global"),
        ({"select": "first"}, "select is 'first'; choose best or last"),
        ({"closeness": -1}, "closeness is -1; it must be 0 or more"),
        ({"cohort": -1}, "cohort is -1; it must be 0 or more"),
        ({"seed": -1}, "seed is -1; it must be 0 or more"),
        ({"tau": 0}, "tau is 0; it must be positive"),
        ({"hidden_size": 0}, "hidden_size is 0; it must be positive"),
        ({"model": "dual"}, "unknown model 'dual'; choose one of: dual_gru"),
    ],
)
def test_values_that_do_not_fit_are_named(settings, message):
    with pytest.raises(InputError) as error:
        resolve("fuels", **settings)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_an_unknown_name_suggests_those_like_it():
    with pytest.raises(InputError, match=r"fuels 'round'; .*rounds"):
        resolve("fuels", round=3)


def test_an_option_of_another_method_lists_what_there_is():
    with pytest.raises(InputError, match=r"solo 'tau'; .*: actors, "):
        resolve("solo", tau=0.1)


def test_an_unknown_method_lists_methods_and_reference_forecasters():
    with pytest.raises(InputError, match=r"method 'x'; .*fuels.*ridge"):
        resolve("x")
