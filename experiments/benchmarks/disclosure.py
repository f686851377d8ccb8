"""Measure how near attacks on a method's uploads come to the readings of real cells.

The attacker is the server, or all nodes but one, and knows everything but the readings: code,
settings, seed, calendar and numbers of windows. It attacks the first upload, or the first few. What
it finds is compared with a guess from public knowledge: the mean week of the other cells. See
`experiments.benchmarks.inversion` for the attacks, and `experiments.benchmarks.digits` for images;
`python -m experiments.docs` makes a table of docs/security.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from experiments.benchmarks.digits import DATA, found_of_digits
from experiments.benchmarks.frame import Results, benchmark, hourly_table, quiet
from experiments.benchmarks.groups import by_groups, by_secret_groups, shares
from experiments.benchmarks.inversion import (
    Products,
    Recovered,
    Victims,
    closeness,
    mean_readings,
    solved,
    weekly_guess,
    z_scores,
)
from experiments.benchmarks.rotation import in_order, unrotated
from experiments.benchmarks.unrolled import inverted
from stforecast.bench.tables import markdown
from stforecast.federated.core.state import generator
from stforecast.methods import METHODS
from stforecast.methods.fedlean import HOURS, FedLean, calendar_basis, n_cycles, symmetric
from vision.methods import METHODS as OF_IMAGES

RUNS, QUICK = ((14, 1), (28, 24), (62, 24)), ((14, 1),)
"""Days of records and steps ahead."""

OF_WEEK = ((20, 1),)
"""Further runs of the attack on mean weeks: of each time of day, one weekday has one target."""

SUMMED = (3, 9, 25, 30)
"""Cells of a sum: of one node, or of three or ten nodes under secure aggregation."""

FEW, SOLVED = 2, 60
"""Cells of the sum whose quadratic equations are solved, too, and steps of the solver."""

ALL = {**METHODS, **OF_IMAGES}

SENDS = {
    "fedlean": "mean products of inputs and targets, then a network",
    "fedlean, only its mean week": "the mean of each hour of the week",
    "fedtrees": "sums of products, counts and histograms",
    "protoridge": "mean windows of groups",
    "fedda": "mean windows of a week, then a network",
    "fedavg": "parameters after local training",
    "fedrep": "parameters of the encoder",
    "fuels": "mean features of hours",
    "fedproto": "mean features of hours",
    "fedpm": "a codebook, and how often each entry was used",
    "pfpl": "mean features of classes",
}
"""Attacked methods, with their settings if these change it, and their uploads in words."""

ONE_BATCH = {"optimizer": "sgd", "batch_size": 4096, "drop_last": False}
"""Settings with which an upload is a single gradient."""

PERCEPTRON, LINEAR = {"model": "mlp"}, {"model": "linear"}


class Attempt(NamedTuple):
    """An attack on training: cells of the node, uploads that are used, and whether it solves."""

    cells: int = 1
    uploads: int = 1
    solving: bool = False


FIRST, LATER, NODE, SOLVING = Attempt(), Attempt(uploads=3), Attempt(cells=5), Attempt(solving=True)

TRAINED: Sequence[tuple[str, str, Mapping[str, Any], Sequence[Attempt]]] = (
    ("fedavg", "", {}, (FIRST, LATER, NODE)),
    ("fedavg", "linear model", LINEAR, (FIRST, LATER, NODE, SOLVING)),
    ("fedavg", "perceptron", PERCEPTRON, (FIRST, LATER, NODE, SOLVING)),
    ("fedavg", "one batch", ONE_BATCH, (FIRST,)),
    ("fedavg", "linear model, one batch", LINEAR | ONE_BATCH, (FIRST, LATER, NODE, SOLVING)),
    ("fedavg", "perceptron, one batch", PERCEPTRON | ONE_BATCH, (FIRST, LATER, NODE, SOLVING)),
    ("fedrep", "", {}, (FIRST,)),
    ("fedrep", "perceptron", PERCEPTRON, (FIRST, LATER, NODE, SOLVING)),
    ("fuels", "", {}, (FIRST,)),
    ("fuels", "perceptron", PERCEPTRON, (FIRST, LATER, SOLVING)),
    ("fedproto", "", {}, (FIRST, SOLVING)),
    ("fedproto", "perceptron", PERCEPTRON, (FIRST, LATER, SOLVING)),
    ("fedpm", "perceptron", PERCEPTRON, (FIRST,)),
)
"""Runs whose training is inverted: method, settings in words, settings besides the defaults, and
the attacks."""

ROTATED = (3, 5, 7, 9, 12, 25)
"""Numbers of cells of sums with known products."""


Attack = tuple[tuple[str, int], tuple[str, Recovered]]
"""The upload and its number of cells, the object of the attack, and its findings."""

How = Mapping[str, Any]
"""Values that describe attacks: data, days, horizon, settings and the kind of attack."""


@benchmark("disclosure.csv")
def disclosure(results: Results, *data: Path, quick: bool = False) -> str:
    """Attack the first uploads of methods.

    Args:
        results: gets a row for each attack.
        *data: tables of hourly readings, a column for each cell.
        quick: whether to attack only 14 days of records, one step ahead.
    """
    with quiet():  # Nodes warn of few samples.
        for path, (days, horizon) in itertools.product(data, QUICK if quick else RUNS):
            table = hourly_table(path)
            if days * 24 > len(table):
                continue
            for method in (*SUMS, *MEANS):
                victims = Victims.of(table.iloc[: 24 * days, : max(SUMMED)], method, horizon)
                for how in MEANS.get(method, ("equations",)):
                    about = about_of(path, days, horizon, how)
                    results.add(*attack_rows(attacks(victims, method, how), method, about))
        for path in () if quick else data[:1]:
            for rows in (rows_of_week, rows_of_few, rows_of_rotation, inverted_rows):
                for row in rows(path):
                    results.add(row)
    return disclosure_table(pd.DataFrame(results.rows))


def attack_rows(
    found: Iterable[Attack], method: str, about: How, uploads: int = 1
) -> Iterator[dict[str, Any]]:
    """Return a row for each attack on uploads."""
    for (upload, cells), (of, each) in found:
        measured, guessed = (closeness(x, each.truth) for x in (each.found, each.guess))
        yield {
            "method": method, **about, "upload": upload, "cells": cells, "of": of,
            "uploads": uploads,
            **measured, **{f"guess {name}": value for name, value in guessed.items()},
            "verdict": disclosed(measured, guessed),
        }  # fmt: skip


def rows_of_week(path: Path) -> Iterator[dict[str, Any]]:
    """Return the rows of the attack on mean weeks."""
    for days, horizon in (*RUNS, *OF_WEEK):
        table = hourly_table(path).iloc[: 24 * days, : max(SUMMED)]
        victims = Victims.of(table, "fedlean", horizon)
        about = about_of(path, days, horizon, "equations", "only its mean week")
        yield from attack_rows(of_groups(victims, by_mean_week), "fedlean", about)


def rows_of_few(path: Path) -> Iterator[dict[str, Any]]:
    """Return the rows of quadratic equations: each cell of a sum of few, and one cell of trees."""
    about = about_of(path, *QUICK[0], "quadratic equations")
    for method, upload, cells in (("fedlean", "sum", FEW), ("fedtrees", "plain", 1)):
        victims = few_victims(path, method)
        found = each_of_few(victims, weekly_guess(victims.readings), cells)
        yield from attack_rows([((upload, cells), ("cell", found))], method, about)


def rows_of_rotation(path: Path) -> Iterator[dict[str, Any]]:
    """Return the rows of the attack on sums with known products."""
    truth = (victims := few_victims(path, "fedlean")).readings
    guess, about = weekly_guess(victims.readings), about_of(path, *QUICK[0], "rotation")
    for n in ROTATED:
        found = Recovered(unrotated(truth[:, :n]), truth[:, :n], guess[:, :n])
        yield from attack_rows([(("all products", n), ("cell", found))], "fedlean", about)


def inverted_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Return the rows of attacks on the training of the first cells, and of clients with digits."""
    for method, words, settings, attempts in TRAINED:
        victims = few_victims(path, method, **settings)
        for attempt in attempts:
            attack = "solved training" if attempt.solving else "inverted training"
            about = about_of(path, *QUICK[0], attack, words)
            upload = ("plain" if attempt.cells == 1 else "sum", attempt.cells)
            truth, guess = (
                t[:, : attempt.cells] for t in (victims.readings, weekly_guess(victims.readings))
            )
            found = Recovered(in_order(inverted(victims, guess, *attempt[1:]), truth), truth, guess)
            yield from attack_rows([(upload, ("cell", found))], method, about, attempt.uploads)
    for method, words, sought, found in found_of_digits():
        about = {"settings": words, "data": DATA, "days": "", "horizon": ""}
        about["attack"] = "inverted training"
        yield from attack_rows([(("plain", 1), (sought, found))], method, about)


