import json
import logging
import re
import shlex
import zlib
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner

from data_prep.base.errors import InputError, Words
from data_prep.cube import make_cube, write_cube
from stforecast.cli.main import cli, main
from stforecast.comparison import protocol as protocols
from stforecast.comparison.protocol import LEVELS, PROTOCOLS, Protocol, ProtocolTask
from stforecast.comparison.score import day_sums, read_file, score, tabulate_scores
from stforecast.forecasting import runs

HOURS = pd.date_range("2024-01-01", periods=10 * 24, freq="h")
RNG = np.random.default_rng(0)
VALUES = 20 + 5 * np.sin(2 * np.pi * np.arange(240) / 24)[:, None] + RNG.normal(size=(240, 3))
DAY = ProtocolTask(tuple(range(1, 25)), 8 * 24, 24, 2)
TASKS = MappingProxyType({"one hour": ProtocolTask((1,), 8 * 24, 1, 48), "one day": DAY})


@pytest.fixture
def town(tmp_path, monkeypatch):
    """A protocol of ten days, two of them tested, and its cube in Rome's time."""
    utc = HOURS.tz_localize("Europe/Rome").tz_convert("UTC").tz_localize(None)
    cube = make_cube(
        {"calls": VALUES}, utc, np.array([1, 2, 3]), title="town", source="-", license="-",
        units="1", time_zone="Europe/Rome",
    )  # fmt: skip
    metrics = ("mse", "mae", "pinball")
    made = Protocol("town", "calls", (240, 3), TASKS, metrics, Words("stforecast prepare table"))
    monkeypatch.setitem(PROTOCOLS, "town", made)
    return made, write_cube(cube, tmp_path / "town.nc")


def table_of(task="one day", ahead=0):
    """Forecasts by the value of the day before, or of so many steps later."""
    found = TASKS[task]
    rows = [
        {
            "time": HOURS[place],
            "step": step,
            "cell": cell + 1,
            "forecast": VALUES[place + ahead - 24, cell],
        }
        for places in found.targets
        for place, step in zip(places, found.steps, strict=True)
        for cell in range(3)
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def read(town, tmp_path):
    """Reads a table that was written to a file."""

    def of(table):
        table.to_csv(tmp_path / "mine.csv", index=False)
        made, cube = town
        return read_file(tmp_path / "mine.csv", made.read(cube), made)

    return of


def test_forecasts_are_scored_as_by_hand(town, read):
    made, cube = town
    quantiles = {f"q{level:g}": table_of()["forecast"] + level - 0.5 for level in LEVELS}
    found = read(table_of().assign(**quantiles))
    sums = day_sums(found, made.read(cube), made)
    of_mse = sums[sums["metric"] == "mse"]
    scale = VALUES[: 8 * 24].std(axis=0)
    error = ((VALUES[192:] - VALUES[168:216]) / scale) ** 2
    assert of_mse["day"].tolist() == ["2024-01-09", "2024-01-10"]
    np.testing.assert_allclose(of_mse["total"], [error[:24].sum(), error[24:].sum()])
    losses = []
    for level in LEVELS:
        short = VALUES[192:] - (VALUES[168:216] + level - 0.5)
        losses.append(np.where(short > 0, level * short, (level - 1) * short) / scale)
    of_pinball = sums[sums["metric"] == "pinball"]
    np.testing.assert_allclose(of_pinball["total"].sum(), np.mean(losses, axis=0).sum())


def test_each_kind_of_time_gives_the_same(read):
    plain = table_of()
    expected = read(plain).levels[0.5]
    step = pd.Timedelta("1h")
    origin = plain.assign(origin=plain["time"] - step * plain["step"])
    with_offset = plain.assign(time=plain["time"].dt.tz_localize("Europe/Rome"))
    as_floats = plain.assign(step=plain["step"].astype(float), horizon=24)
    files = (origin, origin.drop(columns="time"), with_offset, plain.sample(frac=1), as_floats)
    for same in files:
        np.testing.assert_array_equal(read(same).levels[0.5], expected)


HOUR = pd.Timedelta("1h")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns="forecast"), "column 'forecast' in time, .*origin"),
        (lambda t: t.drop(columns="time"), "no column 'time'"),
        (lambda t: t[t["step"] < 5], "1, 2, 3, 4; .*task"),
        (lambda t: t.assign(time=t["time"] - HOUR), "1 step early: .*Europe/Rome"),
        (lambda t: t.assign(time=t["time"] + 2 * HOUR), "2 steps late"),
        (lambda t: t.assign(time=t["time"] + HOUR / 2), "no begin"),
        (lambda t: t.assign(time="noon"), "at time "),
        (lambda t: t.assign(origin=t["time"]), "leak: 144 .*origin"),
        (lambda t: t.assign(origin=t["time"] - 30 * HOUR), r"origin \+ step"),
        (lambda t: t[t["cell"] != 2], "48 .*144 missing, .*cell 2 "),
        (lambda t: pd.concat([t, t.head(1)]), "1 .*144 .*twice"),
        (lambda t: t.assign(cell=t["cell"] + 1), "unknown cell '4'.* '1'"),
        (lambda t: t.head(0), "no rows"),
        (lambda t: t.assign(time=t["time"].dt.strftime("%d.%m.%Y %H:%M")), "at time .*2013-12-15"),
        (lambda t: t.assign(forecast=np.nan), "forecast .*finite"),
        (lambda t: t.assign(forecast=t["forecast"] - 20), "data's units"),
        (lambda t: t.assign(**{"q0.25": t["forecast"] + 1}), "quantiles cross"),
    ],
)
def test_a_strangers_mistake_is_named(read, change, message):
    with pytest.raises(InputError, match=message):
        read(change(table_of()))


