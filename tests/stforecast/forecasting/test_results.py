import errno
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.forecasting.config import read_by
from stforecast.forecasting.forecaster import BITS, Forecaster
from stforecast.forecasting.results import METRIC_COLUMNS, ForecastRun
from stforecast.forecasting.runs import resume, run


@pytest.fixture(scope="module")
def finished(cube, tiny, tmp_path_factory):
    """A run of FUELS, two steps ahead."""
    folder = tmp_path_factory.mktemp("runs")
    cube.to_netcdf(folder / "town.nc", engine="h5netcdf")
    settings = {**tiny, "service": "internet", "seed": 4, "horizon": 2}
    return run("fuels", folder / "town.nc", folder / "a" / "fuels", settings, label="ours")


def test_a_run_folder_holds_everything(finished):
    names = {str(p.relative_to(finished.folder)) for p in finished.folder.rglob("*.*")}
    assert names == {
        "run.json", "metrics.csv", "rounds.csv", "forecasts.nc", "model/forecaster.json",
        "model/state.safetensors",
    }  # fmt: skip


def test_what_was_run_stands_in_run_json(finished):
    about = json.loads((finished.folder / "run.json").read_text())
    assert about == finished.about
    assert (about["label"], about["service"], about["clients"]) == ("ours", "internet", 3)
    assert about["data"].endswith("town.nc")
    assert about["settings"]["method"] == "fuels"
    assert about["settings"]["seed"] == 4
    assert about["versions"].keys() >= {"python", "stforecast", "torch", "numpy"}
    assert about["seconds"] > 0
    opened = ForecastRun.open(finished.folder)
    assert (opened.method, opened.label) == ("fuels", "ours")


def test_run_json_says_where_the_data_lie_and_when_the_parts_are(finished):
    """On the place's clock, which is an hour ahead of UTC."""
    about = finished.about
    assert about["data_path"] == str(finished.folder.parents[1] / "town.nc")
    parts = about["parts"]
    assert parts["training"]["last"] == "2013-11-08 00:00:00"
    assert parts["validation"] == {"first": "2013-11-08 01:00:00", "last": "2013-11-09 00:00:00"}
    assert parts["test"] == {"first": "2013-11-09 01:00:00", "last": "2013-11-11 00:00:00"}


def test_a_part_without_windows_has_no_dates(cube_path, tiny, tmp_path):
    settings = {**tiny, "service": "sms", "split": "fedda", "periods": 1}
    about = run("last_value", cube_path, tmp_path / "run", read_by("last_value", settings)).about
    assert about["parts"]["validation"] is None
    assert about["parts"]["test"]["last"] == "2013-11-11 00:00:00"
    assert (
        about["parts"]["training"]["first"] == "2013-11-03 00:00:00"
    )  # Midnight after a day of lags.


@pytest.mark.quick(2)
@pytest.mark.parametrize("method", ["fedavg", "last_value"])
def test_two_runs_do_not_write_into_one_folder(cube_path, tiny, tmp_path, monkeypatch, method):
    settings, out = {**tiny, "service": "sms"}, tmp_path / "run"
    fit, refused = Forecaster.fit, []

    def another(*args, **options):
        for begin in (
            lambda: run(method, cube_path, out, read_by(method, settings)),
            lambda: resume(out),
        ):
            with pytest.raises(InputError, match=r"process \d+ .*writing") as caught:
                begin()
            refused.append(caught.value)
        return fit(*args, **options)

    monkeypatch.setattr(Forecaster, "fit", another)
    (out / "checkpoints").mkdir(parents=True)
    (out / "settings.json").write_text("")  # As if it was begun, so that there is one to resume.
    assert run(method, cube_path, out, read_by(method, settings)).label == method
    assert len(refused) == 2


