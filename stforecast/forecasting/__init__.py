"""Forecasting: the fitted model, the forecaster that holds one, and what is asked of them."""

DEFAULT_METHOD = "fedlean"
"""Method of a forecaster, and of the commands, where none is given."""
