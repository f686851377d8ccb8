"""FedKD: a local mentor and a shared mentee distil each other; updates are sent compressed.

Wu, Wu, Lyu, Huang, Xie: Communication-Efficient Federated Learning via Knowledge Distillation,
Nature Communications 13, 2032 (2022), arXiv 2108.13323, sections "Adaptive mutual distillation" and
"Dynamic gradients approximation".

The mentor stays on its client, the mentee is averaged. Each is trained on its task loss, on the
other's predictions and on the other's features, which W maps from mentee to mentor:

    L_t + [KL(p_s ‖ p_t) + MSE(h_t, W h_s)] / (L_t + L_s)     for the mentor,
    L_s + [KL(p_t ‖ p_s) + MSE(h_t, W h_s)] / (L_t + L_s)     for the mentee,

so that they learn little from each other while their losses are large. The mentee's updates, in
both directions, are truncated to the largest singular values that hold a share T of the sum of
squares; T grows from `t_start` to `t_end` over the rounds.

Format and size of the messages: vectors and running statistics are sent uncompressed. The update of
a matrix (a kernel counts as `out × rest`) is sent as two factors, U Σ and Vᵀ, of rank r, or whole
if the factors would not be smaller. All clients' factors have the same shape in a round, so r is a
maximum. In the broadcast, it is the rank of the update itself. In the uploads, it is the largest
rank that any client needed last time: each client reports its rank (an integer per matrix), and the
server announces the largest. A client that needs a smaller rank sends columns of zeros, which are
counted, so the bytes are an upper bound of the paper's. An update that needs a larger rank is
truncated to r. In the first round no rank is known, and updates are sent whole. Delta coding of
uploads is of no use here, since ranks change.

- Each loss trains only its own model, as the paper writes the gradients. The other model's outputs
  and the divisor are constants, and W is trained with the mentee. In the code, all gradients flow.
- Gradients are clipped to a norm of 10, separately for a client's mentor, mentee and W (the run's
  `clip_gradients`): 1 / (L_t + L_s) grows without bound as a client fits its images, and so do
  steps of SGD. The paper mentions no clipping. The authors' code has none either, but uses Adam
  with a rate of 3e-6; PFLlib, which uses SGD as here, clips in this way.
- The paper's mentee is smaller; here both have the run's model. Attention maps are left out, and
  W starts as the identity; it stays with its client.
- Clients are weighted by samples, as in FedAvg; the code averages evenly.
- In the paper all clients take part. With partial participation, the server keeps each client's
  version of the mentee and sends the difference.

The mentee's running statistics are averaged, the mentor's are local. The reported loss
is the sum, the task loss is the mentor's. The personal view is the mentor, the global one the
mentee.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from data_prep.base.errors import InputError
from stforecast.federated.core.declared import Upload
from stforecast.federated.core.options import CheckedOptions, Share
from stforecast.federated.core.population import feature_width
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Params, Payload, weighted_mean
from stforecast.federated.methods import two_models
from vision.task import kl_divergence

LEFT, RIGHT, UPDATE = "left/", "right/", "update/"
"""Prefixes of a matrix's name in a message: the factors of its update, or the update."""


