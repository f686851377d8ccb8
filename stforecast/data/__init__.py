"""Data of forecasts: series, windows, splits, scaling, imputation, calendar inputs."""
