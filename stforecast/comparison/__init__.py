"""Comparison of runs: their errors by day, hour, step and cell, with intervals and tests."""
