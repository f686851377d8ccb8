"""Choice of a run's precision: bfloat16 only where a measurement shows that it saves time."""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path

import torch
from torch import Tensor

from stforecast.federated.kernels.compiler import cache_folder, processor, tiles
from stforecast.federated.population import Population

log = logging.getLogger(__name__)

REPETITIONS = 5
"""Number of steps to measure in each precision, in turns; the fastest counts."""

WORTH = 0.97
"""Bfloat16 is taken if its time is at most this share of single precision's."""


def bfloat16_pays(population: Population, x: Tensor, threads: int) -> bool:
    """Return whether a training step of a population is faster in bfloat16.

    The answer is kept on the machine, so that repeated and resumed runs compute the same numbers.
    It is measured anew for another model, batch, number of threads or version of torch, and if the
    processor has tiles for matrix products or no longer has them.

    Args:
        population: the model.
        x: inputs of a batch, `(clients, batch, …)`, on a CPU.
        threads: torch's threads in a step.
    """
    kept = _kept(population, x, threads)
    if kept and kept.is_file():
        pays, where = kept.read_text() == "yes", f", by {kept}"
    else:
        single, narrow = seconds(population, x, threads)
        pays, where = narrow <= WORTH * single, ""
        times = f"{1e3 * narrow:.2f} ms a step, single precision {1e3 * single:.2f} ms"
        log.debug("bfloat16: %s", times)
        if kept:
            kept.write_text("yes" if pays else "no")
    log.debug("precision: %s%s", "bfloat16" if pays else "single, which is faster here", where)
    return pays


def seconds(population: Population, x: Tensor, threads: int) -> tuple[float, float]:
    """Return the seconds of a training step in single precision and in bfloat16."""
    fastest = {False: float("inf"), True: float("inf")}
    before, asked = torch.get_num_threads(), population.mixed
    torch.set_num_threads(threads)
    population.train()
    try:
        with torch.random.fork_rng(devices=[]):
            for _ in range(1 + REPETITIONS):
                for mixed in fastest:
                    population.mixed = mixed
                    fastest[mixed] = min(fastest[mixed], _step(population, x))
    finally:
        population.mixed = asked
        torch.set_num_threads(before)
    return fastest[False], fastest[True]


def _step(population: Population, x: Tensor) -> float:
    """Return the seconds of a forward and a backward pass."""
    params = {name: t.requires_grad_() for name, t in population.parameters(len(x)).items()}
    state = {**params, **population.buffers(len(x))}
    start = time.perf_counter()
    prediction = population.decode(state, population.encode(state, x))
    if prediction.requires_grad:
        torch.autograd.grad(prediction.sum(), list(params.values()), allow_unused=True)
    return time.perf_counter() - start


def _kept(population: Population, x: Tensor, threads: int) -> Path | None:
    """Return the file that keeps the answer; None without a folder that can be trusted."""
    folder = cache_folder()
    shapes = [(name, tuple(t.shape)) for name, t in population.initial().items()]
    machine = processor(), tiles(), torch.__version__
    about = *machine, repr(population.model), shapes, tuple(x.shape), threads
    key = hashlib.sha256(repr(about).encode()).hexdigest()[:16]
    return folder / f"bfloat16-{key}" if folder else None
