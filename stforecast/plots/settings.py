"""Test errors against one setting."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from stforecast.bench.drawing import ONE_COLUMN
from stforecast.bench.sweep import draw_sweep
from stforecast.plots.figure import figure
from stforecast.plots.scores import axis_name, pooled_errors
from stforecast.results import ForecastRun


@figure
def sweep(
    runs: Sequence[ForecastRun],
    *,
    setting: str | None = None,
    metric: str = "mse",
    selection: str | None = None,
    width: float = ONE_COLUMN,
) -> Figure:
    """Test error against one setting, such as tau: one line for each method.

    Each point is the mean of the runs that differ only in the seed, in a band of one standard
    deviation (with n - 1). Runs are grouped into lines by method and other settings, not by label.
    A method without the setting is a horizontal line. As in Figure 6 of FUELS (arXiv 2404.03702).

    Args:
        runs: finished runs.
        setting: numeric setting on the x axis, logarithmic if its values span more than two
            decades; optional if the runs differ in only one number.
        metric: error pooled over clients and steps; raw_… is in the data's units.
        selection: model to evaluate: best, last, or another one of the run, such as "best
            (global)"; by default the one selected by each run's settings.
        width: width of the figure in inches.

    Raises:
        InputError: if the setting, metric or selection is unknown, listing the known ones, or if no
            two runs differ only in the setting.
    """
    return draw_sweep(
        runs,
        setting,
        lambda some: pooled_errors(some, metric, selection),
        _default,
        lambda several: axis_name(metric, runs, selection, seeds=several),
        width,
    )


def _default(run: ForecastRun, setting: str) -> object:
    """Return the default of the setting."""
    from stforecast.config import RunOptions, resolve

    model = run.settings.get("model", RunOptions.model)
    return resolve(run.method, model=model).flat().get(setting)
