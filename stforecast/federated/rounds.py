"""The in-process executor: one server over one trainer of all clients, without a wire."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import torch

from stforecast.federated.data import ClientData
from stforecast.federated.method import Method, Participants
from stforecast.federated.server import RoundReport, Server
from stforecast.federated.state import State
from stforecast.federated.stream import Stream
from stforecast.federated.trainer import Trainer
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink


class Federation:
    """Trains a method on many clients in this process. Server and trainer share one state.

    Args:
        method: the method, with its model, task and settings.
        train: training samples, or a stream of them, stage after stage.
        validation: samples to choose the best round by, or None.
        seed: seed of the run.
        device: where to compute.
        cohort_size: most clients trained together, see `Trainer`.
        uplink: what is done to uploads on their way.
        robust: how the server guards itself against bad uploads.
        workers: cohorts that train at the same time, on a CPU.
        memory: bytes that the run may take, see `Trainer`.

    Raises:
        InputError: if the data do not fit the settings, or the run not the memory.

    Attributes:
        best: copy of the state that predicted after the round of the lowest validation loss,
            without the optimiser's moments (None at the start and without a validation part).
    """

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
    ) -> None:
        self.method = method
        self.trainer = Trainer(
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

    @property
    def state(self) -> State:
        """Everything that survives a round."""
        return self.trainer.state

    @state.setter
    def state(self, state: State) -> None:
        self.trainer.state = self.server.state = state

    @property
    def train(self) -> ClientData:
        """Training samples of the present stage."""
        return self.trainer.train_data

    @property
    def validation(self) -> ClientData | None:
        """Samples to choose the best round by."""
        return self.trainer.validation

    @property
    def reports(self) -> list[RoundReport]:
        """One entry a round."""
        return self.server.reports

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, or patience has run out."""
        return self.server.finished

    def run(self, after_round: Callable[[RoundReport], None] | None = None) -> None:
        """Train until the settings' number of rounds, or until patience runs out.

        Args:
            after_round: called with each round's report, e.g. to draw a progress bar.
        """
        while not self.finished:
            report = self.run_round()
            if after_round:
                after_round(report)

    def run_round(self) -> RoundReport:
        """Do one round and return its report."""
        start = time.perf_counter()
        server, trainer = self.server, self.trainer
        trainer.enter(trainer.place()[0])
        participants = self.participants()
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
        """The clients of the coming round."""
        stage, draw = self.trainer.place()
        return self.server.participants(draw, stage)

    def _validate(self) -> float:
        """Validation loss now; keeps a copy of the state if it is the best so far."""
        if self.validation is None:
            return math.nan
        state = self.ready()
        loss = self.evaluate(self.validation, state)
        if self.server.is_best(loss):
            self.best = self.trainer.copy(state, into=self.best)
        return loss

    def ready(self) -> State:
        """The state as it predicts, see `Trainer.ready`."""
        return self.trainer.ready()

    def evaluate(self, data: ClientData, state: State | None = None) -> float:
        """The task's score over all samples of all clients: total sum over total count.

        Args:
            data: samples of all clients.
            state: the state that predicts; by default what `ready` gives now.
        """
        total, count = self.trainer.score(data, state or self.ready())
        return total / count if count else math.nan

    def restore(self, state: State, best: State | None, reports: Sequence[RoundReport]) -> None:
        """Take up what another federation of the same run had after a round.

        Args:
            state: its state.
            best: its state of the best round.
            reports: its reports.

        Raises:
            InputError: if the state's clients are not those of this federation.
        """
        self.trainer.restore(state)
        self.best = self.trainer.copy(best) if best else None
        self.server.best_round = best.round if best else None
        self.server.reports = list(reports)

    def history(self) -> list[dict[str, float]]:
        """The rounds' reports as rows of a table."""
        return [dataclasses.asdict(r) for r in self.reports]
