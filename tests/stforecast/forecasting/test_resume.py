"""Forecasting runs on disk that are stopped and go on, and disks that fail."""

import copy
import errno
import json
import tempfile

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from mentions import mentions
from safetensors.numpy import load_file
from waiting import Killed, killed_after

from data_prep.base.errors import InputError
from data_prep.base.files import checksum
from data_prep.cube import open_cube, write_cube
from stforecast import Forecaster
from stforecast.federated.runs.run_folder import begin
from stforecast.federated.runs.unfinished_run import Checkpointer
from stforecast.forecasting import evaluate, rolling
from stforecast.forecasting.config import read_by
from stforecast.forecasting.kept_shards import KeptShards
from stforecast.forecasting.results import ForecastRun
from stforecast.forecasting.runs import resume, run
from stforecast.methods import METHODS


def assert_same(a, b):
    """All files of two runs, but for seconds."""
    for name in ("metrics.csv", "rounds.csv", "refits.csv"):
        tables = [
            pd.read_csv(r.folder / name).drop(columns="seconds", errors="ignore")
            for r in (a, b)
            if (r.folder / name).exists()
        ]
        if tables:
            pd.testing.assert_frame_equal(*tables, check_exact=True)
    one, other = (load_file(r.folder / "model" / "state.safetensors") for r in (a, b))
    assert one.keys() == other.keys()
    assert all(np.array_equal(t, other[name], equal_nan=True) for name, t in one.items())
    assert a.forecasts().identical(b.forecasts())
    abouts = [{k: v for k, v in r.about.items() if "seconds" not in k} for r in (a, b)]
    assert abouts[0] == abouts[1]


@pytest.fixture
def settings(tiny):
    return {**tiny, "service": "internet", "rounds": 3, "checkpoint_every": 1}


CHOICES = {
    "fedlean": {"horizon": 2},
    "fedtrees": {"extra_lags": "23"},
    "fedavg": {"participation": 0.5, "patience": 2},
    "fedda": {"warmup_epochs": 2},
    "ditto": {"intervals": "conformal", "quantiles": "0.1,0.5,0.9", "loss": "quantile"},
    "fedrep": {"refit": "daily", "refit_rounds": 1, "personal_epochs": 1},
}
"""Further settings of some methods."""


CASES = [
    pytest.param(
        method,
        choices,
        marks=() if method == "fedlean" else pytest.mark.sampled(40),
        id="-".join([method, *choices]),
    )
    for method, choices in [
        *((m, {}) for m in METHODS if m not in ("fedda", "fedtrees")),
        *CHOICES.items(),
    ]
]


@pytest.mark.quick(2)
@pytest.mark.attack("kills")
@pytest.mark.parametrize(("method", "choices"), CASES)
def test_a_run_that_was_killed_equals_one_that_was_not(
    cube_path, settings, method, choices, tmp_path
):
    settings = {**settings, **choices}
    if method in ("fedpm", "fedtrees", "protoridge"):  # They have no such network.
        del settings["hidden_size"]
    whole = run(method, cube_path, tmp_path / "whole", settings, label="mine")
    out = tmp_path / "killed"
    with pytest.raises(Killed):
        run(method, cube_path, out, settings, label="mine", after_round=killed_after(2))
    assert sorted(path.name for path in out.iterdir()) == ["checkpoints", "settings.json"]
    seen = []
    with pytest.raises(Killed):
        resume(out, after_round=lambda r: (seen.append(r.round), killed_after(3)(r)))
    assert_same(resume(out, after_round=lambda report: seen.append(report.round)), whole)
    assert seen == [2, 3, 3]  # Round 2 had ended, but not its checkpoint; then round 3.
    expected = sorted(path.name for path in whole.folder.iterdir())
    assert sorted(path.name for path in out.iterdir()) == expected
    assert resume(out).about == ForecastRun.open(out).about


@pytest.mark.slow
@pytest.mark.attack("kills")
def test_a_run_that_was_killed_while_it_tried_a_target_goes_on_with_it(
    cube_path, settings, tmp_path
):
    settings |= {"target": "validation"}
    whole = run("fedavg", cube_path, tmp_path / "whole", settings)
    assert whole.about["chosen"]["target"] == whole.about["window"]["target"] != "validation"
    seen = []

    def killed(report):
        seen.append(report.round)
        if len(seen) == 5:
            raise Killed

    with pytest.raises(Killed):
        run("fedavg", cube_path, tmp_path / "killed", settings, after_round=killed)
    seen.clear()
    assert_same(resume(tmp_path / "killed", after_round=lambda r: seen.append(r.round)), whole)
    assert seen == [2, 3, *[1, 2, 3] * 2]  # The first target and a round of the second were kept.


