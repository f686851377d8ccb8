"""Run a benchmark, which any module of this package may define."""

import importlib
import pkgutil

from experiments import benchmarks
from experiments.benchmarks.frame import main

for module in pkgutil.iter_modules(benchmarks.__path__):
    if module.name != "__main__":
        importlib.import_module(f"{benchmarks.__name__}.{module.name}")

if __name__ == "__main__":
    main(prog_name="python -m experiments.benchmarks")
