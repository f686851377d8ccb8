"""Lists of methods, data sets and the like, for the terminal and the documents."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from data_prep.base.registry import title

Names = Mapping[str, Any]


class NameTable(NamedTuple):
    """Names of one kind, the first header, with descriptions, the second, and a note below them."""

    headers: list[str]
    rows: list[list[str]]
    note: str = ""

    def __str__(self) -> str:
        widths = [None, 66, None][: len(self.headers)]  # A line fits in 100 columns.
        table = _tabulate(self.rows, self.headers, tablefmt="simple", maxcolwidths=widths)
        return "\n\n".join(filter(None, [table, self.note]))

    def records(self) -> list[dict[str, str]]:
        """Return the rows for scripts, with the keys `name`, `kind` and `about`."""
        kind, _, *more = self.headers
        return [
            {"name": name, "kind": kind, "about": about, **dict(zip(more, rest, strict=True))}
            for name, about, *rest in self.rows
        ]


def methods_list() -> list[NameTable]:
    """List all methods and reference forecasters."""
    from stforecast.baselines import BASELINES
    from stforecast.methods import METHODS

    federated, baselines = method_rows(METHODS), summaries(BASELINES)
    return [
        NameTable(["federated method", "what it does"], federated),
        NameTable(["reference forecaster", "what it forecasts"], baselines),
    ]


def methods_table() -> str:
    """Tabulate all methods and reference forecasters for `docs/methods.md`."""
    from stforecast.baselines import BASELINES
    from stforecast.methods import METHODS

    methods = [(name, method, method.paper) for name, method in METHODS.items()]
    baselines = [(name, entry, "reference forecaster") for name, entry in BASELINES.items()]
    return documented([*methods, *baselines])


def formats_list() -> list[NameTable]:
    """List all formats of tables."""
    from data_prep.readers.formats import FORMATS

    rows = []
    for name, found in FORMATS.items():
        shown = [*found.suffixes[:2], "…"] if len(found.suffixes) > 2 else found.suffixes
        rows.append([name, title(found.__doc__), ", ".join(shown)])
    return [NameTable(["format", "what it is", "files"], rows)]


def metrics_list() -> list[NameTable]:
    """List all metrics."""
    from stforecast.metrics import INTERVAL_METRICS, METRICS

    rows = summaries(METRICS) + summaries(INTERVAL_METRICS)
    note = "These names are errors of z-scores; raw_… are in the data's units."
    return [NameTable(["metric", "what it is"], rows, note)]


def splits_list() -> list[NameTable]:
    """List all forms of `--split`."""
    from stforecast.data.splits import SPLITS

    note = (
        "Except with steps: and windows:, all targets of a window lie in one part, its inputs may\n"
        "lie in earlier parts, and the test targets do not depend on the lags."
    )
    rows = [[*item] for item in SPLITS.items()]
    return [NameTable(["split", "training, validation and test"], rows, note)]


def benchmarks_list() -> list[NameTable]:
    """List the benchmarks of the package."""
    from stforecast.bench.grid_file import read_toml
    from stforecast.bench.kind import DEFAULT, packaged

    rows = []
    for name, path in packaged().items():
        table = read_toml(path)
        rows.append([name, table.get("title", ""), table.get("task", DEFAULT)])
    return [NameTable(["benchmark", "title", "of"], rows)]


def method_rows(methods: Names) -> list[list[str]]:
    """Return names, summaries and papers of methods."""
    return [
        [name, f"{m.summary} ({m.paper})" if m.paper else m.summary] for name, m in methods.items()
    ]


def summaries(known: Names) -> list[list[str]]:
    """Return names and summaries of entries."""
    return [[name, entry.summary] for name, entry in known.items()]


def titles(known: Names) -> list[list[str]]:
    """Return names of functions or modules, and the first lines of their docstrings."""
    return [[name, title(entry.__doc__)] for name, entry in known.items()]


def documented(methods: Iterable[tuple[str, Any, str]]) -> str:
    """Tabulate methods, each with its name and source, in Markdown for the documents."""
    headers = ["method", "what it does", "pools data", "source"]
    rows = [[f"`{n}`", m.summary, "yes" if m.pooled else "no", of] for n, m, of in methods]
    return _tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def lister(
    registry: str,
    headers: list[str],
    rows: Callable[[Names], list[list[str]]] = titles,
    note: str = "",
) -> Callable[[], list[NameTable]]:
    """Return a function that lists a registry, which is imported when it is called."""
    return lambda: [NameTable(headers, rows(pkgutil.resolve_name(registry)), note)]


def _sections(known: Names) -> list[list[str]]:
    from stforecast.report.sections import needs

    return [[n, title(one.__doc__), ", ".join(needs(one))] for n, one in known.items()]


def _partitions(known: Names) -> list[list[str]]:
    from stforecast.federated.core.options import type_hints

    return [[n, title(k.__doc__), ", ".join(type_hints(k))] for n, k in known.items()]


LISTS: dict[str, Callable[[], list[NameTable]]] = {
    "methods": methods_list,
    "data": lister(
        "data_prep:DATA_SETS",
        ["data set", "what it is", "download"],
        lambda sets: [[n, title(s.__doc__), "yes" if s.SOURCES else "no"] for n, s in sets.items()],
    ),
    "formats": formats_list,
    "models": lister("stforecast.models:MODELS", ["model", "what it is"], summaries),
    "metrics": metrics_list,
    "plots": lister("stforecast.plots:PLOTS", ["figure", "what it shows"]),
    "sections": lister(
        "stforecast.report.sections:SECTIONS", ["section", "what it shows", "needs"], _sections
    ),
    "partitions": lister(
        "stforecast.data.partition:CELL_PARTITIONS",
        ["partition of cells", "what it is", "settings"],
        _partitions,
        "Settings follow a colon: --clients dirichlet:8:concentration=0.1:by=shape",
    ),
    "splits": splits_list,
    "benchmarks": benchmarks_list,
}
"""Lists of `stforecast list`, by name."""


def _tabulate(rows: list[list[str]], headers: list[str], **style: Any) -> str:
    from tabulate import tabulate  # slow to import, which short commands need not wait for

    return tabulate(rows, headers=headers, **style)
