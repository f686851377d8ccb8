"""How a method stands against others in many test parts; few cells, the guide's table of skill."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from statistics import mean as mean_of
from typing import Any, NamedTuple

import pandas as pd

from data_prep.base.errors import counted
from experiments.benchmarks.cells import above_by_data, above_default, above_table
from experiments.site import tables
from experiments.site.images import FLOATS
from experiments.site.markdown import as_png, wrapped
from experiments.site.measured import RESULTS, Benchmarks
from experiments.site.tables import AGAINST, SIGNIFICANT, columns_of, side
from stforecast.bench.curves import COLORS
from stforecast.bench.drawing import SMALL
from stforecast.bench.statistics.estimate import Estimate
from stforecast.bench.tables import markdown, marked

FEW_CELLS = RESULTS / "default" / "few-cells.csv"
"""What `experiments.benchmarks.cells` measured."""

SHORT_HISTORIES = RESULTS / "default" / "short-histories.csv"
"""What its `short_histories` measured."""

SKILL = "skill in MSE, %"

OURS, FIGURE_WIDTH = COLORS[0], 6.0
"""Colour of the default method, and inches of a figure that is read on a screen."""


class Record(NamedTuple):
    """How many per cent a method's MSE is above the reference's, and in how many test parts."""

    above: Estimate
    lower: int
    level: int
    higher: int
    pools: bool


def standing(benchmarks: Benchmarks) -> str:
    """Tabulate how often each method's error is lower or higher than the reference's."""
    reference = columns_of(benchmarks)[0].reference
    records = _records(benchmarks)
    rows = [
        {
            "method": marked(method, pools=record.pools),
            f"MSE above `{reference}`'s, mean [95 %]": f"{record.above} %",
            "lower": f"{record.lower}",
            "not significant": f"{record.level}",
            "higher": f"{record.higher}",
        }
        for method, record in records.items()
    ]
    told = (
        f"Other methods against `{reference}` in {_parts(benchmarks)}: the geometric mean of their "
        f"MSE over data sets, and in how many test parts it is lower or higher. {SIGNIFICANT}"
    )
    pools = any(record.pools for record in records.values())
    note = "\n\n† trained on the data of all clients together." if pools else ""
    return f"{told}\n\n{markdown(rows)}{note}"


def standing_answer(benchmarks: Benchmarks) -> str:
    """Tell how often other methods have a lower error than the default."""
    records = _records(benchmarks)
    own = _parts_lower(benchmarks, [m for m, r in records.items() if not r.pools])
    near = min((m for m in records if not records[m].pools), key=lambda m: records[m].above.value)
    n = len(columns_of(benchmarks))
    pooled = "".join(
        _record_told(f"`{m}`, which pools all records,", r) for m, r in records.items() if r.pools
    )
    return (
        "**A method that does not pool records has a lower error than `fedlean` in "
        f"{_times(own)} of {n}.** The mean MSE of the nearest, `{near}`, is "
        f"{records[near].above} % higher.{pooled} {_against_best(benchmarks)}"
    )


def _against_best(benchmarks: Benchmarks) -> str:
    """Tell how far the default is from the best other row of each test part."""
    logs, places = [], []
    columns = columns_of(benchmarks)
    reference = columns[0].reference
    for column in columns:
        best = min((m for m in column.rows if m != reference), key=column.mse)
        logs.append(math.log(column.mse(reference) / column.mse(best)))
        places.append(f"`{best}`, {column.about}")
    mean = above_by_data(logs, [c.data for c in columns])
    above, place = 100 * math.expm1(max(logs)), places[logs.index(max(logs))]
    ends = f"at most {above:.1f} % higher" if above > 0 else f"at least {-above:.1f} % lower"
    return (
        f"On average over the parts, the MSE of `{reference}` differs by {mean} % from the best "
        f"other row; it is {ends} ({place})."
    )


def rivals_answer(benchmarks: Benchmarks, rivals: Collection[str]) -> str:
    """Tell how often some methods have a lower and a higher error than the reference."""
    columns = columns_of(benchmarks)
    records = {m: r for m, r in _records(benchmarks).items() if m in rivals}
    told = "".join(_record_told(f"`{m}`", r) for m, r in records.items())
    lower = _parts_lower(benchmarks, records)
    return (
        "**A method that trains locally or averages models has a lower error than "
        f"`{columns[0].reference}` in {_times(lower)} of {len(columns)}.**{told}"
    )


def _parts_lower(benchmarks: Benchmarks, methods: Collection[str]) -> int:
    """Return in how many test parts at least one of some methods has a lower error."""
    return sum(
        any(side(row) < 0 for m, row in c.rows.items() if m in methods)
        for c in columns_of(benchmarks)
    )


def _times(n: int) -> str:
    return "no test part" if n == 0 else counted(n, "test part")


def _record_told(method: str, record: Record) -> str:
    return (
        f" {method} has a lower error in {record.lower} and a higher one in {record.higher}; its "
        f"mean MSE is {record.above} % higher."
    )


def _parts(benchmarks: Benchmarks) -> str:
    columns = columns_of(benchmarks)
    n_data = len({column.data for column in columns})
    return f"{counted(len(columns), 'test part')} of {n_data} data sets"


def _records(benchmarks: Benchmarks) -> dict[str, Record]:
    """Return how each method stands against the reference, from the best."""
    found: dict[str, Record] = {}
    columns = columns_of(benchmarks)
    for method in dict.fromkeys(m for c in columns for m in c.rows):
        own = [c for c in columns if AGAINST in c.rows.get(method, {})]
        if not own:
            continue
        logs = [math.log(c.mse(method) / c.mse(c.reference)) for c in own]
        sides = Counter(side(c.rows[method]) for c in own)
        found[method] = Record(
            above_by_data(logs, [c.data for c in own]),
            sides[-1],
            sides[0],
            sides[1],
            any("pools" in c.rows[method] for c in own),
        )
    return dict(sorted(found.items(), key=lambda item: item[1].above.value))


def few_cells_list() -> str:
    """Tell how far other choices are above the default with a single cell."""
    return "\n".join(
        f"- **{name}**: {row['one step, 1 cell']} % one step ahead, {row['a day, 1 cell']} % a day "
        "ahead"
        for name, row in above_default(pd.read_csv(FEW_CELLS)).items()
    )


def short_histories_table() -> str:
    """Tabulate how far single experts are above the default by days of training, and the lowest."""
    rows = pd.read_csv(SHORT_HISTORIES)
    errors = rows.pivot(index=["data", "days", "horizon"], columns="method", values="mse")
    above = 100 * (errors["fedlean"] / errors.drop(columns="fedlean").min(axis=1) - 1)
    data, days, horizon = above.index[int(above.to_numpy().argmax())]
    told = (
        f"In {(above > 3).sum()} of {len(above)} parts, `fedlean` is more than 3 % above its best "
        f"single expert, at most {above.max():.1f} % ({data}, {counted(days, 'day')}, "
        f"{counted(horizon, 'step')} ahead)."
    )
    return f"{above_table(rows)}\n\n{wrapped(told)}"


def pieces_list(benchmarks: Benchmarks) -> str:
    """Tell how much higher the reference's MSE is without each of its parts, the largest first."""
    records = reversed(_records(benchmarks).items())
    told = f"Mean change of the MSE in {_parts(benchmarks)}:"
    items = [
        f"- **{name}**: {record.above} %, higher in {record.higher}, lower in {record.lower}"
        for name, record in records
    ]
    return "\n".join([wrapped(told), "", *items])


