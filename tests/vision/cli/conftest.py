"""A tiny image benchmark and its runs."""

import pytest

TINY = """
task = "images"
title = "tiny"
data = ["digits8x8"]
methods = ["solo", { method = "pfpl", label = "α = 0.3", alpha = 0.3 }]
MORE
[settings]
rounds = ROUNDS
clients = 3
size = 8
channels = 4
feature_size = 8
batch_size = 64
share = 0.3
workers = 1
TABLES
"""


@pytest.fixture(scope="session")
def write_grid(tmp_path_factory):
    """Writes a benchmark file: `write_grid(rounds=1, more="seeds = [1, 2]", tables="…")`."""

    def write(rounds=1, more="", tables=""):
        path = tmp_path_factory.mktemp("grid") / "tiny.toml"
        text = TINY.replace("ROUNDS", str(rounds)).replace("MORE", more)
        path.write_text(text.replace("TABLES", tables))
        return path

    return write


@pytest.fixture(scope="session")
def outcome(write_grid, tmp_path_factory):
    """The outcome of the benchmark: two scenarios, two seeds."""
    from stforecast.bench.grid import load_grid
    from stforecast.bench.jobs import run_grid

    out = tmp_path_factory.mktemp("bench")
    path = write_grid(
        2,
        'seeds = [1, 2]\nfigures = ["rounds", "bars"]',
        '[scenarios]\n"n = 2" = { ways = 2 }\n"n = 3" = { ways = 3 }\n'
        '[published]\nsource = "PFPL, Table 1"\naccuracy."n = 3" = { solo = 91.15 }',
    )
    return run_grid(load_grid(path), out), out
