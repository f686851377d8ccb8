"""Values of options that cannot be: the command says which, and what it takes."""

import re
import typing

import pytest

import stforecast.forecasting.config
import vision.config
from data_prep.base.errors import InputError
from stforecast.baselines import BASELINES
from stforecast.methods import METHODS
from stforecast.models import MODELS as FORECAST_MODELS
from vision.methods import METHODS as IMAGE_METHODS
from vision.models import MODELS as IMAGE_MODELS
from vision.partition import PARTITIONS
from vision.streams import STREAMS

pytestmark = pytest.mark.attack("absurd input")

RUN = "run --data town.nc --out out --split days:7,1,2 --device cpu --service sms --method"
MILAN = "prepare milan --raw sms-call-internet-mi-2013-11-01.txt --out out.nc"
TABLE = "prepare table --raw long.csv --out out.nc"
METR = "prepare metr-la --raw metr-la.h5 --out out.nc"
FAR, BILLION = "9" * 26, 10**9

CASES = {
    f"{RUN} solo": {
        "--noise-std nan": "noise_std is nan; it must be 0 or more",
        "--noise-std -1": "noise_std is -1.0; it must be 0 or more",
        "--noise-std inf": "noise_std is inf; it must be 0 or more",
        "--clip nan": "clip is nan; it must be 0 or more",
        "--clip -1": "clip is -1.0",
        "--privacy-delta 0": "privacy_delta is 0.0; it must be in .0, 1.$",
        "--privacy-delta 1": "privacy_delta is 1.0; it must be in .0, 1.$",
        "--bits 7": "Invalid value for '--bits'",
        "--noise pink": "Invalid value for '--noise'.* 'laplace'",
        "--lr nan": "lr is nan; it must be positive",
        "--lr inf": "lr is inf; it must be positive",
        "--rounds -1": "rounds is -1; it must be",
        "--rounds 1.5": "Invalid value for '--rounds'",
        "--batch-size 0": "batch_size is 0",
        f"--batch-size {FAR}": "batch_size is 1e.26; it must be at most 4294967295",
        "--seed -1": "seed is -1; it must be 0 or more",
        "--seed 4294967296": "seed is 4.295e.09; it must be at most 4294967295",
        "--cohort -1": "cohort is -1",
        "--workers -2": "workers is -2",
        "--workers 1000000": "workers is 1000000; it must be at most 1024",
        "--device tpu": "device is 'tpu'; choose auto, cpu or cuda",
        "--horizon 0": "horizon is 0; it must be positive",
        "--horizon -1": "horizon is -1; it must be positive",
        "--horizon 1000": "each needs 72 steps of history and 1000 of target.*shorter windows",
        f"--horizon {BILLION}": "horizon is 1000000000; it must be at most 1000000",
        "--closeness -1": "closeness is -1; it must be 0 or more",
        "--closeness 0 --periods 0": "closeness and periods are both 0",
        "--closeness 1000": "each needs 1000 steps of history",
        f"--closeness {BILLION}": "closeness is 1000000000; it must be at most 1000000",
        "--closeness nan": "Invalid value for '--closeness'",
        "--periods -1": "periods is -1; it must be 0 or more",
        "--periods 100": "each needs 2400 steps of history",
        f"--periods {BILLION}": "periods is 1000000000; it must be at most 1000000",
        f"--periods {FAR}": "periods is 1e.26; it must be at most 4294967295",
        "--period -24": "period is -24; it must be 0 or more",
        "--period 1000000": "each needs 3000000 steps of history",
        f"--period {BILLION}": "period is 1000000000; it must be at most 1000000",
        "--extra-lags 1,x": "extra_lags is '1,x'; give positive whole numbers",
        "--extra-lags 0": "extra_lags is '0'; give positive whole numbers",
        "--extra-lags 5-3": "extra_lags is '5-3'; give positive whole numbers",
        "--extra-lags 1-9999999": "extra_lags is '1-9999999'; .* 1000000 lags at most",
        f"--extra-lags {FAR}": "extra_lags is '9.*'; give positive whole numbers",
        "--hidden-size 0": "hidden_size is 0; it must be positive",
        "--hidden-size -4": "hidden_size is -4; it must be positive",
        f"--hidden-size {BILLION}": "hidden_size is 1000000000; it must be at most 8192",
        "--split days:1,1": "split 'days:1,1'",
        "--split days:nan,1,1": "split 'days:nan,1,1'",
        "--split days:-1,1,1": "split 'days:-1,1,1'",
        "--split steps:0.5,0.5,0.5": "split 'steps:0.5,0.5,0.5'",
        "--split steps:1/0,0.5,0.5": "split 'steps:1/0,0.5,0.5'",
        "--split days:100,1,1": "split 'days:100,1,1'|100",
        "--split time:0.01,0.49,0.5": "with 240 steps the training part has no window",
        "--split time:0.5,0.5": "split 'time:0.5,0.5': found 2 numbers",
        "--split dates:2013-11-08,2013-11-31": "'2013-11-31' is not a date; write it like 2013",
        "--split dates:2013-11-08,2014-11-09": "2014-11-09 00:00:00 is outside of the data",
        "--split dates:2013-11-08/2013-11-02,2013-11-08/2013-11-09": "the training part ends at",
        "--service nett": "unknown service 'nett'; choose one of: internet, sms",
        "--out town.nc": "town.nc is a file; choose a folder for --out",
        "--out town.nc/x": "town.nc is a file; choose a folder for --out",
    },
    f"{RUN} ridge": {
        "--alpha nan": "alpha is nan; it must be 0 or more",
        "--alpha -1": "alpha is -1.0; it must be 0 or more",
        "--alpha inf": "alpha is inf; it must be 0 or more",
    },
    f"{RUN} boosting": {
        "--max-iter 0": "max_iter is 0; it must be positive",
        "--learning-rate nan": "learning_rate is nan; it must be positive",
        "--max-leaf-nodes 1": "max_leaf_nodes is 1; it must be 2 or more",
    },
    f"{RUN} fuels": {"--tau nan": "tau is nan", "--tau 0": "tau is 0"},
    MILAN: {
        "--step 7min": "step '7min' does not fit, expected a multiple of 10 minutes",
        "--step nan": "step 'nan' does not fit",
        "--step -1h": "step '-1h' does not fit",
        "--step 1e400h": "step '1e400h' does not fit",
        f"--step {FAR}D": "step '9.*D' does not fit",
        "--cells 1-": "milan: no cell '1-' among its 10000 cells, .* as ids and ranges",
        "--cells 99999": "milan: no cell '99999' among its 10000 cells",
        "--cells 10001-9999999": "milan: no cell '10001-9999999'",
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
        "--layout wide --name a/b --values speed": "is already|cannot be named 'a/b'",
        "--clock sun": "Invalid value for '--clock'",
    },
    "prepare table --raw wide.csv --out out.nc": {
        "--name time": "a variable cannot be named 'time'",
        "--name=": "a variable cannot be named ''",
    },
    METR: {
        "--step nan": "step 'nan' ",
        "--step 1e400h": "step '1e400h' does not fit, expected a multiple of 5 minutes",
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
        "--start 9999-12-31": "start is 9999-12-31; give a day in the years 1900 to 2199",
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
        "--out out.gif": "out.gif: the name ends in .gif, expected .* or .svg",
    },
    "plot predictions run-fuels --out out.png": {
        "--hours -1": "hours is -1; draw at least 1",
        "--horizon 0": "no forecasts 0 steps ahead; choose a horizon of 1",
        "--cells x": "no cell 'x' among the 3",
    },
    "bench bench.toml --out out": {
        "--seed -1": "seed is -1; it must be 0 or more",
        "--rounds 0": "rounds is 0; it must be positive",
        "--out town.nc": "town.nc is a file; choose a folder for --out",
        "--out town.nc/x/y": "town.nc is a file; choose a folder for --out",
    },
    "download metr-la --out .": {
        "--source nowhere": "nowhere: no such folder or file",
        "--source ftp://a/b": "ftp://a/b: no such folder or file",
        "--source http://": "http:",
    },
}

