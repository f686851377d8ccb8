"""Values of options that cannot be: the command says which, and what it takes."""

import re

import pytest

RUN = "run --data town.nc --out out --split days:7,1,2 --device cpu --service sms --method"
MILAN = "prepare milan --raw sms-call-internet-mi-2013-11-01.txt --out out.nc"
TABLE = "prepare table --raw long.csv --out out.nc"
METR = "prepare metr-la --raw metr-la.h5 --out out.nc"
FAR = "9" * 26

CASES = {
    f"{RUN} solo": {
        "--noise-std nan": "noise_std is nan; it must be 0 or more",
        "--noise-std -1": "noise_std is -1.0; it must be 0 or more",
        "--noise-std inf": "noise_std is inf; it must be 0 or more",
        "--clip nan": "clip is nan; it must be 0 or more",
        "--clip -1": "clip is -1.0",
        "--privacy-delta 2": "privacy_delta is 2.0; it must be in",
        "--bits 7": "Invalid value for '--bits'",
        "--noise pink": "Invalid value for '--noise'.* 'laplace'",
        "--noise exponential --noise-mean 1": "an exponential law has the mean noise_std",
        "--lr nan": "lr is nan; it must be positive",
        "--lr inf": "lr is inf; it must be positive",
        "--rounds -1": "rounds is -1; it must be",
        "--rounds 1.5": "Invalid value for '--rounds'",
        "--batch-size 0": "batch_size is 0",
        "--seed -1": "seed is -1; it must be 0 or more",
        "--cohort -1": "cohort is -1",
        "--workers -2": "workers is -2",
        "--device tpu": "device is 'tpu'; choose auto, cpu or cuda",
        "--horizon 0": "horizon is 0; give a whole number of at least 1",
        "--horizon 100000": "window|steps|horizon",
        "--period 0": "period is 0",
        "--extra-lags 1,x": "extra_lags is '1,x'; give positive whole numbers",
        "--hidden-size 0": "hidden_size is 0",
        "--split days:1,1": "split 'days:1,1'",
        "--split days:nan,1,1": "split 'days:nan,1,1'",
        "--split days:-1,1,1": "split 'days:-1,1,1'",
        "--split steps:0.5,0.5,0.5": "split 'steps:0.5,0.5,0.5'",
        "--split steps:1/0,0.5,0.5": "split 'steps:1/0,0.5,0.5'",
        "--split days:100,1,1": "split 'days:100,1,1'|100",
        "--service nett": "unknown service 'nett'; choose one of: internet, sms",
        "--out town.nc": "town.nc is a file; choose a folder for --out",
        "--out town.nc/x": "town.nc is a file; choose a folder for --out",
    },
    f"{RUN} fuels": {"--tau nan": "tau is nan", "--tau 0": "tau is 0"},
    MILAN: {
        "--step 7min": "step: found '7min', expected ten minutes or a multiple",
        "--step nan": "step: found 'nan'",
        "--step -1h": "step: found '-1h'",
        "--step 1e400h": "step: found '1e400h'",
        f"--step {FAR}D": "step: found '9",
        "--cells 1-": "cells: found '1-', expected ids and ranges",
        "--cells 99999": "cells: 99999 not found among the 10000 ids",
        "--cells 1-99999": r"cells: 10001, .* \(89999 in all\) not found",
        "--cells 1-9999999": "cells: found '1-9999999', expected ids and ranges",
        "--sample 0": "sample: cannot draw 0 cells; choose from 1 to 2",
        "--cells 1 --sample 1": "cells and sample are both given",
        "--out town.nc/out.nc": "town.nc",
        "--out .": "is a folder, expected a file to write",
    },
    TABLE: {
        "--time t": "no column 't' among 'time', 'cell', 'speed'",
        "--values ,": "no column '' among",
        "--time-zone ../../etc/passwd": "unknown time zone '../../etc/passwd'",
        "--time-zone /etc/localtime": "unknown time zone '/etc/localtime'",
        "--layout wide --name a/b --values speed": "stands already|cannot be named 'a/b'",
        "--clock sun": "Invalid value for '--clock'",
    },
    "prepare table --raw wide.csv --out out.nc": {
        "--name time": "a variable cannot be named 'time'",
        "--name=": "a variable cannot be named ''",
    },
    METR: {
        "--step nan": "step 'nan' ",
        "--step 1e400h": "step '1e400h' is not a length of time",
        "--adjacency nowhere.npz": "nowhere.npz: no file here",
    },
    "export town.nc --out out.h5": {
        "--fill-missing nan": "fill_missing is nan; give a number from 0 up",
        "--fill-missing inf": "fill_missing is inf",
        "--fill-missing -1": "fill_missing is -1.0",
    },
    "simulate --out out --cells 1": {
        "--days 0": "days is 0; give at least 1",
        f"--days {FAR}": "days is 9.*; give at least 1 and at most",
        "--start 9999-12-31": "start is 9999-12-31; give a day of the years 1900 to 2199",
        "--start 0001-01-01": "start is 0001-01-01",
        "--start 2013-13-01": "start is '2013-13-01'; give a day as YYYY-MM-DD",
        "--seed -1": "seed is -1; give 0 or more",
    },
    "predict run-ridge --history town.nc --out out.csv": {
        "--steps 0": "steps is 0; forecast at least 1",
        "--steps 1.5": "Invalid value for '--steps'",
        "--out .": "is a folder, expected a file",
    },
    "plot cdf run-fuels --out out.png": {
        "--width 0": "width is 0.0; give 1 to 100 inches",
        "--width nan": "width is nan",
        "--width 1e9": "width is 1000000000.0",
        "--metric mea": "unknown metric 'mea'; choose one of",
        "--out out.gif": "out.gif: extension '.gif'",
    },
    "plot predictions run-fuels --out out.png": {
        "--hours -1": "hours is -1; draw at least 1",
        "--horizon 0": "no forecasts 0 steps ahead; choose a horizon of 1",
        "--cells x": "no cell 'x' among the 3",
    },
    "bench bench.toml --out out": {
        "--seed -1": "seed is -1; it must be 0 or more",
        "--rounds 0": "rounds is 0; it must be positive",
    },
    "download metr-la --out .": {
        "--source nowhere": "nowhere: no such folder or file",
        "--source ftp://a/b": "ftp://a/b: no such folder or file",
        "--source http://": "http:",
    },
}

NEEDED = ["raw day", "metr-la.h5", "long.csv", "wide.csv", "cube to train on", "rounds.csv",
          "cube to forecast from", "benchmark"]  # fmt: skip


@pytest.fixture
def folder(sound, tmp_path, monkeypatch):
    """A working folder with links to the sound inputs: nothing here may change them."""
    monkeypatch.chdir(tmp_path)
    for path in sound.iterdir():
        (tmp_path / path.name).symlink_to(path)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "option"), [(words, option) for words in CASES for option in CASES[words]]
)
def test_a_value_that_cannot_be_is_refused(refused, words, option):
    kept = ".out.nc.days" if words == MILAN else ""
    message = refused(*words.split(), *option.split(), kept=kept)
    if not re.search(CASES[words][option], message):
        pytest.fail(f"expected {CASES[words][option]!r} in {message!r}", False)
