from pathlib import Path

import pytest

from data_prep.base.errors import InputError
from stforecast.bench.grid import load_grid
from stforecast.bench.grid_file import Entry, read_toml
from stforecast.bench.kind import Scenario, packaged
from stforecast.cli.kind import SimulatedCity, services


def test_a_file_is_read_into_a_grid(write, town):
    grid = write(
        '["solo", { method = "fuels", label = "w/o inter", inter = false }]',
        'title = "Ours"\nseeds = [1, 2]\nservices = ["internet", "sms"]',
    )
    assert grid.title == "Ours"
    assert grid.data == (str(town),)
    assert (grid.seeds, grid.scenarios) == ((1, 2), services(["internet", "sms"]))
    assert grid.entries == (Entry("solo", "solo"), Entry("fuels", "w/o inter", {"inter": False}))
    assert grid.settings == {
        "split": "days:7,1,2", "rounds": 1, "hidden_size": 8, "device": "cpu",
    }  # fmt: skip


def test_rows_of_another_table_and_the_reference_are_named(write):
    methods = '["solo", { method = "fuels", label = "w/o", table = "Ablations", inter = false }]'
    grid = write(methods, 'reference = "solo"')
    assert [entry.table for entry in grid.entries] == ["", "Ablations"]
    assert grid.reference == "solo"
    with pytest.raises(InputError, match=r"'fuels'; .*: seas"):
        write(methods, 'reference = "fuels"')
    assert write(methods, 'reference = "seasonal naive"').reference == "seasonal naive"


def test_a_row_may_have_seeds_of_its_own(write):
    grid = write('["solo", { method = "ridge", seeds = [3] }]', "seeds = [1, 2]")
    solo, ridge = grid.entries
    assert ridge == Entry("ridge", "ridge", seeds=(3,))
    assert (grid.seeds_of(solo), grid.seeds_of(ridge)) == ((1, 2), (3,))
    given = grid.replace(seeds=[7])
    assert (given.seeds_of(solo), given.seeds_of(ridge)) == ((7,), (3,)), "--seed leaves its own"


def test_a_preset_replaces_keys_and_adds_settings(tmp_path):
    path = tmp_path / "bench.toml"
    path.write_text(
        'data = ["a.nc"]\nmethods = ["solo", "ridge"]\n[settings]\nrounds = 9\nsplit = "fuels"\n'
        '[presets.main]\nmethods = ["solo"]\nsettings = { rounds = 2 }'
    )
    grid = load_grid(path, "main")
    assert [entry.label for entry in grid.entries] == ["solo"]
    assert grid.settings == {"rounds": 2, "split": "fuels"}
    assert "--preset main" in grid.repeat(tmp_path / "out")
    with pytest.raises(InputError, match=r"preset 'tiny'; .*main"):
        load_grid(path, "tiny")


def test_what_is_left_out_has_its_default(write):
    grid = write(data='[{ cells = 4, days = 7 }, "a.nc"]')
    assert (grid.title, grid.seeds) == ("bench", (1,))
    assert grid.scenarios == (Scenario(None, {}),)
    assert grid.data == (SimulatedCity(cells=4, days=7), "a.nc")


def test_given_values_replace_those_of_the_file(write):
    grid = write('["solo", "ridge"]', "seeds = [1, 2]")
    assert grid.replace() == grid
    changed = grid.replace([Path("x.nc")], services(["sms"]), seeds=[7], settings={"rounds": 5})
    assert (changed.data, changed.seeds) == (("x.nc",), (7,))
    assert changed.scenarios == (Scenario("sms", {"service": "sms"}),)
    assert changed.settings == grid.settings | {"rounds": 5}
    assert changed.entries == grid.entries