@pytest.fixture
def killed_in_refits(monkeypatch):
    """Runs of two refits are killed in the second one; tells which were begun since."""
    begun = []
    refit = rolling.go_on

    def watched(config, fitted, data, known, **options):
        begun.append(len(data.z))
        if len(begun) == 2:
            raise Killed
        return refit(config, fitted, data, known, **options)

    def watch():
        monkeypatch.setattr(rolling, "go_on", watched)
        return begun

    return watch


ROLLING = {"split": "days:6,1,3", "refit": "daily", "refit_rounds": 2}


@pytest.mark.repeats
@pytest.mark.attack("kills")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("method", ["fuels", "fedavg", "fedrep", "ditto"])
def test_a_run_that_was_killed_between_refits_goes_on_after_the_last_one(
    cube_path, settings, method, tmp_path, killed_in_refits
):
    settings = {**settings, **ROLLING, "select": "last", "shuffle": method != "fuels"}
    whole, out = (
        run(method, cube_path, tmp_path / "whole", read_by(method, settings)),
        tmp_path / "killed",
    )
    begun = killed_in_refits()
    with pytest.raises(Killed):
        run(method, cube_path, out, read_by(method, settings))
    assert begun == [8 * 24, 9 * 24]
    kept = json.loads(next(out.glob("checkpoints/refit-192/round-*/checkpoint.json")).read_text())
    found = resume(out)
    assert begun == [8 * 24, 9 * 24, 9 * 24]
    assert_same(found, whole)
    assert found.refits()["seconds"][0] == pytest.approx(kept["notes"]["seconds"])


@pytest.mark.attack("kills")
@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_that_was_killed_between_shards_evaluates_the_others(
    cube_path, settings, tmp_path, monkeypatch, caplog, damaged
):
    monkeypatch.setattr(evaluate, "SHARD", 1)
    settings |= {"intervals": "normalised", "refit": "once", "horizon": 2, "select": "best"}
    whole, out = run("fedlean", cube_path, tmp_path / "whole", settings), tmp_path / "killed"
    begun, do = [], evaluate.evaluate_shard

    def watched(work):
        if len(begun) == 2:
            begun.append("killed")
            raise Killed
        begun.append(next(iter(work.parts.values())).some.start)
        return do(work)

    monkeypatch.setattr(evaluate, "evaluate_shard", watched)
    with pytest.raises(Killed):
        run("fedlean", cube_path, out, settings)
    kept = sorted(out.glob("checkpoints/shards-*/cells-*/round-0000/state.safetensors"))
    assert [path.parts[-3] for path in kept] == ["cells-0", "cells-1"]
    if damaged:
        kept[1].write_bytes(kept[1].read_bytes()[:-1])
    assert_same(resume(out), whole)
    assert begun == [0, 1, "killed", *([1] if damaged else []), 2]
    assert ("its checksum" in caplog.text) == damaged
    assert not (out / "checkpoints").exists()


def test_shards_of_other_models_or_questions_are_not_used(cube_path, settings, tmp_path):
    of = Forecaster("fedavg", **settings).fit(cube_path)._evaluation()
    checkpointer = Checkpointer(tmp_path, {"settings": {}}, every=1)
    (state,), cells = of.states, slice(0, 3)
    KeptShards(checkpointer, [state], "best").save(
        cells, [of.found(errors=True, forecasts=True, is_chosen=True)]
    )
    assert cells in KeptShards(checkpointer, [copy.deepcopy(state)], "best")
    assert cells not in KeptShards(checkpointer, [state], "last")
    next(iter(state.server.values())).view(-1)[0] += 1e-6
    assert cells not in KeptShards(checkpointer, [state], "best")


def edit_checkpoint(folder, change):
    """Change what a checkpoint says, with the checksums that fit."""
    about = json.loads((folder / "checkpoint.json").read_text())
    change(about["run"])
    (folder / "checkpoint.json").write_text(json.dumps(about))
    sums = [f"{checksum(f)[7:]}  {f.name}\n" for f in folder.iterdir() if f.suffix]
    (folder / "SHA256SUMS").write_text("".join(sums))


