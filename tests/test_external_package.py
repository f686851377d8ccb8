"""A package of someone else adds one of each kind, and the command line uses them all.

The package is that of docs/extend.md: its Python blocks are the files, its TOML block names them.
It is installed in a folder of its own, beside one whose entry point cannot be loaded, and one
process types every command.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mentions import mentions

ROOT = Path(__file__).resolve().parent.parent
FENCED = r"^```{}\n(.*?)^```$"

TINY = "--split days:7,1,2 --device cpu --model wide"

TOUR = {
    "prepare": "prepare bicycles --raw counts.csv --out bicycles.nc",
    "log": "prepare table --raw hours.log --layout wide --out log.nc",
    "formats": "list formats",
    "methods": "list methods",
    "models": "list models",
    "data": "list data",
    "metrics": "list metrics",
    "partitions": "vision list partitions",
    "image methods": "vision list methods",
    "figures": "plot --help",
    "sections": "list sections",
    "help": "run --method near --help",
    "broken": f"run --data bicycles.nc --method broken {TINY} --rounds 1 --out broken",
    "untyped": "run --method untyped --help",
    "unsigned": f"run --data bicycles.nc --method unsigned {TINY} --rounds 1 --out broken",
    "unlucky": f"run --data bicycles.nc --method unlucky {TINY} --rounds 1 --out broken",
    "stopped": f"run --data bicycles.nc --method near --mu 0.5 {TINY} --rounds 3 --out run",
    "resumed": "run --resume run --data bicycles.nc",
    "predict": "predict run --history bicycles.nc --out next.csv",
    "seconds": "plot seconds run --width 5 --out seconds.png",
    "bars": "plot bars run --metric raw_shortfall --out shortfall.png",
    "bench": "bench near.toml --out bench",
    "divisions": "list partitions",
    "ranked": "divide --data bicycles.nc --split days:7,1,2 --clients ranked:2 --out ranked.csv",
    "pull": f"run --data bicycles.nc --method pull --clients ranked:2 {TINY} --rounds 2 --out pull",
    "image pull": "vision run --method pull --data corners --model small --clients 3 --rounds 2"
    " --device cpu --out image-pull",
    "uneven": "vision divide --partition uneven --skew 3 --clients 4 --out uneven.csv",
    "in-turn": "vision divide --partition in-turn --stages 2 --clients 2 --out in-turn.csv",
    "neighbours": "run --data bicycles.nc --method neighbours --split days:7,1,2 --out neighbours",
    "report": "forecast log.nc --method seasonal_day --out forecast",
    "again": "predict neighbours --history bicycles.nc --out again.csv",
    "images": "vision run --method near --mu 0.1 --partition uneven --clients 3 --rounds 1"
    " --size 8 --channels 4 --device cpu --out images",
    "small": "vision run --method near --data corners --model small --clients 3 --rounds 3"
    " --device cpu --out corners",
}
"""What is typed, in this order."""

FAULTS = {
    "broken": r"arcadia\.py, line 9: KeyError: 'no such name'; correct it",
    "unlucky": r"all participants failed: .*arcadia\.py, line 15: AttributeError: 'NoOptions'",
    "unsigned": r"takes 3 positional .* given\); correct arcadia or utopia if the cause",
    "untyped": r"the option names has the type list\[str\], expected bool, int,",
}
"""What is said of faults of a package, by the name of its method."""

BENCH = """
title = "Near"
data = ["bicycles.nc"]
methods = ["solo", { method = "near", label = "far", mu = 0.9 }]
figures = ["seconds", { plot = "bars", metric = "shortfall" }]
[settings]
model = "wide"
split = "days:7,1,2"
rounds = 1
device = "cpu"
"""

BROKEN = """
from dataclasses import dataclass
from stforecast.federated.methods.fedavg import FedAvg

class Broken(FedAvg):
    name, summary = "broken", "a method with a fault"

    def aggregate(self, server, of, uploads):
        return server["no such name"]

class Unlucky(FedAvg):
    name, summary = "unlucky", "fails on every client"

    def local_loss(self, cohort, batch, payload):
        return self.options.luck

class Unsigned(FedAvg):
    name, summary = "unsigned", "lacks a parameter"

    def aggregate(self, server, uploads):
        return server

@dataclass(frozen=True)
class Names:
    names: list[str] = ()

class Untyped(FedAvg):
    name, summary, Options = "untyped", "has an option of a wrong type", Names