def seeds_told(benchmarks: Benchmarks) -> str:
    """Tell by how many per cent the default's MSE differs between seeds."""
    changes = {}
    for column in columns_of(benchmarks):
        row = column.rows["fedlean"]
        changes[column.about] = 100 * row["MSE_sd"] / row["MSE"]
    most = max(changes, key=lambda about: changes[about])
    seeds = next(iter(benchmarks.values())).about["facts"]["seeds"]
    return (
        f"In {counted(len(changes), 'test part')}, `fedlean` ran with the seeds {seeds}. The "
        f"standard deviation of its MSE is {mean_of(changes.values()):.1f} % in the mean of the "
        f"parts, and {changes[most]:.1f} % at most ({most})."
    )


# Beside all federated methods.

PLACES: dict[str, tuple[float, float, str]] = {
    "fedlean": (6, -3, "left"),
    "fedlean, inputs of fuels": (-6, -3, "right"),
    "protoridge": (-2, 6, "left"),
    "fedtrees": (5, 3, "left"),
    "fedavg linear, same inputs": (-6, -3, "right"),
    "fedavg": (-6, -5, "right"),
    "fuels": (-6, -1, "right"),
    "fedproto": (-6, -5, "right"),
    "fedpm, inputs and network of fuels": (0, 6, "center"),
    "solo": (0, 6, "center"),
}
"""Named points of the figure, and where the names stand: offset in points, and alignment."""


SHOWN = 12
"""Methods in the list of tuned ones."""


def federated_answer(benchmarks: Benchmarks) -> str:
    """Return which methods are significantly better than the default, and the place of FUELS."""
    return f"{tables.verdicts(benchmarks)}\n- {_fuels_stands(benchmarks)}"


def tuned_list(benchmarks: Benchmarks) -> str:
    """List the MSE of the best methods with their default settings and with tuned ones."""
    defaults, *_ = columns = columns_of(benchmarks)
    rows = {m: column.rows[m] for column in columns for m in column.rows} | defaults.rows
    pairs = {m: (rows[m], rows[f"{m}, tuned"]) for m in rows if f"{m}, tuned" in rows}
    errors = {m: [row["MSE"] for row in pair] for m, pair in pairs.items()}
    changes = {m: 100 * (tuned / default - 1) for m, (default, tuned) in errors.items()}
    most, least = min(changes, key=changes.__getitem__), max(changes, key=changes.__getitem__)
    told = (
        f"Tuned settings change the MSE of {counted(len(pairs), 'method')} by {changes[most]:.1f} "
        f"(`{most}`) to {changes[least]:.1f} % (`{least}`). It is lower for "
        f"{sum(c < 0 for c in changes.values())} of them. The {min(SHOWN, len(pairs))} with the "
        "lowest tuned error (± is over seeds):"
    )
    shown = {m: [tables.spread_in(row, "MSE") for row in pair] for m, pair in pairs.items()}
    items = [
        f"- **{method}**: {shown[method][0]} by default, {shown[method][1]} tuned"
        for method in sorted(errors, key=lambda m: errors[m][1])[:SHOWN]
    ]
    return "\n".join([wrapped(told), "", *items])


