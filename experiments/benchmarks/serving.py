"""Measure a served forecast, calibration of probabilities of passing a threshold, and sums."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import psutil
import xarray as xr
from matplotlib.figure import Figure

from data_prep.base.errors import InputError
from experiments.benchmarks.frame import (
    Results,
    benchmark,
    hourly_table,
    listed_numbers,
    squares_by_day,
    table,
    timed,
)
from stforecast.bench.curves import HUES, MARKERS
from stforecast.bench.drawing import ONE_COLUMN, SMALL, TINY, TWO_COLUMNS, add_legend, panels
from stforecast.bench.statistics.estimate import with_ends
from stforecast.comparison.leaderboard import resample
from stforecast.data.cubes import open_cube
from stforecast.flower.supernode import free_port
from stforecast.forecasting import planning, runs
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.groups import ALL, Groups, SumErrors
from stforecast.forecasting.planning import error_paths, plan

SERVED = {
    "what": ("asked for", ""),
    "kilobytes": ("kB an answer", ",.4g"),
    "cpu_ms": ("CPU ms of the server", ".1f"),
    "most": ("most a second", ".0f"),
    "answered": ("answered a second at the rate", ".0f"),
    "p50_ms": ("median ms", ".1f"),
    "p99_ms": ("99 % within ms", ".1f"),
    "load": ("other load", ".1f"),
}

CALIBRATED = {
    "rule": ("rule", ""),
    "brier": ("Brier score", ".4f"),
    "said": ("mean said", ".3f"),
    "happened": ("happened", ".3f"),
    **{f"bin_{i}": (f"said {i * 20} to {i * 20 + 20} %", ".2f") for i in range(5)},
}
"""Columns. Bins show how often spans with such a forecast probability passed.

