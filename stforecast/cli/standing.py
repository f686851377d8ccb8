"""How a federation stands, in words and tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from stforecast.flower.standing import RUNNING, WAITING, Standing

LAST_ROUNDS = 5
"""Number of rounds that are shown."""


def status_text(standing: Standing, now: datetime | None = None) -> str:
    """Describe the standing in words and tables; `now` is by default the time of the clock."""
    refused = "\n".join(
        f"node {n} is not let in: {_short(why)}" for n, why in standing.refused.items()
    )
    facts = "\n".join(_facts(standing, now or datetime.now(UTC)))
    return "\n\n".join(filter(None, [facts, _nodes(standing), _rounds(standing), refused]))


def _facts(s: Standing, now: datetime) -> list[str]:
    lines = [
        f"{s.method}: {s.state}{f' ({s.reason})' if s.reason else ''}",
        f"rounds: {max(s.rounds, default=0)} of {s.planned} complete",
        f"clients connected: {s.connected_clients} of {s.clients} on {len(s.connected)} nodes",
    ]
    if s.starts > 1:
        lines.append(f"the server was started {s.starts} times")
    if s.rounds_lost:
        lines.append(f"rounds repeated: {s.rounds_lost} (the last: {_short(s.lost_because, 90)})")
    if s.sums_recovered:
        lines.append(f"secure sums completed although nodes left: {s.sums_recovered}")
    if s.sums_lost:
        lines.append(f"secure sums lost: {s.sums_lost} (the last: {_short(s.lost_because, 90)})")
    if s.test:
        lines.append("test errors: " + ", ".join(f"{n} {v:.4g}" for n, v in s.test.items()))
    for n, why in s.errors_left_out.items():
        lines.append(f"without those of node {n}: {_short(why)}")
    for n, why in s.errors_doubtful.items():
        lines.append(f"node {n} is doubtful: {_short(why, 90)}")
    if s.since and s.state in (WAITING, RUNNING):
        ago = (now - datetime.fromisoformat(s.since)).total_seconds()
        lines.append(f"last event: {ago:.0f} s ago")
    return lines


def _nodes(s: Standing) -> str:
    rows = [
        [n, f"{v.first} to {v.last}",
         "silent" if v.suspended else "yes" if v.connected else "no", v.joins, v.failures,
         v.strikes, _short(v.reason)]
        for n, v in sorted(s.nodes.items(), key=lambda item: item[1].first)
    ]  # fmt: skip
    headers = ["node", "clients", "connected", "joins", "failures", "strikes", "last failure"]
    return _table(rows, headers, disable_numparse=True)


def _rounds(s: Standing) -> str:
    shown = ("round", "train_loss", "validation_loss", "participants", "failed", "seconds")
    rows = [[s.rounds[i].get(name) for name in shown] for i in sorted(s.rounds)[-LAST_ROUNDS:]]
    headers = ["round", "train loss", "validation loss", "clients", "left out", "seconds"]
    return _table(rows, headers, floatfmt=".4g")


def _table(rows: Sequence[Sequence[object]], headers: Sequence[str], **style: Any) -> str:
    from tabulate import tabulate

    return tabulate(rows, headers, **style) if rows else ""


def _short(text: str, most: int = 60) -> str:
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if len(plain) <= most else plain[: most - 1] + "…"
