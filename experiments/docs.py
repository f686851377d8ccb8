"""Generated parts of the documentation.

    python -m experiments.docs                              # docs/methods.md and docs/choose.md
    python -m experiments.docs tutorials                    # what the tutorials print and draw
    python -m experiments.docs results/milan25 results/city # docs/results.md, these benchmarks

A part lies between `<!-- NAME: generated -->` and `<!-- NAME: end -->`; the text around it is kept.
Tests fail if `docs/methods.md` differs from the registries, or `docs/choose.md` from the results.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from PIL import Image

from data_prep.cube import atomic_path
from data_prep.errors import InputError, no_file
from experiments.lists import image_methods_table, methods_table
from experiments.site.skills import skill_table
from experiments.site.tutorials import pictures, refreshed

ROOT = Path(__file__).parents[1]
METHODS = ROOT / "docs" / "methods.md"
GUIDE = ROOT / "docs" / "choose.md"
TUTORIALS = ROOT / "docs" / "tutorials"
RESULTS = ROOT / "docs" / "results.md"

PARTS: dict[str, Callable[[], str]] = {
    "methods": methods_table,
    "image methods": image_methods_table,
}
"""Generator of each generated part of the page of methods, by name."""

MOST_BYTES = 200_000
"""Maximum size of a figure in the repository."""

CHOICE = ", choosing from "
"""Words that stand in every sentence about images, and in none about forecasts."""

EMPTY = "# Results\n\n<!-- results: generated -->\n<!-- results: end -->\n"


def updated(text: str) -> str:
    """Return the page of methods with every generated part updated."""
    for name, make in PARTS.items():
        text = replaced(text, name, make)
    return text


def guided(text: str, results: str) -> str:
    """Return the guide "Choose a method" with the skill that the page of results states."""
    return replaced(text, "skill", lambda: skill_table(_sections(results)))


def replaced(text: str, name: str, make: Callable[[], str]) -> str:
    """Return the text with one part updated, if it has that part."""
    begin, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
    before, found, rest = text.partition(begin)
    return f"{before}{begin}\n{make()}\n{end}{rest.partition(end)[2]}" if found else text


def gather(folders: Sequence[Path], page: Path = RESULTS) -> None:
    """Put the tables of benchmarks on one page, and their figures in `figures/` next to it.

    Tables of other benchmarks that the page has are kept. Where it has parts `claims` and `image
    claims`, what the numbers of each benchmark of forecasts or of images show is listed there.

    Args:
        folders: folders written by `stforecast bench`, with different names.
        page: Markdown file to write; other text of an existing file is kept.

    Raises:
        InputError: if a folder has no table, two have the same name, or the page has no generated
            part.
    """
    tables = {folder.resolve().name: _table(folder) for folder in folders}
    if len(tables) < len(folders):
        raise InputError("two of these folders have the same name; rename one")
    old = page.read_text() if page.exists() else EMPTY
    if "<!-- results: generated -->" not in old:
        raise InputError(f"{page} has no line <!-- results: generated -->; add it and its end")
    for folder, (name, text) in zip(folders, tables.items(), strict=True):
        for figure in sorted((folder / "figures").glob("*.png")):
            copy = page.parent / "figures" / f"{name}-{figure.name}"
            with atomic_path(copy) as part:
                part.write_bytes(shrunk(figure))
            text = text.replace(f"(figures/{figure.name})", f"(figures/{copy.name})")
        tables[name] = f"#{text.strip()}"
    every = {**_sections(old), **tables}
    parts = [_contents(every), *(f'<a id="{name}"></a>\n\n{text}' for name, text in every.items())]
    new = replaced(old, "results", lambda: "\n\n".join(parts))
    new = replaced(new, "claims", lambda: _claims(every, of_images=False))
    new = replaced(new, "image claims", lambda: _claims(every, of_images=True))
    with atomic_path(page) as part:
        part.write_text(new)


def _sections(page: str) -> dict[str, str]:
    """Return the tables that a page has, by the benchmark's name."""
    generated = page.partition("<!-- results: generated -->")[2].partition("<!-- results: end -->")[
        0
    ]
    pieces = re.split(r'^<a id="([^"]+)"></a>$', generated, flags=re.M)
    return {name: text.strip() for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def _claims(tables: dict[str, str], *, of_images: bool) -> str:
    """List what the numbers of benchmarks of one kind show, with links to their tables."""
    lines, titles = [], _titles(tables)
    for name, text in tables.items():
        said = [
            line
            for line in text.splitlines()
            if line.startswith("On ") and (CHOICE in line) == of_images
        ]
        if said:
            lines.append(f"**[{titles[name]}](#{name})**\n\n" + "\n".join(f"- {s}" for s in said))
    return "\n\n".join(lines)


def _table(folder: Path) -> str:
    path = folder / "table.md"
    if not path.is_file():
        raise no_file(path, "table", "give folders that `stforecast bench` wrote")
    return path.read_text()


def _contents(tables: dict[str, str]) -> str:
    return "\n".join(f"- [{title}](#{name})" for name, title in _titles(tables).items())


def _titles(tables: dict[str, str]) -> dict[str, str]:
    """Return the title of each table, with the benchmark's name where several share a title."""
    titles = {name: text.partition("\n")[0].lstrip("# ") for name, text in tables.items()}
    often = Counter(titles.values())
    return {n: f"{title}: {n}" if often[title] > 1 else title for n, title in titles.items()}


def run_tutorial(page: Path) -> None:
    """Run a tutorial in an empty folder, and write what it printed and drew."""
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        fresh = refreshed(text)
        drawn = {name: shrunk(Path(name)) for name in pictures(text)}
    for name, picture in drawn.items():
        copy = page.parent / "figures" / name
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(picture)
    page.write_text(fresh)


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


@click.command(help=__doc__)
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
def main(folders: tuple[Path, ...]) -> None:
    """Update the page of methods, run the tutorials, or gather benchmarks."""
    if folders == (Path("tutorials"),):
        for page in sorted(TUTORIALS.glob("*.md")):
            run_tutorial(page)
    elif folders:
        gather(folders)
        GUIDE.write_text(guided(GUIDE.read_text(), RESULTS.read_text()))
    else:
        METHODS.write_text(updated(METHODS.read_text()))
        GUIDE.write_text(guided(GUIDE.read_text(), RESULTS.read_text()))


if __name__ == "__main__":
    main()