def test_metrics_csv_is_long_form_with_every_combination_once(finished):
    table = finished.metrics()
    assert tuple(table.columns) == METRIC_COLUMNS
    constant = table[["method", "data", "service", "seed"]].drop_duplicates()
    assert constant.to_numpy().tolist() == [["fuels", "town", "internet", 4]]
    keys = ["client", "horizon", "split", "selection", "metric"]
    assert not table.duplicated(keys).any()
    assert {k: set(table[k]) for k in keys[:4]} == {
        "client": {"11", "22", "33", "all"},
        "horizon": {"1", "2", "all"},
        "split": {"validation", "test"},
        "selection": {"last", "best"},
    }
    assert set(table["metric"]) == {
        "mse", "mae", "rmse", "bias", "raw_mse", "raw_mae", "raw_rmse", "raw_bias", "raw_mape",
        "raw_smape", "raw_wape", "mase", "rmsse",
    }  # fmt: skip
    assert len(table) == 4 * 3 * 2 * 2 * 13


def test_metrics_equal_those_computed_from_the_saved_forecasts(finished, cube):
    ds = finished.forecasts()
    y, y_hat = ds["y"].to_numpy(), ds["y_hat"].to_numpy()
    scale = np.nanstd(cube["internet"].to_numpy()[:168], axis=0)[:, None, None]
    table = finished.metrics()
    table = table[(table["split"] == "test") & (table["selection"] == "best")]
    found = table.set_index(["metric", "client", "horizon"])["value"]
    written = 2.0 ** -(BITS + 1) * ds["std"].to_numpy()[:, None, None]

    def expected(error):  # Sizes of errors, which each metric grows with.
        return {
            ("raw_mae", "all", "all"): error.mean(),
            ("raw_mse", "22", "1"): (error[1, :, 0] ** 2).mean(),
            ("raw_rmse", "all", "2"): np.sqrt((error[:, :, 1] ** 2).mean()),
            ("raw_mape", "33", "all"): (error[2] / y[2]).mean(),
            ("raw_wape", "all", "all"): error.sum() / np.abs(y).sum(),
            ("mse", "all", "all"): ((error / scale) ** 2).mean(),
            ("mae", "11", "2"): (error / scale)[0, :, 1].mean(),
            ("rmse", "33", "all"): np.sqrt(((error / scale)[2] ** 2).mean()),
        }

    size = np.abs(y_hat - y)
    most = expected(size + written)
    for key, least in expected(np.maximum(size - written, 0.0)).items():
        assert (1 - 1e-5) * least <= found[key] <= (1 + 1e-5) * most[key], key
        assert most[key] - least < 0.02 * least, key
    assert finished.score("raw_mae") == found["raw_mae", "all", "all"]
    assert np.isnan(finished.score("accuracy"))


def test_rounds_csv_counts_the_bytes_of_prototypes(finished):
    rounds = finished.rounds()
    assert rounds["round"].tolist() == [1, 2]
    prototypes = 3 * 24 * 2 * 8 * 4  # clients × slots × two GRUs of 8 × bytes of a float32
    assert rounds["bytes_up"].tolist() == [prototypes, prototypes]
    assert rounds["bytes_down"].tolist() == [0, 2 * prototypes]
    assert rounds["participants"].tolist() == [3, 3]


def test_the_saved_model_predicts(finished, cube):
    forecast = Forecaster.load(finished.folder).predict(cube)
    assert forecast.shape == (2, 3)
    assert forecast.attrs["units"] == "MB"


def test_a_finished_run_is_not_overwritten(finished, tiny):
    before = (finished.folder / "run.json").read_bytes()
    with pytest.raises(InputError, match=r"fuels .*finished"):
        run(
            "ridge",
            finished.about["data"],
            finished.folder,
            {**read_by("ridge", tiny), "service": "sms"},
        )
    assert (finished.folder / "run.json").read_bytes() == before


def test_a_file_in_place_of_the_folder_is_refused_before_the_work(cube_path, tiny):
    with pytest.raises(InputError, match=r"town\.nc .*file"):
        run("solo", cube_path, cube_path / "run", {**tiny, "service": "sms"})


