"""Communication and missing uploads, from the rounds' reports."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd


def floats(rounds: pd.DataFrame, way: str) -> float:
    """Return the most floats that one client sends (up) or receives (down) in a round.

    >>> reports = {"participants": [3], "failed": [1], "bytes_up": [80], "bytes_down": [240]}
    >>> floats(pd.DataFrame(reports), "up"), floats(pd.DataFrame(reports), "down")
    (10.0, 20.0)
    """
    return float(_by_round(rounds, way).max())


def floats_sent(rounds: pd.DataFrame) -> float:
    """Return the floats that a client sends in all rounds together, if it takes part in all."""
    return float(_by_round(rounds, "up").sum())


def _by_round(rounds: pd.DataFrame, way: str) -> pd.Series:
    clients = rounds["participants"] - (_failed(rounds) if way == "up" else 0)
    return rounds[f"bytes_{way}"] / clients / 4


def left_out(name: str, runs: Iterable[pd.DataFrame]) -> str:
    """Return a note on the number of missing uploads; empty if none is missing.

    Args:
        name: name of the method or variant.
        runs: the rounds of each of its runs.
    """
    tables = [rounds for rounds in runs if len(rounds)]
    failed = sum(int(_failed(rounds).sum()) for rounds in tables)
    if not failed:
        return ""
    wanted = sum(int(rounds["participants"].sum()) for rounds in tables)
    return (
        f"{name}: {failed:,} of {wanted:,} uploads were left out because their clients failed or "
        "diverged"
    )


def _failed(rounds: pd.DataFrame) -> pd.Series:
    """Return the participants of each round that were left out; 0 in runs without this count."""
    return rounds.get("failed", pd.Series(0, rounds.index))
