"""Generated parts of the documentation.

    python -m experiments.docs                              # tables of guides and results
    python -m experiments.docs tutorials                    # what README and tutorials print
    python -m experiments.docs results/federated            # docs/results/, this benchmark

The first takes a minute, as it measures what methods send. A part lies between
`<!-- NAME: generated -->` and `<!-- NAME: end -->`; the text around it is kept.
A benchmark goes beside the page of `docs/results/` that names it in its line
`<!-- benchmarks: … -->`. What was measured on nodes, in docs/results/federation, on speed, in
docs/results/performance, of few cells, in docs/results/default, of changes of the clock, in
docs/results/daylight.csv, of days replayed, in docs/results/replay.csv, and of deliveries, in
docs/results/deliveries.csv, goes to the pages of
security, federation, performance, the default method, data and operation. Tests fail if a page
differs from the registries or from the results.
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
from experiments.benchmarks import hostile
from experiments.benchmarks.cells import daylight_table
from experiments.benchmarks.deliveries import deliveries_text
from experiments.benchmarks.disclosure import disclosure_table
from experiments.benchmarks.live import live_table
from experiments.benchmarks.privacy import privacy_table
from experiments.benchmarks.replay import draw_replay, replay_text
from experiments.site import guides, images
from experiments.site.default_method import (
    few_cells_list,
    floats_caption,
    floats_figure,
    pieces_list,
    seeds_told,
    short_histories_table,
    skill_figure,
    skill_table,
    tuned_list,
)
from experiments.site.guides import of_runs
from experiments.site.markdown import as_png, photograph, replaced, shrunk, wrapped
from experiments.site.measured import RESULTS, of_page
from experiments.site.references import forecasts_sent, images_sent
from experiments.site.results import gather, write_pages
from experiments.site.tables import differences, verdicts
from experiments.site.tutorials import pictures, refreshed
from stforecast.cli.lists import methods_table
from stforecast.cli.options import HELP
from vision.cli.commands import image_methods_table

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIALS, FIGURES = DOCS / "tutorials", DOCS / "figures"


Part = tuple[str, Callable[[], str]]

PARTS: dict[str, Part] = {
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
    "hostile live": ("security.md", partial(of_runs, "federation/hostile-live.csv", live_table)),
    "kills": ("federation.md", guides.kills_text),
    "nodes": ("performance.md", guides.nodes_tables),
    "rounds": ("performance.md", guides.rounds_table),
    "growth": ("performance.md", guides.growth_table),
    "secure sums": ("performance.md", guides.secure_sum_table),
    "image steps": ("performance.md", guides.images_table),
    "readers": ("performance.md", guides.prepare_table),
    "readers of a table": ("performance.md", guides.own_table),
    "city": ("performance.md", guides.city_page_table),
    "growth with the paper's sizes": ("performance.md", guides.papers_growth_table),
    "raw to report": ("performance.md", guides.raw_to_report_table),
    "plain images": ("results/index.md", images.plain_rivals),
    "image cases": ("choose-images.md", images.cases_table),
    "few cells": ("results/default.md", few_cells_list),
    "short histories": ("results/default.md", short_histories_table),
    "tuned": (
        "results/milan.md",
        lambda: tuned_list(of_page("milan", "federated", "federated_tuned")),
    ),
    "pieces": ("results/default.md", lambda: pieces_list(of_page("default", "fedlean*"))),
    "seeds": ("results/default.md", lambda: wrapped(seeds_told(of_page("default", "seeds*")))),
    "exceedance": ("horizons.md", guides.exceedance_table),
    "daylight": ("data.md", partial(of_runs, "daylight.csv", daylight_table)),
    "served": ("serve.md", guides.served_page_table),
    "new cells": ("horizons.md", guides.new_cells_tables),
    "against fuels": (
        "results/prototypes.md",
        lambda: wrapped(verdicts(of_page("prototypes", "prototypes_fuels*"))),
    ),
    "hundred rounds": (
        "results/pfpl.md",
        lambda: wrapped(images.answers(of_page("pfpl", "pfpl_rounds"))),
    ),
    "slow clients": ("methods.md", lambda: wrapped(differences(of_page("milan", "slow_clients")))),
    "floats": ("../README.md", lambda: floats_caption(of_page("milan", "federated"))),
    "replay": ("operate.md", partial(of_runs, "replay.csv", replay_text)),
    "deliveries": ("operate.md", partial(of_runs, "deliveries.csv", deliveries_text)),
}
"""Page and generator of each generated part, by name."""

SENT: dict[str, Part] = {
    "sent": ("methods.md", forecasts_sent),
    "images sent": ("methods.md", images_sent),
}
"""Parts that are measured when they are written, which takes a minute."""


def write_parts(parts: Mapping[str, Part]) -> None:
    """Write generated parts to their pages, and draw the figures beside them."""
    for name, (page, make) in parts.items():
        path = DOCS / page
        path.write_text(replaced(path.read_text(), name, make))
    (FIGURES / "growth.png").write_bytes(guides.growth_figure())
    (FIGURES / "exceedance.png").write_bytes(guides.exceedance_figure())
    replayed = draw_replay(pd.read_csv(RESULTS / "replay.csv"))
    (FIGURES / "replay.png").write_bytes(as_png(replayed))
    (FIGURES / "floats.png").write_bytes(floats_figure(of_page("milan", "federated")))
    (FIGURES / "skill.png").write_bytes(skill_figure(of_page("default", "who_wins*")))


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
    """Update the page of methods, run the tutorials, or gather benchmarks."""
    if folders == (Path("tutorials"),):
        for page in (ROOT / "README.md", *sorted(TUTORIALS.glob("*.md"))):
            run_tutorial(page)
    elif folders:
        gather(folders, RESULTS)
        write_parts(PARTS)
    else:
        write_parts(PARTS | SENT)
        write_pages(RESULTS)


if __name__ == "__main__":
    main()