def test_a_benchmark_knows_the_command_that_repeats_it(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = write('["solo", "ridge"]')
    assert grid.repeat(Path("out")) == "stforecast bench bench.toml --out out"
    elsewhere = tmp_path.parent / "my cubes" / "x y.nc"
    changed = grid.replace([elsewhere], services(["sms"]), seeds=[7, 8], settings={"rounds": 5})
    assert changed.repeat(tmp_path / "results" / "a") == (
        "stforecast bench bench.toml --data 'x y.nc' --service sms --seed 7 --seed 8 --rounds 5 "
        "--out results/a"
    )


def test_published_numbers_and_figures_are_read(write):
    grid = write(
        '["solo"]',
        'services = ["sms"]\nfigures = ["cdf"]\n'
        '[published]\nsource = "A, Table 1"\nmse.sms = { solo = 1.5 }',
    )
    assert [figure.plot for figure in grid.figures] == ["cdf"]
    assert grid.published.numbers == {"mse": {"sms": {"solo": 1.5}}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('data = ["a.nc"\n', "is not TOML"),
        ('dat = ["a.nc"]', "'dat'; .*: backtest, data, figures"),
        ('methods = ["solo"]', "key 'data'.*paths"),
        ('data = ["a.nc"]', "key 'methods'"),
        ('data = ["a.nc"]\nmethods = []', "methods is empty"),
        ('data = "a.nc"\nmethods = ["solo"]', "data is 'a.nc'"),
        ('data = [{ cels = 3 }]\nmethods = ["solo"]', "data is .*'cels': 3"),
        ('data = ["a.nc"]\nmethods = ["solo"]\nseeds = 3', "seeds is 3"),
        ('data = ["a.nc"]\nmethods = ["solo"]\nseeds = ["x"]', "seeds is .*x"),
        ('data = ["a.nc"]\nmethods = ["solo"]\nseeds = [true]', "seeds is .*True"),
        ('data = [{ cells = true }]\nmethods = ["solo"]', "data is"),
        (
            'data = ["a.nc"]\nmethods = ["solo"]\nsettings = { lr = true }',
            "lr is true",
        ),
        (
            'data = ["a.nc"]\nmethods = ["solo"]\n[published]\nsource = "x"\nmse.a.solo = true',
            "published.mse .*service",
        ),
        ('data = ["a.nc"]\nmethods = ["solo"]\nservices = "a"', "services is 'a'"),
        ('data = ["a.nc"]\nmethods = ["solo"]\nsettings = 3', "settings is 3"),
        ('data = ["a.nc"]\nmethods = [3]', r"methods is \[3\]"),
        (
            'data = ["a.nc"]\nmethods = [{ method = "solo", seeds = [] }]',
            "solo: seeds .*empty",
        ),
        (
            'data = ["a.nc"]\nmethods = [{ method = "solo", seeds = 2 }]',
            "solo: seeds .*2; ",
        ),
        (
            'data = ["a.nc"]\nmethods = [{ method = "solo", label = "x", seeds = [-1] }]',
            "x: seeds .*-1; ",
        ),
        (
            'data = ["a.nc"]\nmethods = [{ method = "solo", seed = 2 }]',
            r"solo .*seeds = \[2\]",
        ),
        (
            'data = ["a.nc"]\nmethods = ["solo"]\nsettings = { seed = 2 }',
            r"seed .*seeds = \[1, 2\] ",
        ),
        ('data = ["a.nc"]\nmethods = [{ label = "x" }]', "no method: {'label': 'x'}"),
        ('data = ["a.nc"]\nmethods = ["sole"]', "method 'sole'"),
        ('data = ["a.nc"]\nmethods = [{ method = "fuels", taau = 1 }]', "'taau'.*tau"),
        ('data = ["a.nc"]\nmethods = ["solo"]\n[settings]\nrounds = 0', "rounds is 0"),
    ],
)
def test_a_mistake_is_named_with_the_file(tmp_path, text, message):
    path = tmp_path / "bench.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=f"bench.toml: .*{message}"):
        load_grid(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"b.toml: .*\(No such"):
        load_grid(tmp_path / "b.toml")


@pytest.mark.parametrize(
    "methods",
    [
        '["solo", "solo"]',
        '["fuels", { method = "fuels", tau = 0.5 }]',
        '[{ method = "solo", label = "w/o x" }, { method = "solo", label = "W o X", lr = 1 }]',
    ],
)
def test_labels_that_would_share_a_folder_are_refused(write, methods):
    with pytest.raises(InputError, match=r"called '.*'"):
        write(methods)


EVERY_CONFIG = list(packaged().values())
CONFIGS = [path for path in EVERY_CONFIG if "task" not in read_toml(path)]
IMAGE_CONFIGS = [path for path in EVERY_CONFIG if "task" in read_toml(path)]


@pytest.mark.parametrize("path", EVERY_CONFIG, ids=lambda path: path.stem)
def test_the_shipped_benchmarks_say_what_they_are(path):
    assert path.read_text().startswith("# "), "say what it is, what differs and how long it takes"


@pytest.mark.quick(4)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_shipped_benchmarks_can_be_read(path):
    assert load_grid(path).entries


@pytest.mark.quick(4)
@pytest.mark.parametrize("path", IMAGE_CONFIGS, ids=lambda path: f"{path.parent.stem}-{path.stem}")
def test_the_shipped_benchmarks_of_images_can_be_read(path):
    presets = set(read_toml(path).get("presets", {}))
    alone = path.parent.name == "medium"  # A size of its own.
    assert alone or presets >= {"small", "paper"}
    for preset in [*presets, *([None] if alone else [])]:
        assert load_grid(path, preset).entries


@pytest.mark.quick(8)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_shipped_benchmarks_print_what_adds_up(path):
    """FUELS's own row is the same in every table of the paper."""
    grid = load_grid(path)
    if grid.published is None or "sms" not in [scenario.name for scenario in grid.scenarios]:
        pytest.skip("no numbers of the paper's three services")
    own = "d_r = 128" if path.stem == "fuels_table5" else "fuels"
    found = {
        (metric, service): by_label[own]
        for metric, by_service in grid.published.numbers.items()
        for service, by_label in by_service.items()
    }
    assert found == {
        ("mse", "sms"): 1.249, ("mse", "call"): 0.353, ("mse", "net"): 0.880,
        ("mae", "sms"): 0.541, ("mae", "call"): 0.311, ("mae", "net"): 0.488,
    }  # fmt: skip


def test_each_cube_may_have_some_of_the_services(write, town, tmp_path):
    roads = '{ path = "roads.nc", services = ["speed"] }'
    data = f'[{{ path = "{town}", services = ["sms"] }}, {roads}, "c.nc"]'
    grid = write('["ridge"]', 'services = ["sms", "speed"]', data=data)

    def found(grid):
        places = grid.kind.places(grid, tmp_path, progress=False)
        return [f"{data.stem} {scenario.name}" for data, scenario in places]

    assert found(grid) == ["town sms", "roads speed", "c sms", "c speed"]
    assert found(grid.replace(scenarios=services(["speed"]))) == ["roads speed", "c speed"]
    for more, listed in (('services = ["sms"]', "sms"), ("", "none")):
        message = rf"roads.nc: the services of the benchmark \({listed}\) lack 'speed'; add it"
        with pytest.raises(InputError, match=message):
            write('["ridge"]', more, data=f"[{roads}]")
