"""Methods for forecasting only, one file each, and the registry of all forecasting methods."""

from data_prep.base.registry import Registry, is_named
from stforecast.federated.core.method import Method

METHODS: Registry[type[Method]] = Registry(
    "method",
    "stforecast.federated.methods",
    "stforecast.methods",
    is_entry=is_named(Method),
    group="stforecast.methods",
)
"""Methods by name: those of the core, of forecasting and of other packages."""
