"""The commands of images, which `stforecast vision` runs, and their benchmarks."""
