"""The total over the nodes of a federation: what all their cells together will carry.

At the end of a run, nodes whose owners share totals add up their forecasts and the distances to
their bounds: in the test part, with its readings, and after their data. The server learns only the
secure sums over three nodes or more. Bounds of the total follow from them as in one
process, see `stforecast.forecasting.groups`.

Nodes may name groups of their cells, such as districts. Each group with a sum is on three nodes or
more, and so are all other cells, if there are any. These sums have no cell in common, so what is
computed from them, such as the total less a group, depends on all nodes of one sum or several.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from data_prep.base.errors import InputError, counted
from stforecast.data.series import Series
from stforecast.federated.core.tensors import Payload
from stforecast.federated.nodes.coordinator import Coordinator
from stforecast.federated.nodes.masker import Fewest, Masker
from stforecast.federated.nodes.membership import event
from stforecast.federated.nodes.messages import FEW, Message, Rejected, message_of, untrusted
from stforecast.federated.nodes.node_sums import NodeSums
from stforecast.federated.nodes.secure_sum import SumLost, check_finish_advert
from stforecast.federated.runs.run_folder import write_csv
from stforecast.federated.uploads.masking import SecureSums
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.groups import ALL, Groups, SumErrors, added, read_groups

if TYPE_CHECKING:
    from stforecast.flower.node import NodePlace
    from stforecast.flower.settings import RunSettings

log = logging.getLogger(__name__)

SPAN, TOTAL = OF_TOTALS = ("span", "total")
"""Tasks of the messages of totals, in their order: what a node could add, and its part."""

TESTED, COMING = "tested", "coming"
"""Names of the sums in the test part and after the data."""

REST = ""
"""Name of the cells without a group, and in groups that have no sum of their own."""

LONGEST, MOST_VALUES = 100, 2**26
"""Limits: characters of a group's name, and values of a sum."""


class TotalsNotShared(InputError):
    """Raised on a node whose owner does not share totals; the server learns this name."""


def part_of_node(place: NodePlace, masker: Masker, message: Message) -> Message:
    """Return a node's answer to a message of totals, from its finished run and its data."""
    if not place.share_totals:
        raise TotalsNotShared(
            "the server asks for totals, the sums of all nodes' test readings and forecasts; "
            "with share_totals = true in node.toml, this node takes part"
        )
    forecaster = Forecaster.load(place.out)
    series, tested = forecaster.read(place.data), forecaster.tested()
    assert tested is not None
    names = groups_of_node(place, series)
    if message.about["task"] == SPAN:
        ends = *tested.indexes["time"][[0, -1]], series.times[-1]
        span = dict(zip(Reach._fields, map(str, ends), strict=False))
        return Message({**span, "low": forecaster.limits[0], "groups": sorted({*names})})
    groups = _groups_of_sum(message.about["groups"], names, series.cells)
    forecast, interval = forecaster.outlook(series)
    assert interval is not None
    reach = [(bound - forecast).abs().mask(np.isinf(bound)) for bound in interval]
    tables = (forecast, *reach, forecast.notna())
    coming = [groups.sum(table.fillna(0).to_numpy(float).T) for table in tables]
    common = tested.sel(time=slice(message.about["first"], message.about["last"]))
    # A cell counts in all windows or in none: two windows must not differ by its reading.
    bounded = abs(common["upper"] - common["lower"] + common["y_hat"]) < np.inf
    common = common.where((bounded | common["y"].isnull()).all(("time", "horizon")))
    sums = added(common, groups)
    values = {TESTED: torch.from_numpy(sums), COMING: torch.from_numpy(np.array(coming))}
    masker.fewest = Fewest(max(masker.fewest.nodes, int(message.about["nodes"])))
    return masker.hide(message, values, {})


def groups_of_node(place: NodePlace, series: Series) -> list[str]:
    """Return the group of each cell of a node, `REST` for all if its owner names none."""
    if not place.groups:
        return [REST] * len(series.cells)
    found = read_groups(place.groups, series)
    if len({*found.levels} - {ALL}) != 1:
        raise InputError(
            f"groups is {place.groups}, with the levels {', '.join(dict.fromkeys(found.levels))}; "
            "totals have groups of one level, so name one column, or a table of two columns"
        )
    return [found.labels[number] for number in found.of[0]]


def _groups_of_sum(plan: Mapping[str, int], names: Sequence[str], cells: np.ndarray) -> Groups:
    """Return the groups to add up, given the nodes of each; none may be on too few."""
    rows = [name for name, nodes in plan.items() if nodes]
    own = [name if name in rows else REST for name in names]
    if few := [name for name in {*rows, *own} if plan.get(name, 0) < FEW]:
        raise InputError(
            f"the server asks for the sum of {few[0] or 'all other cells'!r} over "
            f"{plan.get(few[0], 0)} nodes; this node adds to sums over {FEW} or more"
        )
    return Groups(tuple(rows), tuple(rows), np.array([[rows.index(n) for n in own]]), cells)


