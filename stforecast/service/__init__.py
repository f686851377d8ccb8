"""A forecaster in service: a forecast from each day's records, and what watches over it."""