def test_forecasts_that_fit_the_next_value_are_noted(read, caplog):
    with caplog.at_level(logging.WARNING):
        read(table_of())
        assert not caplog.records
        moved = table_of().assign(forecast=VALUES[np.minimum(DAY.targets.ravel() + 1, 239)].ravel())
        read(moved)
    assert "one step" in caplog.text


def test_quantiles_that_give_no_pinball_loss_are_noted(read, caplog):
    read(table_of().assign(**{"q0.050": 0.0, "q0.25": 0.0, "q0.75": 90.0}))
    assert "q0.05, q0.95" in caplog.text


def test_runs_and_files_are_compared(town, tmp_path, capsys):
    made, cube = town
    split = {"split": "days:6,2,2", "horizon": 24}
    runs.run("ridge", cube, tmp_path / "runs" / "ridge", {**split, "intervals": "none"})
    table_of().to_csv(tmp_path / "mine.csv", index=False)
    paths = [tmp_path / "mine.csv", tmp_path / "runs"]
    sums = score(paths, cube, made)
    rows = tabulate_scores(sums, made, "ridge")["one day"]
    assert {row["method"] for row in rows} == {"mine", "ridge"}
    of_ridge = runs.ForecastRun.open(tmp_path / "runs" / "ridge").forecasts()
    first = of_ridge.isel(time=[0, 24] if of_ridge.sizes["time"] > 24 else [0])
    error = (first["y_hat"] - first["y"]).to_numpy() / VALUES[:192].std(axis=0)[:, None, None]
    own = sums[(sums["method"] == "ridge") & (sums["metric"] == "mse")]
    np.testing.assert_allclose(
        own["total"].sum() / own["weight"].sum(), (error**2).mean(), rtol=1e-4
    )
    words = [*map(str, paths), "--protocol", "town", "--data", str(cube), "--json"]
    with pytest.raises(SystemExit):
        main(["score", *words])
    assert list(json.loads(capsys.readouterr().out)["tasks"]) == ["one day"]
    with pytest.raises(InputError, match=r"mine .*row"):
        score([*paths, paths[0]], cube, made)
    twice = score([tmp_path / "runs", tmp_path / "runs" / "ridge"], cube, made)
    assert {*twice["method"]} == {"ridge", "ridge, ridge"}
    with pytest.raises(InputError, match=r"'nobody'.*mine, ridge"):
        tabulate_scores(sums, made, "nobody")
    some = ProtocolTask((3, 6, 24), DAY.first, DAY.every, DAY.count)
    stepped = protocols.Protocol(**{**made.__dict__, "tasks": {"some": some}})
    of_some = score([tmp_path / "runs"], cube, stepped)
    of_mse = of_some[of_some["metric"] == "mse"]
    expected = (error[..., [2, 5, 23]] ** 2).sum()
    np.testing.assert_allclose(of_mse["total"].sum(), expected, rtol=1e-4)
    seeded = {**split, "intervals": "none", "seed": 2}
    runs.run("ridge", cube, tmp_path / "runs" / "again", seeded)
    with pytest.raises(InputError, match=r"ridge: .*same origins.*seed"):
        score([tmp_path / "runs"], cube, made)