class Reach(NamedTuple):
    """What a node could add: first and last test window, last step, lowest forecast, groups."""

    first: pd.Timestamp
    last: pd.Timestamp
    end: pd.Timestamp
    low: float
    groups: frozenset[str]


@untrusted
def check_span(answer: Message | str, step: pd.Timedelta) -> Reach:
    """Return what a node could add, whose times are naive and whole steps apart."""
    about = message_of(answer).about
    first, last, end = times = [pd.Timestamp(str(about[name])) for name in Reach._fields[:3]]
    if not first <= last <= end or end.tz or any((end - time) % step for time in times):
        raise Rejected(f"its test windows go from {first} to {last}, its data to {end}")
    groups = frozenset(map(str, about["groups"]))
    if not groups or not all(len(name) <= LONGEST and name.isprintable() for name in groups):
        raise Rejected(f"its groups are {sorted(groups)!r:.200}, expected short printable names")
    return Reach(first, last, end, float(about["low"]), groups)


def groups_to_add(
    held: Mapping[int, Collection[str]], fewest: int, most: int
) -> tuple[dict[str, int], dict[str, str]]:
    """Return which groups have sums and the nodes of each, and why others have none.

    The last is `REST`. If fewer than `fewest` nodes had other cells, the group on the fewest nodes
    joins them: the total less all other groups would be their sum. `held` has the names of each
    node's groups; at most `most` groups have sums.
    """
    found = Counter(name for names in held.values() for name in names if name != REST)
    kept = dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
    why = f"{fewest} or more must have it" + f", and {most} groups have sums" * (len(found) > most)
    left_out = {name: f"on {counted(n, 'node')}; {why}" for name, n in kept.items()}
    kept = {name: n for name, n in [*kept.items()][:most] if n >= fewest}

    def rest() -> int:
        return sum(not names <= kept.keys() for names in map(set, held.values()))

    if kept and 0 < (n := rest()) < fewest:
        del kept[last := [*kept][-1]]
        left_out[last] = f"without it, all other cells would be on {counted(n, 'node')}"
    return {**kept, REST: rest()}, {n: why for n, why in left_out.items() if n not in kept}


@dataclass(frozen=True)
class Asking:
    """The messages of totals to the nodes of a finished run.

    Attributes:
        run: settings of the run.
        coordinator: leader of its rounds.
        left_out: why nodes are left out, by number.
    """

    run: RunSettings
    coordinator: Coordinator
    left_out: dict[int, str] = field(default_factory=dict)

    def ask(self, nodes: Collection[int], about: Mapping[str, Any], check: Any) -> dict[int, Any]:
        """Return what `check` makes of the nodes' answers, without those that it rejects."""
        message = Message({"run": self.coordinator.token, **about})
        to, found = dict.fromkeys(nodes, message), {}
        answers = self.coordinator.link.ask(to, self.run.patience.answer)
        for node in nodes:
            try:
                found[node] = check(answers.get(node, "silent"))
            except Rejected as e:
                self.left_out[node] = str(e)
        check_number_of_nodes(found)
        return found

    def spans(self) -> dict[int, Reach]:
        """Return what the nodes could add whose data end when most nodes' do."""
        check = partial(check_span, step=self.run.step)
        numbers = self.coordinator.membership.numbers
        spans: dict[int, Reach] = self.ask([*numbers], {"task": SPAN}, check)
        ends = Counter(span.end for span in spans.values())
        end = max(ends, key=lambda end: (ends[end], end))
        for node in [node for node, span in spans.items() if span.end != end]:
            own = spans.pop(node).end
            self.left_out[node] = f"its data end at {own}, most nodes' at {end}"
        return spans

    def add(self, spans: dict[int, Reach]) -> Added:
        """Return the sums of the nodes of these spans, less those that leave meanwhile."""
        run, coordinator = self.run, self.coordinator
        first, last = max(s.first for s in spans.values()), min(s.last for s in spans.values())
        n_windows, horizon = (last - first) // run.step + 1, run.config.window.horizon
        if n_windows < 2:
            raise SumLost(f"the last begin of a test part is {first}, the first end {last}")
        sums = NodeSums(run.secure or SecureSums(), coordinator.link, coordinator.membership)
        fewest, most = max(FEW, run.patience.min_parties), MOST_VALUES // (5 * n_windows * horizon)
        nodes = list[int]()
        while not nodes:
            check_number_of_nodes(spans)
            plan, without = groups_to_add({n: s.groups for n, s in spans.items()}, fewest, most)
            n = sum(nodes > 0 for nodes in plan.values())
            shapes = {TESTED: [5, n, n_windows, horizon], COMING: [4, n, horizon]}
            # Without one of them, a group could be on too few nodes.
            whole = len(spans) if n > 1 else 0
            about: dict[str, object] = {"task": TOTAL, "first": str(first), "last": str(last)}
            about |= {"groups": plan, "nodes": whole, **sums.begin()}
            adverts = self.ask(spans, about, check_finish_advert)
            left = spans.keys() - adverts.keys()
            if not (whole and left):
                asked = adverts, shapes, coordinator.done + 1, "the totals"
                try:
                    nodes, found, _ = sums.sum_over(*asked, fewest=whole)
                except SumLost:
                    if not (whole and sums.left):
                        raise
                left |= sums.left - {*nodes}
            for node in left:
                del spans[node]
                self.left_out.setdefault(node, "it left the sum")
        return Added(nodes, found, n_windows, plan, without)


