"""The `stforecast` command, benchmarks and their tables."""
