"""Random draws besides those of clients in their rounds, each with a key of its own."""

from __future__ import annotations

import enum

import torch

from stforecast.federated.core import state


@enum.unique
class Draw(enum.Enum):
    """What is drawn, with its key: of two numbers in a server's round, of three outside of rounds.

    Clients' draws have keys of two numbers, the round and the client.
    """

    TEST_SPLIT = 0, 0, 1
    PROMPTS = 0, 0, 9
    DOMAINS = 2, 0, 0
    GLDP_LENGTHS = 6, 0, 0
    GLDP_DEAL = 6, 1, 0
    GLDP_TEST = 6, 2, 0
    LONG_TAIL = 7, 0, 0
    SURROGATE = 7, 1, 0
    CREFF_FEATURES = 8, 0, 0
    FEDTA_CLASSES = 9, 0, 0
    FEDTA_IMAGES = 9, 1, 0
    FEDGEN = 0, 4
    FEDIC = 0, 5
    FEDTA = 0, 6
    FEDMGP = 0, 7
    DATA_FREE = 0, 8

    def generator(self, seed: int, *round: int) -> torch.Generator:
        """Return the generator of a seed, and of the `round` of a server's draw."""
        return state.generator(seed, *round, *self.value)
