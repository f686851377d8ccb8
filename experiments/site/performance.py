"""Parts of the page on performance, from the measurements in docs/results/performance.

They lie there as the benchmarks of `experiments.benchmarks` wrote them: `rounds.json`,
`growth.json`, `secure_sum.json`, `images.json` and `prepare.json`. Each part tells on which machine
and when.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tabulate

from experiments.site.results import shrunk, wrapped

MEASURED = Path(__file__).parents[2] / "docs" / "results" / "performance"
"""Folder of the measurements."""

OURS, THREADS = "stacked, compiled kernels", re.compile(r", \d+ threads$")


def rounds_table() -> str:
    """Tabulate seconds of a round of each path, with its better number of threads."""
    found = _results("rounds")
    best: dict[int, dict[str, dict[str, Any]]] = {}
    for row in found["rows"]:
        path, of_size = THREADS.sub("", row["variant"]), best.setdefault(row["clients"], {})
        if path not in of_size or row["seconds"] < of_size[path]["seconds"]:
            of_size[path] = row
    paths = list(dict.fromkeys(path for of_size in best.values() for path in of_size))
    values = [
        [f"{n:,}", *(_seconds(of_size.get(path)) for path in paths)] for n, of_size in best.items()
    ]
    shares = [f"{of_size[OURS]['share']:.0%} with {n:,} clients" for n, of_size in best.items()]
    return wrapped(
        f"{_machine(found)}:\n\n{_table(values, ['clients', *paths])}\n\n"
        "Of what torch's matrix products alone allow, the compiled kernels reach "
        f"{' and '.join(shares)}."
    )


def _seconds(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    faster = f" ({row['speedup']:.1f}×)" if abs(row["speedup"] - 1) > 0.005 else ""
    return f"{row['seconds']:.3g}{faster}"


def growth_table() -> str:
    """Tabulate rounds by number of clients, with a share of them in each, and tell the slopes."""
    from experiments.benchmarks.frame import table
    from experiments.benchmarks.growth import COLUMNS, slopes_of

    found = _results("growth")
    shown = {"a round's seconds": "seconds", "memory without files": "memory_gb"}
    slopes = [
        " and ".join(f"{k:.2f} (`{name}`)" for name, k in of.items()) + f" for {what}"
        for what, column in shown.items()
        if (of := slopes_of(found["rows"], column))
    ]
    return wrapped(
        f"{found['share']:.0%} of the clients a round, hidden size {found['hidden_size']}, "
        f"`--memory {found['memory']}`, `--compared {found['compared']}`, the fastest of three "
        f"rounds. {_machine(found)}:\n\n{table(found['rows'], COLUMNS)}\n\n"
        "Lines of least squares through the logarithms of the number of clients have slopes of "
        f"{', '.join(slopes)}.\n\n![Seconds of a round, time of a participant and memory by "
        "number of clients](figures/growth.png)"
    )


def growth_figure() -> bytes:
    """Draw the same rounds, as a PNG."""
    from experiments.benchmarks.growth import draw
    from stforecast.bench.drawing import save_figure

    with tempfile.TemporaryDirectory() as folder:
        return shrunk(save_figure(draw(_results("growth")["rows"]), Path(folder) / "growth.png"))


def prepare_table() -> str:
    """Tabulate the seconds of readers of raw days."""
    from experiments.benchmarks.frame import table
    from experiments.benchmarks.prepare import COLUMNS

    found = _results("prepare")
    return wrapped(
        f"{found['files']} days of {found['file_mb']:.0f} MB and {found['cells']:,} cells, to "
        f"hourly sums; seconds are a file's, the fastest of {found['repeat']} turns. "
        f"{_machine(found)}:\n\n{table(found['rows'], COLUMNS)}\n\n"
        f"The sums differ by {found['difference']:.0e} of their value at most."
    )


def secure_sum_table() -> str:
    """Tabulate what secure aggregation costs nodes and server."""
    from experiments.benchmarks.nodes import secure_table

    found = _results("secure_sum")
    return wrapped(
        f"A model of {found['values']:,} values, nodes of {found['clients']} clients, one thread. "
        f"{_machine(found)}:\n\n{secure_table(found['rows'])}"
    )


def images_table() -> str:
    """Tabulate a step of one client, by processor time on one thread and by time."""
    found = _results("images")
    models: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        models.setdefault(row["model"], []).append(row)
    values = []
    for model, rows in models.items():
        on_one = [row for row in rows if row["threads"] == 1]
        values.append([model, *_of_paths(on_one, "cpu_ms"), *_of_paths(rows, "step_ms")])
    headers = [
        "model", "CPU ms of the loop", "ours", "faster", "ms of the loop, best threads", "ours",
        "faster",
    ]  # fmt: skip
    return wrapped(
        f"A step of one of {found['clients']} clients: processor time on one thread, and time with "
        f"each side's better number of threads. {_machine(found)}:\n\n{_table(values, headers)}"
    )


def _of_paths(rows: list[dict[str, Any]], name: str) -> list[str]:
    """Return the loop's smallest value, ours and their ratio."""
    loop, ours = (
        min(row[name] for row in rows if row["path"] == path)
        for path in ("loop over clients", "ours")
    )
    return [f"{loop:.3g}", f"{ours:.3g}", f"{loop / ours:.2f}×"]


def _results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MEASURED / f"{name}.json").read_text())
    return found


def _machine(found: Mapping[str, Any]) -> str:
    about = found["machine"]
    return f"Measured on {about['processor']}, torch {about['torch']}, {about['date']}"


def _table(values: list[list[str]], headers: list[str]) -> str:
    return tabulate.tabulate(values, headers, "github", disable_numparse=True)
