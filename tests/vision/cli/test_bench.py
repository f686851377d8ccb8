"""Running image benchmarks: what lies in the folder, what the table says, what is kept."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.bench.grid import load_grid
from stforecast.bench.jobs import run_grid
from stforecast.bench.kept import ARCHIVE
from stforecast.cli.info import describe


def cells(text, method):
    row = next(line for line in text.splitlines() if line.startswith(f"| {method} "))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_table_is_the_mean_over_seeds(outcome):
    found, out = outcome
    assert not found.failures
    text = (out / "table.md").read_text()
    first, second = text.split("**digits8x8, n = 2**")[1].split("**digits8x8, n = 3**")
    for part, scenario in ((first, "n = 2"), (second, "n = 3")):
        runs = [r for r in found.runs if r.about["scenario"] == scenario and r.label == "solo"]
        last = [100 * r.rounds()["accuracy (personal, all classes)"].iloc[-1] for r in runs]
        expected = f"{np.mean(last):.2f} ± {np.std(last, ddof=1):.2f}"
        assert cells(part, "solo")[:4] == ["solo", "-", "2", expected]
    assert cells(second, "solo")[-1] == "91.15"
    assert cells(second, r"α = 0.3 (nearest)")[-1] == "-"
    assert "as published" not in first


def test_metrics_hold_every_run(outcome):
    found, out = outcome
    table = pd.read_csv(out / "metrics.csv")
    assert len(found.runs) == 8
    assert table.groupby(["scenario", "label", "seed"]).ngroups == 8
    all_classes = table[(table["mask"] == "all classes") & (table["selection"] == "last")]
    assert all_classes["accuracy"].between(0, 1).all()
    about = describe(out)
    assert all(0 <= row["accuracy"] <= 1 and "mae" not in row for row in about.about["runs"])
    assert f"{about.about['runs'][0]['accuracy']:.4f}" in about.text.splitlines()[2]


def test_tables_need_no_more_than_what_is_kept(write_grid, tmp_path):
    grid, out, other = load_grid(write_grid()), tmp_path / "out", tmp_path / "other"
    run_grid(grid, out)
    other.mkdir()
    shutil.copy(out / ARCHIVE, other)
    run_grid(grid, other)
    before, after = (json.loads((f / "table.json").read_text())["parts"] for f in (out, other))
    assert after == before
    assert not list(other.rglob("model"))


def test_figures_are_drawn_for_each_scenario(outcome):
    gallery = outcome[0].gallery
    assert not gallery.undrawn
    names = [path.stem for path in gallery.drawn]
    assert names == [f"digits8x8-n-{n}-{p}" for n in (2, 3) for p in ("rounds", "bars")]
    assert all(path.stat().st_size > 5000 for path in gallery.drawn)


@pytest.mark.repeats
def test_finished_runs_are_kept_and_images_checked_first(write_grid, tmp_path):
    grid = load_grid(write_grid())
    first = run_grid(grid, tmp_path)
    times = [(r.folder / "run.json").stat().st_mtime_ns for r in first.runs]
    again = run_grid(grid.replace(seeds=[1, 2]), tmp_path)
    kept = [(r.folder / "run.json").stat().st_mtime_ns for r in again.runs]
    assert times == kept[:2]
    about = again.runs[0].folder / "run.json"
    whole = about.read_text()
    about.write_text(whole.replace('"content": "sha256:', '"content": "sha256:0'))
    with pytest.raises(InputError, match="other data: digits8x8"):
        run_grid(grid, tmp_path)
    about.write_text(whole)
    with pytest.raises(InputError, match=r"\(rounds\)"):
        run_grid(grid.replace(settings={"rounds": 2}), tmp_path)
    with pytest.raises(InputError, match="found no train-images-idx3-ubyte"):
        run_grid(grid.replace(data=["mnist"], settings={"images": str(tmp_path)}), tmp_path)


def test_methods_are_compared_with_intervals(outcome):
    _, out = outcome
    section = (out / "table.md").read_text().split("**digits8x8, n = 3**")[1]
    assert "| all classes, % [95 %]" in section
    assert "\nOn digits8x8, n = 3, choosing from all classes, **" in section
    assert (
        "a bootstrap over 3 clients, with the same draws for all methods; it holds for the"
        in section
    )


def test_a_note_and_a_reference(write_grid, tmp_path):
    path = write_grid(1, 'note = "It ranks nothing."\nreference = "solo"\nseeds = [1]')
    found = run_grid(load_grid(path), tmp_path)
    assert found.table.startswith("It ranks nothing.\n\n**digits8x8**")
    assert "all classes, against solo" in found.table
    with pytest.raises(InputError, match="unknown reference 'nobody'"):
        load_grid(write_grid(1, 'reference = "nobody"'))
