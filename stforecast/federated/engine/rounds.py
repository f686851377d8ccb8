"""Rounds of a federation: the server's side, and the in-process executor of server and trainer.

A `Server` draws participants, aggregates, and keeps the best round and the reports. It needs
neither samples nor a transport of messages. In one process, it shares its state with the clients'
trainer; over a link, it has its own state.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.data import ClientData, Stream
from stforecast.federated.core.method import Method
from stforecast.federated.core.state import Participants, State, generator, row_major
from stforecast.federated.core.tensors import Like, Payload, check_tensors, take
from stforecast.federated.engine import stragglers
from stforecast.federated.engine.faults import DIVERGED, Diverged, reasons_of
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Sent, Uplink, count_uploads

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundReport:
    """Report of a round, a line of `rounds.csv`.

    Attributes:
        round: number of the round, from 1.
        train_loss: mean of the whole local loss over clients and batches.
        train_task_loss: mean of the task's loss alone.
        validation_loss: pooled over clients after the round's aggregation; NaN without
            validation samples.
        participants: number of clients that took part.
        bytes_down: bytes sent to clients, counted from the payloads.
        bytes_up: bytes sent by clients.
        seconds: wall-clock seconds of the round, including validation.
        failed: number of participants left out, see `stforecast.federated.engine.faults`; the
            losses and `bytes_up` are those of the others.
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
    """Aggregates the uploads of each round and records the rounds' reports.

    It uses the state's server, round and sizes of clients. Validation losses are delayed by `lag`
    rounds. A defence against Byzantine uploads that the method cannot use is refused.

    Attributes:
        reports: reports of all rounds done.
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
        self.robust.check(type(method))
        stragglers.check_lateness(method)
        self._dropped: set[int] = set()
        self.reports: list[RoundReport] = []
        self.best_round: int | None = None

    @property
    def finished(self) -> bool:
        """Return whether all rounds are done, or early stopping has ended the run."""
        patience, done = self.method.training.patience, self.state.round
        if done >= self.rounds:
            return True
        if self.best_round is not None and 0 < patience <= done - self.lag - self.best_round:
            log.info("no better validation loss for %d rounds: stopped", patience)
            return True
        return False

    def participants(self, draw: int | None = None, stage: int = 0) -> Participants:
        """Draw the clients of the next round: a random share α of those that have samples.

        Clients that still train for an earlier round are left out.

        `draw` seeds the draw, by default by the round.
        """
        sizes, training = self.state.clients.sizes, self.method.training
        draw = self.state.round if draw is None else draw
        drawn = training.participation < 1 and (draw > 0 or not training.full_start)
        ids = torch.arange(len(sizes))
        if drawn:
            ids = torch.randperm(len(sizes), generator=generator(self.state.seed, draw))
        ids = stragglers.free(self.state, ids)
        if drawn:
            ids = ids[: max(1, round(training.participation * len(sizes)))].sort().values
        ids = ids[sizes[ids] > 0]
        return Participants(ids, sizes[ids], self.state.round, stage)

    @torch.no_grad()
    def decode(self, ids: Tensor, upload: Payload, like: Like) -> Payload:
        """Decode the upload of the clients `ids`, `(n,)` and increasing."""
        return self.uplink.decode(upload, take(self.state.received, ids), like)

    @torch.no_grad()
    def aggregate(self, ids: Tensor, upload: Payload, stage: int = 0) -> None:
        """Aggregate the uploads of the clients `ids` by the method; this ends the round."""
        self.accept(self.merged(ids, upload, stage))

    @torch.no_grad()
    def merged(self, ids: Tensor, upload: Payload, stage: int = 0) -> dict[str, Tensor]:
        """Return the state that the uploads of the clients `ids` lead to."""
        state, method = self.state, self.method
        if self.uplink.delta_coding:
            for name, t in upload.items():
                if name not in state.received:
                    state.received[name] = t.new_zeros(len(state.clients), *t.shape[1:])
                state.received[name][ids] = t
        ids, upload = stragglers.arrived(method, state, ids, upload)
        if not len(ids):  # All who trained are slow.
            return state.server
        ids, upload = self._near(ids, upload)
        upload = self.robust.guard(upload, apart=method.sends.apart, model=method.population.names)
        of = Participants(ids, state.clients.sizes[ids], state.round, stage)
        if upload and getattr(method.aggregate, "__func__", None) is Method.aggregate:
            sent = ", ".join(upload)
            raise InputError(f"{method.name}: clients upload {sent}, but it has no aggregate")
        server = method.aggregate(state.server, of, upload)
        check_tensors(f"{method.name}, aggregate", server)
        for name in server.keys() & state.server.keys() & set(method.population.names):
            found, before = (tuple(held[name].shape) for held in (server, state.server))
            if found != before:
                raise InputError(
                    f"{method.name}, aggregate: {name!r} has the shape {found}, expected that of "
                    f"the state before, {before}"
                )
        return {name: row_major(t) for name, t in server.items()}

    def accept(self, merged: dict[str, Tensor]) -> None:
        """Replace the server's state by one that `merged` returned; this ends the round."""
        self.state.server = merged
        self.state.round += 1

    def _near(self, ids: Tensor, upload: Payload) -> tuple[Tensor, Payload]:
        """Return the clients that the rule `drop` keeps, and their uploads; name the others."""
        if self.robust.robust != "drop":
            return ids, upload
        method, sizes = self.method, self.state.clients.sizes[ids]
        samples = sizes if method.sends.of_samples else None
        near = self.robust.kept(upload, method.population.names, samples)
        if len(near) == len(ids):
            return ids, upload
        dropped = set(ids.tolist()) - set(ids[near].tolist())
        if dropped - self._dropped:
            why = "its upload is far from those of the others"
            named = reasons_of(dict.fromkeys(dropped - self._dropped, why))
            now = self.state.round + 1
            log.warning("round %d: left out %s; said once of each client", now, named)
            self._dropped |= dropped
        return ids[near], take(upload, near)

    def report_failures(self, failed: Mapping[int, str], n_participants: int) -> None:
        """Warn of failed clients, only the first time.

        Raises:
            Diverged: if the values of all participants are not finite.
            RuntimeError: if all of them failed in any other way.
        """
        if failed and len(failed) == n_participants:
            said = f"round {self.state.round + 1}: all participants failed: {reasons_of(failed)}"
            if set(failed.values()) == {DIVERGED}:
                odd = [name for name, t in self.state.server.items() if not t.isfinite().all()]
                cause = f"as {odd[0]!r} from {self.method.name}'s aggregate is not; " if odd else ""
                raise Diverged(f"{said}; {cause}", Words("a smaller {lr} keeps values finite"))
            raise RuntimeError(said)
        if failed and not any(r.failed for r in self.reports):
            log.warning(
                "round %d: left out %s; rounds.csv counts failures",
                self.state.round + 1,
                reasons_of(failed),
            )

    def report(self, report: RoundReport) -> None:
        """Add the report of a round, and its validation loss if that is known already."""
        if math.isnan(loss := report.train_loss):
            log.warning(
                "round %d: %s has recorded no training loss; cohort.step records it, and "
                "cohort.record_loss, for clients that take no such steps",
                report.round,
                self.method.name,
            )
        elif not math.isfinite(loss):
            log.warning("round %d: the training loss is %s; try a smaller lr", report.round, loss)
        self.reports.append(dataclasses.replace(report, validation_loss=math.nan))
        self.record_score(report.validation_loss)

    def record_score(self, loss: float, best: bool | None = None) -> None:
        """Record the validation loss after the latest round; by default the lowest is the best."""
        if self.is_best(loss) if best is None else best:
            self.best_round = self.state.round
        self.reports[-1] = dataclasses.replace(self.reports[-1], validation_loss=loss)

    def is_best(self, loss: float) -> bool:
        """Return whether the validation loss is the lowest so far."""
        return not math.isnan(loss) and not any(r.validation_loss <= loss for r in self.reports)


