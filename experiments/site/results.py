"""The pages of `docs/results/`: answers, tables, and how they were made.

A page shows its entry in `PAGES` in the parts `answer` and `table`, and lists its benchmarks in
the part `made`. A page of `docs/papers/` of the same name may have the part `answers`: the answers
to the paper's claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from data_prep.base.errors import InputError
from data_prep.base.files import atomic_path
from experiments.site import default_method, images, tables
from experiments.site.markdown import replaced, shrunk, wrapped
from experiments.site.measured import (
    Benchmarks,
    benchmarks_of,
    chosen,
    page_of,
    pages,
    read_folder,
    save,
)
from vision.cli.compare import HEADING

Write = Callable[[Benchmarks], str]


class Page(NamedTuple):
    """What a page tells.

    Attributes:
        names: names of the benchmarks that its table is about, as patterns.
        table: returns that table.
        answer: returns the answer to the page's question, of the same benchmarks and `further`.
        further: names of the benchmarks that only the answer is about.
    """

    names: tuple[str, ...]
    table: Write
    answer: Write
    further: tuple[str, ...] = ()


FEDERATED_SHOWN = ("fuels", "fedproto", "fedpm, inputs and network of fuels", "solo", "fedavg")
"""Rows of the table of federated methods that it has whatever their place."""

ALONE_OR_AVERAGED = (
    "ridge alone, same inputs",
    "solo, same inputs",
    "fedavg, same inputs",
    "fedavg linear, same inputs",
)
"""Rows that the answer on prototypes names."""

PAGES = {
    "default": Page(("who_wins*",), default_method.standing, default_method.standing_answer),
    "fedta": Page(
        ("fedta_table1", "fedta_office"), tables.points, images.answers, ("fedta_with_prompts",)
    ),
    "fuels": Page(("fuels_*",), partial(tables.differences, ablations=True), tables.said),
    "gldp": Page(("gldp_table*", "gldp_mnist"), tables.points, images.answers),
    "intervals": Page(("*",), tables.coverage, tables.coverage_answer),
    "milan": Page(
        ("federated", "federated_day"),
        partial(tables.differences, shown=FEDERATED_SHOWN),
        default_method.federated_answer,
    ),
    "mixed-precision": Page(("*",), tables.changes, tables.changes_answer),
    "operators": Page(("*",), tables.worth, partial(tables.said, words=" gap ")),
    "peers": Page(("*",), default_method.standing, default_method.standing_answer),
    "prototypes": Page(
        ("prototypes_[!f]*",),
        default_method.standing,
        partial(default_method.rivals_answer, rivals=ALONE_OR_AVERAGED),
    ),
    "pfpl": Page(("pfpl_digits", "pfpl_pacs"), tables.points, images.answers),
}
"""What each page tells, by its name."""


def gather(folders: Sequence[Path], results: Path) -> None:
    """Put the results of benchmarks next to their pages, and update these.

    Other benchmarks and all other text of the pages are kept. Of the figures, those that a page
    shows are copied to `../figures/`.

    Raises:
        InputError: if a folder has no table, two have the same name, or not exactly one page names
            a benchmark.
    """
    found = {folder.resolve().name: read_folder(folder) for folder in folders}
    if len(found) < len(folders):
        raise InputError("two of these folders have the same name; rename one")
    places = {name: page_of(name, results) for name in found}
    for page in set(places.values()):
        new = {name: benchmark for name, benchmark in found.items() if places[name] == page}
        save(page, benchmarks_of(page) | new)
    for folder in folders:
        shown = places[folder.resolve().name].read_text()
        for figure in sorted((folder / "figures").glob("*.png")):
            copy = results.parent / "figures" / f"{folder.resolve().name}-{figure.name}"
            if f"(../figures/{copy.name})" in shown:
                with atomic_path(copy) as part:
                    part.write_bytes(shrunk(figure))
    write_pages(results)


def write_pages(results: Path) -> None:
    """Write the generated parts of all pages again."""
    for page in pages(results):
        _write(page, updated(page.read_text(), page))
        paper = results.parent / "papers" / page.name
        if paper.is_file():
            _write(paper, with_answers(paper.read_text(), page))


def updated(text: str, page: Path) -> str:
    """Return the text of a page with its generated parts as its benchmarks say today."""
    benchmarks = benchmarks_of(page)
    if told := PAGES.get(page.stem):
        own = chosen(benchmarks, told.names)
        asked = chosen(benchmarks, (*told.names, *told.further))
        text = replaced(text, "answer", lambda: wrapped(told.answer(asked)))
        text = replaced(text, "table", lambda: wrapped(told.table(own)))
    return replaced(text, "made", lambda: made(benchmarks, page))


def made(benchmarks: Benchmarks, page: Path) -> str:
    """List the benchmarks, and link the whole tables."""
    files = sorted(page.with_suffix("").glob("*.csv"))
    links = ", ".join(f"[{path.name}]({page.stem}/{path.name})" for path in files)
    items = [f'- <a id="{n}"></a>{tables.title_of(n, benchmarks)}' for n in benchmarks]
    told = f"[benchmarks.json]({page.stem}/benchmarks.json)"
    head = f"All numbers: {links}. Commands, dates, machines and the columns' meaning: {told}."
    return "\n".join([wrapped(head), "", *items])


def with_answers(paper: str, page: Path) -> str:
    """Return a paper's page with the answers to its claims that its benchmarks give."""
    return replaced(paper, "answers", lambda: _answers(benchmarks_of(page), page))


def _answers(benchmarks: Benchmarks, page: Path) -> str:
    """Gather the answers of a page; the rows of one claim stand together."""
    head = f"| {HEADING} | of | here | answer |\n|---|---|---|---|"
    by_claim: dict[str, list[str]] = {}
    for name, benchmark in benchmarks.items():
        for row in benchmark.tables.get("claims", []):
            place = f"[{row['of']}](../results/{page.name}#{name})" if "of" in row else "-"
            own = by_claim.setdefault(row[HEADING], [])
            if not own or "of" in row:
                claim = "" if own else row[HEADING]
                told = f"**{row['answer']}**{images.seeds_to_tell(row)}"
                own.append(f"| {claim} | {place} | {row['here']} | {told} |")
    return "\n".join([head, *(line for own in by_claim.values() for line in own)])


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as part:
        part.write_text(text)
