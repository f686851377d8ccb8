"""Options of a command from a TOML file."""

from pathlib import Path

import click
import matplotlib.pyplot as plt
import pytest
from click.testing import CliRunner

from data_prep.base.errors import InputError
from data_prep.base.registry import Found, Registry
from stforecast.cli.commands import CONFIG, command, make_plot_group


@command(CONFIG, flags={"first": "first-client", "nodes": "node"})
def show(
    *,
    config,
    data: Path,
    first: int = 0,
    nodes: tuple[str, ...] = (),
    insecure: bool = False,
    shuffle: bool = True,
):
    click.echo({"data": data, "first": first, "nodes": nodes, "shuffle": shuffle})


@pytest.fixture
def said(tmp_path):
    def run(text, *words):
        (tmp_path / "a.toml").write_text(text)
        words = ["--config", str(tmp_path / "a.toml"), *words]
        done = CliRunner().invoke(show, words, catch_exceptions=True)
        if isinstance(done.exception, InputError):
            raise done.exception
        return done.output.strip()

    return run


def test_a_file_gives_options_and_its_paths_begin_at_its_folder(said, tmp_path):
    text = 'data = "b.nc"\nfirst_client = 3\nnode = ["1=0-2", "2=3-4"]\nshuffle = false'
    shown = said(text)
    assert f"'data': {tmp_path / 'b.nc'!r}, 'first': 3, 'nodes': ('1=0-2', '2=3-4')" in shown
    assert "'shuffle': False" in shown


def test_what_is_typed_replaces_what_stands_in_the_file(said):
    assert "'first': 5," in said('data = "b.nc"\nfirst_client = 3', "--first-client", "5")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("first_clint = 3", "a.toml: unknown key 'first_clint'.*'first_client'"),
        ("config = 'b.toml'", r"a.toml: unknown key 'config'"),
        ("insecure = 1", "a.toml: insecure is 1; "),
        ("data = true", "a.toml: data is True"),
        ("first_client = [1]", r"a.toml: first_client is \[1\]"),
        ("first_client = ", r"a.toml: is not TOML"),
    ],
)
def test_what_cannot_be_used_is_named(said, text, message):
    with pytest.raises(InputError, match=message):
        said(text)


def test_click_checks_values(said):
    assert "'x' is" in said('data = "b.nc"\nfirst_client = "x"')
    assert "Missing option '--data'" in said("first_client = 3")


def test_an_own_figure_may_name_its_parameters_as_it_likes(make_run, tmp_path, monkeypatch):
    given = {}

    def counted(runs, *, cells: int = 3, start: float = 0.0, width: int = 5):
        """Draw some cells of runs.

        Args:
            cells: how many to draw.
            start: start of the axis.
            width: number of points.
        """
        given.update(cells=cells, start=start, width=width)
        return plt.figure()

    plots = Registry("figure", is_entry=callable, group="of no package")
    monkeypatch.setattr(plots, "found", lambda: {"counted": Found(counted, "here")})
    group = make_plot_group("Draw.", plots, lambda runs: [make_run()], "run")
    words = ["counted", str(tmp_path), "--cells", "4", "--from", "2", "--width", "500"]
    out = tmp_path / "counted.svg"
    done = CliRunner().invoke(group, [*words, "--out", str(out)], catch_exceptions=False)
    assert (done.exit_code, given) == (0, {"cells": 4, "start": 2.0, "width": 500})
    assert out.exists()