@pytest.mark.slow
@pytest.mark.attack("kills")
def test_a_refit_that_is_damaged_is_done_again_and_one_of_other_data_refused(
    cube_path, settings, tmp_path, killed_in_refits, caplog
):
    settings = {**settings, **ROLLING}
    whole = run("fedavg", cube_path, tmp_path / "whole", settings)
    begun = killed_in_refits()
    for out in (tmp_path / "damaged", tmp_path / "other"):
        del begun[:]
        with pytest.raises(Killed):
            run("fedavg", cube_path, out, settings)
        (kept,) = out.glob("checkpoints/refit-192/round-*")
        if out.name == "damaged":
            (kept / "state.safetensors").write_bytes(b"")
            assert_same(resume(out), whole)
            assert begun[2:] == [8 * 24, 9 * 24]
            continue
        edit_checkpoint(kept, lambda made: made.update(known="of another town"))
        with pytest.raises(InputError, match=r"refit-192/round-0005: .*known"):
            resume(out)
    assert mentions(caplog.text, "state.safetensors:", "trusted")


def another_last_hour(cube):
    """Of the test part."""
    return cube.assign(internet=cube["internet"] + (cube["time"] == cube["time"][-1]))


def renamed(cube):
    return cube.assign_coords(cell=cube["cell"] + 1)


def test_a_run_does_not_go_on_with_other_data(cube_path, settings, tmp_path):
    out = tmp_path / "killed"
    with pytest.raises(Killed):
        run("fedavg", cube_path, out, settings, after_round=killed_after(2))
    for change in (another_last_hour, renamed):
        other = write_cube(change(open_cube(cube_path).load()), tmp_path / "other.nc")
        with pytest.raises(InputError, match=r"round-0001: .*data"):
            resume(out, other)
    assert len(resume(out, write_cube(open_cube(cube_path).load(), other)).rounds()) == 3


def in_other_units(cube):
    cube["internet"].attrs["units"] = "furlongs"
    return cube


def divided_otherwise(cube):
    return cube.assign_coords(town=("cell", cube["town"].values[::-1]))


@pytest.mark.repeats
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("change", "what"), [(divided_otherwise, "clients"), (in_other_units, "units")]
)
def test_a_run_does_not_go_on_with_other_clients_or_units(
    cube_path, settings, tmp_path, change, what
):
    """A refusal leaves the run as it was."""
    cube = open_cube(cube_path).load()
    n = cube.sizes["cell"]
    towns = cube.assign_coords(town=("cell", ["north"] * (n - 1) + ["south"]))
    path, out = write_cube(towns, tmp_path / "towns.nc"), tmp_path / "killed"
    settings = {**settings, "clients": "town"}
    with pytest.raises(Killed):
        run("ditto", path, out, settings, after_round=killed_after(2))
    other = write_cube(change(open_cube(path).load()), tmp_path / "other.nc")
    begun = (out / "settings.json").read_bytes()
    with pytest.raises(InputError, match=f"other {what}; "):
        resume(out, other)
    assert (out / "settings.json").read_bytes() == begun
    assert len(resume(out).rounds()) == 3


def test_settings_that_were_changed_on_the_way_are_refused(cube_path, settings, tmp_path):
    out = tmp_path / "killed"
    with pytest.raises(Killed):
        run("fedavg", cube_path, out, settings, after_round=killed_after(2))
    path = out / "settings.json"
    text = path.read_text()
    path.write_text(text.replace('"rounds": 3', '"rounds": 1000000000'))
    with pytest.raises(InputError, match="checksum"):
        resume(out)
    begin(out, json.loads(text.replace('"rounds": 3', '"rounds": 4')))
    with pytest.raises(InputError, match=r"round-0001: .*settings"):
        resume(out)


def test_a_run_goes_on_from_another_folder(cube_path, settings, tmp_path, monkeypatch):
    monkeypatch.chdir(cube_path.parent)
    with pytest.raises(Killed):
        run("fedavg", cube_path.name, tmp_path / "x", settings, after_round=killed_after(2))
    monkeypatch.chdir(tmp_path)
    about = resume("x").about
    assert about["data"] == cube_path.name
    assert about["data_path"] == str(cube_path)


