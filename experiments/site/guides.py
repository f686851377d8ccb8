"""Parts of guides, such as on security and performance, from the results of benchmarks.

The measurements lie in docs/results as the benchmarks of `experiments.benchmarks` wrote them. In
`federation`: `hostile.csv`, `hostile-live.csv`, `robust.csv`, `nodes-NUMBER.json` and
`kills-TARGET.json`; `attacks.json` was written by `pytest --attacks`. In `performance`:
`rounds.json`, `growth.json`, `secure_sum.json`, `images.json` and `prepare.json`, which tell on
which machine and when.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import tabulate

from data_prep.base.errors import counted
from experiments.benchmarks import city, growth, nodes, prepare, serving
from experiments.benchmarks.cells import new_tables
from experiments.benchmarks.frame import table
from experiments.site.markdown import as_png, wrapped
from experiments.site.measured import RESULTS
from stforecast.bench.run_groups import grouped
from stforecast.bench.tables import markdown

FEDERATION, PERFORMANCE = RESULTS / "federation", RESULTS / "performance"
NEW_CELLS = RESULTS / "default" / "new-cells.json"
EXCEEDANCE = RESULTS / "intervals" / "exceedance.json"
"""Folders and files of the measurements."""

WRITTEN = "pytest -m attack --attacks docs/results/federation/attacks.json"
"""Command that writes the count of attacks."""

OURS = "stacked, compiled kernels"

PAPERS_ROUNDS = 200
"""Rounds of FUELS's paper."""

BUSY = 0.5
"""Cores that other programs take, beyond which delays say nothing of a server."""


def _results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PERFORMANCE / f"{name}.json").read_text())
    return found


def _measured(told: str, found: Mapping[str, Any], shown: str, end: str = "") -> str:
    """Return a part of the page: subject, machine and date of the measurement, and the table."""
    about = found["machine"]
    where = f"Measured on {about['processor']}, torch {about['torch']}, {about['date']}:"
    return wrapped(f"{told}{where}\n\n{shown}\n\n{end}".rstrip("\n"))


def rounds_table() -> str:
    """Tabulate seconds of a round of each path, with its better number of threads.

    Each is compared with the fastest loop: one takes equally long for each client, so the fastest
    has the least time for a client, whatever their number.
    """
    found = _results("rounds")
    loops = [row for row in found["rows"] if row["variant"].startswith("loop")]
    of_client = min(row["seconds"] / row["clients"] for row in loops)
    best: dict[int, dict[str, dict[str, Any]]] = {}
    for row in sorted(found["rows"], key=lambda row: row["seconds"]):
        best.setdefault(row["clients"], {}).setdefault(row["variant"], row)
    paths = dict.fromkeys(row["variant"] for row in found["rows"])
    sizes = dict.fromkeys(row["clients"] for row in found["rows"])
    rows = [
        {"clients": f"{n:,}"}
        | {path: _seconds(best[n][path], of_client) for path in paths if path in best[n]}
        for n in sizes
    ]
    shares = [f"{best[n][OURS]['share']:.0%} with {n:,} clients" for n in sizes]
    end = (
        "Compared with the speed of torch's bare matrix products, the compiled kernels reach "
        f"{' and '.join(shares)}."
    )
    return _measured("", found, markdown(rows), end)


def _seconds(row: Mapping[str, Any], of_client: float) -> str:
    """Return the seconds of a path, and the speed relative to the fastest loop."""
    faster = of_client * row["clients"] / row["seconds"]
    shown = "" if row["variant"].startswith("loop") else f" ({faster:.1f}×)"
    return f"{row['seconds']:.3g}{shown}"


def growth_table() -> str:
    """Tabulate rounds by number of clients, with a share of them in each, and tell the slopes."""
    found = _results("growth")
    shown = {"a round's seconds": "seconds", "memory without files": "memory_gb"}
    slopes = [
        " and ".join(f"{k:.2f} (`{name}`)" for name, k in of.items()) + f" for {what}"
        for what, column in shown.items()
        if (of := growth.slopes_of(found["rows"], column))
    ]
    told = (
        f"{found['share']:.0%} of the clients a round, hidden size {found['hidden_size']}, "
        f"`--memory {found['memory']}`, `--compared {found['compared']}`, the fastest of three "
        "rounds. "
    )
    end = (
        "Lines of least squares through the logarithms of the number of clients have slopes of "
        f"{', '.join(slopes)}.\n\n![Seconds of a round, time of a participant and memory by "
        "number of clients](figures/growth.png)"
    )
    return _measured(told, found, table(found["rows"], growth.COLUMNS), end)


