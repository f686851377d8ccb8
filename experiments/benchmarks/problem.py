"""Federation that benchmarks measure: FUELS with the paper's sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stforecast.federated.core.data import ClientData
from stforecast.federated.engine.rounds import Federation
from stforecast.federated.engine.sizing import parse_bytes
from stforecast.federated.engine.trainer import Trainer
from stforecast.forecasting.config import resolve
from stforecast.forecasting.trained_method import build_method

BATCH, STEPS, HIDDEN = 24, 3, 128
"""Batch size (the period), steps of each GRU and its hidden size, as in the paper."""

EPOCH = 37
"""Batches of a client's epoch: the days of Milan's training part."""


def make_data(n_clients: int, n_batches: int, n_inputs: int) -> ClientData:
    """Return windows with the reference round's shapes, the same for all variants.

    Clients differ in level and amplitude; otherwise rounding would decide which are most similar.
    """
    samples = BATCH * n_batches
    g = torch.Generator().manual_seed(0)
    steps = torch.arange(samples + n_inputs + 1)
    level, swing = torch.randn(2, n_clients, 1, generator=g)
    series = level + swing * torch.sin(steps * 2 * torch.pi / BATCH)
    series += 0.3 * torch.randn(n_clients, len(steps), generator=g)
    windows = series.unfold(1, n_inputs + 1, 1)
    x, x_next = windows[:, :samples, :-1].contiguous(), windows[:, :samples, 1:].contiguous()
    y = windows[:, :samples, -1:].contiguous()
    sample = torch.arange(samples).expand(n_clients, -1)
    tensors = {"x": x, "x_next": x_next, "y": y, "mask": torch.ones_like(y, dtype=torch.bool)}
    tensors |= {"slot": sample % BATCH, "sample": sample}
    return ClientData(tensors, torch.full((n_clients,), samples))


def make_federation(
    n_clients: int,
    n_batches: int,
    workers: int = 1,
    method: str = "fuels",
    make_trainer: Callable[..., Trainer] = Trainer,
    **settings: Any,
) -> Federation:
    """Return a federation before its first round, deterministic in the sizes.

    Args:
        n_clients: number of clients.
        n_batches: batches of a client's epoch.
        workers: number of cohorts that train concurrently.
        method: name of the method.
        make_trainer: see `Federation`.
        **settings: further settings of a run.
    """
    config = resolve(method, **{"rounds": 10**6, "seed": 1, "period": BATCH, **settings})
    data = make_data(n_clients, n_batches, config.window.closeness + config.window.periods)
    return Federation(
        build_method(config),
        data,
        seed=config.run.seed,
        cohort_size=config.run.cohort or None,
        workers=workers,
        memory=parse_bytes(config.run.memory) if config.run.memory else None,
        make_trainer=make_trainer,
    )