"""

SCRIPT = """
import contextlib, io, json, os, signal, sys

import utopia.near
import utopia.test_near
import utopia.test_pull
from stforecast.cli.main import main

aggregate = utopia.near.Near.aggregate

def stop_once(self, server, of, uploads):
    utopia.near.Near.aggregate = aggregate
    os.kill(os.getpid(), signal.SIGTERM)
    return aggregate(self, server, of, uploads)

done = {}
for name, line in json.loads(sys.argv[1]).items():
    if name == "stopped":
        utopia.near.Near.aggregate = stop_once
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                main(line.split())
            except SystemExit as e:
                code = e.code or 0
    done[name] = (code, out.getvalue(), err.getvalue())
json.dump(done, open("done.json", "w"))
utopia.test_near.test_without_its_pull_it_is_fedavg()
utopia.test_pull.test_clients_may_have_different_models()
"""


def blocks(language):
    text = (ROOT / "docs" / "extend.md").read_text()
    return re.findall(FENCED.format(language), text, re.M | re.S)


def entry_points():
    (toml,) = blocks("toml")
    return tomllib.loads(toml)["project"]["entry-points"]


def install(site, name, groups):
    """As pip leaves a package behind, but for its modules."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{group}]\n{key} = {v}" for group, ps in groups.items() for key, v in ps.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder in which everything was typed."""
    folder = tmp_path_factory.mktemp("place")
    site = folder / "site"
    install(site, "utopia", entry_points())
    install(site, "dystopia", {"stforecast.methods": {"far": "dystopia:Far"}})
    values = [value for points in entry_points().values() for value in points.values()]
    modules = list(dict.fromkeys(re.match(r"utopia\.(\w+)", value)[1] for value in values))
    modules.insert(1, "test_near")
    modules.insert(3, "test_pull")
    (site / "utopia").mkdir()
    for module, text in zip(modules, blocks("python"), strict=True):
        (site / "utopia" / f"{module}.py").write_text(text)
    hours = pd.date_range("2024-01-01", periods=240, freq="h", name="time")
    wave = np.sin(hours.hour.to_numpy()[:, None] / 4 + np.arange(3))
    pd.DataFrame(10 + 5 * wave, hours, ["x", "y", "z"]).to_csv(folder / "counts.csv")
    log = [f"{time:%Y-%m-%dT%H:%M} north={i} south=7\n" for i, time in enumerate(hours)]
    (folder / "hours.log").write_text("".join(log))
    (folder / "near.toml").write_text(BENCH)
    points = {name: f"arcadia:{name.title()}" for name in FAULTS}
    install(site, "arcadia", {"stforecast.methods": points})
    (site / "arcadia.py").write_text(BROKEN)
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{site}", "MPLCONFIGDIR": str(folder)}
    tour = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(TOUR)],
        cwd=folder, env={**os.environ, **paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert tour.returncode == 0, tour.stderr
    return folder


@pytest.fixture(scope="module")
def typed(place):
    return json.loads((place / "done.json").read_text())


@pytest.mark.parametrize("name", sorted(TOUR.keys() - {"stopped", *FAULTS}))
def test_every_command_ends_well(typed, name):
    code, _, err = typed[name]
    assert code == 0, err


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("methods", "near"), ("image methods", "near"), ("models", "wide"), ("data", "bicycles"),
        ("metrics", "shortfall"), ("methods", "neighbours"), ("partitions", "uneven"),
        ("partitions", "in-turn"), ("figures", "seconds"), ("formats", "utopia-log"),
        ("methods", "pull"), ("divisions", "ranked"), ("sections", "bands"),
    ],
)  # fmt: skip
def test_each_is_listed_with_what_it_is(typed, what, name):
    (line,) = [line for line in typed[what][1].splitlines() if line.split()[:1] == [name]]
    assert len(line.split()) > 2


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_package_is_placed_in_it(typed, name):
    code, _, err = typed[name]
    assert code == (2 if name == "untyped" else 1)
    said = err.splitlines()[-1]
    assert re.search(FAULTS[name], said), said


def test_the_options_of_the_method_are_in_the_help(typed):
    text = typed["help"][1]
    assert "Options of near" in text
    assert re.search(r"--mu FLOAT +Weight of the proximal term; 0 is FedAvg", text)


def test_a_stopped_run_goes_on(place, typed):
    code, _, err = typed["stopped"]
    assert code == 143
    assert re.fullmatch(
        r"stforecast: stopped by SIGTERM after round \d; go on with: stforecast run --resume run",
        err.splitlines()[-1],
    )
    assert len(pd.read_csv(place / "run" / "rounds.csv")) == 3
    settings = json.loads((place / "run" / "run.json").read_text())["settings"]
    assert (settings["method"], settings["model"], settings["mu"]) == ("near", "wide", 0.5)


def test_the_model_forecasts_the_data_set(place):
    assert set(pd.read_csv(place / "next.csv")["cell"]) == {"x", "y", "z"}


def test_the_saved_reference_forecaster_forecasts_again(place):
    again = pd.read_csv(place / "again.csv")
    assert set(again["cell"]) == {"x", "y", "z"}
    assert again["bicycles"].between(5, 15).all()


def test_the_small_model_learns_the_corners(place):
    rounds = pd.read_csv(place / "corners" / "rounds.csv")
    assert rounds["accuracy (trained, all classes)"].iloc[-1] > 0.5


def test_the_metric_is_that_of_the_forecasts(place):
    import xarray as xr

    errors = pd.read_csv(place / "run" / "metrics.csv").query(
        "metric == 'raw_shortfall' and client == 'all' and horizon == 'all' and split == 'test'"
    )
    with xr.open_dataset(place / "run" / "forecasts.nc", engine="h5netcdf") as ds:
        expected = float((ds["y"] - ds["y_hat"]).clip(0).mean())
    best = errors.set_index("selection")["value"]["best"]
    assert best == pytest.approx(expected, rel=1e-4)
    assert "shortfall" in set(pd.read_csv(place / "bench" / "metrics.csv")["metric"])
    table = (place / "bench" / "table.md").read_text()
    assert re.search(r"^\| method .*\| shortfall +\|", table, re.M)


def test_the_format_is_read_as_a_table(place):
    import xarray as xr

    with xr.open_dataset(place / "log.nc", engine="h5netcdf") as ds:
        assert ds["value"].sel(cell="north").values.tolist() == [*range(240)]


def test_figures_are_drawn(place):
    assert {"seconds.png", "shortfall.png"} <= {path.name for path in place.glob("*.png")}
    drawn = {path.name for path in (place / "bench" / "figures").iterdir()}
    assert drawn == {"bicycles-bicycles-seconds.png", "bicycles-bicycles-bars.png"}


def test_the_section_is_in_the_pages_that_have_its_needs(place):
    page = (place / "forecast" / "report.html").read_text()
    headings = re.findall(r"<h2[^>]*>(.*)</h2>", page)
    assert headings == ["The coming day", "Widest bounds", "How good it was lately"]
    assert re.search(r"<p>(north|south) is the least sure\.</p>", page)


def test_the_benchmark_has_a_row_for_the_method(place):
    assert re.search(r"^\| far ", (place / "bench" / "table.md").read_text(), re.M)


def test_images_are_divided_by_the_partition_and_the_stream(place):
    train = pd.read_csv(place / "uneven.csv").query("part == 'train'")
    sizes = train.groupby("client")["samples"].sum()
    assert sizes.is_monotonic_increasing
    assert sizes.iloc[-1] == pytest.approx(3 * sizes.iloc[0], rel=0.02)
    stream = pd.read_csv(place / "in-turn.csv")
    assert stream.groupby("class")["stage"].nunique().eq(1).all()
    assert json.loads((place / "images" / "run.json").read_text())["settings"]["skew"] == 4


def test_cells_are_divided_by_the_partition(place):
    """The waves of the cells have about the same level: two cells are a client, or one."""
    clients = pd.read_csv(place / "ranked.csv")["client"]
    assert sorted(clients.value_counts()) == [1, 2]
    about = json.loads((place / "pull" / "run.json").read_text())
    assert sorted(about["cells_of_clients"].values()) == [1, 2]
    assert set(about["heterogeneity_bits"]) == {"profiles", "levels"}


def test_a_broken_package_is_named_and_harms_nobody(typed):
    said = [err for _, _, err in typed.values() if err]
    (warning,) = [err for err in said if "dystopia" in err]
    assert mentions(warning, "dystopia 1.0:", "far = dystopia:Far", "stforecast.meth")
    assert "ModuleNotFoundError" in warning


def test_each_example_is_short():
    lengths = [len([line for line in text.splitlines() if line]) for text in blocks("python")]
    assert len(lengths) == 16
    assert max(lengths) <= 22