Rows also have the mean probability in each bin, `at_0` to `at_4`."""

SIZES = (20, 4, 1)

COVERAGES = (50, 80, 90, 95)
"""Per cent that bounds of sums promise."""

HELD = {
    "data": ("data and method", ""), "level": ("cells a group", ""), "mse": ("MSE", ".3f"),
    "held": ("held", ".3f"), "width": ("width", ".2f"), "mint": ("MinT's MSE, % above", "+.1f"),
    "mint_low": ("from", "+.1f"), "mint_high": ("to", "+.1f"), "mint_held": ("held", ".3f"),
    "mint_width": ("width", ".2f"), "bottom_up_held": ("bottom-up: held", ".3f"),
}  # fmt: skip
"""Errors of z-scores; share of sums within bounds of 90 %; their width as a share of added ones."""


@benchmark()
def serve(
    results: Results,
    *,
    cells: int = 1000,
    days: int = 28,
    seconds: float = 10.0,
    clients: int = 8,
    rate: float = 100.0,
) -> str:
    """Measure `stforecast serve`: requests a second and their delays, over sockets of the loopback.

    The server is a process of its own, which shares this machine's cores with the clients.

    Args:
        results: gets a row for each kind of request.
        cells: number of cells of an invented city, forecast 24 hours ahead with bounds.
        days: days of its history.
        seconds: seconds of each kind, first as fast as answers come, then at the rate.
        clients: clients that ask at the same time.
        rate: requests a second, with delays from when each is due, so that a slow
            answer counts for those that wait behind it.
    """
    import requests

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "city.csv"
        _invented(cells, days).to_csv(data)
        settings = {"horizon": 24, "split": "time:0.7,0.15,0.15", "intervals": "normalised"}
        run = runs.run("ridge", data, Path(folder) / "run", settings).folder
        with _served(run) as (address, used):
            for what, query in (
                ("one cell", "?cell=c1"), (f"all {cells:,} cells", ""),
                (f"all {cells:,} cells, CSV", "?format=csv"),
            ):  # fmt: skip
                first = requests.get(address + query, timeout=60)
                first.raise_for_status()
                load = psutil.cpu_percent(1.0) / 100 * (psutil.cpu_count() or 1)
                fast = timed(_asked, address + query, seconds, clients, cpu=used)
                even = timed(_asked, address + query, seconds, clients, rate)
                half, p99 = (float(np.quantile(even.value, q)) * 1e3 for q in (0.5, 0.99))
                results.add({
                    "what": what, "kilobytes": len(first.content) / 1e3,
                    "cpu_ms": 1e3 * fast.cpu_seconds / len(fast.value),
                    "most": len(fast.value) / fast.seconds,
                    "answered": len(even.value) / even.seconds,
                    "p50_ms": half, "p99_ms": p99, "load": load,
                })  # fmt: skip
    return table(results.rows, SERVED)


@contextmanager
def _served(run: Path) -> Iterator[tuple[str, Callable[[], float]]]:
    """Serve a run by the command; yield its address, and what returns its CPU seconds so far."""
    import requests

    port = free_port()
    words = [sys.executable, "-m", "stforecast", "serve", str(run), "--port", str(port)]
    with subprocess.Popen(words) as server:
        try:
            while server.poll() is None:
                try:
                    requests.get(f"http://127.0.0.1:{port}/health", timeout=60)
                    break
                except requests.ConnectionError:
                    time.sleep(0.1)
            process = psutil.Process(server.pid)
            yield f"http://127.0.0.1:{port}/forecast", lambda: sum(process.cpu_times()[:2])
        finally:
            server.terminate()


def _invented(cells: int, days: int) -> pd.DataFrame:
    times = pd.date_range("2024-01-01", periods=24 * days, freq="h", name="time")
    rng = np.random.default_rng(0)
    wave = np.sin(2 * np.pi * times.hour.to_numpy() / 24)[:, None]
    values = (10 + 5 * wave + rng.normal(size=(len(times), cells))) * rng.uniform(1, 99, cells)
    return pd.DataFrame(values, times, [f"c{i}" for i in range(cells)])


def _asked(address: str, seconds: float, clients: int, rate: float = 0) -> list[float]:
    """Return the seconds to the answer of each request from when it was due.

    Without a rate, it is due as soon as its client has an answer.
    """
    import requests

    begin, turns = time.perf_counter(), itertools.count()

    def ask(_: int) -> list[float]:
        found: list[float] = []
        with requests.Session() as session:
            while True:
                due = begin + next(turns) / rate if rate else time.perf_counter()
                if due >= begin + seconds:
                    return found
                time.sleep(max(0.0, due - time.perf_counter()))
                session.get(address, timeout=60).raise_for_status()
                found.append(time.perf_counter() - due)

    with ThreadPoolExecutor(clients) as pool:
        return [delay for of_client in pool.map(ask, range(clients)) for delay in of_client]


@benchmark()
def exceedance(
    results: Results,
    *data: Path,
    method: str = "ridge",
    horizon: int = 24,
    levels: str = "80,90,95,99",
    every: int = 6,
) -> str:
    """Measure the calibration of probabilities of exceeding a threshold within a span.

    A model is trained on the first half of each table. Its errors on the first half of the rest say
    how they go together; the other half is forecast, every few steps, and thresholds are quantiles
    of a cell's training values; of a speed, which falls below them, those as far from the other
    end. Three rules: as `stforecast forecast` says (joint), independent errors, and the highest
    probability of one step.

    Args:
        results: gets a row for each table and rule.
        data: tables or cubes.
        method: method of the model.
        horizon: steps of a span.
        levels: quantiles of thresholds, in per cent.
        every: steps between forecasts.
    """
    for path in data:
        said, happened = _said(path, method, horizon, listed_numbers(levels), every)
        for rule, chances in said.items():
            name = path.name.partition("-")[0].partition(".")[0]
            row: dict[str, Any] = {"data": name, "rule": f"{name}: {rule}"}
            row["brier"] = float(np.mean((chances - happened) ** 2))
            row["said"], row["happened"] = float(chances.mean()), float(happened.mean())
            bins = np.minimum(chances * 5, 4).astype(int)
            for i in range(5):
                own = bins == i
                for part, values in (("bin", happened), ("at", chances)):
                    row[f"{part}_{i}"] = float(values[own].mean()) if own.any() else None
            results.add(row)
    return table(results.rows, CALIBRATED)


@benchmark(goes_on=True)
def sums(results: Results, *data: Path, methods: str = "ridge,fedlean", span: str = ":") -> str:
    """Compare sums of forecasts 24 steps ahead with MinT and bottom-up of hierarchicalforecast.

    Groups are neighbours in the order of the table. Models are trained on its first half. In the
    second half of the last third, bounds of sums follow from errors known by then. MinT reconciles
    forecasts that the same method makes of the sums of each level, by the errors of the first half.
    The library's bounds are normal distributions, as by default.

    Args:
        results: gets a row for each table, method and level.
        data: wide tables of counts; cells with gaps are left out.
        methods: methods of the models.
        span: first and last day of the table, such as 2025-03-01:2025-05-31.
    """
    for about, method, wide, groups in _grouped(data, methods, span):
        every = pd.DataFrame(groups.sum(wide.to_numpy().T).T, wide.index, groups.labels)
        found = []
        for level in dict.fromkeys(groups.levels):
            found.append(_tested(every.loc[:, np.isin(groups.levels, level)], method))
        base = xr.concat(found, "cell")
        # As `predict` does, they are moved to the limits, which the bounds keep.
        base["y_hat"] = base["y_hat"].clip(base["lower"], base["upper"])
        results.add(*(about | row for row in _rows(base, groups)))
    return table(results.rows, HELD)


@benchmark(goes_on=True)
def sums_coverage(
    results: Results, *data: Path, methods: str = "ridge,fedlean", span: str = ":"
) -> str:
    """Measure the coverage of bounds of sums, of 50 to 95 %, on the groups and windows of `sums`.

    Args:
        results: gets a row for each table, method and level.
        data: wide tables of counts; cells with gaps are left out.
        methods: methods of the models.
        span: first and last day of the table, such as 2025-03-01:2025-05-31.
    """
    sides = [(100 - percent) / 200 for percent in COVERAGES]
    quantiles = sorted([0.5, *sides, *(1 - side for side in sides)])
    for about, method, wide, groups in _grouped(data, methods, span):
        tests = _tested(wide, method, quantiles=",".join(f"{q:g}" for q in quantiles))
        found = {}
        for percent in COVERAGES:
            which = "" if percent == max(COVERAGES) else f"_{percent}"
            bounds = {side: tests[f"{side}{which}"] for side in ("lower", "upper")}
            own = tests.assign(bounds).assign_attrs(coverage=percent / 100)
            found[f"held_{percent}"] = SumErrors.of(own, groups).coverage
        for level, held in pd.DataFrame(found).iterrows():
            results.add({**about, "level": level, **held})
    heads = {f"held_{percent}": (f"{percent} %", ".3f") for percent in COVERAGES}
    return table(results.rows, {"data": HELD["data"], "level": HELD["level"], **heads})


def _grouped(
    data: Sequence[Path], methods: str, span: str
) -> Iterator[tuple[dict[str, Any], str, pd.DataFrame, Groups]]:
    """Yield the begin of rows, the method, cells without gaps, and groups of neighbours."""
    for path, method in itertools.product(data, methods.split(",")):
        wide = hourly_table(path, span).dropna(axis=1)
        n = wide.shape[1]
        levels = {ALL: [ALL] * n} | {f"{k}": [f"{i // k:04}" for i in range(n)] for k in SIZES}
        name = f"{path.name.partition('-')[0].partition('.')[0]}, {method}"
        groups = Groups.of_columns(levels, wide.columns.to_numpy())
        yield {"data": name, "span": span}, method, wide, groups


def _tested(wide: pd.DataFrame, method: str, **more: str) -> xr.Dataset:
    """Return the forecasts of the last third of a table, 24 steps ahead."""
    settings = {"split": "time:0.5,0.15,0.35", "intervals": "normalised", "outliers": "keep"}
    cube = open_cube(wide, allow_gaps=True)
    return Forecaster(method, horizon=24, **settings, **more).fit(cube).test_forecasts()


def _rows(base: xr.Dataset, groups: Groups) -> Iterator[dict[str, Any]]:
    """Yield errors, coverage and widths of each level, from forecasts of each level by itself."""
    cells = base.isel(cell=slice(-len(groups.cells), None)).assign_coords(cell=groups.cells)
    base["added"] = base["y"].copy(data=groups.sum((cells["upper"] - cells["lower"]).to_numpy()))
    n, horizon = base.sizes["time"] // 2, base.sizes["horizon"]
    # From here on, factors and covariances of errors read no target that was unknown.
    last = base.isel(time=slice(n + horizon, None))
    ours = SumErrors.of(cells, groups).forecasts.isel(time=slice(horizon, None))
    ways = {"": last.assign(ours[["y_hat", "lower", "upper"]]), "alone": last}
    ways |= _library(base.isel(time=slice(n)), last, groups)
    for level in dict.fromkeys(groups.levels):
        row: dict[str, Any] = {"level": level}
        errors = {}
        for way, of in ways.items():
            own = of.isel(cell=np.isin(groups.levels, level))
            inside = (own["lower"] <= own["y"]) & (own["y"] <= own["upper"])
            widths = xr.Dataset({"own": own["upper"] - own["lower"], "added": own["added"]})
            mean = (widths / own["std"]).assign(held=inside).where(own["y"].notnull()).mean()
            row[f"{way}_held".lstrip("_")] = float(mean["held"])
            row[f"{way}_width".lstrip("_")] = float(mean["own"] / mean["added"])
            errors[way] = squares_by_day(own)["all"]
        compared = resample(errors, "mse", None)
        row["mse"] = compared.error("").value
        above = {way: compared.relative_difference(way, "") for way in ways if way}
        yield row | with_ends(above)


def _library(first: xr.Dataset, last: xr.Dataset, groups: Groups) -> dict[str, xr.Dataset]:
    """Return the library's forecasts of the last windows, each step by itself."""
    try:
        from hierarchicalforecast.methods import BottomUp, MinTrace
    except ImportError:
        click.echo("without MinT and bottom-up; pip install hierarchicalforecast", err=True)
        return {}
    member = groups.sum(np.eye(len(groups.cells)))
    found = {}
    for name, way in {"bottom_up": BottomUp(), "mint": MinTrace("mint_shrink")}.items():
        steps = []
        for step in range(first.sizes["horizon"]):
            known = first.isel(horizon=step).dropna("time", subset=["y"])
            y, y_hat = known["y"].to_numpy(), known["y_hat"].to_numpy()
            asked = last["y_hat"].isel(horizon=step).to_numpy()
            spread = (y - y_hat).std(axis=1, keepdims=True) * np.ones_like(asked)
            part = way.fit_predict(member, asked, y, y_hat, spread, [90], "normality")
            steps.append([part["mean"], *np.moveaxis(part["quantiles"], -1, 0)])
        parts = zip(("y_hat", "lower", "upper"), np.moveaxis(np.array(steps), 0, -1), strict=True)
        found[name] = last.assign({part: (last["y"].dims, values) for part, values in parts})
    return found


