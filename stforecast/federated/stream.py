"""Task streams: stages of data that follow each other inside a round or across rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from stforecast.federated.data import ClientData

Order = Literal["inside", "sequential"]


class Stream:
    """Training data that change from stage to stage.

    A stage ends with an aggregation, so one pass over clients and server is one round of the core,
    whatever the order: `inside` visits all stages in turn again and again (GLDP, Algorithm 1: its
    global round is as many of ours as there are stages), `sequential` stays at each for all its
    rounds (FedTA).

    Args:
        stages: data of all clients in each stage; a client without samples there sits it out.
        order: how they follow each other.
    """

    def __init__(self, stages: Sequence[ClientData], order: Order = "inside") -> None:
        self.stages, self.order = tuple(stages), order

    def __len__(self) -> int:
        return len(self.stages)

    def place(self, round: int, rounds: int) -> tuple[int, int]:
        """Stage of a round, and the index by which its participants are drawn.

        Args:
            round: index of the round, from 0.
            rounds: rounds of each stage.

        Returns:
            The stage, and the global round: with `inside`, all stages of a global round have the
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
