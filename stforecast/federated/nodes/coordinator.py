"""The server of a federation of nodes: rounds over the nodes that are connected.

A `Coordinator` reaches the nodes only through a `Link`. Clients are numbered from the start; a node
that joins reports the numbers of its clients. The first round waits for all clients. After that, a
node may disconnect, return, join late or send an invalid answer: the round continues with the
others, and a warning is logged. With `slow_share` it also continues without the slowest, see
`stforecast.federated.nodes.late_answers`.

No single node decides which round is the best, and so which models are kept: see
`stforecast.federated.nodes.reported`.

If a folder is given, the server's state is saved after each round. A run that was ended continues
after the last complete round, to which its nodes return.

After the rounds of a run may follow `Refits`: the nodes then train on newer samples, and the rounds
go on from the state that the settings select, with the method's own numbers.

A node answers once a round. It first validates its clients as they were after the last round (with
the server's new message), then trains. A round's validation loss is therefore known one round later
than in one process, and early stopping ends the run one round later.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data_prep.base.errors import InputError, plain
from stforecast.federated.core.method import Method, initial_state
from stforecast.federated.core.state import Clients, Participants, State
from stforecast.federated.core.tensors import Like, joined, like_of, total_bytes
from stforecast.federated.engine import stragglers
from stforecast.federated.engine.faults import NOT_THE_CLIENTS
from stforecast.federated.engine.rounds import RoundReport, Server
from stforecast.federated.nodes.bounds import fault_of, norm, outliers
from stforecast.federated.nodes.late_answers import LateAnswers
from stforecast.federated.nodes.masker import METRICS
from stforecast.federated.nodes.membership import Membership, Patience, event, tell_left_out
from stforecast.federated.nodes.messages import (
    FEW,
    Answer,
    Finished,
    Link,
    Message,
    Rejected,
    check_finish,
    check_round,
    few_parties,
    most_common,
    with_uploads,
)
from stforecast.federated.nodes.node_sums import NodeSums, check_uploads
from stforecast.federated.nodes.reported import Reported, bounded_mean, bounded_nodes, most_improved
from stforecast.federated.nodes.run_settings import Refits
from stforecast.federated.nodes.secure_sum import FEWEST, SumLost, check_advert, check_finish_advert
from stforecast.federated.nodes.summing import adds_up, rows_with_mean
from stforecast.federated.runs.checkpoint import (
    Checkpoint,
    is_spaced,
    newest_sound,
    save_checkpoint,
)
from stforecast.federated.uploads.masking import SecureSums
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink

log = logging.getLogger(__name__)

EVERYBODY = -1
"""Number that stands for all nodes of a secure sum."""


class Coordinator:
    """Trains a method on nodes.

    Args:
        method: the method, with its model, task and settings.
        link: link to the nodes.
        n_clients: clients of the whole federation.
        seed: seed of the run.
        uplink: processing of uploads before nodes send them; delta coding is refused.
        robust: the server's defence against Byzantine uploads.
        patience: time limits.
        secure: settings of secure aggregation: the server learns sums over the nodes only.
        metrics: names of the test errors of which it learns sums under secure aggregation.
        owners: clients of each node that may join, see `Membership`.
        folder: folder of the server's checkpoints; None keeps none.
        run: identity of the run, as JSON; a checkpoint of another run is refused.
        begin: the server's tensors before the first round; by default the method's initial ones.
        refits: refits after the run; None for none.

    Attributes:
        begun: by refit that has begun, the rounds done before it.
        uploads: how often a client was asked to train at most, repeated rounds included.
        token: random name of the run, by which nodes find their state of it again.
        resumed: whether the run goes on from a checkpoint.
        test_errors: mean test errors of all nodes, where these tell only sums.
        left_out: by node, why its test errors cannot count, whatever they are.
    """

    def __init__(
        self,
        method: Method,
        link: Link,
        n_clients: int,
        *,
        seed: int = 0,
        uplink: Uplink | None = None,
        robust: Robust | None = None,
        patience: Patience | None = None,
        secure: SecureSums | None = None,
        metrics: Sequence[str] = METRICS,
        owners: Mapping[int, range] | None = None,
        folder: Path | None = None,
        run: Mapping[str, Any] | None = None,
        begin: Mapping[str, Tensor] | None = None,
        refits: Refits | None = None,
    ) -> None:
        self.method, self.link, self.begin = copy.copy(method), link, begin
        # Simulated slow clients would be late by so many rounds; nodes are late by themselves.
        self.method.training = dataclasses.replace(method.training, slow_rounds=1)
        self.folder, self.identity = folder, dict(run or {})
        self.refits, self.begun = refits, list[int]()
        self.best: State | None = None
        found = newest_sound(folder, self.identity) if folder else None
        self.token: str = found.notes["token"] if found else secrets.token_hex(8)
        self.patience = patience or Patience()
        self.membership = Membership(link, n_clients, self.patience, self.token, owners)
        state = State(Clients({}, {}, {}, self.membership.sizes), {}, round=0, seed=seed)
        self.server = Server(
            self.method, state, method.training.rounds, uplink=uplink, robust=robust, lag=1
        )
        self.adds_up = adds_up(self.method, self.server.uplink)
        self.late = LateAnswers(self.method, link, self.membership)
        check_uploads(type(method), self.server.uplink, self.server.robust, secure)
        self.sums = NodeSums(secure, link, self.membership) if secure else None
        self.metrics = metrics
        self._like: Like | None = None
        self._model = like_of(method.population.initial())
        self._n_empty, self._n_reported, self._lost_because = 0, 0, ""
        self._told_few, self.uploads, self._base = False, 0, 0
        self._best_scores: dict[int, Reported] = {}
        self._sent, self._end, self._told_bounded = 0, "", set[tuple[int, str]]()
        self.test_errors: dict[str, float] = {}
        self.left_out: dict[int, str] = {}
        self.resumed = found is not None
        if found:
            self._restore(found)

    def run(self, after_round: Callable[[RoundReport], None] | None = None) -> dict[int, Finished]:
        """Train for all rounds of the settings; return the nodes' last answers, if they finish."""
        server = self.server
        if self.resumed:
            known = event("resumed", round=self.done)
            log.info("the run goes on after round %d", self.done, extra=known)
        self.membership.gather()
        if not self.resumed:
            sizes = self.membership.sizes  # Of those that never connected, the smallest known.
            sizes = torch.where(sizes > 0, sizes, sizes[sizes > 0].min())
            first = initial_state(self.method, sizes, server.state.seed).server
            server.state.server = first if self.begin is None else dict(self.begin)
        names = self.refits.names if self.refits else ()
        while True:
            while not self._complete:
                self.run_round()
                self._save()
                self._pass_on(server.reports[:-1], after_round)
            self._end = "the last validation"
            self._record_score(self._ask_round(torch.tensor([], dtype=torch.long)))
            self._pass_on(server.reports, after_round)
            if len(self.begun) == len(names):
                break
            self._begin_refit(names[len(self.begun)])
        self._end = "the end"
        return self._finish()

    @property
    def done(self) -> int:
        """Number of rounds done, those of refits included."""
        return len(self.server.reports)

    @property
    def _complete(self) -> bool:
        """Whether all rounds of the run, or of the refit under way, are done."""
        if not self.begun or self.refits is None:
            return self.server.finished
        return self.done - self.begun[-1] == self.refits.rounds + self.method.sums_first

    def _begin_refit(self, name: str) -> None:
        """Go over to a refit: from the selected round of the run, or from the last."""
        assert self.refits
        from_best = not self.begun and self.refits.select == "best" and self.best is not None
        state, of = self.server.state, self.best if from_best else self.server.state
        assert of
        log.info("%s: the nodes train on newer samples", name, extra=event("refit", refit=name))
        state.server, self._base = of.server, of.round
        state.round = 0 if self.method.sums_first else of.round
        self.begun.append(self.done)
        self._end = ""
        self._use_refit(name)
        self.membership.enter(name, self.done)

    def _use_refit(self, name: str) -> None:
        """Use the method of refits from now on."""
        assert self.refits
        self.method = copy.copy(self.method)
        self.method.training = dataclasses.replace(self.refits.training, slow_rounds=1)
        self.server.method = self.late.method = self.method
        self.membership.refit = name

    def _pass_on(
        self, complete: list[RoundReport], after_round: Callable[[RoundReport], None] | None
    ) -> None:
        """Call `after_round` with the reports that are now complete."""
        for report in complete[self._n_reported :]:
            if after_round:
                after_round(report)
        self._n_reported = max(self._n_reported, len(complete))

    def run_round(self) -> None:
        """Run one round with the connected nodes."""
        start, server = time.perf_counter(), self.server
        if self.sums and not self.done and len(self.membership.numbers) < FEWEST:
            raise InputError("a single node is connected; secure aggregation needs at least two")
        n_awaited = self.late.awaited
        self.membership.await_enough(self.done)
        if (n := len(self.membership.numbers)) < FEW and not self._told_few:
            self._told_few = True
            log.warning(few_parties(n), extra=event("few_parties", nodes=n))
        participants = server.participants().ids
        free = self.membership.numbers.keys() - self.late.busy()
        here = [i for node in free for i in self.membership.numbers[node]]
        self.uploads += 1
        # Nobody trains if fewer nodes are there than must be.
        if n >= (fewest := self.patience.min_parties):
            found = self._ask_round(participants)
        else:
            self._lose_round(f"{n} nodes are connected, at least {fewest} must be")
            found = {}
        answers, merged = self._merged(found)
        self._record_score(answers)
        self.membership.settle(self.late.busy())
        if merged is None:
            self._n_empty += 1
            if self._n_empty == 3:
                raise InputError(
                    "no node gave a usable answer 3 times in a row"
                    + (f": {self._lost_because}" if self._lost_because else "")
                )
            time.sleep(self.patience.poll)
            return
        server.accept(merged)
        if self.begun and self.done == self.begun[-1] and self.method.sums_first:
            server.state.round = self._base  # The sums are numbered 0.
        self._n_empty, self._lost_because = 0, ""
        trained = with_uploads(answers)
        n_asked = int(torch.isin(participants, torch.tensor(here)).sum())
        n_trained = sum(len(a.ids) for a in trained.values())
        loss, task_loss = (
            self._mean(
                what, {n: Reported(a.losses[i], len(a.ids), len(a.ids)) for n, a in trained.items()}
            )
            for i, what in enumerate(("training loss", "training loss of the task"))
        )
        server.report(
            RoundReport(
                round=self.done + 1,
                train_loss=loss,
                train_task_loss=task_loss,
                validation_loss=math.nan,
                participants=n_asked,
                bytes_down=self._sent,
                bytes_up=sum(a.bytes_up for a in trained.values()),
                seconds=time.perf_counter() - start,
                failed=n_awaited + n_asked - self.late.awaited - n_trained,
            )
        )
        self._sent = 0

    def _mean(self, what: str, sums: Mapping[int, Reported]) -> float:
        """Return the bounded mean of what nodes report; name once each node that is bounded."""
        for node, why in bounded_nodes(sums).items():
            if (node, what) not in self._told_bounded:
                self._told_bounded.add((node, what))
                log.warning(
                    "%s: the %s of %s is bounded (%s); said once",
                    self._now(),
                    what,
                    self.membership.name(node),
                    why,
                    extra=event("bounded", node=node, what=what, reason=f"its {what}: {why}"),
                )
        return bounded_mean([*sums.values()])

    def _now(self) -> str:
        """Return what the nodes are asked for, in words."""
        return self._end or f"round {self.done + 1}"

    def _merged(
        self, answers: dict[int, Answer]
    ) -> tuple[dict[int, Answer], dict[str, Tensor] | None]:
        """Return the answers that count, and the server's next state: without any that spoil it.

        If the new state is not sound, the aggregation is repeated without one node, that of the
        largest upload first, then without several. If nothing helps, there is no new state.
        """
        trained = with_uploads(answers)
        if not trained:
            return answers, None
        if (n := self.sums.parties if self.sums else len(trained)) < self.patience.min_parties:
            self._lose_round(f"{n} parties trained, at least {self.patience.min_parties} must")
            return answers, None
        merged = self._try(trained)
        if not isinstance(merged, str):
            return answers, merged
        ranked = sorted(trained, key=lambda n: norm(trained[n]), reverse=True)
        for spoilers in [*([n] for n in ranked), *(ranked[:k] for k in range(2, len(ranked)))]:
            rest = {n: a for n, a in trained.items() if n not in spoilers}
            found = self._try(rest) if len(rest) >= self.patience.min_parties else merged
            if not isinstance(found, str):
                for node in spoilers:
                    self._leave_out(node, f"with its upload, {merged}", sent=True)
                return {n: a for n, a in answers.items() if n not in spoilers}, found
        named = ", ".join(map(self.membership.name, () if self.sums else trained))
        named = named or "nobody knows whose values are the reason"
        self._lose_round(f"{merged}, whichever node is left out ({named})")
        return answers, None

    def _try(self, trained: Mapping[int, Answer]) -> dict[str, Tensor] | str:
        """Return the state that these uploads lead to, or what is wrong with it."""
        ids, upload = joined([(a.ids, a.upload) for a in trained.values()])
        state = self.server.state
        before = dict(state.received)
        fault: str | None
        try:
            merged = self.server.merged(ids, upload)
        except NOT_THE_CLIENTS:
            raise
        except Exception as e:
            log.debug("%s", e, exc_info=True)
            fault = f"the server cannot compute the next state ({e!r:.120})"
        else:
            fault = fault_of(merged, state.server, [upload], self._model)
        if fault:
            state.received = before
        return fault or merged

    def _lose_round(self, reason: str) -> None:
        """Report that a round is repeated, as its uploads cannot be used."""
        round, self._lost_because = self.done + 1, reason
        known = event("round_lost", round=round, reason=reason)
        log.warning("round %d is repeated: %s", round, reason, extra=known)

    def _ask_round(self, participants: Tensor) -> dict[int, Answer]:
        """Ask the nodes to train the participants; return the usable answers."""
        state, messages = self.server.state, {}
        session = self.sums.begin() if self.sums else {}
        # Refits wait for all, so that each begins with no answer outstanding.
        wait = bool(self._end or self.begun)
        busy = set() if wait else self.late.busy()
        for node, numbers in self.membership.numbers.items():
            if node in busy:
                continue
            ids = torch.tensor(numbers)
            to = Participants(ids, self.membership.sizes[ids], state.round)
            payload = self.method.broadcast(state.server, to)
            train = participants[torch.isin(participants, ids)].tolist()
            began = torch.tensor(train, dtype=torch.long)
            stragglers.note_begun(self.method.training, state, began)
            best, parties = self.server.best_round, len(self.membership.numbers)
            about = {"task": "round", "run": self.token, "round": state.round, "train": train}
            if self.begun:  # The last message of each part has a number of its own.
                number = self.done + len(self.begun)
                about |= {"round": number, "index": state.round, "refit": self.membership.refit}
            messages[node] = Message(about | {"best": best, "parties": parties} | session, payload)
            self._sent += total_bytes(payload)
        found = self.late.ask(messages, wait=wait)
        answers: dict[int, Answer] = {}
        for node, (message, of_node) in found.items():
            asked, uplink = message.about["train"], self.server.uplink
            try:
                if self.sums:
                    answers[node] = check_advert(of_node, asked)
                    continue
                answer = check_round(of_node, asked, uplink, mean=self.adds_up)
                if self.adds_up:  # A row for each client, though the node sent their mean.
                    sizes, grows = self.membership.sizes[answer.ids], self.method.sends.of_samples
                    rows = rows_with_mean(answer.upload, sizes, grows=grows)
                    answer = dataclasses.replace(answer, upload=rows)
                answers[node] = answer
            except Rejected as e:
                self._leave_out(node, str(e), sent=isinstance(of_node, Message))
        asked_of = {node: message for node, (message, _) in found.items()}
        usable = self.late.up_to_date(self._without_odd_shapes(answers), asked_of, state)
        return self._summed(self._without_outliers(usable))

    def _summed(self, answers: dict[int, Answer]) -> dict[int, Answer]:
        """Return the answers; under secure aggregation that of all together, unless it is lost."""
        if self.sums is None or not answers:
            return answers
        try:
            everybody = self.sums.of_round(answers, self.done + 1, self._now())
        except SumLost as e:
            self._lose_sum(e)
            return {}
        finally:
            self._sent += self.sums.bytes_down
        return self._without_outliers({EVERYBODY: everybody})

    def _lose_sum(self, why: SumLost) -> None:
        """Report that a sum is lost, and drop the nodes that spoilt it."""
        round, self._lost_because = self.done + 1, str(why)
        known = event("sum_lost", round=round, reason=str(why))
        log.warning("%s: the sum is lost: %s", self._now(), why, extra=known)
        for node in why.guilty:
            self.membership.expel(node, "it spoilt a secure sum")

    def _leave_out(self, node: int, reason: str, *, sent: bool) -> None:
        """Leave a node out of the round; `sent` says that it sent something unusable."""
        reason = plain(reason)
        if node == EVERYBODY:
            self._lose_sum(SumLost(reason))
            return
        name, strikes = self.membership.name(node), self.membership.strike(node, reason, sent=sent)
        round = self.done + 1
        known = event("left_out", node=node, round=round, reason=reason, strikes=strikes)
        log.warning("%s goes on without %s: %s", self._now(), name, reason, extra=known)

    def _without_odd_shapes(self, answers: dict[int, Answer]) -> dict[int, Answer]:
        """Leave out answers whose tensors are not the model's, or differ from most clients'."""
        for node, answer in with_uploads(answers).items():
            own, model = answer.like, self._model
            if odd := [name for name in model if own.get(name, model[name]) != model[name]]:
                reason = f"its {odd[0]!r} is {own[odd[0]]}, not {model[odd[0]]}"
                self._leave_out(node, reason, sent=True)
                del answers[node]
        alike = with_uploads(answers)
        like = most_common([*alike.values()], self._like)
        self._like = like or self._like
        for node, answer in alike.items():
            if answer.like != like:
                self._leave_out(node, f"it sent {answer.like}, others sent {like}", sent=True)
                del answers[node]
        return answers

    def _without_outliers(self, answers: dict[int, Answer]) -> dict[int, Answer]:
        """Leave out answers whose uploads are out of bounds."""
        trained = with_uploads(answers)
        found = outliers(trained, self.server.state.server, self.membership.sizes)
        for node, reason in found.items():
            self._leave_out(node, reason, sent=True)
        return {node: a for node, a in answers.items() if node not in found}

    def _record_score(self, answers: Mapping[int, Answer]) -> None:
        """Record the validation loss after the last round done, unless it is known already."""
        if self.begun:  # Refits learn the validation part, too.
            return
        of_node = {EVERYBODY: range(len(self.membership.sizes)), **self.membership.numbers}
        sums = {
            node: Reported(*a.score, len(of_node[node]))
            for node, a in answers.items()
            if a.score[1] and not a.late
        }
        scores = {of_node[node].start: of for node, of in sums.items()}
        reports = self.server.reports
        if reports and scores and math.isnan(reports[-1].validation_loss):
            best = self.server.best_round is None or most_improved(scores, self._best_scores)
            self.server.record_score(self._mean("validation loss", sums), best)
            if best and self.refits:
                state, nobody = self.server.state, Clients({}, {}, {}, self.membership.sizes)
                server = {name: t.clone() for name, t in state.server.items()}
                self.best = State(nobody, server, state.round, state.seed)
            # A node that came after the best round is compared with its own first score.
            self._best_scores = scores if best else scores | self._best_scores

    def _finish(self) -> dict[int, Finished]:
        """Send the nodes the number of the best round; each keeps its own models."""
        about = {"task": "finish", "run": self.token, "best": self.server.best_round}
        about |= self.sums.begin() if self.sums else {}
        messages = {node: Message(about) for node in self.membership.numbers}
        answers = self.link.ask(messages, self.patience.answer) if messages else {}
        check = check_finish_advert if self.sums else check_finish
        finished: dict[int, Finished] = {}
        for node in self.membership.numbers:
            try:
                finished[node] = check(answers.get(node, "silent"))
            except Rejected as e:
                known = event("did_not_finish", node=node, reason=str(e))
                log.warning("%s did not finish: %s", self.membership.name(node), e, extra=known)
        if late := [node for node, f in finished.items() if not f.has_best]:
            why = f"it was not there for the best round, {self.server.best_round or 0}; its errors "
            self.left_out = dict.fromkeys(late, f"{why}are those of another one")
            tell_left_out(self.left_out)
        if self.sums:
            self._sum_errors(self.sums, finished)
        return finished

    def _sum_errors(self, sums: NodeSums, finished: Mapping[int, Finished]) -> None:
        """Learn the mean test errors of all nodes as sums."""
        nodes: list[int] = []
        if finished:
            try:
                nodes, self.test_errors = sums.of_errors(
                    finished, self.done + 1, self._now(), self.metrics
                )
            except SumLost as e:
                self._lose_sum(e)
            self._sent += sums.bytes_down
        missing = sorted(finished.keys() - self.left_out.keys() - set(nodes))
        tell_left_out(new := dict.fromkeys(missing, "the sum of the errors is without it"))
        self.left_out |= new

    def _save(self) -> None:
        """Save the server's state after a round."""
        if self.folder is None:
            return
        server = self.server
        notes = {
            "token": self.token,
            "uploads": self.uploads,
            "best_round": server.best_round,
            "best_scores": [[first, *score] for first, score in self._best_scores.items()],
            "begun": self.begun,
            "base": self._base,
            "index": server.state.round,
        }
        checkpoint = Checkpoint(
            run=self.identity,
            state=dataclasses.replace(server.state, round=self.done),
            best=self.best,
            reports=server.reports,
            cohort_size=len(self.membership.sizes),
            notes=notes,
            extra={"declared": self.membership.declared},
        )
        save_checkpoint(checkpoint, self.folder, is_spaced)

    def _restore(self, found: Checkpoint) -> None:
        """Restore what `_save` wrote."""
        server, notes = self.server, found.notes
        # The round that was under way may have been answered, too.
        self.uploads = notes["uploads"] + 1
        server.best_round, server.reports = notes["best_round"], found.reports
        self._best_scores = {first: Reported(*score) for first, *score in notes["best_scores"]}
        server.state.server, server.state.round = found.state.server, notes["index"]
        self.best, self.begun, self._base = found.best, notes["begun"], notes["base"]
        if self.begun and self.refits:
            self._use_refit(self.refits.names[len(self.begun) - 1])
        self._n_reported = max(0, len(found.reports) - 1)
        self.membership.restore(found.extra["declared"])