def few_victims(path: Path, method: str, **settings: Any) -> Victims:
    """Return the cells of a table with few days of records."""
    (days, horizon), *_ = QUICK
    table = hourly_table(path).iloc[: 24 * days, : max(SUMMED)]
    return Victims.of(table, method, horizon, **settings)


def about_of(path: Path, days: int, horizon: int, attack: str, settings: str = "") -> How:
    """Return what describes an attack on a table."""
    name = path.name.split(".")[0]
    return {"settings": settings, "data": name, "days": days, "horizon": horizon, "attack": attack}


def disclosed(found: Mapping[str, float], guess: Mapping[str, float]) -> str:
    """Return in a word what an attack discloses, against a guess.

    `readings`: a tenth more of them within .01 standard deviations, or half more within .1. `some`:
    a tenth more within .1, or less than half of the unexplained variance. Otherwise `little`.
    """
    exact, near = (found[f"within {x}"] - guess[f"within {x}"] for x in (".01", ".1"))
    if exact >= 0.1 or near >= 0.5:
        return "readings"
    unexplained = [1 - max(of["correlation"], 0) ** 2 for of in (found, guess)]
    return "some" if near >= 0.1 or unexplained[0] < unexplained[1] / 2 else "little"


def attacks(victims: Victims, method: str, how: str) -> Iterator[Attack]:
    """Attack the cells' uploads, and their sums where the server needs no more."""
    if method in MEANS:
        truth, guess = victims.readings, weekly_guess(victims.readings)
        found = MEANS[method][how](victims, guess)
        yield ("plain", 1), ("cell", Recovered(found, truth[:, :3], guess[:, :3]))
        return
    yield from of_groups(victims, by_products)


