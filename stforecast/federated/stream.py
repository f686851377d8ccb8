"""Task streams: stages of data that follow each other within a round or across rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from data_prep.errors import InputError
from stforecast.federated.data import ClientData
from stforecast.federated.training import Training

Order = Literal["inside", "sequential"]


class Stream:
    """Training data that change from stage to stage.

    A stage ends with an aggregation, so each visit of a stage is one round of the core, in either
    order: `inside` cycles through all stages (GLDP, Algorithm 1; its global round is one of our
    rounds per stage), `sequential` does all rounds of a stage before the next (FedTA).

    Args:
        stages: data of all clients in each stage; clients without samples skip the stage.
        order: order of the stages.
    """

    def __init__(self, stages: Sequence[ClientData], order: Order = "inside") -> None:
        self.stages, self.order = tuple(stages), order

    def __len__(self) -> int:
        return len(self.stages)

    def check(self, training: Training) -> None:
        """Check that the settings fit the data.

        Raises:
            InputError: with the setting, or the client and its samples.
        """
        several = len(self) > 1
        if several and training.schedule != "constant":
            raise InputError(f"schedule is {training.schedule}; a task stream needs constant")
        needed = training.batch_size if training.drop_last else 1
        for i, stage in enumerate(self.stages):
            sizes = stage.n_groups
            if bool(((sizes < needed) & ((sizes > 0) | (not several))).any()):
                where = f" in stage {i}" if several else ""
                raise InputError(
                    f"client {int(sizes.argmin())} has {int(sizes.min())} training samples{where}, "
                    f"fewer than one batch of {needed}; use longer data, another split or a "
                    "smaller --batch-size"
                )
            if not sizes.any():
                raise InputError(
                    f"no client has training samples in stage {i}; leave the stage out"
                )

    def place(self, round: int, rounds: int) -> tuple[int, int]:
        """Return the stage of a round, and the index that seeds the draw of its participants.

        Args:
            round: index of the round, from 0.
            rounds: number of rounds of each stage.

        Returns:
            The stage and the global round; with `inside`, all stages of a global round have the
            same participants.

        Example:
            >>> empty = [None, None, None]
            >>> [Stream(empty, "inside").place(r, 2) for r in range(6)]
            [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
            >>> [Stream(empty, "sequential").place(r, 2) for r in range(6)]
            [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)]
        """
        if self.order == "inside":
            return round % len(self), round // len(self)
        return min(round // rounds, len(self) - 1), round

    def begins(self, round: int, rounds: int) -> bool:
        """Return whether a round, numbered from 0, is the first one of a stage's visit."""
        return round == 0 or self.place(round, rounds)[0] != self.place(round - 1, rounds)[0]