@pytest.mark.repeats
def test_run_json_is_written_last(cube_path, tiny, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(xr.Dataset, "dump_to_store", fail)
    out = tmp_path / "run"
    with pytest.raises(InputError, match=r"run: .*\(.*\); .*space"):
        run("ridge", cube_path, out, {**read_by("ridge", tiny), "service": "sms"})
    assert not (out / "run.json").exists()
    with pytest.raises(InputError, match=r"not .*finished"):
        ForecastRun.open(out)
    monkeypatch.undo()
    assert run("ridge", cube_path, out, {**read_by("ridge", tiny), "service": "sms"}).rounds().empty
    with pytest.raises(InputError, match=r"finished .*/run$"):
        ForecastRun.open(tmp_path)


def test_bad_settings_leave_no_folder(cube_path, tmp_path):
    with pytest.raises(InputError, match="unknown service"):
        run("ridge", cube_path, tmp_path / "run", {"service": "nett"})
    assert not (tmp_path / "run").exists()


@pytest.mark.repeats
def test_a_reference_forecaster_has_a_header_of_rounds_only(cube_path, tiny, tmp_path, finished):
    found = run(
        "last_value", cube_path, tmp_path / "r", {**read_by("last_value", tiny), "service": "sms"}
    )
    assert found.label == "last_value"
    assert found.rounds().columns.tolist() == finished.rounds().columns.tolist()
    assert found.score("mse", "best") == found.score("mse", "last")


def test_without_a_validation_part_only_the_test_part_is_evaluated(cube_path, tiny, tmp_path):
    settings = {**tiny, "service": "sms", "split": "days:8,0,2"}
    found = run("solo", cube_path, tmp_path / "r", settings)
    assert set(found.metrics()["split"]) == {"test"}
    assert found.rounds()["validation_loss"].isna().all()


def test_runs_are_found_below_folders_in_order(finished, tmp_path):
    for seed, name in enumerate(("b", "a/seed-2", "a/seed-1")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").write_text(json.dumps(finished.about | {"seed": seed}))
    found = [r.folder.relative_to(tmp_path).as_posix() for r in ForecastRun.find([tmp_path])]
    assert found == ["a/seed-1", "a/seed-2", "b"]
    assert len(ForecastRun.find([tmp_path / "b", tmp_path / "a"])) == 3


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_a_folder_without_runs_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=rf"{name}: no finished"):
        ForecastRun.find([tmp_path / name])


@pytest.mark.parametrize(
    ("content", "message"), [("{", "not a finished run"), ("[]", "no settings in it")]
)
def test_a_foreign_run_json_is_named(tmp_path, content, message):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=message):
        ForecastRun.open(tmp_path)


def test_clients_and_horizons_are_read_as_text(finished):
    assert pd.api.types.is_string_dtype(finished.metrics()["client"])
    assert finished.metrics()["horizon"].iloc[0] == "1"


def test_a_run_without_a_finite_error_ends_with_an_error(cube_path, tiny, tmp_path, monkeypatch):
    errors = Forecaster.errors

    def overflowed(self, by):
        for table in errors(self, by):
            yield table.assign(value=table["value"].where(table["metric"] != "mse"))

    monkeypatch.setattr(Forecaster, "errors", overflowed)
    settings = {"service": "sms", "split": tiny["split"]}
    with pytest.raises(InputError, match=r"test part .*nan, "):
        run("last_value", cube_path, tmp_path / "run", settings)
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.repeats
def test_epsilon_names_the_statistics_that_cross_clients(cube_path, tiny, tmp_path):
    pytest.importorskip("dp_accounting")
    settings = {**tiny, "service": "internet", "scale": "global", "clip": 1.0, "noise": "gaussian"}
    privacy = run("fedavg", cube_path, tmp_path / "run", settings).about["privacy"]
    assert any(name.startswith("scale global") for name in privacy["not_covered"])


def test_a_copy_of_a_run_counts_once_and_another_seed_counts(finished, tmp_path, caplog):
    for name in ("a", "copy", "other"):
        shutil.copytree(finished.folder, tmp_path / name)
    about = json.loads((tmp_path / "other" / "run.json").read_text())
    about["settings"]["seed"] += 1
    (tmp_path / "other" / "run.json").write_text(json.dumps(about))
    found = ForecastRun.find([tmp_path])
    assert [run.folder.name for run in found] == ["a", "other"]
    assert mentions(caplog.text, f"{tmp_path / 'copy'}", "copy", f"{tmp_path / 'a'}, ")
    metrics = tmp_path / "copy" / "metrics.csv"
    metrics.write_text(metrics.read_text().replace("0.1", "0.2"))
    with pytest.raises(InputError, match=r"copy .*a .*label"):
        ForecastRun.find([tmp_path])