def growth_figure() -> bytes:
    """Draw the rounds of `growth_table`, as a PNG."""
    return as_png(growth.draw_growth(_results("growth")["rows"]))


def papers_growth_table() -> str:
    """Tabulate rounds of many clients with the paper's sizes, and how long 200 of them last."""
    found = _results("growth-papers")
    told = (
        f"{found['share']:.0%} of the clients a round, hidden size {found['hidden_size']}, "
        f"`--memory {found['memory']}`. "
    )
    columns = {**growth.COLUMNS, "all": (f"min for {PAPERS_ROUNDS} rounds", ".0f")}
    rows = [{**row, "all": row["seconds"] * PAPERS_ROUNDS / 60} for row in found["rows"]]
    return _measured(told, found, table(rows, columns))


def exceedance_table() -> str:
    """Tabulate how often a threshold was exceeded, by its forecast probability."""
    found = json.loads(EXCEEDANCE.read_text())
    told = (
        f"Spans of {found['horizon']} steps, `{found['method']}`, thresholds at the quantiles of "
        f"{found['levels'].replace(',', ', ')} % of a cell's training values; of speeds, "
        "which fall below them, from the highest down. "
    )
    command = f"python -m experiments.benchmarks exceedance TABLES --method {found['method']}"
    end = f"The command: `{command} --every {found['every']}`."
    return _measured(told, found, table(found["rows"], serving.CALIBRATED), end)


def exceedance_figure() -> bytes:
    """Draw the numbers of `exceedance_table`, as a PNG."""
    return as_png(serving.draw_exceedance(json.loads(EXCEEDANCE.read_text())["rows"]))


def served_page_table() -> str:
    """Tabulate requests to a served forecast."""
    found = _results("serve")
    told = f"{found['cells']:,} cells, 24 steps with bounds, {found['clients']} clients. "
    if (load := max(row["load"] for row in found["rows"])) > BUSY:
        told += f"Other programs took {load:.1f} cores, so only the server's CPU time is given. "
        of_cpu = {name: serving.SERVED[name] for name in ("what", "kilobytes", "cpu_ms")}
        return _measured(told, found, table(found["rows"], of_cpu))
    told += f"Delays are from when a request was due, at {found['rate']:g} a second. "
    return _measured(told, found, serving.served_table(found["rows"], found["rate"]))


def city_page_table() -> str:
    """Tabulate the CPU seconds of whole runs on generated cities, phase by phase."""
    found = _results("city")
    told = f"Hourly data, {counted(found['threads'], 'thread')}. "
    return _measured(told, found, city.city_table(found["rows"]))


def raw_to_report_table() -> str:
    """Tabulate what the commands from raw files to the report need."""
    found = _results("raw-to-report")
    told = f"{found['cells']:,} cells, {found['days']} days. "
    rows = [{**row, "command": f"`{row['command']}`"} for row in found["rows"]]
    return _measured(told, found, table(rows, city.COMMANDS))


def prepare_table() -> str:
    """Tabulate the seconds of readers of raw days."""
    found = _results("prepare")
    told = (
        f"{found['files']} days of {found['file_mb']:.0f} MB and {found['cells']:,} cells, to "
        f"hourly sums; seconds are a file's, the fastest of {found['repeat']} turns. "
    )
    end = f"The sums differ by {found['difference']:.0e} of their value at most."
    return _measured(told, found, table(found["rows"], prepare.COLUMNS), end)


def own_table() -> str:
    """Tabulate the seconds of readers of a table of one's own."""
    found = _results("prepare-table")
    told = (
        f"A long table of {found['file_mb']:,.0f} MB with three services, to arrays of time and "
        f"cell; the best of {counted(found['repeat'], 'turn')} by processor time. "
    )
    return _measured(told, found, table(found["rows"], prepare.COLUMNS))


def secure_sum_table() -> str:
    """Tabulate what secure aggregation costs nodes and server."""
    found = _results("secure_sum")
    told = (
        f"A model of {found['values']:,} values, nodes of {found['clients']} clients, one thread. "
    )
    return _measured(told, found, nodes.secure_table(found["rows"]))


