"""Generated parts of the documentation.

    python -m experiments.docs                              # tables of guides and results
    python -m experiments.docs tutorials                    # what README and tutorials print
    python -m experiments.docs results/milan25 results/city # docs/results/, these benchmarks

The first takes a minute, as it measures what methods send. A part lies between
`<!-- NAME: generated -->` and `<!-- NAME: end -->`; the text around it is kept.
A benchmark goes beside the page of `docs/results/` that names it in its line
`<!-- benchmarks: … -->`. What was measured on nodes, in docs/results/federation, on speed, in
docs/results/performance, of few cells, in docs/results/default, and of changes of the clock, in
docs/results/daylight.csv, goes to the pages of security, federation, performance, the default
method and data. Tests fail if a page differs from the registries or
from the results.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from experiments.site import guides
from experiments.site.default_method import few_cells, skill_figure, skill_table
from experiments.site.markdown import replaced, shrunk
from experiments.site.measured import load
from experiments.site.references import forecasts_sent, images_sent
from experiments.site.results import gather, write_pages
from experiments.site.tables import chosen
from experiments.site.tutorials import pictures, refreshed
from stforecast.cli.lists import methods_table
from stforecast.cli.options import HELP, help_text
from vision.cli.commands import image_methods_table

ROOT = Path(__file__).parents[1]
METHODS = ROOT / "docs" / "methods.md"
GUIDE = ROOT / "docs" / "choose.md"
TUTORIALS = ROOT / "docs" / "tutorials"
RESULTS = ROOT / "docs" / "results"
FIGURES = ROOT / "docs" / "figures"
DEFAULT = RESULTS / "default.md"

PARTS: dict[str, Callable[[], str]] = {
    "methods": methods_table,
    "image methods": image_methods_table,
}
"""Generator of each generated part of the page of methods, by name."""

MEASURED: dict[str, Callable[[], str]] = {"sent": forecasts_sent, "images sent": images_sent}
"""Generator of each measured part of that page, which take a minute together."""

PERFORMANCE = ROOT / "docs" / "performance.md"

BENCHMARKS: dict[str, tuple[Path, Callable[[], str]]] = {
    "hostile": (ROOT / "docs" / "security.md", guides.hostile_table),
    "robust": (ROOT / "docs" / "security.md", guides.robust_table),
    "attacks": (ROOT / "docs" / "security.md", guides.attacks_table),
    "hostile live": (ROOT / "docs" / "security.md", guides.hostile_live_table),
    "kills": (ROOT / "docs" / "federation.md", guides.kills_text),
    "nodes": (PERFORMANCE, guides.nodes_tables),
    "rounds": (PERFORMANCE, guides.rounds_table),
    "growth": (PERFORMANCE, guides.growth_table),
    "secure sums": (PERFORMANCE, guides.secure_sum_table),
    "image steps": (PERFORMANCE, guides.images_table),
    "few cells": (DEFAULT, few_cells),
    "daylight": (ROOT / "docs" / "data.md", guides.daylight_table),
    "new cells": (ROOT / "docs" / "horizons.md", guides.new_cells_tables),
    "readers": (PERFORMANCE, guides.prepare_table),
    "city": (PERFORMANCE, guides.city_table),
}
"""Page and generator of each part that tells what a benchmark measured, by name."""


def updated(text: str, measured: bool = False) -> str:
    """Return the page of methods with every generated part updated.

    Args:
        text: the page.
        measured: whether to measure anew what methods send, too.
    """
    for name, make in (PARTS | MEASURED if measured else PARTS).items():
        text = replaced(text, name, make)
    return text


def guided(text: str) -> str:
    """Return the guide "Choose a method" with the skill that was measured."""
    benchmarks = chosen(load(DEFAULT), ["who_wins*"])
    return replaced(text, "skill", lambda: skill_table(benchmarks, "results/default.md"))


def write_guide() -> None:
    """Write the skill of methods to the guide, and draw it."""
    GUIDE.write_text(guided(GUIDE.read_text()))
    figure = skill_figure(chosen(load(DEFAULT), ["who_wins*"]))
    (FIGURES / "skill.png").write_bytes(figure)


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


@click.command(help=help_text(__doc__), context_settings=HELP)
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
def main(folders: tuple[Path, ...]) -> None:
    """Update the page of methods, run the tutorials, or gather benchmarks."""
    if folders == (Path("tutorials"),):
        for page in (ROOT / "README.md", *sorted(TUTORIALS.glob("*.md"))):
            run_tutorial(page)
    elif folders:
        gather(folders, RESULTS)
        write_guide()
    else:
        METHODS.write_text(updated(METHODS.read_text(), measured=True))
        for name, (page, make) in BENCHMARKS.items():
            page.write_text(replaced(page.read_text(), name, make))
        (FIGURES / "growth.png").write_bytes(guides.growth_figure())
        write_pages(RESULTS)
        write_guide()


if __name__ == "__main__":
    main()
