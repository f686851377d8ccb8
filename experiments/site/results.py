"""The pages of `docs/results/`: tables of benchmarks, what their numbers show, and the contents.

A page names its benchmarks in a line `<!-- benchmarks: who_wins_*, fedlean -->` and shows them in
the part `results`; where it has a part `claims`, what their numbers show is listed there.
`index.md` has the part `contents`. A page of `docs/papers/` of the same name may have the part
`answers`: the answers to the paper's claims that stand in the tables.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from PIL import Image

from data_prep.base.errors import InputError, no_file
from data_prep.base.files import atomic_path
from experiments.site.coverages import coverage_table
from experiments.site.markdown_tables import data_of
from experiments.site.standings import standing_table
from vision.cli.claims import HEADING

MOST_BYTES = 200_000
"""Maximum size of a figure in the repository."""

INDEX = "index.md"

WIDTH = 100

NAMES = re.compile(r"^<!-- benchmarks: (.*) -->$", re.M)

Sections = dict[str, str]
"""Sections of benchmarks by the benchmark's name."""


def gather(folders: Sequence[Path], results: Path) -> None:
    """Put the tables of benchmarks on their pages, and their figures in `../figures/`.

    Tables of other benchmarks and all other text of the pages are kept.

    Args:
        folders: folders written by `stforecast bench`, with different names.
        results: folder of the pages.

    Raises:
        InputError: if a folder has no table, two have the same name, or not exactly one page names
            a benchmark.
    """
    tables = {folder.resolve().name: _table(folder) for folder in folders}
    if len(tables) < len(folders):
        raise InputError("two of these folders have the same name; rename one")
    places = {name: page_of(name, results) for name in tables}
    for folder, (name, text) in zip(folders, tables.items(), strict=True):
        for figure in sorted((folder / "figures").glob("*.png")):
            copy = results.parent / "figures" / f"{name}-{figure.name}"
            with atomic_path(copy) as part:
                part.write_bytes(shrunk(figure))
            text = text.replace(f"(figures/{figure.name})", f"(../figures/{copy.name})")
        tables[name] = wrapped(f"#{text.strip()}")
    for page in set(places.values()):
        new = {name: text for name, text in tables.items() if places[name] == page}
        _write(page, with_sections(page.read_text(), new))
        paper = results.parent / "papers" / page.name
        if paper.is_file():
            _write(paper, with_answers(paper.read_text(), page))
    index = results / INDEX
    _write(index, replaced(index.read_text(), "contents", lambda: contents(results)))


def pages(results: Path) -> list[Path]:
    """Return the pages that show benchmarks, by title."""
    found = [path for path in results.glob("*.md") if NAMES.search(path.read_text())]
    return sorted(found, key=lambda path: path.read_text().casefold())


