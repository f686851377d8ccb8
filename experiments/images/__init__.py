"""The `vision` commands, benchmarks and tables of images."""
