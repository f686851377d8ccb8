"""Tables of results and their numbers, the page of a benchmark, and comparisons.

Tables are rows of texts until they are written as Markdown, LaTeX or JSON. Texts that show numbers
are `Cell`s, which keep them unrounded.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from tabulate import tabulate

from data_prep.base.files import atomic_path
from stforecast.bench.run_groups import R, grouped
from stforecast.federated.runs.run_folder import Run, write_csv

if TYPE_CHECKING:  # matplotlib is slow to import.
    from stforecast.bench.figures import Gallery

MOST_DECIMALS = 6
"""Maximum number of decimals of a number next to a bar."""

Row = Mapping[str, str]
"""Texts of a table's row by column; a missing one is a dash."""

Part = str | Sequence[Row]
"""A paragraph of Markdown, or a table."""


class Cell(str):
    """A text in a table that keeps what it shows, such as unrounded numbers.

    Attributes:
        kept: values by column of `numbers_of`; "{}" stands for the name of the cell's own column.
    """

    kept: Mapping[str, float | str]

    def __new__(cls, text: str, kept: Mapping[str, float | str]) -> Cell:
        """Return a text that keeps values."""
        cell = super().__new__(cls, text)
        cell.kept = kept
        return cell


def numbers_of(rows: Sequence[Row]) -> list[dict[str, float | str]]:
    """Return a table with numbers in place of texts, without dashes and values that are not finite.

    >>> numbers_of([{"method": "solo", "MSE": number(2 / 3, ".2f"), "p": "-"}])
    [{'method': 'solo', 'MSE': 0.6666666666666666}]
    """
    return [
        {
            name.format(head): value
            for head, cell in row.items()
            for name, value in getattr(cell, "kept", {"{}": cell}).items()
            if value != "-" and (isinstance(value, str) or math.isfinite(value))
        }
        for row in rows
    ]


def number(value: float, form: str = "") -> str:
    """Format a number, to three digits by default, and keep it; a dash if it is not finite.

    >>> number(0.12345), number(0.5, ".2f"), number(float("nan"))
    ('0.123', '0.50', '-')
    """
    if not math.isfinite(value):
        return "-"
    return Cell(f"{value:{form}}" if form else short(value), {"{}": value})


def spread(values: Sequence[float], decimals: int | None = None) -> Cell:
    """Format the mean, and the standard deviation if there are several values.

    By default it has the decimals of the mean's first four digits.

    >>> spread([0.25]), spread([-1e-9], 2), spread([100.0, 120.0]), spread([100.0, 120.0], 2)
    ('0.2500', '0.00', '110.0 ± 14.1', '110.00 ± 14.14')
    """
    mean = float(np.mean(values))
    return mean_of(mean, float(np.std(values, ddof=1)) if len(values) > 1 else None, decimals)


def mean_of(mean: float, deviation: float | None, decimals: int | None = None) -> Cell:
    """Format a mean and, if there is one, a standard deviation, as `spread` does."""
    if decimals is None:
        decimals = max(0, 3 - _exponent(mean)) if math.isfinite(mean) else 3
    text = f"{mean:z.{decimals}f}"
    if deviation is None:
        return Cell(text, {"{}": mean})
    return Cell(f"{text} ± {deviation:.{decimals}f}", {"{}": mean, "{}_sd": deviation})


def mean_and_spread(errors: np.ndarray) -> tuple[float, float]:
    """Return mean and sample standard deviation: 0 for one error, both NaN if one is not finite.

    >>> mean_and_spread(np.array([1.0, 3.0]))
    (2.0, 1.4142135623730951)
    """
    if not np.isfinite(errors).all():
        return math.nan, math.nan
    return float(errors.mean()), float(errors.std(ddof=1)) if len(errors) > 1 else 0.0


def short(value: float) -> str:
    """Format a number to three digits, or as a whole number from a thousand on.

    >>> short(0.12345), short(999.7), short(123456.7)
    ('0.123', '1,000', '123,457')
    """
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def plus_minus(mean: float, deviation: float) -> str:
    """Format a mean to three digits, or more if its deviation requires them.

    >>> plus_minus(0.23541, 0.0123), plus_minus(0.23541, 0.00021), plus_minus(1234.5, 67.8)
    ('0.235 ± 0.012', '0.2354 ± 0.0002', '1,234 ± 68')
    """
    if not math.isfinite(mean):
        return "not finite"
    digits = [2 - _exponent(mean), -_exponent(deviation)] if deviation else [2 - _exponent(mean)]
    decimals = min(max(0, *digits, 0), MOST_DECIMALS)
    text = f"{mean:,.{decimals}f}"
    return f"{text} ± {deviation:,.{decimals}f}" if deviation else text


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def privacy_sentence(about: Mapping[str, Any]) -> str:
    """Tell the guarantee of a run's uploads; empty without one.

    Args:
        about: the run's `run.json`.

    Example:
        >>> found = {"epsilon": 2.5, "delta": 1e-5, "of": "a client's series", "uploads": 3}
        >>> privacy_sentence({"privacy": {**found, "not_covered": ["validation losses"]}})
        "(2.5, 1e-05)-differential privacy of a client's series over 3 uploads; not covered: \
validation losses"
    """
    if not (found := about.get("privacy")):
        return ""
    return (
        f"({found['epsilon']:.3g}, {found['delta']:g})-differential privacy of {found['of']} over "
        f"{found['uploads']} uploads; not covered: {'; '.join(found.get('not_covered', []))}"
    )


