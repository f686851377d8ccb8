"""Names of files and folders that are not UTF-8: used as they are, or refused, never a crash."""

import os
import shutil

import pandas as pd
import pytest
from PIL import Image

from data_prep.base.errors import InputError
from data_prep.cube import open_cube
from data_prep.sets.table import prepare as prepare_table
from stforecast.cli.main import main
from stforecast.federated.runs.run_folder import write_csv
from vision.datasets import load

pytestmark = pytest.mark.attack("absurd input")

NAME = os.fsdecode(b"caf\xe9")


def test_a_folder_of_raw_days_and_a_cube(sound, tmp_path, capsys):
    raw, out = tmp_path / NAME, tmp_path / f"{NAME}.nc"
    raw.mkdir()
    shutil.copy(sound / "sms-call-internet-mi-2013-11-01.txt", raw)
    with pytest.raises(SystemExit) as ended:
        main(["prepare", "milan", "--raw", str(raw), "--out", str(out)])
    assert not ended.value.code
    assert r"caf\udce9.nc: 24 steps" in capsys.readouterr().out
    with open_cube(out) as ds:
        assert ds.sizes["time"] == 24


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_a_table(tmp_path, suffix):
    path = tmp_path / f"{NAME}{suffix}"
    path.write_bytes(b"time,a\n")
    with pytest.raises(InputError, match=r"this name .*UTF-8"):
        prepare_table(path, tmp_path / "cube.nc")


def test_a_path_in_the_table_of_a_run(tmp_path):
    write_csv(pd.DataFrame({"data": [NAME]}), tmp_path / "metrics.csv")
    assert pd.read_csv(tmp_path / "metrics.csv")["data"].tolist() == [r"caf\udce9"]


@pytest.mark.parametrize("level", ["class", "domain"])
def test_a_folder_of_images(tmp_path, level):
    for name in ("cat", NAME):
        folder = tmp_path / name / ("a" if level == "domain" else "")
        folder.mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (8, 8)).save(folder / f"{i}.png")
    with pytest.raises(InputError, match=rf"{level} 'caf\\xe9' .*UTF-8"):
        load("folder", tmp_path)


def test_images_in_a_folder_and_of_a_name_that_no_table_shows(tmp_path):
    folder = tmp_path / NAME / "cat"
    folder.mkdir(parents=True)
    for name in ("1", NAME, "3"):
        Image.new("RGB", (8, 8)).save(folder / f"{name}.png")
    read = load("folder", folder.parent)
    assert len(read.labels) == 3
    assert read.domain_names == (r"caf\xe9",)