IMAGES = "vision run --clients 3 --rounds 1 --size 8 --device cpu --out out"

CASES |= {
    IMAGES: {
        "--size -1": "size is -1; it must be 0 or more",
        f"--size {BILLION}": "digits8x8 at 1000000000 × 1000000000 pixels would take 1.797e.12 GB",
        "--clients 0": "clients is 0; it must be positive",
        f"--clients {BILLION}": "1438 training images for 1000000000 clients; .*--clients",
        "--ways 0": "ways is 0; it must be positive",
        f"--ways {BILLION}": "all domains has 10 classes with training images",
        "--shots 0": "shot_spread is 0 and shots 0; it must be less",
        f"--shots {BILLION}": "class . of all domains has .* --shots",
        f"--test-shots {BILLION}": "fewer --test-shots",
        "--share nan": "share is nan; it must be in .0, 1",
        "--imbalance 0.5": "imbalance is 0.5; it must be 1 or more",
        "--imbalance nan": "imbalance is nan; it must be 1 or more",
        "--surrogate 100000": "surrogate is 100000; a class of digits8x8 has",
        "--test-every 0": "test_every is 0; it must be positive",
        "--partition halves": "unknown partition 'halves'; choose one of: dirichlet",
        "--partition dirichlet --concentration nan": "concentration is nan; it must be positive",
        f"--partition gldp-shards --stages {BILLION}": "use fewer --clients or --stages$",
        f"--partition gldp-shards --clients {BILLION}": "use fewer --clients or --stages$",
        "--data digits9": "unknown image data set 'digits9'; choose one of: cifar10",
        "--data mnist": "mnist: no folder .*--images FOLDER",
        "--data mnist --images nowhere": "nowhere: found no train-images-idx3-ubyte",
        "--data npz --images nowhere": "nowhere: no .npz file here .found nothing.; give a file",
        "--data folder --images town.nc": "town.nc: no folder here; give a folder with",
        "--domains digits8x8:99": "domains is 'digits8x8:99', which are 99 clients in all; clients",
        "--model gpt": "unknown model 'gpt'; choose one of: cnn, convnet, mixed, resnet,",
        "--alpha nan": "alpha is nan; it must be in .0, 1",
        f"--channels {BILLION}": "channels is 1000000000; it must be at most 8192",
        f"--model resnet --width {BILLION}": "width is 1000000000; it must be at most 8192",
        "--model resnet --depth 9": "depth is 9; a small ResNet has 6n . 2 layers",
        "--out town.nc": "town.nc is a file; choose a folder for --out",
    },
    f"{IMAGES} --method fedvit --model vit": {
        "--backbone nosuch": "timm has no model 'nosuch'",
        "--backbone nowhere.safetensors": "nowhere.safetensors: cannot be read as safetensors",
        "--backbone tiny-random --input-size 7": "input_size is 7; with patches of 4 pixels it mus",
        f"--input-size {BILLION}": "input_size is 1000000000; it must be at most 2048",
        "--backbone tiny-random --input-size 8 --blocks 99": "blocks is 99; tiny-random has 5",
    },
    "vision plot rounds run-n-way --out out.png": {
        "--mask mine": "unknown mask 'mine'|mask",
        "--view mine": "unknown model of pfpl 'mine'; choose one of",
        "--width nan": "width is nan",
        "--out out.gif": "out.gif: the name ends in .gif, expected .* or .svg",
    },
    "bench images.toml --out out": {
        "--set size=-1": "size is -1; it must be 0 or more",
        "--preset tiny": "unknown preset 'tiny'; choose one of",
        "--out town.nc": "town.nc is a file; choose a folder for --out",
    },
}

