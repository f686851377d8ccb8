"""Numbers in the text of pages, by name: `<!--=NAME-->NUMBER<!--/-->`.

A name is one of `computed`, or file and key of a value in a JSON file of docs/results, such as
`growth.hidden_size`.
"""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Iterator
from statistics import mean

from experiments.site.forecasts import (
    above_its_experts,
    against_best,
    sent_in_a_round,
    skills,
    tuned,
)
from experiments.site.images import claims_counted
from experiments.site.measured import RESULTS, of_page
from experiments.site.tables import columns_of

CLAIMS = {
    "fedta": ("fedta", "fedta_table1", "fedta_office", "fedta_with_prompts"),
    "gldp": ("gldp", "gldp_table*", "gldp_mnist"),
    "pfpl": ("pfpl", "pfpl_digits", "pfpl_pacs"),
    "pfpl-100": ("pfpl", "pfpl_rounds"),
}
"""Page and benchmarks whose claims are counted under a name."""


class Numbers(UserDict[str, str]):
    """All numbers by name; JSON files are read when they are asked for."""

    def __missing__(self, name: str) -> str:
        stem, _, key = name.rpartition(".")
        files = [*RESULTS.rglob(f"{stem}.json")]
        if len(files) != 1:
            raise KeyError(f"{name}: no number has this name; experiments/site/numbers.py has all")
        value = json.loads(files[0].read_text())[key]
        return f"{value:,.6g}" if isinstance(value, int | float) else value.replace(",", ", ")


def all_numbers() -> Numbers:
    """Return the numbers of all pages."""
    return Numbers(computed())


def computed() -> Iterator[tuple[str, str]]:
    """Yield the numbers that are computed from results, by name."""
    for name, page, names in (
        ("default", "default", "who_wins*"),
        ("pieces", "default", "fedlean*"),
        ("peers", "peers", "peers*"),
        ("prototypes", "prototypes", "prototypes_[!f]*"),
    ):
        columns = columns_of(of_page(page, names))
        yield f"{name}.parts", f"{len(columns)}"
        yield f"{name}.data", f"{len({column.data for column in columns})}"
        if name in ("default", "peers"):
            of_mean, most = against_best(columns)
            yield from ((f"{name}.best", f"{of_mean}"), (f"{name}.worst", f"{most:.1f}"))
    found = of_page("default", "who_wins*")
    for name, (_, skill) in zip(found, skills(found).iterrows(), strict=True):
        yield from ((f"{name}.skill.{method}", f"{of:.0f}") for method, of in skill.items())
    rows = [column.rows["fedlean"] for column in columns_of(of_page("default", "seeds*"))]
    changes = [100 * row["MSE_sd"] / row["MSE"] for row in rows]
    yield "seeds.parts", f"{len(changes)}"
    yield "seeds.mean", f"{mean(changes):.1f}"
    yield "seeds.most", f"{max(changes):.1f}"
    yield from _milan()
    above = above_its_experts()
    yield "short.parts", f"{len(above)}"
    yield "short.above", f"{(above > 3).sum()}"
    yield "short.most", f"{above.max():.1f}"
    for name, (page, *benchmarks) in CLAIMS.items():
        for answer, n in claims_counted(of_page(page, *benchmarks)).items():
            yield f"{name}.{answer}", f"{n}"


def _milan() -> Iterator[tuple[str, str]]:
    (column,) = columns_of(of_page("milan", "federated"))
    sent, own = sent_in_a_round(column), "fedlean, inputs of fuels"
    yield "floats.methods", f"{len(sent)}"
    for name in ("fuels", "fedlean"):
        yield f"floats.{name}", f"{sent[name]:,.0f}"
    yield "floats.own", f"{sent[own]:,.0f}"
    yield "floats.below", f"{100 * (1 - column.mse(own) / column.mse('fuels')):.0f}"
    pairs = tuned(of_page("milan", "federated", "federated_tuned")).values()
    yield "tuned.methods", f"{len(pairs)}"
    yield "tuned.lower", f"{sum(after['MSE'] < before['MSE'] for before, after in pairs)}"
