"""The server's side of a federation: who takes part, aggregation, the best round and the reports.

It knows neither samples nor how messages travel: in one process it shares its state with the
clients' trainer, over a link it has a state of its own.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from data_prep.errors import InputError
from stforecast.federated.data import take
from stforecast.federated.faults import DIVERGED, describe
from stforecast.federated.method import Method, Participants
from stforecast.federated.state import State, generator
from stforecast.federated.uploads.payload import Like, Payload
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundReport:
    """One line of `rounds.csv`.

    Attributes:
        round: number of the round, from 1.
        train_loss: mean of the whole local loss over clients and batches.
        train_task_loss: mean of the task's loss alone.
        validation_loss: pooled over clients after the round's aggregation; NaN without a
            validation part.
        participants: clients that took part.
        bytes_down: bytes sent to clients, counted from the payloads.
        bytes_up: bytes sent by clients.
        seconds: wall-clock seconds of the round, validation included.
        failed: participants that were left out, see `stforecast.federated.faults`; the losses and
            `bytes_up` are those of the others.
    """

    round: int
    train_loss: float
    train_task_loss: float
    validation_loss: float
    participants: int
    bytes_down: int
    bytes_up: int
    seconds: float
    failed: int = 0


class Server:
    """Aggregates uploads round after round and notes how the rounds went.

    Args:
        method: the method, with its settings.
        state: of which the server's tensors, the round and the clients' sizes are used.
        rounds: to do in all.
        uplink: how uploads were encoded.
        robust: how the server guards itself against bad uploads.
        lag: rounds by which validation losses come late.

    Attributes:
        reports: one entry a round.
        best_round: the round of the lowest validation loss so far, from 1; None without one.
    """

    def __init__(
        self,
        method: Method,
        state: State,
        rounds: int,
        *,
        uplink: Uplink | None = None,
        robust: Robust | None = None,
        lag: int = 0,
    ) -> None:
        self.method, self.state, self.rounds, self.lag = method, state, rounds, lag
        self.uplink, self.robust = uplink or Uplink(), robust or Robust()
        self.reports: list[RoundReport] = []
        self.best_round: int | None = None

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or patience has run out."""
        patience, done = self.method.training.patience, self.state.round
        if done >= self.rounds:
            return True
        if self.best_round is not None and 0 < patience <= done - self.lag - self.best_round:
            log.info("no better validation loss for %d rounds: stopped", patience)
            return True
        return False

    def participants(self, draw: int | None = None, stage: int = 0) -> Participants:
        """Draw the clients of the coming round: a random share α of those that have samples.

        Args:
            draw: index by which they are drawn; by default that of the round.
            stage: index of the stage of the task stream.
        """
        sizes, training = self.state.clients.sizes, self.method.training
        draw = self.state.round if draw is None else draw
        ids = torch.arange(len(sizes))
        if training.participation < 1 and (draw > 0 or not training.full_start):
            drawn = torch.randperm(len(sizes), generator=generator(self.state.seed, draw))
            ids = drawn[: max(1, round(training.participation * len(sizes)))].sort().values
        ids = ids[sizes[ids] > 0]
        return Participants(ids, sizes[ids], self.state.round, stage)

    @torch.no_grad()
    def decode(self, ids: Tensor, upload: Payload, like: Like) -> Payload:
        """Decode what the clients `ids` sent.

        Args:
            ids: `(n,)` increasing client ids.
            upload: as it travelled.
            like: types and shapes of what was encoded.
        """
        return self.uplink.decode(upload, take(self.state.received, ids), like)

    @torch.no_grad()
    def aggregate(self, ids: Tensor, upload: Payload, stage: int = 0) -> None:
        """Hand the uploads of the clients `ids` to the method: that ends the round."""
        state, method = self.state, self.method
        if self.uplink.delta_coding:
            for name, t in upload.items():
                if name not in state.received:
                    state.received[name] = t.new_zeros(len(state.clients), *t.shape[1:])
                state.received[name][ids] = t
        upload = self.robust.guard(upload, method.keeps_apart, method.population.names)
        of = Participants(ids, state.clients.sizes[ids], state.round, stage)
        server = method.aggregate(state.server, of, upload)
        # Checkpoints keep no strides, and sums may depend on them.
        state.server = {name: t.contiguous() for name, t in server.items()}
        state.round += 1

    def report_failures(self, failed: Mapping[int, str], n_participants: int) -> None:
        """Warn of clients that failed, the first time.

        Args:
            failed: client ids, and why.
            n_participants: clients that should have trained.

        Raises:
            InputError: if nobody is left.
        """
        if failed and len(failed) == n_participants:
            diverged = DIVERGED in failed.values()
            raise InputError(
                f"round {self.state.round + 1}: all participants failed: {describe(failed)}"
                + ("; a smaller --lr keeps values finite" if diverged else "")
            )
        if failed and not any(r.failed for r in self.reports):
            log.warning(
                "round %d: left out %s; rounds.csv counts failures",
                self.state.round + 1, describe(failed),
            )  # fmt: skip

    def report(self, report: RoundReport) -> None:
        """Note how the round went, and its validation loss if that is known already."""
        if not math.isfinite(report.train_loss):
            loss = report.train_loss
            log.warning("round %d: the training loss is %s; try a smaller lr", report.round, loss)
        self.reports.append(dataclasses.replace(report, validation_loss=math.nan))
        self.record_score(report.validation_loss)

    def record_score(self, loss: float) -> None:
        """Note the validation loss after the latest round."""
        if self.is_best(loss):
            self.best_round = self.state.round
        self.reports[-1] = dataclasses.replace(self.reports[-1], validation_loss=loss)

    def is_best(self, loss: float) -> bool:
        """Whether no round so far had so low a validation loss."""
        return not math.isnan(loss) and not any(r.validation_loss <= loss for r in self.reports)