NEEDED = ["raw day", "metr-la.h5", "long.csv", "wide.csv", "cube to train on", "rounds.csv",
          "cube to forecast from", "benchmark"]  # fmt: skip


def numbers(section):
    """Every setting of a dataclass that is a number, and whether it is a whole one."""
    for name, hint in typing.get_type_hints(section).items():
        kinds = {hint, *typing.get_args(hint)} & {int, float}
        if kinds and name in section.__dataclass_fields__:
            yield name, float not in kinds


FORECASTS = [
    (method, {"model": model}) for method in {**METHODS, **BASELINES}
    for model in FORECAST_MODELS
]  # fmt: skip
LEARNERS = [
    (method, {"model": model, "partition": partition}) for method in IMAGE_METHODS
    for model in IMAGE_MODELS for partition in {**PARTITIONS, **STREAMS}
]  # fmt: skip


@pytest.mark.parametrize("kind", ["forecasts", "images"])
def test_no_number_is_nan_or_endless(kind):
    made = (
        (stforecast.forecasting.config, FORECASTS)
        if kind == "forecasts"
        else (vision.config, LEARNERS)
    )
    config, everything = made
    tried = {}
    for method, fixed in everything:
        for section in config.sections(method, *fixed.values()).values():
            if section in tried:
                continue
            tried[section] = dict(numbers(section))
            for name, whole in tried[section].items():
                for value in [10**30] if whole else [float("nan"), float("inf"), -float("inf")]:
                    with pytest.raises(InputError, match=rf"^{name} is "):
                        config.resolve(method, **{**fixed, name: value})
    assert sum(map(len, tried.values())) > 50, tried


@pytest.fixture
def folder(sound, tmp_path, monkeypatch):
    """A working folder with links to the sound inputs: nothing here may change them."""
    monkeypatch.chdir(tmp_path)
    for path in sound.iterdir():
        (tmp_path / path.name).symlink_to(path)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "option"), [(words, option) for words in CASES for option in CASES[words]]
)
def test_a_value_that_cannot_be_is_refused(refused, words, option):
    kept = ".out.nc.days" if words == MILAN else ""
    message = refused(*words.split(), *option.split(), kept=kept)
    if not re.search(CASES[words][option], message):
        pytest.fail(f"expected {CASES[words][option]!r} in {message!r}", False)
