"""Benchmarks, tables and commands of forecasts."""
