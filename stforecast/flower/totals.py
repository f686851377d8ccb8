"""The total over the nodes of a federation: what all their cells together will carry.

At the end of a run, nodes whose owners share totals add up their forecasts and the distances to
their bounds: in the test part, with its readings, and after their data. The server learns only the
secure sums over three nodes or more. Bounds of the total follow from them as in one
process, see `stforecast.forecasting.groups`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from data_prep.base.errors import InputError
from stforecast.federated.nodes.coordinator import Coordinator
from stforecast.federated.nodes.masker import Masker
from stforecast.federated.nodes.membership import event
from stforecast.federated.nodes.messages import FEW, Message, Rejected, message_of, untrusted
from stforecast.federated.nodes.node_sums import NodeSums
from stforecast.federated.nodes.secure_sum import SumLost, check_finish_advert
from stforecast.federated.runs.run_folder import write_csv
from stforecast.federated.uploads.masking import SecureSums
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.groups import ALL, Groups, SumErrors, added

if TYPE_CHECKING:
    from stforecast.flower.node import Place
    from stforecast.flower.settings import RunSettings

log = logging.getLogger(__name__)

SPAN, TOTAL = OF_TOTALS = ("span", "total")
"""Tasks of the messages of totals, in their order: what a node could add, and its part."""

TESTED, COMING = "tested", "coming"
"""Names of the sums in the test part and after the data."""


class TotalsNotShared(InputError):
    """Raised on a node whose owner does not share totals; the server learns this name."""


def part_of_node(place: Place, masker: Masker, message: Message) -> Message:
    """Return a node's answer to a message of totals, from its finished run and its data."""
    if not place.share_totals:
        raise TotalsNotShared(
            "the server asks for totals, the sums of all nodes' test readings and forecasts; "
            "with share_totals = true in node.toml, this node takes part"
        )
    forecaster = Forecaster.load(place.out)
    series, tested = forecaster.read(place.data), forecaster.tested()
    assert tested is not None
    if message.about["task"] == SPAN:
        ends = *tested.indexes["time"][[0, -1]], series.times[-1]
        span = dict(zip(Span._fields, map(str, ends), strict=False))
        return Message({**span, "low": forecaster.limits[0]})
    forecast, interval = forecaster.outlook(series)
    assert interval is not None
    reach = [(bound - forecast).abs().mask(np.isinf(bound)) for bound in interval]
    coming = [table.sum(axis=1) for table in (forecast, *reach, forecast.notna())]
    common = tested.sel(time=slice(message.about["first"], message.about["last"]))
    # A cell counts in all windows or in none: two windows must not differ by its reading.
    bounded = abs(common["upper"] - common["lower"] + common["y_hat"]) < np.inf
    common = common.where((bounded | common["y"].isnull()).all(("time", "horizon")))
    sums = added(common, Groups.of_columns({}, series.cells))[:, 0]
    values = {TESTED: torch.from_numpy(sums), COMING: torch.tensor(np.array(coming, dtype=float))}
    return masker.hide(message, values, {})


class Span(NamedTuple):
    """What a node could add: first and last test window, last step, lowest value of forecasts."""

    first: pd.Timestamp
    last: pd.Timestamp
    end: pd.Timestamp
    low: float


@untrusted
def check_span(answer: Message | str, step: pd.Timedelta) -> Span:
    """Return what a node could add, whose times are naive and whole steps apart."""
    about = message_of(answer).about
    first, last, end = times = [pd.Timestamp(str(about[name])) for name in Span._fields[:3]]
    if not first <= last <= end or end.tz or any((end - time) % step for time in times):
        raise Rejected(f"its test windows go from {first} to {last}, its data to {end}")
    return Span(first, last, end, float(about["low"]))


