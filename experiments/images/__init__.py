"""The `vision` commands and benchmarks of images, as `experiments` has them for forecasts."""
