"""Table of a leaderboard: differences, skill and win rates with intervals, and what they show."""

from __future__ import annotations

import math
from collections.abc import Sequence

from data_prep.text import counted
from stforecast.bench.statistics.estimate import Estimate
from stforecast.bench.statistics.ranks import Ranking
from stforecast.comparison.compare import Overall
from stforecast.comparison.leaderboard import Leaderboard, Line, claims
from stforecast.comparison.names import error_title, short_title, skill_title


def comparison_rows(board: Leaderboard, ranking: Ranking | None = None) -> list[dict[str, str]]:
    """Return the rows of a leaderboard's table, from the lowest error to the highest.

    Args:
        board: the leaderboard.
        ranking: ranks of its lines.
    """
    names = [line.name for line in board.lines]
    ranks = {} if ranking is None else dict(zip(names, ranking.ranks, strict=True))
    several = len(board.lines) > 1
    return [
        {
            "method": line.name,
            f"{error_title(board.metric)} [95 %]": str(line.error),
            **({f"against {board.reference}, %": _against(line, board)} if several else {}),
            **({"p": _p(line)} if several else {}),
            **({} if line.skill is None else {skill_title(board.metric): per_cent(line.skill)}),
            **({"wins, %": per_cent(line.wins)} if several else {}),
            **({"rank": f"{ranks[line.name]:.2f}"} if ranks else {}),
        }
        for line in sorted(board.lines, key=lambda line: _last_if_nan(line.error.value))
    ]


def overall_rows(methods: Sequence[Overall], metric: str) -> list[dict[str, str]]:
    """Return the rows of the table over all tasks; wins and places need several methods.

    Args:
        methods: methods over all tasks.
        metric: error that all numbers are of.
    """
    several = len(methods) > 1
    return [
        {
            "method": one.name,
            **({} if one.skill is None else {skill_title(metric): per_cent(one.skill)}),
            **({"wins, %": per_cent(one.wins)} if several else {}),
            **({"place in each task": ", ".join(map(str, one.error_ranks))} if several else {}),
        }
        for one in methods
    ]


def per_cent(share: Estimate) -> str:
    """Return a share in per cent, with its interval.

    >>> per_cent(Estimate(0.123, 0.1, 0.151))
    '12.3 [10.0, 15.1]'
    """
    return str(share.times(100))


def basis(board: Leaderboard) -> list[str]:
    """Return what the intervals of one table are about, and which rows it lacks."""
    n_seeds = {line.name: board.replicates.n_seeds[line.name] for line in board.lines}
    days, most = len(board.errors.days), max(n_seeds.values())
    resampled = [counted(days, "test day")]
    resampled += [f"{board.n_groups} groups of neighbouring cells"] if board.n_groups > 1 else []
    resampled += [f"up to {counted(most, 'seed')}"] if most > 1 else []
    fixed = [] if board.n_groups > 1 else ["these cells"]
    fixed += [] if most > 1 else ["this seed"]
    about = f"; it holds for {' and '.join(fixed)} only" if fixed else ""
    found = [f"[95 %]: interval from a bootstrap over {', '.join(resampled)}{about}."]
    if single := [name for name, n in n_seeds.items() if n == 1 < most]:
        found.append(f"Seeds are not resampled for rows with a single seed: {'; '.join(single)}.")
    if board.errors.incomplete:
        found.append(f"Left out, since folds are missing: {', '.join(board.errors.incomplete)}.")
    return found


def legend(boards: Sequence[Leaderboard]) -> list[str]:
    """Return what the columns of `comparison_rows` mean."""
    several = any(len(board.lines) > 1 for board in boards)
    found = []
    if several:
        names = {board.reference for board in boards}
        found.append(
            f"against {names.pop() if len(names) == 1 else '…'}: how much higher the error is, "
            "negative if it is lower; p: p-value of no difference, from a test that swaps the "
            "errors of the two methods day by day, with Holm's correction."
        )
    for metric in sorted({board.metric for board in boards if any(x.skill for x in board.lines)}):
        found.append(
            f"skill in {short_title(metric)}: 1 minus the geometric mean, over cells, of the "
            "error divided by that of seasonal naive, the value one day before."
        )
    if several:
        found.append(
            "wins: share of the pairs of a cell and another row in which the other row has the "
            "higher error."
        )
    return found


def conclusions(board: Leaderboard, data: str) -> list[str]:
    """Return the claims that the numbers support; none for a single row."""
    return claims(board, data) if len(board.lines) > 1 else []


def _against(line: Line, board: Leaderboard) -> str:
    return "-" if line.name == board.reference else str(line.against)


def _p(line: Line) -> str:
    return "-" if math.isnan(line.p_value) else f"{line.p_value:.2g}"


def _last_if_nan(value: float) -> float:
    return math.inf if math.isnan(value) else value
