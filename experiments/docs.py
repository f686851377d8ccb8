"""Generated parts of the documentation.

    python -m experiments.docs                              # tables of guides and results
    python -m experiments.docs tutorials                    # what README and tutorials print
    python -m experiments.docs results/federated            # docs/results/, this benchmark
    python -m experiments.docs check                        # repeats a cheap row of each page

The first takes a minute, as it measures what methods send; the last takes some. A part lies between
`<!-- NAME: generated -->` and `<!-- NAME: end -->`, and a number in the text between `<!--=NAME-->`
and `<!--/-->`; the text around them is written by hand. Tests fail if a page differs from the
registries or from the results, or if a sentence contradicts them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import click
import pandas as pd

from data_prep.base.registry import help_text
from experiments.benchmarks import city, growth, hostile, nodes, prepare, serving
from experiments.benchmarks.cells import above_table, new_tables
from experiments.benchmarks.days import daylight_table, holidays_table
from experiments.benchmarks.deliveries import deliveries_table
from experiments.benchmarks.disclosure import disclosure_table
from experiments.benchmarks.live import live_table
from experiments.benchmarks.mixed import mixed_table
from experiments.benchmarks.plans import AHEAD, sleep_table
from experiments.benchmarks.privacy import privacy_table
from experiments.benchmarks.replay import draw_replay, replay_table
from experiments.benchmarks.zero_shot import weights_table
from experiments.site import forecasts, guides, images, tables
from experiments.site.check import check_page
from experiments.site.forecasts import floats_figure, skill_figure, skill_table
from experiments.site.guides import measured, of_runs
from experiments.site.markdown import as_png, filled, photograph, replaced, shrunk
from experiments.site.measured import RESULTS, Benchmarks, of_page, pages
from experiments.site.numbers import all_numbers
from experiments.site.references import forecasts_sent, images_sent
from experiments.site.results import gather, write_pages
from experiments.site.tutorials import pictures, refreshed
from stforecast.bench.tables import markdown
from stforecast.cli.lists import methods_table
from stforecast.cli.options import HELP
from vision.cli.commands import image_methods_table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS, FIGURES = DOCS / "tutorials", DOCS / "figures"

Part = tuple[str, Callable[[], str]]


def of_results(make: Callable[[Benchmarks], str], page: str, *names: str) -> Callable[[], str]:
    """Return the generator of a table of a page's benchmarks, whose names match patterns."""
    return lambda: make(of_page(page, *names))


milan_table = partial(
    tables.differences,
    shown=("fuels", "fedproto", "fedpm, inputs and network of fuels", "solo", "fedavg"),
)
"""The table of federated methods, with rows that it has whatever their place."""

gain = ("data", "clients", "of a client", "against pooled, %", "against alone, %", "gap closed, %")
"""Ends of the names of the columns on operators and districts."""

degrees = partial(
    tables.worth,
    shown=("division", "cells of a client", "bits", "alone, against pooled, %", "against alone, %"),
)
"""The table of divisions of the cells by how much clients differ."""

RESULT_TABLES: dict[str, Part] = {
    f"{page} {name}": (f"results/{page}.md", of_results(make, page, *names))
    for page, name, make, names in (
        ("default", "table", forecasts.standing, ("who_wins*",)),
        ("default", "pieces", forecasts.standing, ("fedlean*",)),
        ("fedta", "table", tables.points, ("fedta_table1", "fedta_office")),
        ("fuels", "table", tables.differences, ("fuels_*",)),
        ("fuels", "pieces", partial(tables.differences, ablations=True), ("fuels_*",)),
        ("gldp", "table", tables.points, ("gldp_table*", "gldp_mnist")),
        ("intervals", "methods", tables.bounds, ("*",)),
        ("intervals", "table", tables.coverage, ("*",)),
        ("milan", "table", milan_table, ("federated", "federated_day")),
        ("milan", "tuned", forecasts.tuned_table, ("federated", "federated_tuned")),
        ("mixed-precision", "table", lambda found: markdown(tables.changes(found)), ("*",)),
        ("operators", "table", partial(tables.worth, shown=gain), ("operators_m*",)),
        ("operators", "degrees", degrees, ("operators_degrees",)),
        ("peers", "table", forecasts.standing, ("*",)),
        ("pfpl", "table", tables.points, ("pfpl_digits", "pfpl_pacs")),
        ("pfpl", "rounds", tables.points, ("pfpl_rounds",)),
        ("prototypes", "table", forecasts.standing, ("prototypes_[!f]*",)),
        ("prototypes", "fuels", tables.differences, ("prototypes_fuels*",)),
    )
}
"""Tables of the pages of docs/results, by page and name."""