def draw_exceedance(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the shares that passed against their probabilities by data, joint and independent."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    fig, axes = panels(TWO_COLUMNS, 2.6, len(names), n_columns=3)
    for ax, name in zip(axes, names, strict=True):
        ax.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
        own = (row for row in rows if row["data"] == name)
        for row, color in zip(own, HUES, strict=False):
            rule = row["rule"].partition(": ")[2]
            points = [(row[f"at_{i}"], row[f"bin_{i}"]) for i in range(5)]
            said, happened = zip(*(p for p in points if p[0] is not None), strict=True)
            (line,) = ax.plot(said, happened, marker="o", color=color, label=rule)
            if rule != "joint":
                line.set(linestyle="dotted", alpha=0.6)
        ax.set_title(name, fontsize=SMALL)
        ax.set_xlabel("probability said")
        ax.legend(fontsize=TINY)
    axes[0].set_ylabel("share that happened")
    return fig


def draw_sums(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the share of sums within bounds against their nominal coverage, by data and method."""
    names = list(dict.fromkeys(row["data"] for row in rows))
    fig, axes = panels(ONE_COLUMN, 1.6, len(names), n_columns=2, sharex=True, sharey=True)
    for ax, name in zip(axes, names, strict=True):
        ax.plot(*[[COVERAGES[0], COVERAGES[-1]]] * 2, color="grey", linewidth=0.8)
        own = (row for row in rows if row["data"] == name)
        for row, color, marker in zip(own, HUES, MARKERS, strict=False):
            level = row["level"]
            label = {ALL: "all cells", "1": "single cells"}.get(level, f"groups of {level}")
            held = [100 * row[f"held_{percent}"] for percent in COVERAGES]
            ax.plot(COVERAGES, held, marker=marker, color=color, label=label, markersize=4, lw=1)
        ax.set_title(name, fontsize=SMALL)
        ax.set_xticks(COVERAGES)
        ax.set_yticks(COVERAGES)
    for ax in axes[::2]:
        ax.set_ylabel("held %")
    for ax in axes[-2:]:
        ax.set_xlabel("promised %")
    add_legend(fig)
    return fig


def _said(
    path: Path, method: str, horizon: int, levels: list[int], every: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the probability by each rule that spans pass, and whether they did."""
    settings = {"split": "time:0.5,0.15,0.35", "horizon": horizon, "intervals": "normalised"}
    forecaster = Forecaster(method, **settings).fit(path)
    tests, series = forecaster.test_forecasts(), forecaster.data_.series
    values = series.values[forecaster.data_.split.fit]
    middle = tests.sizes["time"] // 2
    paths = error_paths(tests.isel(time=slice(0, middle - horizon)))
    if paths is None:
        raise InputError(f"{path}: too few forecasts to say how their errors go together")
    said: dict[str, list[np.ndarray]] = {"joint": [], "independent": [], "one step": []}
    happened = []
    for window in range(middle, tests.sizes["time"], every):
        one = tests.isel(time=window)
        parts = {n: pd.DataFrame(one[n].to_numpy().T) for n in ("y", "y_hat", "lower", "upper")}
        parts["y_hat"] = parts["y_hat"].clip(parts["lower"], parts["upper"])
        parts["upper"].attrs["coverage"] = tests.attrs["coverage"]
        known = parts["y"].notna().all() & parts["upper"].notna().all()
        if not known.any():
            continue
        times = pd.date_range("2000-01-01", periods=horizon, freq="h")
        tables = {n: t.loc[:, known].set_axis(times) for n, t in parts.items()}
        tables["y_hat"].attrs |= {"service": series.service, "units": series.units}
        sign = planning.side_of(tables["y_hat"]).sign
        for level in levels:
            share = (level if sign > 0 else 100 - level) / 100
            quantiles = pd.Series(np.nanquantile(values, share, axis=0))
            limit: dict[object, float] = quantiles[tables["y"].columns].to_dict()
            bounds, centre = (tables["lower"], tables["upper"]), tables["y_hat"]
            found = plan(centre, bounds, limit, planning.ANY, paths)
            steps = planning.exceedance(centre, *bounds, limit, tests.attrs["coverage"])
            said["joint"].append(found["probability"].to_numpy())
            said["independent"].append(1 - (1 - steps).prod().to_numpy())
            said["one step"].append(found["highest_probability"].to_numpy())
            happened.append((sign * tables["y"] > sign * pd.Series(limit)).any().to_numpy())
    return {rule: np.concatenate(v) for rule, v in said.items()}, np.concatenate(happened)
