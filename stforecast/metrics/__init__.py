"""Errors of point forecasts, measures of intervals, and quantile levels."""