def page_of(name: str, results: Path) -> Path:
    """Return the page that names a benchmark.

    Raises:
        InputError: if no page does, or several do.
    """
    every = {page: NAMES.findall(page.read_text())[0].split(", ") for page in pages(results)}
    found = [page for page, names in every.items() if any(fnmatchcase(name, n) for n in names)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(page.name for page in found or every)
    wrong = "pages name this benchmark" if found else "no page names this benchmark"
    raise InputError(
        f"{name}: {wrong} ({known}); name it in the line <!-- benchmarks: … --> of one page in "
        f"{results}"
    )


def sections_of(page: str) -> Sections:
    """Return the sections that a page has."""
    pieces = re.split(r'^<a id="([^"]+)"></a>$', _part(page, "results"), flags=re.M)
    return {name: text.strip() for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def with_sections(page: str, new: Mapping[str, str]) -> str:
    """Return a page with these sections in place of its own of the same names, or after them."""
    every = _told_apart({**sections_of(page), **new})
    parts = [f'<a id="{name}"></a>\n\n{text}' for name, text in every.items()]
    page = replaced(page, "results", lambda: "\n\n".join(parts))
    page = replaced(page, "coverage", lambda: coverage_table(every))
    page = replaced(page, "standing", lambda: standing_table(every))
    return replaced(page, "claims", lambda: _claims(every))


def with_answers(paper: str, results: Path) -> str:
    """Return a paper's page with the answers to its claims that stand on its page of results."""
    return replaced(paper, "answers", lambda: _answers(results))


def contents(results: Path) -> str:
    """List the pages and their sections, with links."""
    lines = []
    for path in pages(results):
        text = path.read_text()
        lines.append(f"- [{_title(text)}]({path.name})")
        sections = sections_of(text).items()
        lines += [f"    - [{_title(section)}]({path.name}#{name})" for name, section in sections]
    return "\n".join(lines)


def replaced(text: str, name: str, make: Callable[[], str]) -> str:
    """Return the text with one part updated, if it has that part."""
    begin, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
    before, found, rest = text.partition(begin)
    return f"{before}{begin}\n{make()}\n{end}{rest.partition(end)[2]}" if found else text


def wrapped(text: str) -> str:
    """Return Markdown with paragraphs and items of lists filled; tables and code are kept."""
    return "\n\n".join(map(_filled, text.split("\n\n")))


def shrunk(path: Path) -> bytes:
    """Return a PNG with a colour palette, scaled down if necessary to stay below `MOST_BYTES`."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    while True:
        buffer = io.BytesIO()
        image.quantize(256).save(buffer, "PNG", optimize=True)
        if buffer.tell() <= MOST_BYTES:
            return buffer.getvalue()
        image = image.resize((image.width * 4 // 5, image.height * 4 // 5))


def _table(folder: Path) -> str:
    path = folder / "table.md"
    if not path.is_file():
        raise no_file(path, "table", "give folders that `stforecast bench` wrote")
    return path.read_text()


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as part:
        part.write_text(text)


def _part(page: str, name: str) -> str:
    return page.partition(f"<!-- {name}: generated -->")[2].partition(f"<!-- {name}: end -->")[0]


def _title(text: str) -> str:
    return text.partition("\n")[0].lstrip("# ")


def _told_apart(sections: Sections) -> Sections:
    """Return the sections with their data, or their names, in the titles that several share."""
    marks = {name: data_of(text) or name for name, text in sections.items()}
    bare = {n: _title(text).removesuffix(f": {marks[n]}") for n, text in sections.items()}
    often = Counter(bare.values())
    titles = {n: f"{t}: {marks[n]}" if often[t] > 1 else t for n, t in bare.items()}
    return {n: "\n".join([f"## {titles[n]}", *_below(text)]) for n, text in sections.items()}


def _below(text: str) -> list[str]:
    return text.splitlines()[1:]


def _claims(sections: Sections) -> str:
    """List what the numbers of benchmarks show, with links to their tables."""
    lists = []
    for name, text in sections.items():
        said = [part for part in text.split("\n\n") if part.startswith("On ")]
        if said:
            items = "\n".join(_filled("- " + " ".join(part.split())) for part in said)
            lists.append(f"**[{_title(text)}](#{name})**\n\n{items}")
    return "\n\n".join(lists)


def _answers(results: Path) -> str:
    """Gather the tables of answers of a page; the rows of one claim stand together."""
    head = f"| {HEADING} | of | here | answer |\n|---|---|---|---|"
    by_claim: dict[str, list[str]] = {}
    for name, text in sections_of(results.read_text()).items():
        table = text.partition(f"\n| {HEADING} ")[2].partition("\n\n")[0]
        for row in table.splitlines()[2:]:
            claim, data, here, answer = (cell.strip() for cell in row.strip("|").split("|"))
            place = data if data == "-" else f"[{data}](../results/{results.name}#{name})"
            own = by_claim.setdefault(claim, [])
            if not own or data != "-":
                own.append(f"| {'' if own else claim} | {place} | {here} | **{answer}** |")
    return "\n".join([head, *(line for own in by_claim.values() for line in own)])


def _filled(paragraph: str) -> str:
    if paragraph.startswith(("|", "#", "!", "<", "    ")):
        return paragraph
    items = re.split(r"\n(?=- )", paragraph)
    return "\n".join(
        textwrap.fill(
            item, WIDTH, subsequent_indent="  " if item.startswith("- ") else "",
            break_long_words=False, break_on_hyphens=False,
        )
        for item in items
    )  # fmt: skip