def of_groups(
    victims: Victims, solve: Callable[[Victims, Sequence[Sequence[int]], Tensor], Tensor]
) -> Iterator[Attack]:
    """Attack the uploads of three cells, and the sums of more, by a function as `by_products`."""
    truth = victims.readings
    guess = weekly_guess(truth)
    sizes = [n for n in SUMMED if n <= truth.shape[1]]
    groups = [*([i] for i in range(3)), *(list(range(n)) for n in sizes)]
    guesses = torch.stack([guess[:, group].mean(1) for group in groups], dim=1)
    means = solve(victims, groups, guesses)
    yield ("plain", 1), ("cell", Recovered(means[:, :3], truth[:, :3], guess[:, :3]))
    for place, cells in enumerate(sizes, start=3):
        mean, mean_guess = means[:, [place]], guesses[:, [place]]
        each = z_scores(mean).expand(-1, cells)
        yield ("sum", cells), ("cell", Recovered(each, truth[:, :cells], guess[:, :cells]))
        whole = truth[:, :cells].mean(1, keepdim=True)
        yield ("sum", cells), ("sum", Recovered(mean, whole, mean_guess))


def by_products(victims: Victims, groups: Sequence[Sequence[int]], guesses: Tensor) -> Tensor:
    """Solve for the mean reading of each group from the sum of its cells' products.

    Args:
        victims: the cells.
        groups: positions of the cells of each.
        guesses: `(readings, groups)`.

    Returns:
        `(readings, groups)`.
    """
    return mean_readings([products_of(victims, group) for group in groups], guesses)


def by_mean_week(victims: Victims, groups: Sequence[Sequence[int]], guesses: Tensor) -> Tensor:
    """Solve as `by_products`, but from the sum of the cells' mean weeks.

    The attacker knows which readings each hour adds up, and that z-scores have the mean 0.
    """
    n, parts, method = len(victims.readings), [], victims.method
    assert isinstance(method, FedLean)
    for some in torch.eye(n, dtype=torch.float64).split(64):
        data = victims.with_values(torch.zeros(len(some), dtype=torch.long), some.mT)
        parts.append(method.mean_week(data))
    equations = torch.cat([torch.cat(parts).mT, victims.in_mean[None]])
    weeks = torch.stack([victims.sent[HOURS][group].double().mean(0) for group in groups], dim=1)
    values = torch.cat([weeks, torch.zeros(1, len(groups))])
    return solved(equations, values, guesses)


def each_of_few(victims: Victims, guess: Tensor, cells: int = FEW) -> Recovered:
    """Solve for each cell of a sum of few, in the order that fits best."""
    truth, products = victims.readings[:, :cells], products_of(victims, list(range(cells)))
    mean = products.mean_reading(guess[:, :cells].mean(1, keepdim=True))
    noise = torch.randn(len(mean), cells, generator=generator(0), dtype=mean.dtype)
    start = mean + 0.3 * noise if cells > 1 else mean
    found = products.each_reading(start, SOLVED, every=3)
    return Recovered(in_order(found, truth), truth, guess[:, :cells])


