from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner
from pydantic import PositiveInt

from data_prep.base.errors import InputError
from data_prep.base.registry import Found, Registry, entries, help_text, title
from stforecast.cli.commands import Sectioned, Subcommands
from stforecast.cli.main import main
from stforecast.cli.options import from_dataclass, from_function, peek
from stforecast.federated.core.options import Share
from stforecast.methods import METHODS


@dataclass(frozen=True)
class Settings:
    """Settings of a test.

    Attributes:
        n_cells: number of cells, 1 or
            more.
        share: how many of them.
        kind: `small`: a village; `large`: a town.
        lazy: whether to rest.
        keen: whether to work.
        out: where to write.
    """

    n_cells: PositiveInt = 3
    share: Share | None = None
    kind: Literal["small", "large"] = "small"
    lazy: bool = False
    keen: bool = True
    out: Path | None = None


def draw(runs, *, width: float = 3.5, cells: str | None = None, _hidden: int = 0):
    """Draw it.

    With care.

    Args:
        runs: finished runs.
        width: width in inches.
        cells: ids.

    Raises:
        ValueError: never.
    """


def parse(options, *args):
    """What a command with these options makes of arguments, and the runner's result."""
    got = {}
    command = click.Command("c", params=list(options), callback=lambda **given: got.update(given))
    return got, CliRunner().invoke(command, args)


def test_an_option_that_takes_a_value_needs_one():
    for option in ("--width", "--cells"):
        got, result = parse(from_function(draw), option)
        assert result.exit_code == 2
        assert f"'{option}' requires" in result.output
        assert got == {}


def test_a_field_becomes_an_option_with_its_type_and_default():
    assert parse(from_dataclass(Settings))[0] == {
        "n_cells": 3, "share": None, "kind": "small", "lazy": False, "keen": True, "out": None,
    }  # fmt: skip
    given = ["--n-cells", "5", "--kind", "large", "--lazy", "--no-keen", "--out", "a/b"]
    assert parse(from_dataclass(Settings), *given, "--share", "0.5")[0] == {
        "n_cells": 5, "share": 0.5, "kind": "large", "lazy": True, "keen": False,
        "out": Path("a/b"),
    }  # fmt: skip


@pytest.mark.parametrize("args", [("--n-cells", "x"), ("--kind", "huge"), ("--no-lazy",)])
def test_what_does_not_fit_a_field_is_refused(args):
    assert parse(from_dataclass(Settings), *args)[1].exit_code == 2


def test_help_has_the_docstrings_texts_and_defaults():
    text = " ".join(parse(from_dataclass(Settings), "--help")[1].output.split())
    assert "--n-cells INTEGER Number of cells, 1 or more. [default: 3; x>0]" in text
    assert "--share FLOAT How many of them. [0<=x<=1]" in text
    assert "--kind [small|large] small: a village; large: a town. [default: small]" in text
    assert "--lazy Whether to rest. --keen" in text
    assert "--keen / --no-keen Whether to work. [default: keen]" in text
    assert "--out PATH Where to write. --help" in text


def test_keyword_only_parameters_become_options():
    options = from_function(draw, leave_out=("_hidden",))
    assert [(o.opts, o.help) for o in options] == [
        (["--width"], "Width in inches."),
        (["--cells"], "Ids."),
    ]


def test_a_parameter_without_default_is_required():
    def fit(*, n: int): ...

    assert "Missing option '--n'" in parse(from_function(fit))[1].output
    assert parse(from_function(fit), "--n", "3")[0] == {"n": 3}


def test_entries_of_a_section_end_where_it_ends():
    assert entries(draw.__doc__, "Args") == {
        "runs": "finished runs.", "width": "width in inches.", "cells": "ids.",
    }  # fmt: skip
    assert entries(None, "Args") == {}


def test_help_text_is_what_stands_before_the_sections():
    assert help_text(draw.__doc__) == "Draw it.\n\nWith care."
    assert title(draw.__doc__) == "Draw it"
    assert help_text(None) == title(None) == ""


def test_lists_stay_lists_and_fit_eighty_columns():
    items = ["- " + "first " * 20, "- " + "second " * 20]
    text = help_text("Title.\n\n" + "\n".join(items) + "\n\nMore.")
    assert "\n\n\b\n- first" in text
    assert "\n- second" in text
    assert "\n  second" in text
    assert max(map(len, text.splitlines())) <= 78


@pytest.mark.parametrize(
    ("args", "value"),
    [
        ([], "fuels"),
        (["--method", "solo"], "solo"),
        (["--method=solo"], "solo"),
        (["--method", "solo", "--method", "ridge"], "ridge"),
        (["--method"], "fuels"),
        (["--methods", "solo"], "fuels"),
    ],
)
def test_peek_takes_the_last_value(args, value):
    assert peek(args, "--method", "fuels") == value


def test_sections_follow_the_arguments():
    def sections(args):
        n = peek(args, "--animal", "cat")
        return {f"Options of {n}": [click.Option([f"--{n}-name"], help=f"Name of the {n}.")]}

    got = {}
    command = Sectioned(
        "c",
        params=[click.Option(["--animal"]), click.Argument(["rest"], nargs=-1)],
        callback=lambda **given: got.update(given),
        sections=sections,
    )
    runner = CliRunner()
    assert runner.invoke(command, ["--animal", "dog", "--dog-name", "Rex"]).exit_code == 0
    assert got == {"animal": "dog", "dog_name": "Rex", "rest": ()}
    assert runner.invoke(command, ["--dog-name", "Rex"]).exit_code == 2
    output = runner.invoke(command, ["--animal", "dog", "--help"]).output
    fixed, own = output.split("Options of dog:")
    assert "--animal" in fixed
    assert "rest" not in fixed.split("Options:")[1].lower()
    assert "Name of the dog." in own


def test_a_registry_is_a_group_of_its_entries(monkeypatch):
    def make(name, entry):
        return click.Command(name, callback=lambda: click.echo(entry), short_help=f"say {entry}")

    known = Registry("letter", is_entry=bool, group="none")
    entries = {"b": Found("bee", ""), "a": Found("ay", "")}
    monkeypatch.setattr(known, "found", lambda: entries)
    group = Subcommands("g", known=known, make=make)
    runner = CliRunner()
    assert runner.invoke(group, ["b"]).output == "bee\n"
    listed = runner.invoke(group, ["--help"]).output.split("Commands:")[1].split()
    assert listed == ["b", "say", "bee", "a", "say", "ay"]
    error = runner.invoke(group, ["c"]).exception
    assert isinstance(error, InputError)
    assert str(error) == "unknown letter 'c'; choose one of: a, b"


def test_an_option_of_all_methods_that_a_method_declares_again_is_refused(monkeypatch, capsys):
    @dataclass(frozen=True)
    class Again:
        """Settings of FedAvg.

        Attributes:
            lr: learning rate.
        """

        lr: float = 0.1

    monkeypatch.setattr(METHODS["fedavg"], "Options", Again)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--method", "fedavg", "--lr", "0.1"])
    assert ended.value.code
    refusal = "fedavg: lr is already an option of all methods or of the model; rename it"
    assert capsys.readouterr().err.startswith(f"stforecast: {refusal}")
