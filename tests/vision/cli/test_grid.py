"""Benchmark files of images: what they hold, presets, and mistakes."""

import pytest

from data_prep.base.errors import InputError
from stforecast.bench.grid import load_grid


def test_a_preset_replaces_keys_and_merges_settings(write_grid):
    preset = "[presets.small]\nseeds = [5]\nsettings = { rounds = 3, lr = 0.1 }"
    path = write_grid(9, "seeds = [1, 2]", preset)
    plain, small = load_grid(path), load_grid(path, "small")
    assert (plain.seeds, plain.settings["rounds"]) == ((1, 2), 9)
    assert (small.seeds, small.settings["rounds"], small.settings["lr"]) == ((5,), 3, 0.1)
    assert small.settings["clients"] == 3
    assert small.repeat(path.parent / "out").split()[:2] == ["stforecast", "bench"]
    assert "--preset small" in small.repeat(path.parent / "out")


def test_images_files_are_told_from_others(write_grid, tmp_path):
    assert load_grid(write_grid()).kind.name == "images"
    other = tmp_path / "other.toml"
    other.write_text('data = ["a.nc"]\nmethods = ["ridge"]')
    assert load_grid(other).kind.name == "forecasts"
    other.write_text('task = "tables"')
    with pytest.raises(InputError, match="unknown task 'tables'"):
        load_grid(other)


def test_the_command_line_replaces(write_grid, tmp_path):
    grid = load_grid(write_grid()).replace(
        data=["mnist"], seeds=[3], settings={"images": str(tmp_path), "rounds": 7}
    )
    assert (grid.data, grid.seeds, grid.settings["rounds"]) == (("mnist",), (3,), 7)
    assert grid.settings["images"] == str(tmp_path)
    with pytest.raises(InputError, match=r"images .*mnist"):
        load_grid(write_grid()).replace(settings={"images": str(tmp_path)})


@pytest.mark.parametrize(
    ("more", "tables", "message"),
    [
        ("colour = 1", "", "unknown key 'colour'"),
        ("", "[scenarios]\na = { wys = 2 }", "unknown option of solo 'wys'; did you mean ways"),
        ("", "[presets.big]\nseed = [1]", "unknown key 'seed'"),
        ('figures = ["map"]', "", "unknown plot 'map'"),
        ("seeds = [-1]", "", "seeds has -1"),
        ("", '[published]\nsource = "x"\naccuracy.none = { solo = 1.0 }', "unknown service 'none'"),
    ],
)
def test_mistakes_are_named(write_grid, more, tables, message):
    path = write_grid(1, more, tables)
    with pytest.raises(InputError) as e:
        load_grid(path, "big" if "presets" in tables else None)
    assert message in str(e.value)
    assert str(path) in str(e.value)


def test_an_unknown_preset_lists_those_there_are(write_grid):
    path = write_grid(1, "", "[presets.small]\nseeds = [1]")
    with pytest.raises(InputError, match=r"preset 'paper'; .*: small"):
        load_grid(path, "paper")


def test_a_scenario_goes_before_a_row(write_grid):
    row, scenario = 'references = [{ method = "central", lr = 0.3 }]', "a = {}\nb = { lr = 0.7 }"
    grid = load_grid(write_grid(1, row, f"[scenarios]\n{scenario}"))
    solo, _, central = grid.entries
    found = [
        grid.kind.job_settings(grid, entry, scenario, "digits8x8").get("lr")
        for scenario in grid.scenarios
        for entry in (solo, central)
    ]
    assert found == [None, 0.3, 0.7, 0.7]


def test_references_are_rows_that_figures_draw_only_if_named(write_grid):
    figures = 'figures = ["bars", { plot = "bars", name = "all", methods = ["solo", "chance"] }]'
    preset = '[presets.small]\nreferences = [{ method = "central", epochs = 3 }]'
    path = write_grid(1, f'references = ["chance"]\n{figures}', preset)
    grid = load_grid(path)
    assert [entry.label for entry in grid.entries] == ["solo", "α = 0.3", "chance"]
    assert [figure.methods for figure in grid.figures] == [("solo", "α = 0.3"), ("solo", "chance")]
    with pytest.raises(InputError, match="label 'chance'"):
        load_grid(path, "small")
    other = write_grid(1, 'references = ["solo"]')
    with pytest.raises(InputError, match=r"methods .* 'solo'"):
        load_grid(other)
