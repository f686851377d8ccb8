"""Lists of methods, data sets and the like, for the terminal and the documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from experiments.options import title

TEXT_WIDTH = 71
"""Maximum width of a text in a list, so that a line fits in 100 columns."""

Names = Mapping[str, Any]


def methods_list() -> str:
    """List all methods and reference forecasters."""
    from stforecast.baselines import BASELINES
    from stforecast.methods import METHODS

    federated, baselines = _methods(METHODS), _summaries(BASELINES)
    tables = (
        _list(["federated method", "what it does"], federated),
        _list(["reference forecaster", "what it forecasts"], baselines),
    )
    return "\n\n".join(tables)


def methods_table() -> str:
    """Tabulate all methods and reference forecasters for `docs/methods.md`."""
    from stforecast.baselines import BASELINES
    from stforecast.methods import METHODS

    headers = ["method", "what it does", "pools data", "source"]
    rows = [[*_cells(name, m), _yes_no(m.pooled), m.paper] for name, m in METHODS.items()]
    rows += [
        [*_cells(name, b), _yes_no(b.pooled), "reference forecaster"]
        for name, b in BASELINES.items()
    ]
    return _tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def data_list() -> str:
    """List all data sets of `stforecast prepare`."""
    from data_prep import DATA_SETS

    rows = [[n, title(m.__doc__), _yes_no(bool(m.SOURCES))] for n, m in DATA_SETS.items()]
    return _list(["data set", "what it is", "download"], rows)


def models_list() -> str:
    """List all models of federated methods."""
    from stforecast.models import MODELS

    return _list(["model", "what it is"], _summaries(MODELS))


def metrics_list() -> str:
    """List all metrics."""
    from stforecast.metrics import INTERVAL_METRICS, METRICS

    rows = _summaries(METRICS) + _summaries(INTERVAL_METRICS)
    table = _list(["metric", "what it is"], rows)
    return f"{table}\n\nThese names are errors of z-scores; raw_… are in the data's units."


def splits_list() -> str:
    """List all forms of `--split`."""
    from stforecast.data.splits import SPLITS

    table = _list(["split", "training, validation and test"], [[*item] for item in SPLITS.items()])
    return (
        f"{table}\n\nExcept under steps: and windows:, targets lie in one part, inputs may lie in "
        "the parts\nbefore it, and the test targets are the same for all lags."
    )


def image_methods_list() -> str:
    """List all methods for images."""
    from vision.methods import METHODS

    return _list(["method", "what it does"], _methods(METHODS))


def image_methods_table() -> str:
    """Tabulate all methods for images for `docs/methods.md`."""
    from vision.methods import METHODS

    rows = [[*_cells(name, m), _yes_no(m.pooled), m.paper] for name, m in METHODS.items()]
    headers = ["method", "what it does", "pools data", "source"]
    return _tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def image_data_list() -> str:
    """List all image data sets."""
    from vision.datasets import DATASETS

    return _list(["data set", "what it is"], _titles(DATASETS))


def partitions_list() -> str:
    """List all partitions of images among clients, and task streams."""
    from vision.partition import PARTITIONS
    from vision.streams import STREAMS

    return _list(["partition", "what it is"], _titles(PARTITIONS) + _titles(STREAMS))


def image_models_list() -> str:
    """List all image models."""
    from vision.models import MODELS

    return _list(["model", "what it is"], _summaries(MODELS))


LISTS: dict[str, Callable[[], str]] = {
    "methods": methods_list,
    "data": data_list,
    "models": models_list,
    "metrics": metrics_list,
    "splits": splits_list,
}
"""Lists of `stforecast list`, by name."""

IMAGE_LISTS: dict[str, Callable[[], str]] = {
    "methods": image_methods_list,
    "data": image_data_list,
    "partitions": partitions_list,
    "models": image_models_list,
}
"""Lists of `stforecast vision list`, by name."""


def _methods(methods: Names) -> list[list[str]]:
    return [
        [name, f"{m.summary} ({m.paper})" if m.paper else m.summary] for name, m in methods.items()
    ]


def _summaries(known: Names) -> list[list[str]]:
    return [[name, entry.summary] for name, entry in known.items()]


def _titles(known: Names) -> list[list[str]]:
    return [[name, title(entry.__doc__)] for name, entry in known.items()]


def _cells(name: str, entry: Any) -> list[str]:
    return [f"`{name}`", entry.summary]


def _yes_no(fact: bool) -> str:
    return "yes" if fact else "no"


def _list(headers: list[str], rows: list[list[str]]) -> str:
    widths = [None, TEXT_WIDTH, None][: len(headers)]
    return _tabulate(rows, headers, tablefmt="simple", maxcolwidths=widths)


def _tabulate(rows: list[list[str]], headers: list[str], **style: Any) -> str:
    from tabulate import tabulate  # slow to import, which short commands need not wait for

    return tabulate(rows, headers=headers, **style)
