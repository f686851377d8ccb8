"""Tables of guides, such as on security and performance, from the results of benchmarks.

The measurements lie in docs/results as the benchmarks of `experiments.benchmarks` wrote them;
`federation/attacks.json` was written by `pytest --attacks`.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import tabulate

from experiments.benchmarks import nodes
from experiments.benchmarks.frame import table
from experiments.site.markdown import as_png
from experiments.site.measured import RESULTS
from stforecast.bench.run_groups import grouped
from stforecast.bench.tables import markdown

OURS = "stacked, compiled kernels"

Rows = list[dict[str, Any]]


def found_in(name: str) -> dict[str, Any]:
    """Return the content of a JSON file of docs/results, such as "performance/rounds"."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def measured(name: str, tabulated: Callable[[Rows], str] | Mapping[str, tuple[str, str]]) -> str:
    """Return machine and date of a measurement, and its table.

    Args:
        name: the file in docs/results, without its ending.
        tabulated: makes the table of the file's rows, or names its columns.
    """
    found = found_in(name)
    rows, about = found["rows"], found["machine"]
    shown = tabulated(rows) if callable(tabulated) else table(rows, tabulated)
    where = f"{about['processor']}, torch {about['torch']}, {about['date']}"
    return f"Measured on {where}:\n\n{shown}"


def figure_of(name: str, draw: Callable[[Rows], Any]) -> bytes:
    """Draw the rows of a file, as a PNG."""
    return as_png(draw(found_in(name)["rows"]))


def of_runs(name: str, tabulated: Callable[[pd.DataFrame], str]) -> str:
    """Return the table of a file of runs, such as "federation/hostile.csv", with a link to it."""
    path = RESULTS / name
    return f"{tabulated(pd.read_csv(path))}\n\nAll runs: [{path.name}](results/{name})."


def rounds_table(rows: Rows) -> str:
    """Tabulate seconds of a round of each path, with its better number of threads.

    Each is compared with the fastest loop: one takes equally long for each client, so the fastest
    has the least time for a client, whatever their number.
    """
    loops = [row for row in rows if row["variant"].startswith("loop")]
    of_client = min(row["seconds"] / row["clients"] for row in loops)
    best: dict[int, dict[str, dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["seconds"]):
        best.setdefault(row["clients"], {}).setdefault(row["variant"], row)
    paths = dict.fromkeys(row["variant"] for row in rows)
    sizes = dict.fromkeys(row["clients"] for row in rows)
    return markdown(
        [
            {"clients": f"{n:,}"}
            | {path: _seconds(best[n][path], of_client) for path in paths if path in best[n]}
            | {"of torch's products": f"{best[n][OURS]['share']:.0%}"}
            for n in sizes
        ]
    )


def _seconds(row: Mapping[str, Any], of_client: float) -> str:
    """Return the seconds of a path, and the speed relative to the fastest loop."""
    faster = of_client * row["clients"] / row["seconds"]
    shown = "" if row["variant"].startswith("loop") else f" ({faster:.1f}×)"
    return f"{row['seconds']:.3g}{shown}"


def images_table(rows: Rows) -> str:
    """Tabulate a step of one client, by processor time on one thread and by time."""
    values = []
    for model, own in grouped(rows, lambda row: row["model"]).items():
        on_one = [row for row in own if row["threads"] == 1]
        values.append([model, *_of_paths(on_one, "cpu_ms"), *_of_paths(own, "step_ms")])
    of_ours = ("ours", "faster")
    headers = ["model", "CPU ms of the loop", *of_ours, "ms of the loop, best threads", *of_ours]
    return tabulate.tabulate(values, headers, "github", disable_numparse=True)


def _of_paths(rows: Rows, name: str) -> list[str]:
    """Return the loop's smallest value, ours and their ratio."""
    loop, ours = (
        min(row[name] for row in rows if row["path"] == path)
        for path in ("loop over clients", "ours")
    )
    return [f"{loop:.3g}", f"{ours:.3g}", f"{loop / ours:.2f}×"]


def attacks_table() -> str:
    """Tabulate how many tests played each kind of adversary, and how many of them passed."""
    columns = {"passed": "held", "failed": "did not hold", "skipped": "not run"}
    return markdown(
        [
            {"attack": kind} | {head: f"{counts.get(key, 0)}" for key, head in columns.items()}
            for kind, counts in sorted(found_in("federation/attacks").items())
        ]
    )


def nodes_table() -> str:
    """Tabulate start-up, rounds and memory of all numbers of nodes measured."""
    found = [json.loads(p.read_text()) for p in (RESULTS / "federation").glob("nodes-*.json")]
    return nodes.table_of_nodes(sorted(found, key=lambda of_one: int(of_one["nodes"])))


def kills_table() -> str:
    """Tabulate how often something was killed, and how far the numbers were off then."""
    return markdown([_kills(target) for target in ("server", "node")])


def _kills(target: str) -> dict[str, str]:
    found = found_in(f"federation/kills-{target}")
    runs, kills = found["runs"], found["kills"]
    by_target = Counter(kill["target"] for kill in kills)
    parts = [f"{n} of `{name}`" for name, n in sorted(by_target.items())]
    away = sorted(kill["seconds"] for kill in kills if "seconds" in kill)
    return {
        "killed": ", ".join(parts) if target == "server" else "nodes",
        "kills": f"{len(kills)}",
        "runs": f"{len(runs)} of {found['rounds']} rounds",
        "reached their end": f"{sum(run.get('finished', True) for run in runs)}",
        "s until back, median": f"{statistics.median(away):.0f}" if away else "-",
        "least to most": f"{away[0]:.0f} to {away[-1]:.0f}" if away else "-",
        "rounds missed, %": f"{100 * statistics.fmean(r.get('missed', 0) for r in runs):.0f}",
        "errors differ by at most, %": f"{100 * max(r['difference'] for r in runs):.1f}",
    }
