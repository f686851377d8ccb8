"""Whoever obeys the reader comes to the truth or to a refusal: each option that any message offers.

An offer with a condition, such as `--layout wide if each is a cell`, is obeyed, too; a cube that is
not the truth then follows from a condition that did not hold, so another of its message must lead
to the truth.
"""

import re
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.described import of_table
from data_prep.readers.options import TableOptions
from data_prep.sets.table import read
from tests.data_prep.test_exports import CASES

MOST_OBEYED = 3
KNOWN = set(TableOptions.__dataclass_fields__)


def options_of(words):
    """Return options as they are typed as arguments of `read`; others of a command are left out."""
    found, words = {}, shlex.split(words)
    while words:
        name = words.pop(0).removeprefix("--").replace("-", "_")
        flag = not words or words[0].startswith("--")
        value = True if flag else words.pop(0)
        if name in KNOWN:
            found[name] = value
    return found


def is_conditional(message, offer, offers):
    """Return whether an offer holds only if something is so: its clause says so, or it is a choice.

    A choice is between values of one option.
    """
    clauses = re.split(r"[;,] | or ", message)
    said = any(offer in c and re.search(r"\b(if|for|to|such as)\b", c) for c in clauses)
    own = options_of(offer).items()
    others = (options_of(other) for other in offers if other != offer)
    return said or any(o.get(k, v) != v for o in others for k, v in own)


def outcomes(path, check, options=None, depth=MOST_OBEYED, said=None):
    """Yield `right`, `refused` or `wrong` for each way of obeying, and the options obeyed."""
    options = options or {}
    try:
        ds = read(path, **options)
    except InputError as e:
        error = e
    else:
        yield ("right" if check(ds) else "wrong"), options, said
        return
    offers = [options_of(offer) for offer in error.offers]
    offers = [
        o | {k: v for k, v in offers[0].items() if k == "resample" and "agg" in o} for o in offers
    ]
    new = [
        (o, text)
        for o, text in zip(offers, error.offers, strict=True)
        if not o.items() <= options.items()
    ]
    if not new or not depth:
        yield "refused", options, error.typed
        return
    for offer, text in new[:4]:
        condition = is_conditional(error.typed, text, error.offers)
        ways = [*outcomes(path, check, options | offer, depth - 1, error.typed)]
        for found, obeyed, why in ways:
            yield ("asked" if found == "wrong" and condition else found), obeyed, why


def right(truth):
    """Return a function that says whether a cube is the truth."""

    def check(ds):
        try:
            truth.check(ds)
        except AssertionError:
            return False
        return True

    return check


def obey(path, check):
    """Obey all that is said of a table; return the outcomes."""
    found = list(outcomes(path, check))
    kinds = {kind for kind, _, _ in found}
    assert "wrong" not in kinds, [f for f in found if f[0] == "wrong"]
    return kinds


QUICK = ("huawei-0", "whole_numbers_of_excel-1", "rates_of_a_monitor", "trips_by_areas-0")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CASES]
)
def test_each_offer_leads_to_the_truth_or_to_a_refusal(name, tmp_path):
    write, variant = CASES[name]
    path, truth = write(tmp_path, *variant)
    assert "right" in obey(path, right(truth))
    description = of_table(path)
    words = shlex.split(description.next_command)
    assert words[:2] in (["stforecast", "forecast"], ["stforecast", "prepare"])
    if description.kind == "table":
        assert right(truth)(read(path, **options_of(description.next_command)))


TIMES = pd.date_range("2024-05-10", periods=72, freq="h")