PARTS: dict[str, Part] = RESULT_TABLES | {
    "methods": ("methods.md", methods_table),
    "image methods": ("methods.md", image_methods_table),
    "skill": (
        "choose.md",
        lambda: skill_table(of_page("default", "who_wins*"), "results/default.md"),
    ),
    "hostile": (
        "security.md",
        partial(of_runs, "federation/hostile.csv", hostile.table_of_defences),
    ),
    "robust": ("security.md", partial(of_runs, "federation/robust.csv", hostile.robust_table)),
    "disclosure": ("security.md", partial(of_runs, "federation/disclosure.csv", disclosure_table)),
    "privacy": ("security.md", partial(of_runs, "federation/privacy.csv", privacy_table)),
    "attacks": ("security.md", guides.attacks_table),
    "mixed": ("methods.md", partial(of_runs, "prototypes/mixed.csv", mixed_table)),
    "mixed sizes": ("methods.md", partial(of_runs, "prototypes/mixed-sizes.csv", mixed_table)),
    "hostile live": ("security.md", partial(of_runs, "federation/hostile-live.csv", live_table)),
    "kills": ("federation.md", guides.kills_table),
    "nodes": ("performance.md", guides.nodes_table),
    **{
        name: (page, partial(measured, file, tabulated))
        for name, page, file, tabulated in (
            ("rounds", "performance.md", "performance/rounds", guides.rounds_table),
            ("growth", "performance.md", "performance/growth", growth.COLUMNS),
            ("papers' growth", "performance.md", "performance/growth-papers", growth.COLUMNS),
            ("secure sums", "performance.md", "performance/secure_sum", nodes.secure_table),
            ("image steps", "performance.md", "performance/images", guides.images_table),
            ("readers", "performance.md", "performance/prepare", prepare.COLUMNS),
            ("readers of a table", "performance.md", "performance/prepare-table", prepare.COLUMNS),
            ("city", "performance.md", "performance/city", city.city_table),
            ("shards", "performance.md", "performance/shards", city.city_table),
            ("actors", "performance.md", "performance/shards", city.spread_table),
            ("raw to report", "performance.md", "performance/raw-to-report", city.COMMANDS),
            ("exceedance", "horizons.md", "intervals/exceedance", serving.CALIBRATED),
            ("sums", "horizons.md", "intervals/sums", serving.HELD),
            ("months", "plan.md", "intervals/months", AHEAD),
            ("served", "serve.md", "performance/serve", serving.SERVED),
            ("new cells", "horizons.md", "default/new-cells", new_tables),
        )
    },
    "plain images": ("results/index.md", images.plain_rivals),
    "image cases": ("choose-images.md", images.cases_table),
    "few cells": ("results/default.md", forecasts.few_cells_table),
    "short histories": (
        "results/default.md",
        lambda: above_table(pd.read_csv(forecasts.SHORT_HISTORIES)),
    ),
    "daylight": ("data.md", partial(of_runs, "daylight.csv", daylight_table)),
    "holidays": ("data.md", partial(of_runs, "holidays.csv", holidays_table)),
    "slow clients": ("methods.md", of_results(tables.differences, "milan", "slow_clients")),
    "replay": ("operate.md", partial(of_runs, "replay.csv", replay_table)),
    "sleep": ("plan.md", partial(of_runs, "sleep.csv", sleep_table)),
    "deliveries": ("operate.md", partial(of_runs, "deliveries.csv", deliveries_table)),
    "longer training": ("pretrained.md", partial(of_runs, "pretrained.csv", weights_table)),
}
"""Page and generator of each generated part, by name."""

SENT: dict[str, Part] = {
    "sent": ("methods.md", forecasts_sent),
    "images sent": ("methods.md", images_sent),
}
"""Parts that are measured when they are written, which takes a minute."""

DRAWN: dict[str, Callable[[], bytes]] = {
    "growth": lambda: guides.figure_of("performance/growth", growth.draw_growth),
    "exceedance": lambda: guides.figure_of("intervals/exceedance", serving.draw_exceedance),
    "sums": lambda: guides.figure_of("intervals/sums-coverage", serving.draw_sums),
    "replay": lambda: as_png(draw_replay(pd.read_csv(RESULTS / "replay.csv"))),
    "floats": lambda: floats_figure(of_page("milan", "federated")),
    "skill": lambda: skill_figure(of_page("default", "who_wins*")),
}
"""Figures of results, by the name of the file."""


def write_parts(parts: Mapping[str, Part]) -> None:
    """Write generated parts and numbers to their pages, and draw the figures."""
    for name, (page, make) in parts.items():
        path = DOCS / page
        path.write_text(replaced(path.read_text(), name, make))
    numbers = all_numbers()
    for path in (ROOT / "README.md", *DOCS.rglob("*.md")):
        path.write_text(filled(path.read_text(), numbers))
    for name, draw in DRAWN.items():
        (FIGURES / f"{name}.png").write_bytes(draw())


def run_tutorial(page: Path) -> None:
    """Run a tutorial in an empty folder, and write what it printed and drew."""
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        fresh = refreshed(text)
        if (report := Path("forecast/report.html")).exists():
            photograph(report, Path("forecast.png"))
        drawn = {name: shrunk(Path(name)) for name in pictures(text) if Path(name).exists()}
    for name, picture in drawn.items():
        copy = (DOCS if page.parent == ROOT else page.parent) / "figures" / name
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(picture)
    page.write_text(fresh)


@click.command(help=help_text(__doc__), context_settings=HELP)
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
def main(folders: tuple[Path, ...]) -> None:
    """Update the page of methods, run the tutorials, check results, or gather benchmarks."""
    if folders == (Path("tutorials"),):
        for page in (ROOT / "README.md", *sorted(TUTORIALS.glob("*.md"))):
            run_tutorial(page)
    elif folders == (Path("check"),):
        for page in pages(RESULTS):
            with tempfile.TemporaryDirectory() as folder:
                click.echo(check_page(page.stem, Path(folder)))
    elif folders:
        gather(folders, RESULTS)
        write_parts(PARTS)
    else:
        write_parts(PARTS | SENT)
        write_pages(RESULTS)


if __name__ == "__main__":
    main()
