"""Forecasting models, one file each."""
