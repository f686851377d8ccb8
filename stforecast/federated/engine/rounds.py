"""The in-process executor: one server and one trainer of all clients."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import torch

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.data import ClientData, Stream
from stforecast.federated.core.method import Method, Participants
from stforecast.federated.core.state import State
from stforecast.federated.engine.server import RoundReport, Server
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink


class Federation:
    """Federated training of a method in this process. Server and trainer share one state.

    Args:
        method: the method, with its model, task and settings.
        train: training samples, or a stream of stages of them.
        validation: samples that select the best round, or None.
        seed: seed of the run.
        device: device to compute on.
        cohort_size: largest number of clients trained together, see `Trainer`.
        uplink: processing of uploads before they are sent.
        robust: the server's defence against Byzantine uploads.
        workers: cohorts that train at the same time, on a CPU.
        memory: bytes that the run may take, see `Trainer`.
        make_trainer: makes the trainer from the arguments above; by default one in this process.

    Raises:
        InputError: if the data do not match the settings, or the run does not fit the memory.

    Attributes:
        best: copy of the state that predicts after the round of the lowest validation loss,
            without the optimiser's moments (None at the start and without validation samples).
        latest: participants of the latest round.
    """

    latest: Participants

    def __init__(
        self,
        method: Method,
        train: ClientData | Stream,
        validation: ClientData | None = None,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        cohort_size: int | None = None,
        uplink: Uplink | None = None,
        robust: Robust | None = None,
        workers: int = 1,
        memory: int | None = None,
        make_trainer: Callable[..., Trainer] = Trainer,
    ) -> None:
        self.method = method
        self.trainer = make_trainer(
            method,
            train,
            validation,
            seed=seed,
            device=device,
            cohort_size=cohort_size,
            uplink=uplink,
            workers=workers,
            memory=memory,
        )
        rounds = method.training.rounds * len(self.trainer.stream)
        self.server = Server(method, self.trainer.state, rounds, uplink=uplink, robust=robust)
        self.best: State | None = None
        self._validated: State | None = None

    @property
    def state(self) -> State:
        """Everything that is kept from round to round."""
        return self.trainer.state

    @state.setter
    def state(self, state: State) -> None:
        self.trainer.state = self.server.state = state
        self._validated = None

    @property
    def train(self) -> ClientData:
        """Training samples of the current stage."""
        return self.trainer.train_data

    @property
    def validation(self) -> ClientData | None:
        """Samples that select the best round."""
        return self.trainer.validation

    @property
    def reports(self) -> list[RoundReport]:
        """Reports of all rounds done."""
        return self.server.reports

    @property
    def finished(self) -> bool:
        """Return whether all rounds are done, or early stopping has ended the run."""
        return self.server.finished

    def run(self, after_round: Callable[[RoundReport], None] | None = None) -> None:
        """Train for the settings' number of rounds, or until early stopping."""
        while not self.finished:
            report = self.run_round()
            if after_round:
                after_round(report)

    def run_round(self) -> RoundReport:
        """Run one round and return its report."""
        start, self._validated = time.perf_counter(), None
        server, trainer = self.server, self.trainer
        trainer.begin_round()
        self.latest = participants = self.participants()
        trained = trainer.train(participants.ids)
        server.report_failures(trained.failed, len(participants.ids))
        upload = server.decode(trained.ids, trained.upload, trained.like)
        server.aggregate(trained.ids, upload, participants.stage)
        server.report(
            RoundReport(
                round=self.state.round,
                train_loss=float(trained.loss.mean()),
                train_task_loss=float(trained.task_loss.mean()),
                validation_loss=self._validate(),
                participants=len(participants.ids),
                bytes_down=trained.bytes_down,
                bytes_up=trained.bytes_up,
                seconds=time.perf_counter() - start,
                failed=len(trained.failed),
            )
        )
        return self.reports[-1]

    def participants(self) -> Participants:
        """Return the clients of the next round."""
        stage, draw = self.trainer.place()
        drawn = self.server.participants(draw, stage)
        if not len(drawn.ids):
            raise InputError(
                f"none of the clients drawn for round {self.state.round + 1} has samples in stage "
                f"{stage}; ",
                Words("use a larger {participation}, or stages that more clients share"),
            )
        return drawn

    def _validate(self) -> float:
        """Return the validation loss, NaN if the method leaves it out; keep the best state."""
        if self.validation is None or not self.method.validates(self.state.round):
            return math.nan
        self._validated = state = self.ready()
        loss = self.evaluate(self.validation, state)
        if self.server.is_best(loss):
            self.best = self.trainer.kept(state, into=self.best)
        return loss

    def ready(self) -> State:
        """Return the state that predicts, see `Trainer.ready`; that of a round once."""
        return self._validated or self.trainer.ready()

    def evaluate(self, data: ClientData, state: State | None = None) -> float:
        """Return the task's score over all samples of all clients: total sum over total count.

        Args:
            data: samples of all clients.
            state: the state that predicts; by default `ready()`.
        """
        total, count = self.trainer.score(data, state or self.ready())
        return total / count if count else math.nan

    def restore(self, state: State, best: State | None, reports: Sequence[RoundReport]) -> None:
        """Restore what another federation of the same run had after a round."""
        self._validated = None
        self.trainer.restore(state)
        self.best = self.trainer.copy(best) if best else None
        self.server.best_round = best.round if best else None
        self.server.reports = list(reports)

    def history(self) -> list[dict[str, float]]:
        """Return the rounds' reports as rows of a table."""
        return [dataclasses.asdict(r) for r in self.reports]
