"""Methods for forecasting only, one file each, and all methods that forecasting knows."""

from data_prep.registry import Registry, is_named
from stforecast.federated.method import Method

METHODS: Registry[type[Method]] = Registry(
    "method",
    "stforecast.federated.methods",
    "stforecast.methods",
    is_entry=is_named(Method),
    group="stforecast.methods",
)
"""Methods by name: the core's, those of forecasting and those of other packages."""
