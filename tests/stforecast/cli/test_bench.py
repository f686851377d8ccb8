import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.cube import write_cube
from stforecast.bench.jobs import run_grid
from stforecast.cli.bench import execute, find_config
from stforecast.federated.runs import run_folder
from stforecast.forecasting import runs as running
from stforecast.forecasting.results import ForecastRun


@pytest.fixture
def calls(monkeypatch):
    """Labels and seeds of the runs that are really done."""
    done = []

    def run(method, data, folder, settings, **options):
        done.append((options["label"], settings["seed"]))
        return original(method, data, folder, settings, **options)

    original = running.run
    monkeypatch.setattr(running, "run", run)
    return done


def test_runs_that_would_share_a_folder_are_refused(write, town, tmp_path):
    grid = write(more='services = ["sms"]')
    twins = grid.replace(data=[town, tmp_path / "other" / town.name])
    with pytest.raises(InputError, match=r"two .*folder"):
        run_grid(twins, tmp_path / "out")
    with pytest.raises(InputError, match=r"two .*folder"):
        run_grid(grid.replace(seeds=[1, 1]), tmp_path / "out")


def test_every_combination_is_run_once_and_kept(write, calls, tmp_path):
    out = tmp_path / "out"
    grid = write('["ridge", "last_value"]', 'services = ["sms"]\nseeds = [1, 2]')
    outcome = run_grid(grid, out)
    done = [("ridge", 1), ("last_value", 1), ("ridge", 2), ("last_value", 2)]
    assert calls == done, "balanced when stopped"
    assert not outcome.failures
    folder = out / "runs" / "town" / "sms" / "last_value" / "seed-2"
    assert outcome.runs[3].folder == folder
    before = (folder / "run.json").stat().st_mtime_ns
    again = run_grid(grid.replace(seeds=[1, 2, 3]), out)
    assert calls[4:] == [("ridge", 3), ("last_value", 3)]
    assert len(again.runs) == 6
    assert (folder / "run.json").stat().st_mtime_ns == before


def test_a_part_joins_the_finished_rows_and_seeds(write, calls, tmp_path):
    out = tmp_path / "out"
    grid = write('["ridge", "last_value"]', 'services = ["sms"]')
    run_grid(grid.replace(rows=["ridge"]), out)
    assert calls == [("ridge", 1)]
    later = run_grid(grid.replace(rows=["last_value"], seeds=[2]), out)
    assert calls[1:] == [("last_value", 2)]
    assert [(run.label, run.seed) for run in later.runs] == [("last_value", 2), ("ridge", 1)]
    assert "ridge" in later.table
    with pytest.raises(InputError, match=r"row 'ridg'; .*last_value, ridge"):
        grid.replace(rows=["ridg"])


def test_cells_in_another_order_than_by_name_are_the_same_data(write, calls, town, tmp_path):
    with xr.open_dataset(town, engine="h5netcdf") as ds:
        turned = write_cube(ds.isel(cell=slice(None, None, -1)).load(), tmp_path / "turned.nc")
    grid = write('["last_value"]', 'services = ["sms"]').replace(data=[turned])
    run_grid(grid, tmp_path / "out")
    run_grid(grid, tmp_path / "out")
    assert len(calls) == 1


def test_a_table_names_what_made_it(write, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "commit", lambda: "abc123")
    run_grid(write('["last_value"]', 'services = ["sms"]'), tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "table.json").read_text())["facts"]
    assert (facts["commit"], facts["processor"]) == ("abc123", run_folder.processor())
    assert int(facts["threads"]) > 0
    assert re.fullmatch(r"town\.nc sha256:[0-9a-f]{12}", facts["data"])


@pytest.mark.repeats
def test_a_row_of_one_seed_is_compared_and_named(write, calls, tmp_path):
    out = tmp_path / "out"
    methods = '["solo", { method = "ridge", label = "a, b", seeds = [1] }]'
    grid = write(methods, 'services = ["sms"]\nseeds = [1, 2]\nreference = "solo"')
    run_grid(grid.replace(seeds=[1]), out)
    outcome = run_grid(grid, out)
    assert calls == [("solo", 1), ("a, b", 1), ("solo", 2)], "resumed"
    assert "Seeds are not resampled for rows with a single seed: a, b." in outcome.table
    assert "up to 2 seeds (1 degree of freedom); it holds for these cells only." in outcome.table
    assert "\n- seeds: 1, 2 (only 1: a, b)\n" in (out / "table.md").read_text()
    one_seed = run_grid(write(methods, 'services = ["sms"]'), tmp_path / "one").table
    assert "it holds for these cells and this seed only." in one_seed
    assert "single seed" not in one_seed


