"""One run over Ray (extra `ray`): actors train its clients, tasks evaluate its shards of cells.

See `stforecast.federated.engine.actors` and `stforecast.forecasting.evaluate`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from data_prep.base.errors import InputError, Words, counted
from stforecast.bench.ray import cluster, one_line, ray_map
from stforecast.bench.run_groups import K, T
from stforecast.federated.engine.actors import Lost, PartTrainer

log = logging.getLogger(__name__)


@contextmanager
def ray_actors(n: int, threads: int, most: int) -> Iterator[RayActors]:
    """Connect to Ray, or start it, and end its `n` actors afterwards.

    Each has `threads` cores. With 0, as many as there are cores for are started, up to `most`.
    """
    with cluster(n * threads or None) as ray:
        cores = int(ray.cluster_resources().get("CPU", 0))
        n = n or max(1, min(most, cores // threads))
        if n * threads > cores:
            raise InputError(
                f"{counted(n, 'actor')} with {counted(threads, 'core')} each, but the Ray cluster "
                f"has {counted(cores, 'core')}; ",
                Words("take fewer {actors} or {workers}"),
            )
        log.info("clients train in %s of Ray", counted(n, "actor"))
        actors = RayActors(ray, n, threads)
        with sent_as_arrays(ray):
            try:
                yield actors
            finally:
                actors.end()


def map_tensors(
    do: Callable[[T], K], items: Iterable[T], workers: int, threads: int
) -> Iterator[K]:
    """Yield what `ray_map` does, of items with tensors; each task has so many threads."""
    with cluster(workers * threads or None) as ray, sent_as_arrays(ray):
        yield from ray_map(partial(_with_threads, threads, do), items, workers, threads)


def _with_threads(threads: int, do: Callable[[T], K], item: T) -> K:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return do(item)
    finally:
        torch.set_num_threads(before)  # A task that is lost too often is done in this process.


class RayActors:
    """Actors of Ray; see `stforecast.federated.engine.actors.Actors`."""

    def __init__(self, ray: Any, n: int, threads: int) -> None:
        self._ray, self._n, self._threads = ray, n, threads
        self._type = ray.remote(num_cpus=threads, max_restarts=0)(_Process)
        self.handles: dict[int, Any] = {}
        self._begun: dict[int, Any] = {}

    def __len__(self) -> int:
        """Return the number of actors."""
        return self._n

    def start(self, i: int, make: Callable[[], PartTrainer]) -> None:
        """Let an actor make its part, in place of an earlier one; start it if it is not there."""
        if i not in self.handles:
            self.handles[i] = self._type.remote(self._threads)
        self._begun[i] = self.handles[i].begin.remote(make)

    def ask(self, calls: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call methods of parts at the same time; an error in a part is raised here."""
        asked = {i: self.handles[i].call.remote(*call) for i, call in calls.items()}
        found, errors = {}, self._ray.exceptions
        for i, ref in asked.items():
            try:
                found[i] = self._ray.get([self._begun[i], ref])[1]
            except errors.RayTaskError as e:
                raise (e.cause or e) from e
            except errors.RayError as e:
                self._end(i)
                found[i] = Lost(one_line(e))
        return found

    def end(self) -> None:
        """End all actors."""
        for i in list(self.handles):
            self._end(i)

    def _end(self, i: int) -> None:
        if i in self.handles:
            self._ray.kill(self.handles.pop(i))


class _Process:
    """What runs in an actor's process."""

    def __init__(self, threads: int) -> None:
        import ray

        torch.set_num_threads(threads)
        send_as_arrays(ray)

    def begin(self, make: Callable[[], PartTrainer]) -> None:
        self._part = make()

    def call(self, name: str, *args: Any) -> Any:
        return getattr(self._part, name)(*args)


def send_as_arrays(ray: Any) -> None:
    """Let Ray move tensors as arrays, without the rest of the memory that they are views of."""
    ray.util.register_serializer(
        Tensor,
        serializer=lambda t: t.detach().cpu().contiguous().numpy(),
        deserializer=torch.tensor,  # A copy, as Ray's memory is read-only.
    )


@contextmanager
def sent_as_arrays(ray: Any) -> Iterator[None]:
    """Let Ray move tensors as arrays within the context."""
    send_as_arrays(ray)
    try:
        yield
    finally:
        ray.util.deregister_serializer(Tensor)