class Made:
    """A table of 1 to 3 cells with 1 or 2 services, written with flaws that are drawn by a seed.

    Args:
        seed: what is drawn.
        folder: where it is written.
    """

    def __init__(self, seed, folder):
        rng = np.random.default_rng(seed)
        self.names = [["flow", "speed"], ["q", "v"], ["Traffic (GB)", "Users"]][seed % 3]
        self.names = self.names[: rng.integers(1, 3)]
        self.cells = [["4142", "4143", "4150"], ["A 1", "A 2", "B 1"]][rng.integers(2)][
            : rng.integers(1, 4)
        ]
        shape = len(TIMES), len(self.cells)
        self.values = {name: rng.uniform(2, 90, shape).round(1) for name in self.names}
        self.flaws = {
            flaw
            for flaw in ("gaps", "twice", "shuffled", "numbered", "flagged")
            if rng.random() < 0.3
        }
        long = pd.DataFrame({"time": np.repeat(TIMES, shape[1]), "cell": self.cells * len(TIMES)})
        for name, values in self.values.items():
            long[name] = values.ravel()
        self.form = ["long", "anonymous", "files", "wide"][rng.integers(4)]
        self.path = self._write(self._with_flaws(long, rng), folder)

    def _with_flaws(self, long, rng):
        if "flagged" in self.flaws and self.form != "wide":
            long["suspect"] = rng.random(len(long)) < 0.1
            for name in self.names:
                self.values[name] = np.where(
                    long["suspect"].to_numpy().reshape(len(TIMES), -1), np.nan, self.values[name]
                )
        if "gaps" in self.flaws:
            long = long[rng.random(len(long)) > 0.1]
        if "twice" in self.flaws and self.form != "wide":
            again = long.sample(frac=0.2, random_state=int(rng.integers(99)))
            long = pd.concat([long, again.assign(**{n: again[n] + 5 for n in self.names})])
        long = long.sample(frac=1, random_state=1) if "shuffled" in self.flaws else long
        if "numbered" in self.flaws:
            long.insert(0, "#", range(1, len(long) + 1))
        return long

    def _write(self, long, folder):
        if self.form == "files":
            for cell, own in long.groupby("cell"):
                own = own.assign(**{"#": range(1, len(own) + 1)}) if "#" in own else own
                own.drop(columns="cell").to_csv(folder / f"{cell}.csv", index=False)
            return folder
        if self.form == "wide":
            kept = long.drop_duplicates(["time", "cell"])
            long = kept.pivot(index="time", columns="cell", values=self.names[0]).reset_index()
            self.flaws -= {"twice"}
            self.names = self.names[:1]
        if self.form == "anonymous":
            long = long.rename(columns={"time": "p", "cell": "r"})
        long.to_csv(folder / "made.csv", index=False)
        return folder / "made.csv"

    def check(self, ds):
        """Return whether a cube has all cells, with their values where there are any."""
        cells = ds["cell"].values.astype(str).tolist()
        if (
            "twice" in self.flaws
            or len(cells) != len(self.cells)
            or len(ds.data_vars) != len(self.names)
        ):
            return False
        known = [c in cells for c in self.cells]
        if len(cells) > 1 and not all(known):
            return False
        for own, found in zip(self.values.values(), ds.data_vars.values(), strict=False):
            frame = found.to_pandas().reindex(TIMES)
            frame.columns = cells
            values = frame[self.cells if all(known) else cells].to_numpy()
            given = np.isfinite(values)
            if not np.allclose(values[given], own[given], equal_nan=True) or given.mean() < 0.5:
                return False
        return True


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(s, marks=pytest.mark.slow) for s in range(3, 60))]
)
def test_flawed_tables_lead_to_the_truth_or_to_a_refusal(seed, tmp_path):
    made = Made(seed, tmp_path)
    kinds = obey(made.path, made.check)
    assert "right" in kinds or "twice" in made.flaws, (made.form, made.flaws)


@pytest.mark.slow
def test_most_exports_are_right_at_the_first_command_or_after_one_question(tmp_path):
    """The counts are in docs/data.md."""
    counts = Counter()
    for name, (write, variant) in CASES.items():
        (tmp_path / name).mkdir()
        path, truth = write(tmp_path / name, *variant)
        kinds = {kind for kind, _, _ in outcomes(path, right(truth), depth=0)}
        if kinds == {"refused"}:
            asked = {kind for kind, _, _ in outcomes(path, right(truth), depth=1)}
            kinds = {"one question" if "right" in asked else "refused"}
        counts.update(kinds)
    assert not counts["wrong"]
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    shown = "Of {} made exports, {} are right at the first command and {} after one question"
    assert shown.format(counts.total(), counts["right"], counts["one question"]) in text
