"""A node: a trainer of some of the federation's clients, behind a link to the server.

It answers messages and keeps its clients' state on disk. A node's process may be restarted for
every message, or killed at any time: it continues from the newest intact checkpoint in its folder.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from data_prep.base.errors import InputError, some
from stforecast.federated.core.state import State
from stforecast.federated.core.tensors import Payload, without_prefix
from stforecast.federated.engine.faults import reasons_of
from stforecast.federated.engine.trainer import Trained, Trainer
from stforecast.federated.nodes.masker import (
    ANY,
    METRICS,
    Fewest,
    masker_beside,
    mean_of_round,
    sums_of_errors,
    sums_of_round,
    weights_of,
)
from stforecast.federated.nodes.messages import FEW, Message, few_parties, index_of
from stforecast.federated.nodes.summing import adds_up, bounded
from stforecast.federated.runs.checkpoint import (
    Checkpoint,
    fingerprint,
    is_spaced,
    newest_first,
    newest_sound,
    save_checkpoint,
)
from stforecast.federated.uploads.masking import SecureSums

log = logging.getLogger(__name__)


class Node:
    """Answers the server's messages with a trainer.

    Args:
        trainer: trainer of this node's clients, with its method `behind_link`, before round 1.
        folder: folder of their state; the node continues from a checkpoint of the same run in it.
        run: identity of the run, as JSON.
        before: index of the round that is asked for next: the node goes back to its state before
            it, as a server that was ended repeats the round that it lost; by default the newest.
        secure: settings of secure aggregation: the server learns this node's numbers only as sums
            over all nodes. Secrets are kept beside `folder`.
        earlier: folder of these clients' states in a finished run, from which this one goes on.
        fewest: what each secure sum must be of.
        refit_trainer: makes the trainer of a refit, by its name.
        select: whether refits go on from the `best` round of the run or from the `last`.

    Attributes:
        refit: name of the refit under way; empty in the run itself.
        noise: deviation of the noise that nodes add to a secure sum together, 0 for none.
        done: the last states of the run and of earlier refits, by `last` and the refits' names.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: Path,
        run: Mapping[str, Any],
        before: int | None = None,
        secure: SecureSums | None = None,
        earlier: Path | None = None,
        fewest: Fewest = ANY,
        refit_trainer: Callable[[str], Trainer] | None = None,
        select: str = "best",
    ) -> None:
        self.trainer, self.folder, self.select = trainer, folder, select
        self._refit_trainer, self._trainers = refit_trainer, {"": trainer}
        self.refit, self.done = "", dict[str, State]()
        self.masker = masker_beside(folder, trainer.first, secure, fewest) if secure else None
        self.adds_up = adds_up(trainer.method, trainer.uplink)
        self.noise = trainer.uplink.noise_std if secure and secure.share_noise else 0.0
        self._add_noise(trainer)
        data = trainer.train_data
        self.run = {
            **run,
            "first": trainer.first,
            "data": fingerprint(data.whole().tensors | {"sizes": data.sizes}),
        }
        trainer.receive({}, 0)
        self.best: State | None = None
        self.candidate: State | None = None
        self.rounds = 0
        if found := newest_sound(folder, self.run, before):
            self._restore(found)
        else:
            if before and newest_first(folder):
                log.warning("%s: no state before round %d; starting anew", folder, before + 1)
            if earlier:
                self._go_on_from(earlier)
        self._newest = self._newest_on_disk()

    def _restore(self, found: Checkpoint) -> None:
        """Restore what `_save` wrote."""
        notes = found.notes
        self.refit, self.rounds = notes["refit"], found.state.round + 1
        trainer = self.trainer = self._trainer_of(self.refit)
        trainer.restore(dataclasses.replace(found.state, round=notes["index"]))
        trainer.cohort_size = found.cohort_size
        self.best = trainer.copy(found.best) if found.best else None
        for name, round in notes["states"].items():
            flat = without_prefix(found.extra, f"{name}/")
            self.done[name] = trainer.copy(State.from_flat(flat, round, trainer.state.seed))
        self.candidate = self.done.pop("candidate", None)

    def _trainer_of(self, refit: str) -> Trainer:
        """Return the trainer of the run, or of a refit."""
        if refit not in self._trainers:
            if self._refit_trainer is None:
                raise InputError(f"the server asks for the refit {refit!r:.40}, which is unknown")
            self._trainers[refit] = self._refit_trainer(refit)
            self._add_noise(self._trainers[refit])
        return self._trainers[refit]

    def _add_noise(self, trainer: Trainer) -> None:
        """Let clients draw noise of their own, or none if the node adds it to its sum."""
        trainer.secret_noise = True  # The server knows the seed.
        if self.noise:
            trainer.uplink = dataclasses.replace(trainer.uplink, noise="none")

    def _enter(self, message: Message) -> None:
        """Go over to the refit that the server asks for, with the samples that it trains on."""
        refit = message.about.get("refit", "")
        if refit == self.refit:
            return
        last = self.trainer.ready()
        self.done[self.refit or "last"] = self.trainer.copy(last)
        from_best = not self.refit and self.select == "best" and self.has_best(message)
        chosen = self.best if from_best else None
        self.refit, self.candidate = refit, None
        self.trainer = self._trainer_of(refit)
        self.trainer.state = self.trainer.with_new_samples(chosen or last)

    def _go_on_from(self, folder: Path) -> None:
        """Begin with the clients' last state in a finished run, which had other samples."""
        found, trainer = newest_sound(folder, None), self.trainer
        if found is None:
            log.warning("%s: no state of the run before; this node begins anew", folder)
            return
        clients = found.state.clients
        clients.memory |= trainer.method.sample_memory(trainer.train_data)
        clients.sizes = trainer.state.clients.sizes
        trainer.restore(found.state)
        trainer.receive({}, 0)

    def _newest_on_disk(self) -> tuple[Path, int] | None:
        newest = next(iter(newest_first(self.folder)), None)
        return (newest, newest.stat().st_mtime_ns) if newest else None

    @property
    def current(self) -> bool:
        """Return whether the newest checkpoint on disk is the one this object last used."""
        return self._newest == self._newest_on_disk()

    def join(self, refit: str = "") -> Message:
        """List this node's clients and their numbers of samples, which a secure sum hides."""
        sizes = self._trainer_of(refit).train_data.sizes
        sizes = torch.ones_like(sizes) if self.masker else sizes
        return Message({"first": self.trainer.first, "sizes": sizes.tolist()})

    def round(self, message: Message) -> Message:
        """Validate the clients with the message, then train those that it asks for."""
        about = message.about
        self._choose_best(about["best"])
        self._enter(message)
        trainer = self.trainer
        rows = {len(t) for t in message.payload.values()} - {len(trainer)}
        if rows or not set(about["train"]) <= set(trainer.numbers):
            raise InputError(
                f"the server asks for clients that are not this node's, {trainer.numbers.start} "
                f"to {trainer.numbers.stop - 1}; check first-client and the server's version"
            )
        if not about["round"] and about.get("parties", FEW) < FEW:
            log.warning(few_parties(about["parties"]))
        trainer.receive(message.payload, index_of(message))
        score, method = (0.0, 0.0), trainer.method
        validation = trainer.validation
        if about["round"] and validation is not None and method.validates(trainer.state.round):
            state = trainer.ready()
            self.candidate = trainer.copy(state)  # It may be the best.
            score = trainer.score(validation, state)
        answer = self._train(about["train"], score)
        self.rounds = about["round"] + 1
        self._save()
        if self.masker is None:
            return mean_of_round(answer, trainer) if self.adds_up else answer
        known = {name: answer.about[name] for name in ("ids", "like")}
        weights = weights_of(answer, trainer)
        if self.noise:  # Which is as much for each client, whatever its number of samples.
            weights = torch.ones_like(weights)
        cells = trainer.train_data.cells_of(torch.tensor(known["ids"]) - trainer.first)
        sums = sums_of_round(answer, weights)
        return self.masker.hide(message, sums, known, cells, self.noise)

    def _train(self, numbers: list[int], score: tuple[float, float]) -> Message:
        """Train the clients of these numbers, if any, and return the answer to a round."""
        if not numbers:
            return Message({"score": score, "ids": [], "loss": 0.0, "task_loss": 0.0, "like": {}})
        first = self.trainer.first
        trained = self.trainer.train(torch.tensor(numbers) - first)
        # Noise needs bounds that no other client's upload changes, which clipping alone has.
        bounds = self.adds_up and not self.noise
        upload = self._bounded(trained) if bounds else trained.upload
        if trained.failed:
            log.warning(
                "left out %s", reasons_of({first + i: r for i, r in trained.failed.items()})
            )
        answer = {
            "score": score,
            "ids": (trained.ids + first).tolist(),
            "loss": float(trained.loss.double().sum()),
            "task_loss": float(trained.task_loss.double().sum()),
            "like": trained.like,
        }
        return Message(answer, upload)

    def _bounded(self, trained: Trained) -> Payload:
        """Return the clients' uploads with bounded norms; say whose were larger."""
        sizes, grows = self.trainer.train_data.sizes, self.trainer.method.sends.of_samples
        upload, rows = bounded(trained.upload, sizes.cpu()[trained.ids], grows=grows)
        if rows:
            log.warning(
                "round %d: the uploads of clients %s count with the largest norm that is usual on "
                "this node; look at their data",
                self.trainer.state.round + 1,
                some((trained.ids[rows] + self.trainer.first).tolist()),
            )
        return upload

    def finish(self, message: Message) -> dict[str, State]:
        """Return the clients' states: `last`, and `best` if this node was there in that round.

        Those after refits follow.
        """
        self._choose_best(message.about["best"])
        self._save()
        states = {**self.done, self.refit or "last": self.trainer.ready()}
        best = {"best": self.best or states["last"]} if self.has_best(message) else {}
        return {"last": states.pop("last"), **best, **states}

    def has_best(self, message: Message) -> bool:
        """Return whether this node was there for the best round, so that it has its models."""
        best = message.about["best"]
        return best is None or (self.best is not None and self.best.round == best)

    def report(
        self,
        message: Message,
        errors: Mapping[str, float],
        targets: int,
        *,
        has_best: bool = True,
        metrics: Sequence[str] = METRICS,
    ) -> Message:
        """Return the answer at the end of a run: mean test errors by metric, of so many targets.

        A secure sum hides those of the `metrics`, and those of another round than the one that the
        settings select (without `has_best`) do not count in it.
        """
        known = {"has_best": has_best}
        if self.masker:
            return self.masker.hide(
                message, sums_of_errors(errors, targets * has_best, metrics), known
            )
        return Message({"errors": dict(errors), "targets": targets, **known})

    def _choose_best(self, best: int | None) -> None:
        if self.candidate and self.candidate.round == best:
            self.best = self.candidate

    def _save(self) -> None:
        state = self.trainer.state
        states = self.done | ({"candidate": self.candidate} if self.candidate else {})
        checkpoint = Checkpoint(
            run=self.run,
            state=dataclasses.replace(state, round=max(0, self.rounds - 1)),
            best=self.best,
            reports=[],
            cohort_size=self.trainer.cohort_size,
            notes={
                "refit": self.refit,
                "index": state.round,
                "states": {name: of.round for name, of in states.items()},
            },
            extra={f"{n}/{name}": t for n, of in states.items() for name, t in of.flat().items()},
        )
        # The server counts the rounds done, and may ask for one less than this node has seen.
        save_checkpoint(checkpoint, self.folder, lambda round, newest: is_spaced(round + 1, newest))
        self._newest = self._newest_on_disk()