def floats(rounds: pd.DataFrame, way: str) -> float:
    """Return the most floats that one client sends (up) or receives (down) in a round.

    >>> reports = {"participants": [3], "failed": [1], "bytes_up": [80], "bytes_down": [240]}
    >>> floats(pd.DataFrame(reports), "up"), floats(pd.DataFrame(reports), "down")
    (10.0, 20.0)
    """
    return float(_by_round(rounds, way).max())


def _by_round(rounds: pd.DataFrame, way: str) -> pd.Series:
    clients = rounds["participants"] - (rounds["failed"] if way == "up" else 0)
    return rounds[f"bytes_{way}"] / clients / 4


def left_out(name: str, runs: Iterable[pd.DataFrame]) -> str:
    """Return a note on the uploads that a method's runs miss; empty if none is missing."""
    tables = [rounds for rounds in runs if len(rounds)]
    failed = sum(int(rounds["failed"].sum()) for rounds in tables)
    if not failed:
        return ""
    wanted = sum(int(rounds["participants"].sum()) for rounds in tables)
    return (
        f"{name}: {failed:,} of {wanted:,} uploads were left out because their clients failed or "
        "diverged"
    )


POOLED_MARK = "†"
"""Mark of rows that pooled the data of all clients."""


def marked(name: str, *, pools: bool) -> str:
    """Return the name of a row, with a mark if it pooled the data of all clients."""
    return Cell(f"{name} {POOLED_MARK}", {"{}": name, "pools": "yes"}) if pools else name


def in_sections(
    runs: Sequence[R],
    failures: Mapping[str, str],
    key: Callable[[R], tuple[str, ...]],
    section: Callable[[Sequence[R]], list[Part]],
) -> list[Part]:
    """Return a section for the runs of each key, then the failed runs by name."""
    parts = [part for some in grouped(runs, key).values() for part in section(some)]
    if failures:
        parts += ["Failed:", "\n".join(f"- {name}: {e}" for name, e in failures.items())]
    return parts


def in_markdown(parts: Iterable[Part]) -> str:
    """Return paragraphs and tables as Markdown."""
    return "\n\n".join(p if isinstance(p, str) else markdown(p) for p in parts)


def markdown(rows: Sequence[Row]) -> str:
    r"""Return a Markdown table with dashes for missing entries.

    >>> print(markdown([{"method": "a|b"}]).splitlines()[-1])
    | a\|b     |
    """
    rows = [{n.replace("|", r"\|"): t.replace("|", r"\|") for n, t in row.items()} for row in rows]
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True, missingval="-")


def for_terminal(rows: Sequence[Row]) -> str:
    """Return a table for a terminal."""
    return tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True)


def latex(rows: Sequence[Row]) -> str:
    r"""Return a LaTeX table for the package booktabs, with dashes for missing entries.

    LaTeX takes a bracket at the beginning of a row for an option of the row before.

    >>> print(latex([{"method": "[1]", "MSE": "0.2 ± 0.1"}]))
    \begin{tabular}{ll}
    \toprule
     method   & MSE       \\
    \midrule
     {[}1]      & 0.2 ± 0.1 \\
    \bottomrule
    \end{tabular}
    """
    table = tabulate(
        rows, headers="keys", tablefmt="latex_booktabs", disable_numparse=True, missingval="-"
    )
    return table.replace("\n [", "\n {[}")


def floats_up_and_down(run: Run) -> Cell:
    """Return the numbers of floats that a client sends and receives in a round."""
    found = {f"floats a round, {way}": floats(run.rounds(), way) for way in ("up", "down")}
    return Cell(" / ".join(f"{n:,.0f}" for n in found.values()), found)


def traffic_sentence(run: Run) -> str:
    """Return the floats that a client sends and receives in a round, as a sentence."""
    rounds = run.rounds()
    sent, received = floats(rounds, "up"), floats(rounds, "down")
    in_all = float(_by_round(rounds, "up").sum())
    if math.isclose(in_all, sent * len(rounds)):
        return f"in a round a client sends {sent:,.0f} floats and receives {received:,.0f}"
    return (
        f"in a round a client sends at most {sent:,.0f} floats and receives {received:,.0f}; it "
        f"sends {in_all:,.0f} in all rounds"
    )


def facts_to_repeat(runs: Sequence[Run]) -> dict[str, str]:
    """Return what is needed to repeat the runs, and when and where this was written."""
    abouts = [run.about for run in runs]
    rounds = {a["settings"]["rounds"] for a in abouts if a.get("federated", True)}
    seconds, of_machine = sum(a["seconds"] for a in abouts), ("commit", "processor", "threads")
    found = {
        "written": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "rounds": ", ".join(map(str, sorted(rounds))),
        "seeds": _seeds(runs),
        "versions": versions_of(runs),
        **{n: _listed({a["made_with"][n] for a in abouts if "made_with" in a}) for n in of_machine},
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "data": "; ".join(dict.fromkeys(filter(None, map(_data_of, abouts)))),
        "runs": f"{len(runs)}, {seconds / 60:.1f} minutes in total",
    }
    return {name: value for name, value in found.items() if value}