class Federation:
    """Federated training of a method in this process. Server and trainer share one state.

    Args:
        method: the method, with its model, task and settings.
        train: training samples, or a stream of stages of them.
        validation: samples that select the best round, or None.
        robust: the server's defence against Byzantine uploads.
        make_trainer: makes the trainer; by default one in this process.
        **options: options of the trainer, such as `seed`, `device` or `workers`, see `Trainer`.

    Raises:
        InputError: if the data do not match the settings, or the run does not fit the memory.

    Attributes:
        best: copy of the state that predicts after the round of the lowest validation loss,
            without the optimiser's moments (None at the start and without validation samples).
        latest: participants of the latest round.
        sent: uploads that have left each client, at most: one in each round.
    """

    latest: Participants

    def __init__(
        self,
        method: Method,
        train: ClientData | Stream,
        validation: ClientData | None = None,
        *,
        robust: Robust | None = None,
        make_trainer: Callable[..., Trainer] = Trainer,
        **options: Any,
    ) -> None:
        self.method, drawn = method, _drawn()
        self.trainer = trainer = make_trainer(method, train, validation, **options)
        _warn_of_draws(method, drawn)
        rounds = method.training.rounds * len(trainer.stream)
        self.server = Server(method, trainer.state, rounds, uplink=trainer.uplink, robust=robust)
        self.sent = count_uploads(Sent(trainer.uplink))
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
        kept, drawn = dict(vars(self.method)), None if self.reports else _drawn()
        self.latest = participants = self.participants()
        stragglers.note_begun(server.method.training, self.state, participants.ids)
        trained = trainer.train(participants.ids)
        self.sent.uploads += bool(trained.upload)
        server.report_failures(trained.failed, len(participants.ids))
        upload = server.decode(trained.ids, trained.upload, trained.like)
        server.aggregate(trained.ids, upload, participants.stage)
        if drawn:
            _warn_of_attributes(self.method, kept)
            _warn_of_draws(self.method, drawn)
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
        """Return the state that predicts, see `Trainer.ready`; a validated one is kept for this."""
        return self._validated or self.trainer.ready()

    def evaluate(self, data: ClientData, state: State | None = None) -> float:
        """Return the task's score over all samples of all clients: total sum over total count.

        By default, the state is `ready()`.
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
        self.sent.uploads = sum(report.bytes_up > 0 for report in reports)

    def history(self) -> list[dict[str, float]]:
        """Return the rounds' reports as rows of a table."""
        return [dataclasses.asdict(r) for r in self.reports]


def _drawn() -> tuple[bytes, bytes, int]:
    """Return the states of the global generators, which only a mistake of a method changes."""
    numpy: Any = np.random.get_state(legacy=False)["state"]  # noqa: NPY002  the one to watch
    return torch.get_rng_state().numpy().tobytes(), numpy["key"].tobytes(), numpy["pos"]


def _warn_of_draws(method: Method, drawn: tuple[bytes, bytes, int]) -> None:
    if _drawn() != drawn:
        log.warning(
            "%s draws from a global generator of torch or NumPy, so a repeated run has other "
            "numbers; draw with cohort.rand, cohort.generators or core.state.generator(seed, …)",
            method.name,
        )


def _warn_of_attributes(method: Method, kept: Mapping[str, Any]) -> None:
    """Warn of attributes that a round has changed, which no checkpoint holds."""
    changed = [n for n, value in vars(method).items() if n not in kept or kept[n] is not value]
    cached = [n for n in changed if isinstance(getattr(type(method), n, None), cached_property)]
    if changed := sorted(set(changed) - set(cached)):
        log.warning(
            "%s changes its attribute %s in a round, which a resumed run lacks; keep it in the "
            "server's state or the clients' memory",
            method.name,
            ", ".join(changed),
        )
