"""Engines of a run: where its clients train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from data_prep.base.errors import InputError, Words
from stforecast.bench.ray import LOCAL
from stforecast.config import Config
from stforecast.federated.engine.trainer import Trainer
from stforecast.methods import METHODS


@contextmanager
def trainers(config: Config, n_clients: int) -> Iterator[Callable[..., Trainer]]:
    """Give what makes the trainer of a run, which works within the context.

    Args:
        config: settings.
        n_clients: clients of the run.

    Raises:
        InputError: if the engine is ray and it is not installed, the method cannot be split, or
            there are fewer clients or cores than actors.
    """
    run = config.run
    if run.engine == LOCAL:
        yield Trainer
        return
    # Importing them takes a while.
    from stforecast.bench.ray import ray_actors
    from stforecast.federated.engine.spread import SpreadTrainer, check_parts

    if METHODS[config.method].pooled:
        raise InputError(
            f"{config.method} trains one client on the data of all, which actors cannot share; ",
            Words("leave out {engine}"),
        )
    check_parts(run.actors, n_clients)
    threads = run.workers or 1
    with ray_actors(run.actors, threads, n_clients) as actors:

        def make_trainer(*args: Any, **options: Any) -> Trainer:
            fixed = {"actors": actors, "workers": threads, "device": "cpu"}
            return SpreadTrainer(*args, **{**options, **fixed})

        yield make_trainer