def low_rank_factors(update: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return `U Σ` `(n, a, m)`, `Vᵀ` `(n, m, b)` and `diag Σ` `(n, m)`, the largest value first.

    The signs are not unique; they are chosen so that the rows of Vᵀ have positive sums.
    """
    u, values, vt = torch.linalg.svd(update, full_matrices=False)
    sign = torch.where(vt.sum(2) < 0, -1.0, 1.0)
    return u * (sign * values)[:, None], vt * sign[..., None], values


def rank_for(values: Tensor, share: float) -> Tensor:
    """Return the smallest rank that holds a share of the squares' sum, `(n,)`; 0 for no update.

    >>> rank_for(torch.tensor([[3.0, 2.0, 1.0], [0.0, 0.0, 0.0]]), 0.9)
    tensor([2, 0])
    """
    held = values.double().square().cumsum(1)
    total = held[:, -1:]
    return torch.where(total[:, 0] > 0, 1 + (held[:, :-1] < share * total).sum(1), 0)


def truncated(left: Tensor, rank: Tensor) -> Tensor:
    """Return `U Σ` with the columns beyond each client's rank `(n,)` set to 0."""
    columns = torch.arange(left.shape[2], device=left.device)
    return left * (columns < rank[:, None])[:, None]


def pays(a: int, b: int, rank: int) -> bool:
    """Return whether the factors of an `a × b` matrix have fewer numbers than the matrix."""
    return rank * (a + b) < a * b


def packed_factors(name: str, left: Tensor, right: Tensor, rank: int) -> Payload:
    """Pack an update for a message: as factors of a rank, or whole if they are not smaller."""
    if not pays(left.shape[1], right.shape[2], rank):
        return {UPDATE + name: left @ right}
    return {LEFT + name: left[:, :, :rank], RIGHT + name: right[:, :rank]}


def unpacked(payload: Payload, name: str) -> Tensor:
    """Return the update `(clients, a, b)` of a matrix in a message."""
    if UPDATE + name in payload:
        return payload[UPDATE + name]
    return payload[LEFT + name] @ payload[RIGHT + name]


KNOWN = "known/"
"""Prefix of a matrix's name: the clients' version."""


@dataclass(frozen=True)
class FedKDOptions(CheckedOptions):
    """Settings of FedKD.

    Attributes:
        t_start: share T of the squared singular values to keep at first (paper and code: 0.95).
        t_end: share T in the last round, not below `t_start` (paper and code: 0.98); 1 keeps all.
    """

    t_start: Share = 0.95
    t_end: Share = 0.98

    def __post_init__(self) -> None:
        """Refuse values that do not go together."""
        super().__post_init__()
        if self.t_end < self.t_start:
            raise InputError(f"t_end is {self.t_end}; it must not be below t_start {self.t_start}")


class FedKD(two_models.TwoModels):
    """FedKD. The mentee has the model's names, the mentor's start with `personal.`, W is `hidden`.

    A client's local update of the mentee's matrices is undone after the upload: it is replaced by
    the average update of the next broadcast. No client therefore keeps the mentee that it trained.
    """

    name = "fedkd"
    summary = "local mentors and an averaged mentee distil each other; updates travel as low rank"
    paper = "Wu et al., Nature Communications 2022"
    keeps_trained = False
    """A client does not keep the model that it trained until it receives the next one."""
    sends = Upload(apart=True)
    clipped_apart = (two_models.PERSONAL, "hidden")
    Options = FedKDOptions
    defaults = MappingProxyType({"clip_gradients": 10.0})
    options: FedKDOptions

    def set_up(self) -> None:
        """Find the tensors that are sent as factors."""
        parameters, shared = self.population.parameters(1), self.shared
        self.matrices = {
            name: t.flatten(2).shape[1:]  # A kernel is a matrix that keeps its first axis.
            for name, t in parameters.items()
            if name in shared and t.ndim > 2
        }
        self.vectors = [name for name in shared if name not in self.matrices]

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start mentors as copies of the mentee, and the server without an update."""
        n, d = len(clients), feature_width(self.population)
        device = clients.device
        initial = super().init(clients, sizes, seed)
        clients.params |= two_models.personal_copies(clients.params)
        clients.memory |= two_models.personal_copies(clients.buffers)
        clients.params["hidden"] = torch.eye(d, device=device).repeat(n, 1, 1)
        server = {name: initial[name] for name in self.vectors}
        rows = n if self.training.participation < 1 else 1
        for name, (a, b) in self.matrices.items():
            server[KNOWN + name] = initial[name][None].flatten(2).repeat(rows, 1, 1)
            server[LEFT + name] = torch.zeros(rows, a, min(a, b), device=device)
            server[RIGHT + name] = torch.zeros(rows, min(a, b), b, device=device)
        ranks = [min(shape) for shape in self.matrices.values()]
        server["ranks"] = torch.tensor(ranks, dtype=torch.int32, device=device)
        return server

    def kept_share(self, round: int) -> float:
        """Return T in a round, counted from 0."""
        o, progress = self.options, min(1.0, (round + 1) / self.training.rounds)
        return o.t_start + (o.t_end - o.t_start) * progress

    def rows(self, of: Participants) -> Tensor:
        """Return the clients' rows in the server's state; one row if all always take part."""
        return of.ids if self.training.participation < 1 else torch.zeros_like(of.ids)

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Send vectors, updates of matrices, and the ranks for the uploads."""
        names = [*self.vectors, "ranks"]
        payload = super().broadcast({name: server[name] for name in names}, to)
        for name in self.matrices:
            rows = self.rows(to).to(server[LEFT + name].device)
            left, right = server[LEFT + name][rows], server[RIGHT + name][rows]
            rank = int(left.any(1).sum(1).max())
            payload |= packed_factors(name, left, right, rank)
        return payload

    def receive(self, cohort: Cohort, payload: Payload) -> None:
        """Replace the vectors and add the updates to the matrices."""
        super().receive(cohort, payload)
        with torch.no_grad():
            for name, update in self.updates(payload):
                cohort.params[name] += update.view_as(cohort.params[name])

    def updates(self, payload: Payload) -> Iterator[tuple[str, Tensor]]:
        """Yield names of the matrices and their updates in a message, `(clients, a, b)`."""
        for name in self.matrices:
            yield name, unpacked(payload, name)

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train both models; send the mentee's vectors and its matrices' compressed updates."""
        self.receive(cohort, payload)
        before = {name: cohort.params[name].detach().clone() for name in self.matrices}
        for batch in cohort.batches():
            cohort.step(self.local_loss(cohort, batch, payload))
        with torch.no_grad():
            upload = {name: cohort.state[name].detach() for name in self.vectors}
            upload |= self.compressed(cohort, before, payload["ranks"])
            for name, t in before.items():
                cohort.params[name].copy_(t)
        return upload

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the sum of the mentor's and the mentee's losses, with independent gradients."""
        mentor = two_models.personal_model({**cohort.memory, **cohort.params})
        h_t = self.population.encode(mentor, batch["x"])
        h_s = self.population.encode(cohort.state, batch["x"])
        p_t, p_s = self.population.decode(mentor, h_t), self.population.decode(cohort.state, h_s)
        loss_t, loss_s = self.recorded(cohort, p_t, batch), self.task.loss(p_s, batch)
        mapped = h_s @ cohort.params["hidden"]
        taught = kl_divergence(p_s.detach(), p_t).mean(1) + mean_square(h_t - mapped.detach())
        learned = kl_divergence(p_t.detach(), p_s).mean(1) + mean_square(h_t.detach() - mapped)
        trust = 1 / (loss_t + loss_s).detach().clamp(min=torch.finfo(loss_t.dtype).tiny)
        return loss_t + loss_s + trust * (taught + learned)

    def compressed(self, cohort: Cohort, before: Params, ranks: Tensor) -> Payload:
        """Compress the updates of the matrices, and add the `ranks` needed in the next round."""
        upload: Payload = {}
        needed = []
        for (name, (a, b)), rank in zip(self.matrices.items(), ranks[0].tolist(), strict=True):
            update = (cohort.params[name] - before[name]).flatten(2)
            left, right, values = low_rank_factors(update)
            needed.append(rank_for(values, self.kept_share(cohort.round + 1)))
            if pays(a, b, rank):
                cut = truncated(left, rank_for(values, self.kept_share(cohort.round)))
                upload |= packed_factors(name, cut, right, rank)
            else:
                upload[UPDATE + name] = update
        upload["ranks"] = torch.stack(needed, dim=1).int()
        return upload

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Average the participants' mentees and compress the updates for each client."""
        state = super().aggregate(server, of, {name: uploads[name] for name in self.vectors})
        state["ranks"] = uploads["ranks"].amax(0)
        for name, update in self.updates(uploads):
            rows = self.rows(of).to(update.device)
            known, sent = server[KNOWN + name].clone(), server[LEFT + name] @ server[RIGHT + name]
            reached = rows.unique()
            known[reached] += sent[reached]
            average = weighted_mean(known[rows] + update, of.sizes)
            left, right, values = low_rank_factors(average - known)
            rank = rank_for(values, self.kept_share(of.round))
            a, b = self.matrices[name]
            # Larger ranks would save nothing.
            rank = torch.where(rank * (a + b) < a * b, rank, min(a, b))
            kept = {KNOWN: known, LEFT: truncated(left, rank), RIGHT: right}
            state |= {prefix + name: t.contiguous() for prefix, t in kept.items()}
        return state

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the client's mentor, or with the mentee after the server's update."""
        if view == "personal":
            return super().predict(state, payload, x, view)
        mentee = {name: state[name] + u.view_as(state[name]) for name, u in self.updates(payload)}
        return super().predict({**state, **mentee}, payload, x, view)


def mean_square(error: Tensor) -> Tensor:
    """Return the mean square of errors `(clients, batch, d)`, `(clients,)`."""
    return error.square().mean((1, 2))
