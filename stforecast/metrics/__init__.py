"""Metrics of point forecasts and of intervals, and quantile levels."""

from typing import Any

from data_prep.base.registry import Registry
from stforecast.metrics.metric import IntervalMetric, Metric


def _is_metric(thing: Any) -> bool:
    return isinstance(thing, Metric)


def _is_interval_metric(thing: Any) -> bool:
    return isinstance(thing, IntervalMetric)


METRICS: Registry[Metric] = Registry(
    "metric",
    "stforecast.metrics",
    is_entry=_is_metric,
    group="stforecast.metrics",
    sort_by=lambda metric: metric.relative,
)
"""Every metric of point forecasts by name, those without a unit last."""

INTERVAL_METRICS: Registry[IntervalMetric] = Registry(
    "metric of intervals",
    "stforecast.metrics",
    is_entry=_is_interval_metric,
    group="stforecast.interval_metrics",
    sort_by=lambda metric: not metric.relative,
)
"""Every metric of intervals by name, those without a unit first."""
