"""Results of shards of cells, kept among a run's checkpoints: a killed run resumes at the shard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from stforecast.federated.core.state import Clients, State
from stforecast.federated.runs.checkpoint import fingerprint
from stforecast.federated.runs.unfinished_run import Checkpointer
from stforecast.intervals.bands import Bands
from stforecast.intervals.calibration import Calibration
from stforecast.intervals.radii import ErrorScale
from stforecast.metrics.metric import Sums

NamedSums = tuple[dict[str, Sums], dict[str, str]]
"""Sums of metrics, and the names of these in tables."""


class ShardResult(NamedTuple):
    """Results of a shard by one model.

    Attributes:
        seconds: seconds that the forecasts of its test part took.
        calibration: what calibrates the window after the test part; None without intervals.
        extremes: `(2, cells)` lowest and highest bound of each cell, in the data's units.
        sums: sums of errors by split; empty if they were not asked for.
        bands: z-scored forecasts of the test part, with bounds if the model is the chosen one; None
            if forecasts were not asked for.
    """

    seconds: float
    calibration: Calibration | None
    extremes: np.ndarray
    sums: dict[str, list[NamedSums]]
    bands: Bands | None = None

    def tree(self) -> list[Any]:
        """Return lists and dictionaries of the same values."""
        after, bands = self.calibration, self.bands
        scale = after and after.scale and [*vars(after.scale).values()]
        of_after = after and [after.radius, after.most, scale]
        of_bands = bands and [bands.centre, [[c, *ends] for c, ends in bands.bounds.items()]]
        return [self.seconds, of_after, self.extremes, self.sums, of_bands]

    @classmethod
    def of_tree(cls, tree: list[Any]) -> ShardResult:
        """Return the results whose `tree` this is."""
        seconds, after, extremes, sums, bands = tree
        if after:
            radius, most, scale = after
            after = Calibration(radius, most, scale and ErrorScale(*scale))
        if bands:
            centre, bounds = bands
            bands = Bands(centre, {coverage: (low, high) for coverage, low, high in bounds})
        return cls(seconds, after, extremes, sums, bands)


class KeptShards:
    """Results of finished shards, in the checkpoints of their run.

    Results of other models, such as of a training repeated on another machine, are not found.

    Args:
        checkpointer: writes checkpoints, as often as those of the training.
        models: states of the models.
        asked: what else the results depend on, besides the run's settings and data.
    """

    def __init__(self, checkpointer: Checkpointer, models: Iterable[State], *asked: object) -> None:
        flat = {f"{i}/{n}": t for i, of in enumerate(models) for n, t in of.flat().items()}
        self._checkpointer = checkpointer
        self._name = f"shards-{fingerprint(flat, *asked).removeprefix('sha256:')[:16]}"

    def _place(self, some: slice) -> str:
        return f"{self._name}/cells-{some.start}"

    def __contains__(self, some: slice) -> bool:
        return (self._checkpointer.folder / self._place(some)).exists()

    def save(self, some: slice, results: Sequence[ShardResult]) -> None:
        """Save the results of a shard by each model, if that takes little of the time."""
        arrays: list[np.ndarray] = []
        notes = {"results": _packed([found.tree() for found in results], arrays)}
        tensors = {
            str(i): torch.from_numpy(np.require(a, None, ["C", "W"])) for i, a in enumerate(arrays)
        }
        state = State(Clients({}, {}, {}, torch.zeros(0), {}), tensors, round=0, seed=0)
        shown = f"the shard of cells {some.start + 1} to {some.stop}"
        self._checkpointer.save_extra(self._place(some), {}, state, notes, shown)

    def load(self, some: slice) -> list[ShardResult] | None:
        """Read the results of a shard; None if they are damaged."""
        if (kept := self._checkpointer.load_extra(self._place(some), {})) is None:
            return None
        arrays = [kept.state.server[str(i)].numpy() for i in range(len(kept.state.server))]
        return [ShardResult.of_tree(tree) for tree in _unpacked(kept.notes["results"], arrays)]


ARRAY = "array"
"""The only key of the dictionary that stands for an array, with its place in a list."""


def _packed(tree: Any, arrays: list[np.ndarray]) -> Any:
    """Return a tree as JSON, with its arrays in a list."""
    if isinstance(tree, np.ndarray):
        arrays.append(tree)
        return {ARRAY: len(arrays) - 1}
    if isinstance(tree, dict):
        return {name: _packed(value, arrays) for name, value in tree.items()}
    return [_packed(part, arrays) for part in tree] if isinstance(tree, list | tuple) else tree


def _unpacked(tree: Any, arrays: list[np.ndarray]) -> Any:
    """Return the tree that `_packed` was given, with lists for tuples."""
    if isinstance(tree, dict):
        if tree.keys() == {ARRAY}:
            return arrays[tree[ARRAY]]
        return {name: _unpacked(value, arrays) for name, value in tree.items()}
    return [_unpacked(part, arrays) for part in tree] if isinstance(tree, list) else tree