def products_of(victims: Victims, cells: Sequence[int]) -> Products:
    """Return what the attacker knows of the summed products of some cells."""
    inputs, window, upload = victims.inputs, victims.data.window, victims.sent
    relative, n = "products" in upload, len(victims.inputs.newest)
    lags, one = inputs.steps.shape[1], torch.ones(n, 1, dtype=torch.float64)
    if relative:
        size = upload["moments"].shape[1]
        gram = torch.stack([symmetric(t.double(), size) for t in upload["products"][cells]]).sum(0)
        moment = upload["moments"][cells, :, : window.horizon].double().sum(0)
        weights = torch.cat([one, calendar_basis(inputs.known, n_cycles(window))], dim=1)
        known = [0, *range(1 + lags, lags + weights.shape[1])]
    else:
        gram, moment = (upload[name][cells].double().sum(0) / n for name in ("gram", "moment"))
        weights = torch.cat([inputs.known, one], dim=1)
        known = list(range(lags, len(gram)))
    free = [i for i in range(len(gram)) if i not in known]
    whole = torch.cat([gram, moment], dim=1)
    wanted = [*free, *range(len(gram), whole.shape[1])]
    u, s, v = torch.linalg.svd(weights / n, full_matrices=False)
    rank = int((s > 1e-8 * s[0]).sum())
    linear = whole[known][:, wanted].mT @ (v[:rank].mT / s[:rank])
    quadratic = whole[free][:, wanted]
    return Products(
        inputs, relative, u[:, :rank].mT, linear, quadratic, victims.in_mean, len(cells)
    )


def solve_weekly_means(victims: Victims, guess: Tensor) -> Tensor:
    """Solve for readings of three cells from the mean windows of each hour of a week.

    They are z-scored with a mean and deviation that the attacker does not need.
    """
    inputs, sent = victims.inputs, victims.sent
    n, week = len(inputs.newest), 24 * 7
    last = max(n // week - 1, 0)
    key = (torch.arange(n) // week).clamp(max=last) * 24 + victims.samples.tensors["slot"][0]
    lags, _, targets = inputs.means(shares(key), relative=False)
    generators, m, found = victims.cohort().generators, sent["profile"].shape[1], []
    for i in range(3):
        drawn = torch.randint(m, (sent["x"].shape[1],), generator=generators[i])
        equations = torch.cat([lags[:, drawn].flatten(0, 1), targets[0]])
        values = torch.cat([sent["x"][i].mT.flatten(), sent["profile"][i]]).double()
        found.append(solved(equations, values[:, None], guess[:, [i]], noise=1e-5))
    return z_scores(torch.cat(found, dim=1))


SUMS = ("fedlean", "fedtrees")
"""Methods that send sums of products."""

MEANS: Mapping[str, Mapping[str, Callable[[Victims, Tensor], Tensor]]] = {
    "protoridge": {"known groups": by_groups, "secret groups": by_secret_groups},
    "fedda": {"equations": solve_weekly_means},
}
"""Attacks on methods that send means of windows, by their kind."""


def disclosure_table(rows: pd.DataFrame) -> str:
    """Tabulate the worst verdict of each method, settings and kind of upload."""
    rows, table = rows.fillna({"settings": ""}), []
    for key, own in rows.groupby(["method", "settings"], sort=False):
        method, settings = map(str, key)
        table.append(
            {
                "method": ", ".join([f"`{method}`", *filter(None, [settings])]),
                "sends first": SENDS.get(f"{method}, {settings}", SENDS[method]),
                "plain upload of a cell": worst(own[own["upload"] == "plain"]),
                "each cell, from a sum": by_count(own[own["upload"] == "sum"])
                or ("not attacked" if ALL[method].sends.sums != "none" else "cannot be summed"),
                "each cell, if all products of the sum were known": by_count(
                    own[own["upload"] == "all products"]
                ),
                "each other's sum, with two parties": worst(own[own["of"] == "sum"]),
            }
        )
    return markdown(table)


def by_count(rows: pd.DataFrame) -> str:
    """Return the worst verdict on each cell of a sum, by the number of its cells."""
    of_cell = rows[rows["of"] == "cell"]
    return "; ".join(f"{n} cells: {worst(own)}" for n, own in of_cell.groupby("cells") if len(own))


def worst(rows: pd.DataFrame) -> str:
    """Return the worst verdict of some rows, and the largest share within .1; empty without any."""
    if rows.empty:
        return ""
    order = ("readings", "some", "little")
    found = min(rows["verdict"], key=order.index)
    of_verdict = rows[rows["verdict"] == found]
    row = of_verdict.loc[of_verdict["within .1"].idxmax()]
    return f"{found} ({row['within .1']:.0%}, guess {row['guess within .1']:.0%})".replace(
        "%", " %"
    )
