"""What a command's help says of its defaults is what a run, a TOML file and Python take."""

import pytest

from stforecast.baselines import BASELINES
from stforecast.cli.run import run_command
from stforecast.forecasting import config
from stforecast.methods import METHODS
from vision import config as image_config
from vision.cli.commands import run_images_command
from vision.methods import METHODS as IMAGE_METHODS

COMMANDS = {"forecasts": run_command, "images": run_images_command}
RESOLVE = {"forecasts": config.resolve, "images": image_config.resolve}
METHODS = [
    *(("forecasts", method) for method in {**METHODS, **BASELINES}),
    *(("images", method) for method in IMAGE_METHODS),
]
OTHER_MODEL = {"forecasts": "linear", "images": "resnet18"}


def _options(task, *words):
    """All settings as the command line gives them, defaults included."""
    command = COMMANDS[task]
    given = command.make_context("run", list(words)).params
    fixed = {"out", "label", "resume", "as_json", "sweep", "track"} | (
        {"data"} if task == "forecasts" else set()
    )
    return {name: value for name, value in given.items() if name not in fixed}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("task", "method"), METHODS)
def test_the_defaults_of_the_command_line_are_those_of_python_and_toml(task, method):
    resolve = RESOLVE[task]
    assert resolve(**_options(task, "--method", method)) == resolve(method)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("task", "method"), METHODS)
def test_a_model_that_is_typed_brings_its_own_options(task, method):
    resolve, model = RESOLVE[task], OTHER_MODEL[task]
    options = _options(task, "--method", method, "--model", model)
    assert resolve(**options) == resolve(method, model=model)