def learn_totals(run: RunSettings, coordinator: Coordinator, out: Path) -> dict[str, Any]:
    """Ask the nodes of a finished run for the total, and write `totals.csv`; say what is known.

    Nodes whose data end at another time than most nodes' are left out. With too few nodes, or if
    the sum is lost, there is no file, and a warning says why.
    """
    link, membership, left_out = coordinator.link, coordinator.membership, dict[int, str]()

    def ask(nodes: Collection[int], about: Mapping[str, Any], check: Any) -> dict[int, Any]:
        message = Message({"run": coordinator.token, **about})
        answers, found = link.ask(dict.fromkeys(nodes, message), run.patience.answer), {}
        for node in nodes:
            try:
                found[node] = check(answers.get(node, "silent"))
            except Rejected as e:
                left_out[node] = str(e)
        if len(found) < FEW:
            raise SumLost(f"{len(found)} nodes can add to them, {FEW} or more must")
        return found

    try:
        check = partial(check_span, step=run.step)
        spans: dict[int, Span] = ask([*membership.numbers], {"task": SPAN}, check)
        ends = Counter(span.end for span in spans.values())
        end = max(ends, key=lambda end: (ends[end], end))
        for node in [node for node, span in spans.items() if span.end != end]:
            left_out[node] = f"its data end at {spans.pop(node).end}, most nodes' at {end}"
        first, last = max(s.first for s in spans.values()), min(s.last for s in spans.values())
        n_windows, horizon = (last - first) // run.step + 1, run.config.window.horizon
        if n_windows < 2:
            raise SumLost(f"the last begin of a test part is {first}, the first end {last}")
        shapes = {TESTED: [5, n_windows, horizon], COMING: [4, horizon]}
        sums = NodeSums(run.secure or SecureSums(), link, membership)
        about = {"task": TOTAL, "first": str(first), "last": str(last), **sums.begin()}
        adverts = ask(spans, about, check_finish_advert)
        nodes, found, _ = sums.sum_over(adverts, shapes, coordinator.done + 1, "the totals")
        left_out |= dict.fromkeys(adverts.keys() - set(nodes), "it left the sum")
        low = min(span.low for span in spans.values())
        table, coverage = total(run, end, low, found[TESTED].numpy(), found[COMING].numpy())
    except SumLost as e:
        log.warning("no totals: %s", e, extra=event("sum_lost", reason=str(e)))
        return {"lost": str(e), "left_out": left_out}
    write_csv(table, out / "totals.csv")
    clients = sum(len(membership.numbers[node]) for node in nodes)
    log.info("totals.csv: the forecast of %d clients on %d nodes together", clients, len(nodes))
    known = {"nodes": len(nodes), "clients": clients, "units": run.units, "coverage": coverage}
    return {**known, "windows": n_windows, "left_out": left_out}


def total(
    run: RunSettings, end: pd.Timestamp, low: float, tested: np.ndarray, coming: np.ndarray
) -> tuple[pd.DataFrame, float | None]:
    """Return the forecast and bounds of the total, and the coverage of such bounds in the test.

    Args:
        run: settings of the run.
        end: last step of the data.
        low: lowest value of forecasts.
        tested: `(5, windows, horizon)` sums of `stforecast.forecasting.groups.added`.
        coming: `(4, horizon)` sums of forecasts, distances to both bounds, and known cells.

    Raises:
        SumLost: if numbers of cells are none, as after the sum of false values.
    """
    numbers = np.concatenate([tested[-1].ravel(), coming[-1]])
    if (numbers < 0).any() or (numbers != numbers.round()).any() or not coming[-1].all():
        raise SumLost("some node's values were not those that it had to add")
    several = np.arange(FEW)  # How many cells there are, only their nodes know.
    errors = SumErrors.of_sums(tested[:, None], Groups.of_columns({}, several), run.chosen.coverage)
    forecast, *reach, _ = coming
    down, up = (errors.factor[0, :, side] * distance for side, distance in enumerate(reach))
    lower = (forecast - down).clip(0.0 if low >= 0 else None)
    times = pd.DatetimeIndex(end + run.step * np.arange(1, len(forecast) + 1), name="time")
    columns = {"forecast": forecast, "lower": lower, "upper": forecast + up}
    table = pd.DataFrame(columns, times.tz_localize("UTC").tz_convert(run.time_zone))
    return table.reset_index(), errors.coverage.get(ALL)
