"""Descriptions of runs for `stforecast info`: finished ones, folders of them, unfinished ones.

A function `of_…` returns the description of a path, or None if it is of another kind.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

from data_prep.base.errors import InputError
from data_prep.described import Description, facts
from stforecast.bench.kind import kind_named
from stforecast.federated.runs.run_folder import ABOUT, BEGUN, CHECKPOINTS, read_about, read_begun


def of_run(path: Path) -> Description | None:
    """Describe a finished run."""
    if not (path / ABOUT).exists():
        return None
    about = describe_run(path)
    label = "" if about["label"] == about["method"] else f"{about['label']}: "
    took = "" if about["seconds"] is None else f", {about['seconds']:.1f} s"
    own = kind_named({"task": about["of"]}).facts(about)
    lines = {
        "method": f"{label}{about['method']}, seed {about['seed']}{took}",
        "data": own.pop("data"),
        "versions": ", ".join(f"{name} {v}" for name, v in about["versions"].items()),
    }
    return Description("finished run", about, facts({**lines, **own}), _compare(path))


def _compare(path: Path) -> str:
    return f"stforecast compare {quote(str(path))}"


def of_runs(path: Path) -> Description | None:
    """Describe a folder with finished runs below it."""
    rows, damaged = describe_runs(path)
    if not (rows or damaged):
        return None
    from tabulate import tabulate

    about = {"runs": rows} | ({"damaged": damaged} if damaged else {})
    shown = [{n: f"{v:.4f}" if isinstance(v, float) else v for n, v in r.items()} for r in rows]
    table = tabulate(shown, headers="keys", disable_numparse=True, missingval="-")
    problems = "\n".join(f"  damaged: {problem}" for problem in damaged.values())
    text = "\n\n".join(filter(None, [table, problems]))
    return Description("finished runs", about, text, "" if damaged else _compare(path))


def of_unfinished(path: Path) -> Description | None:
    """Describe a run that was stopped."""
    if not (path / BEGUN).exists():
        return None
    begun = read_begun(path, "stforecast run", ())
    settings = begun["settings"]
    numbers = (p.name.removeprefix("round-") for p in (path / CHECKPOINTS).rglob("round-*"))
    rounds = [int(number) for number in numbers if number.isdigit()]
    about = {
        "file": BEGUN,
        "command": kind_named(begun).run_type.command,
        "method": settings["method"],
        "data": begun.get("data", settings.get("data")),
        "rounds_done": max(rounds, default=0),
        "rounds": settings.get("rounds", 0) * settings.get("stages", 1),
    }
    done = f"{about['rounds_done']} of {about['rounds']} rounds saved"
    lines = {"method": about["method"], "data": str(about["data"]), "state": done}
    command = f"{about['command']} --resume {quote(str(path))}"
    return Description("unfinished run", about, facts(lines), command)


def describe_run(folder: Path) -> dict[str, Any]:
    """Describe a finished run; `of` is its kind, which adds facts of its own.

    Those of images are `data` and `accuracies`; of forecasts `data`, `service`, `units`, `cells`,
    `step_minutes`, `time_zone`, `horizon`, `split`, `parts` and `errors` on the test part.
    """
    about = read_about(folder, "stforecast run")
    settings, kind = about["settings"], kind_named(about)
    return {
        "label": about.get("label", settings["method"]),
        "method": settings["method"],
        "seed": settings.get("seed"),
        "seconds": about.get("seconds"),
        "versions": about.get("versions", {}),
        "of": kind.name,
        **kind.describe(kind.run_type.open(folder)),
    }


def describe_runs(root: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Describe the finished runs below a folder, such as a benchmark.

    Returns:
        A row for each run, and the error of each that cannot be read by its folder.
    """
    rows: list[dict[str, Any]] = []
    damaged = {}
    for folder in sorted(path.parent for path in root.rglob(ABOUT)):
        try:
            about = describe_run(folder)
        except InputError as e:
            damaged[str(folder.relative_to(root))] = e.typed
            continue
        rows.append(
            {
                "run": str(folder.relative_to(root)),
                "method": about["method"],
                "data": Path(str(about["data"])).stem,
                "seed": about["seed"],
                **(
                    {"accuracy": about["accuracies"][0]["accuracy"]}
                    if about.get("accuracies")
                    else {"mae": about.get("errors", {}).get("mae")}
                ),
            }
        )
    return rows, damaged