def images_table() -> str:
    """Tabulate a step of one client, by processor time on one thread and by time."""
    found = _results("images")
    values = []
    for model, rows in grouped(found["rows"], lambda row: row["model"]).items():
        on_one = [row for row in rows if row["threads"] == 1]
        values.append([model, *_of_paths(on_one, "cpu_ms"), *_of_paths(rows, "step_ms")])
    of_ours = ("ours", "faster")
    headers = ["model", "CPU ms of the loop", *of_ours, "ms of the loop, best threads", *of_ours]
    told = (
        f"A step of one of {found['clients']} clients: processor time on one thread, and time with "
        "each side's better number of threads. "
    )
    steps = tabulate.tabulate(values, headers, "github", disable_numparse=True)
    return _measured(told, found, steps)


def _of_paths(rows: list[dict[str, Any]], name: str) -> list[str]:
    """Return the loop's smallest value, ours and their ratio."""
    loop, ours = (
        min(row[name] for row in rows if row["path"] == path)
        for path in ("loop over clients", "ours")
    )
    return [f"{loop:.3g}", f"{ours:.3g}", f"{loop / ours:.2f}×"]


def new_cells_tables() -> str:
    """Tabulate errors of new cells by days of history, and differences to two references."""
    found = json.loads(NEW_CELLS.read_text())
    seeds = len({row["seed"] for row in found["rows"]})
    told = f"`{found['data']}`, {counted(seeds, 'seed')}. "
    return _measured(told, found, new_tables(found["rows"]))


def of_runs(name: str, tabulated: Callable[[pd.DataFrame], str]) -> str:
    """Return the table of a file of runs, such as "federation/hostile.csv", with a link to it."""
    path = RESULTS / name
    return f"{tabulated(pd.read_csv(path))}\n\nAll runs: [{path.name}](results/{name})."


def attacks_table() -> str:
    """Tabulate how many tests played each kind of adversary, and how many of them passed."""
    path = FEDERATION / "attacks.json"
    if not path.exists():
        return wrapped(f"Not measured yet: `{WRITTEN}` writes the numbers.")
    found = json.loads(path.read_text())
    columns = {"passed": "held", "failed": "did not hold", "skipped": "not run"}
    return markdown(
        [
            {"attack": kind} | {head: f"{counts.get(key, 0)}" for key, head in columns.items()}
            for kind, counts in sorted(found.items())
        ]
    )


def nodes_tables() -> str:
    """Tabulate start-up, rounds and memory of all numbers of nodes measured, by kind of run."""
    found = [json.loads(path.read_text()) for path in FEDERATION.glob("nodes-*.json")]
    head = "{clients} clients a node, `{method}`, {rounds} rounds, on {cores} cores:"
    kinds = grouped(found, lambda r: head.format(**r))
    return "\n\n".join(
        f"{kind}\n\n{nodes.table_of_nodes(sorted(kinds[kind], key=lambda r: int(r['nodes'])))}"
        for kind in sorted(kinds)
    )


def kills_text() -> str:
    """Tell how often something was killed, and how far the numbers were off then."""
    return "\n".join(
        f"- {_kills(json.loads(path.read_text()))}"
        for path in sorted(FEDERATION.glob("kills-*.json"), reverse=True)
    )


def _kills(found: dict[str, Any]) -> str:
    n, n_kills = len(found["runs"]), len(found["kills"])
    runs = f"{counted(n, 'run')} of {found['rounds']} rounds"
    if found["target"] == "node":
        return f"{n_kills} kills of nodes in {runs}: {_of_nodes(found)}"
    by_target = Counter(kill["target"] for kill in found["kills"])
    words = " and ".join(f"{n} of `{target}`" for target, n in sorted(by_target.items()))
    left_out = sum(run["left_out"] for run in found["runs"])
    worst = max(run["difference"] for run in found["runs"])
    same = "not at all" if worst == 0 else f"by {worst:.0e} at most"
    return (
        f"{n_kills} kills ({words}) in {runs}: every run reached its end; {left_out} answers "
        f"were lost, and losses, participants, bytes and test errors differ {same} from an "
        "undisturbed run."
    )


def _of_nodes(found: dict[str, Any]) -> str:
    whole = [run for run in found["runs"] if run["finished"]]
    away = [kill["seconds"] for kill in found["kills"] if "seconds" in kill]
    missed = statistics.mean(run["missed"] for run in found["runs"])
    worst = max(run["difference"] for run in whole)
    text = (
        "all reached their end. A node was in the rounds again after "
        f"{statistics.median(away):.0f} s (median; {min(away):.0f} to {max(away):.0f}), clients "
        f"missed {100 * missed:.0f} % of their rounds, and test errors differ by "
        f"{100 * worst:.1f} % at most from an undisturbed run."
    )
    if n := len(found["runs"]) - len(whole):
        text += f" Without {counted(n, 'run')} that ended while a node was away."
    return text
