"""Metrics of point forecasts and of intervals, and quantile levels."""

from data_prep.base.errors import InputError
from data_prep.base.registry import Registry
from stforecast.metrics.metric import IntervalMetric, Metric

METRICS: Registry[Metric] = Registry(
    "metric",
    "stforecast.metrics",
    is_entry=lambda thing: isinstance(thing, Metric),
    group="stforecast.metrics",
    sort_by=lambda metric: metric.relative,
)
"""Every metric of point forecasts by name, those without a unit last."""

INTERVAL_METRICS: Registry[IntervalMetric] = Registry(
    "metric of intervals",
    "stforecast.metrics",
    is_entry=lambda thing: isinstance(thing, IntervalMetric),
    group="stforecast.interval_metrics",
    sort_by=lambda metric: not metric.relative,
)
"""Every metric of intervals by name, those without a unit first."""


def find_metric(name: str) -> Metric:
    """Return the metric of an error's name, such as `raw_mae`."""
    kind = name.removeprefix("raw_")
    if kind in INTERVAL_METRICS:
        known = f"{', '.join(METRICS)}, or with raw_ before it"
        raise InputError(f"{name} is a metric of intervals; choose one of forecasts: {known}")
    return METRICS.find(kind)