def test_the_tables_hold_all_runs(write, tmp_path):
    grid = write('["ridge", { method = "ridge", label = "strong", alpha = 100.0 }]',
                 'title = "Ours"\nservices = ["sms", "internet"]')  # fmt: skip
    outcome = run_grid(grid, tmp_path)
    table = pd.read_csv(tmp_path / "metrics.csv")
    named = table[["method", "label", "service"]].drop_duplicates().to_numpy().tolist()
    assert named == [
        ["ridge", "ridge", "sms"],
        ["ridge", "strong", "sms"],
        ["ridge", "ridge", "internet"],
        ["ridge", "strong", "internet"],
    ]
    assert len(table) == sum(len(run.metrics()) for run in outcome.runs)
    text = (tmp_path / "table.md").read_text()
    assert text.startswith(f"# Ours\n\n    {grid.repeat(tmp_path)}\n\n- written: 20")
    assert "- seeds: 1\n- versions: numpy " in text
    assert "cores, " in text
    assert "**town, sms**: 3" in text
    assert "| strong" in text
    tex = (tmp_path / "table.tex").read_text()
    assert tex.count("\n strong ") == text.count("\n| strong")
    parts = json.loads((tmp_path / "table.json").read_text())["parts"]
    of_sms = next(part for part in parts if isinstance(part, list))
    assert [row["MSE"] for row in of_sms] == [run.score() for run in outcome.runs[:2]]


def test_a_failed_run_is_noted_and_tried_again_and_others_go_on(
    write, calls, tmp_path, monkeypatch
):
    def fail(*args, **options):
        if options["label"] == "last_value":
            raise RuntimeError("out of luck")
        return counted(*args, **options)

    counted = running.run
    monkeypatch.setattr(running, "run", fail)
    grid = write('["last_value", "ridge"]', 'services = ["sms"]')
    outcome = run_grid(grid, tmp_path)
    assert calls == [("ridge", 1)]
    name = "town/sms/last_value/seed-1"
    assert outcome.failures == {name: "RuntimeError: out of luck"}
    note = tmp_path / "runs" / name / "failed.txt"
    assert "Traceback" in note.read_text()
    with pytest.raises(InputError, match=f"such as {re.escape(str(note.parent))}; "):
        execute(grid, tmp_path, "local", as_json=False, progress=False)
    assert f"- {name}: RuntimeError: out of" in (tmp_path / "table.md").read_text()
    monkeypatch.setattr(running, "run", counted)
    assert not run_grid(grid, tmp_path).failures
    assert calls[1:] == [("last_value", 1)]
    assert not note.exists()


@pytest.mark.parametrize(
    ("service", "absent", "message"),
    [
        ("sms", "absent.nc", "absent.nc: no cube"),
        ("calls", None, "service 'calls'; choose one of: internet, sms"),
        (None, None, "several services"),
    ],
)
def test_data_and_services_are_checked_before_the_first_run(
    write, calls, town, tmp_path, service, absent, message
):
    services = f'services = ["{service}"]' if service else ""
    cubes = [str(town), absent] if absent else [str(town)]
    with pytest.raises(InputError, match=message):
        run_grid(write(data=json.dumps(cubes), more=services), tmp_path / "out")
    assert not calls
    assert not (tmp_path / "out").exists()


def test_rows_whose_lags_move_the_test_part_are_refused_before_the_first_run(
    write, calls, tmp_path
):
    methods = '["ridge", { method = "ridge", label = "short", periods = 1 }]'
    grid = write(methods, 'services = ["sms"]', 'split = "windows:0.6,0.2,0.2"\n')
    with pytest.raises(InputError, match="times than ridge, "):
        run_grid(grid, tmp_path / "out")
    assert not calls


@pytest.mark.repeats
def test_finished_runs_need_no_data(write, tmp_path, town):
    moved = tmp_path / "moved.nc"
    shutil.copy(town, moved)
    grid = write('["last_value"]', 'services = ["sms"]', data=f'["{moved}"]')
    run_grid(grid, tmp_path)
    moved.unlink()
    assert len(run_grid(grid, tmp_path).runs) == 1


def test_shared_settings_are_for_those_who_read_them(write, tiny_settings):
    with pytest.raises(InputError, match=r"ridge .*lr; .*fedavg"):
        write('["last_value", { method = "ridge", lr = 0.5 }]', 'services = ["sms"]')
    grid = write('["ridge", "solo"]', 'services = ["sms"]')
    with pytest.raises(InputError, match=r"ridge .*bits"):
        grid.replace(settings={"bits": 8})
    assert grid.replace(settings={"lr": 0.5}).settings["lr"] == 0.5


def test_a_second_benchmark_in_one_folder_is_refused(write, tmp_path, monkeypatch):
    grid = write('["last_value"]', 'services = ["sms"]')

    def nested(*args, **options):
        with pytest.raises(InputError, match=r"process \d+ .*writing"):
            run_grid(grid, tmp_path)
        raise RuntimeError("refused")

    monkeypatch.setattr(running, "run", nested)
    assert list(run_grid(grid, tmp_path).failures.values()) == ["RuntimeError: refused"]


def test_other_settings_in_the_same_folder_are_refused_before_any_run(
    write, calls, tmp_path, tiny_settings
):
    grid = write('["last_value"]', 'services = ["sms"]')
    run_grid(grid, tmp_path)
    more = write(
        '["ridge", "last_value"]', 'services = ["sms"]', tiny_settings.replace("7,1,2", "6,2,2")
    )
    with pytest.raises(InputError, match=r"seed-1 .*\(split\); delete"):
        run_grid(more, tmp_path)
    assert calls == [("last_value", 1)]