def _fuels_stands(benchmarks: Benchmarks) -> str:
    column, *_ = columns_of(benchmarks)
    errors = {m: column.mse(m) for m in column.rows}
    sent = _sent(benchmarks)
    fuels, own = errors["fuels"], "fedlean, inputs of fuels"
    above = tables.estimate_of(column.rows["fuels"], AGAINST)
    below = sum(error < fuels for error in errors.values())
    return (
        f"One step ahead, the MSE of `fuels` is {above} % higher than with `fedlean`; "
        f"{below} of {len(errors) - 1} other rows have a lower one. It sends "
        f"{sent['fuels']:,.0f} floats a round, `fedlean` {sent['fedlean']:,.0f}, but "
        f"{sent[own]:,.0f} with the inputs of `fuels`, and then its MSE is "
        f"{_apart(errors[own] / fuels)} than FUELS's."
    )


def _apart(ratio: float) -> str:
    return f"{abs(ratio - 1):.0%} {'lower' if ratio < 1 else 'higher'}".replace("%", " %")


def _sent(benchmarks: Benchmarks) -> dict[str, float]:
    """Return the most floats that a client sends in a round, of each method that trains.

    Of a method with several models, this is the one that predicts.
    """
    column, *_ = columns_of(benchmarks)
    return {
        m: row[FLOATS]
        for m, row in column.rows.items()
        if FLOATS in row and not tables.JUDGED.search(m)
    }


def floats_caption(benchmarks: Benchmarks) -> str:
    """Say what `floats_figure` shows."""
    (column,) = columns_of(benchmarks)
    sent, own = _sent(benchmarks), "fedlean, inputs of fuels"
    return wrapped(
        f"*Test MSE of {len(sent)} methods one hour ahead on Milan's 25 cells, against the floats "
        "that a client sends in a round. With FUELS's inputs, the default sends "
        f"{sent[own]:,.0f} where FUELS sends {sent['fuels']:,.0f}, and its MSE is "
        f"{_apart(column.mse(own) / column.mse('fuels'))}. The line joins the methods that none "
        "beats in both ([all numbers](docs/results/milan.md)).*"
    )


def floats_figure(benchmarks: Benchmarks) -> bytes:
    """Draw the MSE of methods that train against the floats that a client sends, as a PNG."""
    from stforecast.plots.comparisons import front_panel

    (column,) = columns_of(benchmarks)
    points = {m: (n, column.mse(m)) for m, n in _sent(benchmarks).items()}
    fig, ax = front_panel([*points.values()], "test MSE of z-scores", FIGURE_WIDTH)
    for name, point in points.items():
        named = name in PLACES
        color = OURS if name.startswith("fedlean") else "0.2" if named else "0.7"
        ax.plot(*point, "o", color=color, markersize=4, zorder=2 + named)
        if named:
            right, up, align = PLACES[name]
            style: dict[str, Any] = {"ha": align, "fontsize": SMALL, "color": color}
            ax.annotate(name, point, (right, up), textcoords="offset points", **style)
    return as_png(fig)


# The guide.


def skill_table(benchmarks: Benchmarks, page: str) -> str:
    """Tabulate the skill of each method by data, with links to the `page` of the benchmarks."""
    pooled = {m for c in columns_of(benchmarks) for m, row in c.rows.items() if "pools" in row}
    rows = []
    for name, (about, skill) in zip(benchmarks, _skills(benchmarks).iterrows(), strict=True):
        cells = {marked(str(m), pools=m in pooled): f"{value:.0f}" for m, value in skill.items()}
        best = max(cells.values(), key=int)
        row = {head: f"**{cell}**" if cell == best else cell for head, cell in cells.items()}
        rows.append({"data": f"[{about}]({page}#{name})", **row})
    return markdown(rows)


def skill_figure(benchmarks: Benchmarks) -> bytes:
    """Draw the numbers of `skill_table` but the zeros of seasonal naive, as a PNG."""
    from stforecast.plots.comparisons import skill_map

    table = _skills(benchmarks)
    return as_png(skill_map(table.loc[:, table.any()], "MSE", digits=0))


def _skills(benchmarks: Benchmarks) -> pd.DataFrame:
    """Return the skill of the methods of all benchmarks by data, from the best to the worst."""
    columns = columns_of(benchmarks)
    found = [{m: row.get(SKILL) for m, row in c.rows.items()} for c in columns]
    table = pd.DataFrame(found, [c.about for c in columns]).dropna(axis=1)
    return table[table.sum().sort_values(ascending=False).index]
