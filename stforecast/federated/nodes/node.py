"""A node's side of the conversation: it answers letters, and keeps its clients' state on disk.

A node's process may be started anew for every letter, killed between two or in one: all that
survives is the newest sound checkpoint in its folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from data_prep.errors import InputError
from stforecast.federated.nodes.messages import Letter, like_of
from stforecast.federated.nodes.shard import Shard
from stforecast.federated.runs.checkpoint import Checkpoint, fingerprint, newest_sound, save
from stforecast.federated.state import State


class Host:
    """Answers for a shard.

    Args:
        shard: the clients of this node, as they are before the first round.
        folder: where their state is kept; it goes on from what lies there of the same run.
        run: what the run is of, as JSON.
    """

    def __init__(self, shard: Shard, folder: Path, run: Mapping[str, Any]) -> None:
        self.shard, self.folder = shard, folder
        data = shard.train_data
        self.run = {
            **run,
            "first": shard.first,
            "data": fingerprint(data.tensors | {"sizes": data.sizes}),
        }
        self.best: State | None = None
        self.candidate: State | None = None
        if found := newest_sound(folder, self.run):
            shard.state, self.best = found.state, found.best
            if found.extra:
                round = int(found.notes["candidate"])
                self.candidate = State.from_flat(found.extra, round, shard.seed)

    def join(self) -> Letter:
        """Which clients are here, and how many samples each has."""
        sizes = self.shard.train_data.sizes.tolist()
        return Letter({"first": self.shard.first, "sizes": sizes})

    def round(self, letter: Letter) -> Letter:
        """Judge the clients as they are with what came, then train those that are asked to.

        Args:
            letter: with the round's index, the clients' numbers and the round that was best.

        Raises:
            InputError: if it is not meant for these clients.
        """
        about, shard = letter.about, self.shard
        rows = {len(t) for t in letter.payload.values()} - {len(shard)}
        if rows or not set(about["train"]) <= set(shard.numbers):
            raise InputError(
                f"the server means other clients than those of this node, {shard.numbers.start} to "
                f"{shard.numbers.stop - 1}; check first-client and the server's version"
            )
        self._choose(about["best"])
        shard.receive(letter.payload, about["round"])
        score = (0.0, 0.0)
        if about["round"] and shard.validation is not None:
            ready = shard.ready()
            score = shard.score(ready)
            self.candidate = _copy(ready)
        answer: dict[str, Any] = {
            "score": score,
            "ids": [],
            "loss": 0.0,
            "task_loss": 0.0,
            "like": {},
        }
        payload = {}
        if about["train"]:
            trained = shard.train(torch.tensor(about["train"]) - shard.first)
            payload = shard.encode(trained)
            answer |= {
                "ids": (trained.ids + shard.first).tolist(),
                "loss": float(trained.loss.double().sum()),
                "task_loss": float(trained.task_loss.double().sum()),
                "like": like_of(trained.upload),
            }
        self._save()
        return Letter(answer, payload)

    def finish(self, letter: Letter) -> dict[str, State]:
        """The clients after the `last` and after the `best` round."""
        self._choose(letter.about["best"])
        self._save()
        last = self.shard.ready()
        return {"last": last, "best": self.best or last}

    def _choose(self, best: int | None) -> None:
        if self.candidate and self.candidate.round == best:
            self.best = self.candidate

    def _save(self) -> None:
        c = self.candidate
        checkpoint = Checkpoint(
            run=self.run,
            state=self.shard.state,
            best=self.best,
            reports=[],
            cohort_size=self.shard.cohort_size,
            notes={"candidate": c.round} if c else {},
            extra=c.flat() if c else {},
        )
        save(checkpoint, self.folder)


def _copy(state: State) -> State:
    """A copy that predicts as the state does; the optimiser's moments are left out."""
    clients = dataclasses.replace(state.clients, moments={})
    tensors = dataclasses.replace(state, clients=clients).flat()
    return State.from_flat({n: t.clone() for n, t in tensors.items()}, state.round, state.seed)
