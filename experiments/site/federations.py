"""Parts of pages that tell what was measured on federations of nodes.

The measurements lie in docs/results/federation, as the benchmarks of `experiments.benchmarks` wrote
them: `hostile.csv`, `hostile-live.csv`, `robust.csv`, `nodes-NUMBER.json` and `kills-TARGET.json`.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

from data_prep.base.text import counted

MEASURED = Path(__file__).parents[2] / "docs" / "results" / "federation"
"""Folder of the measurements."""


def hostile_table() -> str:
    """Tabulate the honest nodes' errors beside hostile ones."""
    import pandas as pd

    from experiments.benchmarks.hostile import table_of

    return table_of(pd.read_csv(MEASURED / "hostile.csv"))


def robust_table() -> str:
    """Tabulate the honest clients' errors with every method and rule."""
    import pandas as pd

    from experiments.benchmarks.hostile import robust_table as robust_table_of

    return robust_table_of(pd.read_csv(MEASURED / "robust.csv"))


def hostile_live_table() -> str:
    """Tabulate the same over a live SuperLink."""
    import pandas as pd

    from experiments.benchmarks.live import live_table

    return live_table(pd.read_csv(MEASURED / "hostile-live.csv"))


def nodes_tables() -> str:
    """Tabulate start-up, rounds and memory of all numbers of nodes measured, by kind of run."""
    from experiments.benchmarks.nodes import table_of

    kinds: dict[str, list[dict[str, Any]]] = {}
    for path in MEASURED.glob("nodes-*.json"):
        r = json.loads(path.read_text())
        kind = f"{r['clients']} clients a node, `{r['method']}`, {r['rounds']} rounds, on "
        kinds.setdefault(f"{kind}{r['cores']} cores:", []).append(r)
    return "\n\n".join(
        f"{kind}\n\n{table_of(sorted(kinds[kind], key=lambda r: int(r['nodes'])))}"
        for kind in sorted(kinds)
    )


def kills_text() -> str:
    """Tell how often something was killed, and how far the numbers were off then."""
    return "\n".join(
        f"- {_kills(json.loads(path.read_text()))}"
        for path in sorted(MEASURED.glob("kills-*.json"), reverse=True)
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
        f"{n_kills} kills ({words}) in {runs}: every run went on to its end; {left_out} answers "
        f"were lost, and losses, participants, bytes and test errors differ {same} from those of a "
        "run that nothing disturbs."
    )


def _of_nodes(found: dict[str, Any]) -> str:
    """Tell how long killed nodes were away, and what the runs lost by it."""
    whole = [run for run in found["runs"] if run["finished"]]
    away = [kill["seconds"] for kill in found["kills"] if "seconds" in kill]
    missed = statistics.mean(run["missed"] for run in found["runs"])
    worst = max(run["difference"] for run in whole)
    text = (
        "all went on to the end. A node was in the rounds again after "
        f"{statistics.median(away):.0f} s (median; {min(away):.0f} to {max(away):.0f}), clients "
        f"missed {100 * missed:.0f} % of their rounds, and test errors differ by "
        f"{100 * worst:.1f} % at most from that of a run that nothing disturbs."
    )
    if n := len(found["runs"]) - len(whole):
        text += f" Without {counted(n, 'run')} that ended while a node was away."
    return text
