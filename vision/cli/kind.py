"""Benchmarks of images: methods × data × scenarios × seeds from one TOML file.

task = "images"                        # otherwise it is a benchmark of forecasts
title = "PFPL, Table 1: Digits"
note = "One seed ranks nothing."        # above the table
reference = "α = 0.3"                  # row that the others are compared with
seeds = [1, 2, 3]                      # of rows without seeds of their own
data = ["mnist+usps+syn-generated"]
methods = ["solo", "fedavg", { method = "pfpl", label = "α = 0.3", alpha = 0.3 }]
references = ["chance", "central"]     # further rows, which figures draw only if named
figures = ["partition", { plot = "rounds", methods = ["fedavg", "α = 0.3"] }]

[settings]                             # of every method
rounds = 100
clients = 20

[scenarios]                            # partitions: settings, also data; they go before a row's
"n = 3" = { ways = 3 }
"n = 4" = { ways = 4 }

[presets.small]                        # `--preset small` replaces the keys above by these
seeds = [1]
settings = { rounds = 10, model = "convnet" }

[published]                            # by scenario and label, shown next to ours
source = "PFPL, Table 1"
accuracy."n = 3" = { solo = 91.15 }

[[claims]]                             # of the paper, answered below the tables
says = "PFPL is better than local training"
row = "α = 0.3"
over = ["solo"]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_prep.base.errors import InputError, choose, slug
from stforecast.bench.grid import Grid
from stforecast.bench.grid_file import COMMON_KEYS, ROWS, Entry
from stforecast.bench.jobs import Job
from stforecast.bench.kind import Kind, Scenario
from stforecast.bench.tables import Compared, Part
from stforecast.federated.runs.checkpoint import fingerprint
from stforecast.federated.runs.unfinished_run import AfterRound
from stforecast.report.write import ReportPage
from vision.cli.compare import Claim, answers, compare_images, parse_claims, rows_by_data
from vision.cli.page import image_section
from vision.cli.tables import accuracy_tables
from vision.config import SETTINGS, resolve
from vision.evaluation import possible_names
from vision.learner import load_images, prepared
from vision.methods import METHODS
from vision.nodes import ImageFederation
from vision.plots import PLOTS
from vision.results import ImageRun, UnfinishedImageRun, run_images


class ImageKind(Kind[ImageRun]):
    """Image sets; scenarios are partitions of them, and may name their own data."""

    name = "images"
    options = frozenset({"images"})
    run_type = ImageRun
    keys = COMMON_KEYS | {
        "data": (list[str], "a list of names of image sets"),
        "references": ROWS,
        "claims": (list[dict[str, Any]], "tables of the fields of a claim"),
        "scenarios": (dict[str, dict[str, Any]], "tables of settings, by name"),
    }
    needed = frozenset({"task", "methods"})
    plots = PLOTS
    settings = SETTINGS

    def results_parts(
        self, grid: Grid[ImageRun], runs: Sequence[ImageRun], failures: Mapping[str, str]
    ) -> list[Part]:
        """Tabulate accuracies, and answer the paper's claims."""
        tables = accuracy_tables(runs, failures, grid.published, grid.reference)
        return [*tables, *answers(grid.claims, runs)]

    def claims(self, found: Mapping[str, Any], labels: Sequence[str]) -> Sequence[Claim]:
        """Return the claims of a paper."""
        return parse_claims(found.get("claims", ()), labels, found.get("scenarios", ()))

    def check_grid(self, grid: Grid[ImageRun]) -> None:
        """Refuse an unknown reference."""
        known = self.row_labels(grid.entries)
        if grid.reference is not None and grid.reference not in known:
            raise choose("reference", grid.reference, known)

    def shared_settings(self, grid: Grid[ImageRun]) -> Iterator[dict[str, Any]]:
        """Yield the settings that all rows share, for each image set and scenario."""
        for data, scenario in self.places(grid):
            yield {**grid.settings, **scenario.settings, "data": data}

    def scenarios(self, found: Mapping[str, Any]) -> tuple[Scenario, ...]:
        """Return the partitions of the images; an unnamed one if none is given."""
        scenarios = found.get("scenarios", {"": {}})
        if len({slug(name) for name in scenarios}) < len(scenarios):
            raise InputError("two scenarios have names that differ only in punctuation; rename one")
        for name, own in scenarios.items():
            if "data" not in found and "data" not in own:
                words = self.keys["data"][1]
                raise InputError(f"no data, and scenario {name!r} names none; give {words}")
        return tuple(Scenario(name, own) for name, own in scenarios.items())

    def row_labels(self, entries: Sequence[Entry]) -> list[str]:
        """Return the labels, also of methods' further models."""
        of_models = [
            f"{entry.label} ({view})"
            for entry in entries
            for view in possible_names(METHODS.find(entry.method))
        ]
        return [entry.label for entry in entries] + of_models

    def places(
        self, grid: Grid[ImageRun], out: Path | None = None, *, progress: bool = False
    ) -> Iterator[tuple[str, Scenario]]:
        """Yield each image set and scenario."""
        for scenario in grid.scenarios:
            own = scenario.settings
            for data in [own["data"]] if "data" in own else grid.data:
                yield data, scenario

    def job_settings(
        self, grid: Grid[ImageRun], entry: Entry, scenario: Scenario, data: str
    ) -> dict[str, Any]:
        """Return the settings that the method reads: the scenario's go before the row's own."""
        shared = {**grid.settings, **scenario.settings, "data": data}
        own = {name: scenario.settings.get(name, v) for name, v in entry.settings.items()}
        return self.settings_of(entry.method, shared, own)

    def check_data(self, job: Job[ImageRun]) -> None:
        """Refuse missing images."""
        load_images(resolve(job.entry.method, **job.settings))

    def content(self, job: Job[ImageRun]) -> str | None:
        """Return the fingerprint of the clients' images; None if they cannot be read."""
        config = resolve(job.entry.method, **job.settings)
        try:
            images, _ = prepared(load_images(config), config)
        except InputError:
            return None
        return fingerprint(*images.identity())

    def begin(self, job: Job[ImageRun], after_round: AfterRound) -> ImageRun:
        """Fit, evaluate and save a learner."""
        return run_images(
            job.entry.method,
            job.folder,
            job.settings,
            label=job.entry.label,
            facts={"scenario": job.scenario},
            after_round=after_round,
        )

    def go_on(self, job: Job[ImageRun], after_round: AfterRound) -> ImageRun:
        """Resume the run of a learner."""
        return UnfinishedImageRun.resume(job.folder, after_round)

    def compare(
        self, folders: Sequence[Path], metric: str | None, reference: str | None
    ) -> Compared:
        """Compare accuracies."""
        return compare_images(ImageRun.find(folders), reference)

    def add_to_page(
        self, page: ReportPage, runs: Sequence[ImageRun], metric: str | None, reference: str | None
    ) -> None:
        """Add a section for each image set and scenario."""
        for name, rows in rows_by_data(runs, reference).items():
            page.sections.append(image_section(name, rows, reference))

    def node_settings(self) -> type[ImageFederation]:
        """Return the type of the settings of images on nodes."""
        return ImageFederation

    def describe(self, run: ImageRun) -> dict[str, Any]:
        """Return the image set, and the accuracy after the last round of each model."""
        accuracies = [
            {"model": view, "choosing from": mask, "accuracy": run.accuracy("last", view, mask)}
            for view in run.views
            for mask in run.masks
        ]
        return {"data": run.about["data"], "accuracies": accuracies}

    def facts(self, about: Mapping[str, Any]) -> dict[str, str]:
        """Return the image set and the accuracies."""
        found = [
            f"{found['model']} {found['accuracy']:.1%}, choosing from {found['choosing from']}"
            for found in about["accuracies"]
        ]
        return {"data": str(about["data"]), "accuracy": "; ".join(found)}


IMAGE_KIND = ImageKind()