def test_no_refit_is_kept_where_no_checkpoint_is(cube_path, settings, tmp_path, killed_in_refits):
    killed_in_refits()
    with pytest.raises(Killed):
        run("fedavg", cube_path, tmp_path, {**settings, **ROLLING, "checkpoint_every": 0})
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.attack("kills")
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(
    cube_path, settings, tmp_path
):
    with pytest.raises(Killed):
        run("fedavg", cube_path, tmp_path, settings, after_round=killed_after(1))
    assert len(resume(tmp_path).rounds()) == 3


def test_what_was_begun_and_never_got_anywhere_is_forgotten(cube_path, settings, tmp_path):
    for rounds in (3, 2):
        again = {**settings, "rounds": rounds}
        with pytest.raises(Killed):
            run("fedavg", cube_path, tmp_path, again, after_round=killed_after(1))
    assert len(resume(tmp_path).rounds()) == 2


def test_an_unfinished_run_is_not_overwritten(cube_path, settings, tmp_path):
    with pytest.raises(Killed):
        run("fedavg", cube_path, tmp_path, settings, after_round=killed_after(2))
    with pytest.raises(InputError, match=r"unfinished .*`stforecast run --r"):
        run("fedavg", cube_path, tmp_path, settings)


@pytest.mark.repeats
def test_the_cube_may_have_moved(cube_path, settings, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Killed):
        run("fedavg", cube_path, out, settings, after_round=killed_after(2))
    moved = cube_path.rename(tmp_path / "moved.nc")
    with pytest.raises(InputError, match=r"town\.nc: no cube"):
        resume(out)
    assert resume(out, moved).about["data"] == str(moved)


def test_folders_that_hold_nothing_to_go_on_with(tmp_path):
    with pytest.raises(InputError, match=r"\(no settings.json\)"):
        resume(tmp_path)
    begun = tmp_path / "settings.json"
    begun.write_text("{")
    with pytest.raises(InputError, match=r"settings\.json: .*JSON"):
        resume(tmp_path)
    begun.write_text(json.dumps({"format": 99, "settings": {}}))
    with pytest.raises(InputError, match=r"format 99, .*reads 1"):
        resume(tmp_path)


def test_other_versions_are_told(cube_path, settings, tmp_path, caplog):
    with pytest.raises(Killed):
        run("fedavg", cube_path, tmp_path, settings, after_round=killed_after(2))
    about = json.loads((tmp_path / "settings.json").read_text())
    about["versions"]["torch"] = "1.0"
    begin(tmp_path, about)
    resume(tmp_path)
    assert mentions(caplog.text, "torch 1.0;", "differ")


def no_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def read_only(*args, **kwargs):
    raise OSError(errno.EROFS, "Read-only file system")


@pytest.mark.repeats
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fail", "told"),
    [
        (no_space, r"\(No space .*\); .*go on"),
        (read_only, r"\(Read-only .*\); .*writable"),
    ],
)
def test_a_disk_that_fails_in_training_loses_nothing(
    cube_path, settings, tmp_path, monkeypatch, fail, told
):
    whole, out = run("fedavg", cube_path, tmp_path / "whole", settings), tmp_path / "run"

    def fill(report):
        if report.round == 2:
            monkeypatch.setattr("stforecast.federated.runs.checkpoint.save_file", fail)

    with pytest.raises(InputError, match=told):
        run("fedavg", cube_path, out, settings, after_round=fill)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["round-0001"]
    monkeypatch.undo()
    assert_same(resume(out), whole)


def test_a_disk_that_is_full_at_the_end_loses_nothing(cube_path, settings, tmp_path, monkeypatch):
    whole, out = run("fedavg", cube_path, tmp_path / "whole", settings), tmp_path / "run"
    monkeypatch.setattr(xr.Dataset, "dump_to_store", no_space)
    with pytest.raises(InputError, match=r"run: .*\(No space"):
        run("fedavg", cube_path, out, settings)
    monkeypatch.undo()
    seen = []
    assert_same(resume(out, after_round=seen.append), whole)
    assert not seen


def test_a_folder_that_cannot_be_written_is_told_before_the_training(
    cube_path, settings, tmp_path, monkeypatch
):
    (tmp_path / "notes.txt").write_text("mine")

    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    seen = []
    with pytest.raises(InputError, match=r"\(Permission denied\)"):
        run("fedavg", cube_path, tmp_path, settings, after_round=seen.append)
    assert not seen
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".nc"] == ["notes.txt"]