def test_a_finished_row_takes_a_new_label_and_table(write, calls, tmp_path):
    """Labels that differ in their punctuation share a folder."""
    rows = '["ridge", { method = "last_value", label = "a, b" }]'
    before = write(rows, 'services = ["sms"]')
    run_grid(before, tmp_path / "out")
    rows = rows.replace('"a, b"', '"a b", table = "Ablations"')
    changed = write(rows, 'services = ["sms"]\nreference = "ridge"')
    found = run_grid(changed, tmp_path / "out").runs[1]
    assert len(calls) == 2, "nothing was run again"
    assert (found.label, found.table) == ("a b", "Ablations")
    assert ForecastRun.open(found.folder).about == found.about, "other commands read it so, too"
    found = run_grid(before, tmp_path / "out").runs[1]
    assert (found.label, found.table) == ("a, b", "")


@pytest.mark.repeats
def test_other_data_under_the_same_name_are_refused(write, town, tmp_path):
    grid = write('["last_value"]', 'services = ["sms"]')
    run_grid(grid, tmp_path / "out")
    copy = tmp_path / town.name
    copy.write_bytes(town.read_bytes())
    with pytest.raises(InputError, match=r"\(data\)"):
        run_grid(grid.replace(data=[copy]), tmp_path / "out")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("service", ["internet", "sms"])
def test_finished_runs_on_data_that_changed_since_are_refused(write, town, tmp_path, service):
    """The training part changed, which no target of the test part shows."""
    copy = tmp_path / "copy.nc"
    shutil.copy(town, copy)
    methods = '["last_value", { method = "ridge", inputs = "internet" }]'
    grid = write(methods, 'services = ["sms"]', data=f'["{copy}"]')
    run_grid(grid, tmp_path / "out")
    assert len(run_grid(grid, tmp_path / "out").runs) == 2
    cube = xr.load_dataset(town)
    cube[service][:50] = 2 * cube[service][:50]
    write_cube(cube, copy)
    run = "ridge" if service == "internet" else "last_value"
    match = rf"{run}.* was run on other data: .*copy\.nc has changed since"
    with pytest.raises(InputError, match=match):
        run_grid(grid, tmp_path / "out")


def test_finished_runs_of_other_clients_are_refused(write, town, tmp_path):
    """Their table has the name that it had before."""
    with xr.open_dataset(town) as cube:
        cells = cube["cell"].to_numpy()
    table = tmp_path / "owners.csv"

    def deal(n):
        lines = (f"{cell},{place % n}" for place, cell in enumerate(cells))
        table.write_text("\n".join(["cell,client", *lines]) + "\n")

    deal(2)
    grid = write(
        f'["last_value", {{ method = "solo", clients = "{table}" }}]', 'services = ["sms"]'
    )
    run_grid(grid, tmp_path / "out")
    assert len(run_grid(grid, tmp_path / "out").runs) == 2
    deal(3)
    with pytest.raises(InputError, match=r"solo.seed-1 .*data: "):
        run_grid(grid, tmp_path / "out")


@pytest.mark.slow
def test_a_city_is_simulated_once(write, tmp_path, tiny_settings):
    city = '[{ name = "Small city", cells = 2, days = 8, seed = 3 }]'
    settings = tiny_settings.replace("7,1,2", "6,1,1")
    grid = write('["last_value"]', 'services = ["internet"]', settings, city)
    (run,) = run_grid(grid, tmp_path).runs
    assert run.about["clients"] == 2
    cube = tmp_path / "data" / "small-city.nc"
    before = cube.stat().st_mtime_ns
    run_grid(grid, tmp_path)
    assert cube.stat().st_mtime_ns == before
    assert {p.name for p in cube.parent.iterdir()} == {"small-city.nc", "small-city.json"}
    other = write('["last_value"]', 'services = ["internet"]', settings, city.replace("3", "4"))
    with pytest.raises(InputError, match=r"small-city.nc .*delete"):
        run_grid(other, tmp_path)


@pytest.mark.repeats
def test_the_page_compares_with_the_row_of_the_table(write, tmp_path):
    for name in ("last_value", "ridge"):
        grid = write('["last_value", "ridge"]', f'reference = "{name}"\nservices = ["sms"]')
        out = tmp_path / name
        execute(grid, out, "local", as_json=False, progress=False)
        pages = ((out / "table.md").read_text(), (out / "report.html").read_text())
        assert all(f"against {name}" in page for page in pages)


def test_a_folder_named_like_a_benchmark_does_not_hide_it(tmp_path, monkeypatch):
    """As after `bench quick --out quick`, which is resumed by the same command."""
    monkeypatch.chdir(tmp_path)
    known = find_config(Path("quick"))
    Path("quick").mkdir()
    assert find_config(Path("quick")) == known
    Path("own").mkdir()
    with pytest.raises(InputError, match=r"own: .*benchmark"):
        find_config(Path("own"))