class Added(NamedTuple):
    """Sums, the nodes and windows that they are over, the plan of groups, and others' reasons."""

    nodes: Collection[int]
    found: Payload
    n_windows: int
    plan: Mapping[str, int]
    without: Mapping[str, str]


def check_number_of_nodes(nodes: Collection[int]) -> None:
    """Refuse to ask too few nodes."""
    if len(nodes) < FEW:
        raise SumLost(f"{len(nodes)} nodes can add to them, {FEW} or more must")


def learn_totals(run: RunSettings, coordinator: Coordinator, out: Path) -> dict[str, Any]:
    """Ask the nodes of a finished run for the totals, and write `totals.csv`; say what is known.

    Nodes whose data end at another time than most nodes' are left out. With too few nodes, or if
    the sum is lost, there is no file, and a warning says why. If a node is lost during the sums of
    groups, the server learns nothing, and asks again without it.
    """
    asking = Asking(run, coordinator)
    try:
        spans = asking.spans()
        end = next(iter(spans.values())).end
        nodes, found, n_windows, plan, without = asking.add(spans)
        low, names = min(span.low for span in spans.values()), [name for name in plan if name]
        table, coverage = total(run, end, low, names, found)
    except SumLost as e:
        log.warning("no totals: %s", e, extra=event("sum_lost", reason=str(e)))
        return {"lost": str(e), "left_out": asking.left_out}
    write_csv(table, out / "totals.csv")
    clients = sum(len(coordinator.membership.numbers[node]) for node in nodes)
    log.info("totals.csv: the forecast of %d clients on %d nodes together", clients, len(nodes))
    for name, why in without.items():
        log.warning("totals.csv has no group %r: %s", name, why)
    groups = {name: {"nodes": plan[name], "coverage": coverage.get(name)} for name in names}
    known = {"nodes": len(nodes), "clients": clients, "units": run.units, "windows": n_windows}
    known |= {"coverage": coverage.get(ALL), "left_out": asking.left_out}
    return {**known, "groups": groups, "groups_left_out": without}


def total(
    run: RunSettings, end: pd.Timestamp, low: float, names: Sequence[str], found: Payload
) -> tuple[pd.DataFrame, Mapping[str, float]]:
    """Return forecasts and bounds of groups and of the total, and the coverage of such bounds.

    Args:
        run: settings of the run.
        end: last step of the data.
        low: lowest value of forecasts.
        names: groups to forecast, the first of those that were added up.
        found: `(5, groups, windows, horizon)` sums of `stforecast.forecasting.groups.added`, and
            `(4, groups, horizon)` sums of forecasts, distances to both bounds, and known cells.

    Raises:
        SumLost: if numbers of cells are none, as after the sum of false values.
    """
    tested, coming = found[TESTED].numpy(), found[COMING].numpy()
    numbers = np.concatenate([tested[-1].ravel(), coming[-1].ravel()])
    if (numbers < 0).any() or (numbers != numbers.round()).any() or not coming[-1].sum(0).all():
        raise SumLost("some node's values were not those that it had to add")
    tested, coming = (
        np.concatenate([of[:, : len(names)], of.sum(axis=1, keepdims=True)], axis=1)
        for of in (tested, coming)
    )
    # How many cells a group has, only its nodes know.
    labels, of = (*names, ALL), np.repeat(np.arange(len(names) + 1), FEW)
    groups = Groups(labels, labels, of[None], of)
    errors = SumErrors.of_sums(tested, groups, run.chosen.coverage)
    forecast, *reach, _ = np.where(coming[-1] > 0, coming, np.nan)
    down, up = (errors.factor[..., side] * distance for side, distance in enumerate(reach))
    lower = (forecast - down).clip(0.0 if low >= 0 else None)
    steps = np.arange(1, forecast.shape[1] + 1)
    times = pd.DatetimeIndex(end + run.step * np.tile(steps, len(labels)), name="time")
    columns = {"forecast": forecast, "lower": lower, "upper": forecast + up}
    values = {name: of_groups.ravel() for name, of_groups in columns.items()}
    table = pd.DataFrame(values, times.tz_localize("UTC").tz_convert(run.time_zone)).reset_index()
    if names:
        table.insert(0, "group", np.repeat(labels, len(steps)))
    return table, errors.coverage