def versions_of(runs: Iterable[Run]) -> str:
    """List the packages, with their versions, that runs were made with."""
    found = {f"{p} {v}" for run in runs for p, v in run.about.get("versions", {}).items()}
    return ", ".join(sorted(found))


def _seeds(runs: Sequence[Run]) -> str:
    """List the seeds of the runs, and the rows that have only some of them."""
    of_rows: dict[str, set[int]] = {}
    for run in runs:
        of_rows.setdefault(run.label, set()).add(run.seed)
    every = set[int]().union(*of_rows.values())
    rows: dict[str, list[str]] = {}
    for label, seeds in of_rows.items():
        if seeds < every:
            rows.setdefault(_listed(seeds), []).append(label)
    fewer = [f"(only {seeds}: {'; '.join(labels)})" for seeds, labels in rows.items()]
    return " ".join([_listed(every), *fewer])


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, sorted(values)))


def _data_of(about: Mapping[str, Any]) -> str:
    """Return name and fingerprint of a run's data, and the command that prepared them."""
    name = Path(str(about.get("data", ""))).name
    found = f"{name} {about.get('content', '')[:19]}".strip()
    return f"{found} by `{about['prepared_by']}`" if about.get("prepared_by") else found


def write_page(
    out: Path, about: Mapping[str, Any], parts: Sequence[Part], gallery: Gallery
) -> None:
    """Write results as `table.md`, with figures, `.json`, with numbers unrounded, and `.tex`.

    They begin with the title, the command and the facts to repeat in `about`.
    """
    facts = "\n".join(f"- {name}: {value}" for name, value in about["facts"].items())
    page = [f"# {about['title']}", f"    {about['command']}", facts, *parts, gallery.markdown(out)]
    plain = [part if isinstance(part, str) else numbers_of(part) for part in parts]
    found = json.dumps({**about, "parts": plain}, indent=1, ensure_ascii=False, allow_nan=False)
    latex_parts = (
        textwrap.indent(p, "% ", bool) if isinstance(p, str) else latex(p) for p in parts
    )
    tex = "\n\n".join(latex_parts)  # Paragraphs are comments.
    texts = {".md": in_markdown(filter(None, page)), ".tex": tex, ".json": found}
    for ending, text in texts.items():
        with atomic_path(out / f"table{ending}") as part:
            part.write_text(text + "\n")


@dataclass(frozen=True)
class ComparedTable:
    """Comparison of the runs on the same data.

    Attributes:
        name: name of the data.
        rows: rows of the table.
        claims: its conclusions, in Markdown.
        basis: subject of its intervals.
        numbers: every number, a row for each method.
    """

    name: str
    rows: Sequence[Row]
    claims: Sequence[str] = ()
    basis: Sequence[str] = ()
    numbers: Sequence[Mapping[str, object]] = ()

    @property
    def plain_claims(self) -> list[str]:
        """Return what it shows, without marks."""
        return [claim.replace("**", "") for claim in self.claims]

    def parts(self) -> list[Part]:
        """Return the table and its conclusions."""
        return [*([self.rows] if self.rows else []), *self.claims, *self.basis]


@dataclass(frozen=True)
class Compared:
    """Result of `stforecast compare`.

    Attributes:
        tables: a table for the runs on the same data, and one over all data if there are several.
        legend: meaning of the columns.
        draw: function that draws figures into a folder, and returns how many.
    """

    tables: Sequence[ComparedTable]
    legend: Sequence[str]
    draw: Callable[[Path], int] = lambda folder: 0

    @property
    def numbers(self) -> pd.DataFrame:
        """Return every number, a row for each table and method."""
        return pd.DataFrame([row for table in self.tables for row in table.numbers])

    @property
    def text(self) -> str:
        """Return tables and their conclusions, for the terminal."""
        parts = [
            part
            for table in self.tables
            for part in (table.name, for_terminal(table.rows), *table.plain_claims, *table.basis)
        ]
        return "\n\n".join(filter(None, [*parts, "\n".join(self.legend)]))

    def write(self, out: Path) -> int:
        """Write `comparison.md`, `.tex` and `.csv`, with all numbers unrounded; return `draw`."""
        page: list[Part] = ["# Comparison"]
        tex: list[Part] = []
        for table in self.tables:
            page += [f"## {table.name}", *table.parts()]
            tex += [f"% {table.name}\n{latex(table.rows)}"]
        out.mkdir(parents=True, exist_ok=True)
        for ending, parts in ((".md", [*page, *self.legend]), (".tex", tex)):
            with atomic_path(out / f"comparison{ending}") as part:
                part.write_text(in_markdown(parts) + "\n")
        write_csv(self.numbers, out / "comparison.csv")
        return self.draw(out)