@pytest.mark.parametrize(
    ("change", "split", "message"),
    [
        (lambda cube: cube * 2, "days:6,2,2", "cells .*values"),
        (lambda cube: cube.isel(cell=[0]), "days:6,2,2", "cells .*values"),
        (lambda cube: cube, "days:6,3,1", "lacks origins"),
    ],
)
def test_runs_on_other_targets_are_refused(town, tmp_path, change, split, message):
    made, cube = town
    with xr.open_dataset(cube) as ds:
        other = change(ds.load()).assign_attrs(ds.attrs)
    other["calls"].attrs["units"] = "1"
    other.to_netcdf(tmp_path / "other.nc")
    runs.run(
        "ridge", tmp_path / "other.nc", tmp_path / "run",
        {"split": split, "horizon": 24, "intervals": "none"},
    )  # fmt: skip
    with pytest.raises(InputError, match=rf"{message}.*; make"):
        score([tmp_path / "run"], cube, made)


def test_other_data_are_refused(town, monkeypatch):
    made, cube = town
    wrong = {"service": "sms", "shape": (240, 4), "checksum": 1}
    messages = ["no service 'sms'", "240 steps × 3 cells, town has 240 steps × 4", "other values"]
    for (name, value), message in zip(wrong.items(), messages, strict=True):
        changed = protocols.Protocol(**{**made.__dict__, name: value})
        with pytest.raises(InputError, match=rf"{message}.*: stforecast prepare"):
            changed.read(cube)
    right = zlib.crc32(VALUES.tobytes())
    assert protocols.Protocol(**{**made.__dict__, "checksum": right}).read(cube).shape == (240, 3)


def test_frozen_protocols_end_with_their_data():
    for made in PROTOCOLS.values():
        for task in made.tasks.values():
            last = task.targets.max() + 1
            assert last <= made.shape[0]
            assert made.name == "metr-la" or last == made.shape[0]
    assert PROTOCOLS["metr-la"].tasks["hour"].targets.max() == 34_271, "BasicTS's last target"


@pytest.mark.slow
def test_the_page_can_be_typed(traffic_dir, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "docs" / "compare.md").read_text().replace("\\\n", "")
    known = re.findall("^    (stforecast (?:prepare table|score|bench who_wins) .*)$", page, re.M)
    prepare, of_file, bench, of_runs = (shlex.split(line)[1:] for line in known)
    monkeypatch.chdir(tmp_path)
    (tmp_path / prepare[3]).symlink_to(traffic_dir / prepare[3])
    run = CliRunner().invoke
    assert run(cli, ["-q", *prepare], obj={}).exit_code == 0
    made = PROTOCOLS["milan88"]
    values, task = made.read(Path("milan88.nc")), made.tasks["one day"]
    header = re.search("^time,step,.*$", page, re.M)[0].split(",")
    rows = [
        (values.indexes["time"][place], step, cell, *[value] * (len(header) - 3))
        for places in task.targets
        for place, step in zip(places, task.steps, strict=True)
        for cell, value in zip(
            values["cell"].to_numpy(), values[place - 168].to_numpy(), strict=True
        )
    ]
    pd.DataFrame(rows, columns=header).to_csv("mine.csv", index=False)
    found = run(cli, ["-q", *of_file], obj={}).output
    naive = re.search(r"^mine +([\d.]+)", found, re.M)[1]
    assert re.search(r"^seasonal_week +([\d.]+)", found, re.M)[1] == naive, "as our own row"
    assert re.search("^fedlean ", found, re.M)
    assert "over 9 blocks of two test days (8 degrees of freedom)" in found
    quick = [word.replace("fedlean", "seasonal_day") for word in bench]
    assert run(cli, ["-q", *quick], obj={}).exit_code == 0
    found = run(cli, ["-q", *of_runs], obj={}).output
    ours, again = re.findall(r"^(?:seasonal_day|seasonal_day, day) +([\d.]+.*\])", found, re.M)[-2:]
    assert ours == again
    assert "seasonal_day, day" in Path("sums.csv").read_text()
