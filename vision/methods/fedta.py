"""FedTA: tail anchors mixed into a frozen transformer's features, for streams of tasks.

Yu, Gu, Yang, Li, Yang, Zhang, Fan: Handling Spatial-Temporal Data Heterogeneity for Federated
Continual Learning via Tail Anchor, CVPR 2025, arXiv 2412.18355, Eq. 1–10.

A client trains in two stages. First the input enhancement: a pool of prompts with keys, and a head
H_e on the class feature (Eq. 1–3). Then, with these fixed, each image's feature F_out is computed
once and on these vectors the tail anchors are trained, with keys and a head of their own (Eq. 4–6).
It sends its pool and the mean mixed feature of each class (Eq. 7). The server fuses the pools by
distillation on a small surrogate set (Eq. 8) and takes, for each class, the local prototype that is
least like all others, which stays for good once it is unlike enough (Eq. 9 and 10).

Where the paper contradicts itself or is silent (the authors' repository could not be read; what is
called sibling code is that of FedMGP, by the same first author):

- dis() is "the cosine similarity", which in Eq. 3, 4 and 6 would push keys away; here dis = 1 - cos
  there, and the cosine itself in Eq. 9, whose "lowest average similarity" is sought.
- The last term of Eq. 6 compares F_TA, twice as wide, with a key; F_out is compared, as the text
  says ("the selected key and the query key").
- "Cross-mix" is taken as interleaving, since 768 × 2 floats a class are sent. Randomly mixed, the
  order is drawn once a run and known to clients alone.
- Eq. 5 prints raw dot products; with features of length about √768 the softmax would be one-hot, so
  both sides are normalised. A sample whose class has no global prototype yet adds nothing.
- Cross-entropy chooses among the classes of the client's present task, as in the sibling code and
  in L2P's; `within_task=False` lets it choose among all. Both ways are tested (masks).
- Prompts, anchors and the keys of both start uniform on [-1, 1], as prompts and keys do in the
  sibling code. The anchors' head starts at zero, so a class that no task has had scores 0; anchors
  may not start there too: each would wait for the other, and no gradient would ever reach them.
- Only the pulls reach the keys, so under Adam all λ₁ and λ₃ above 0 act alike on them. A pull draws
  a key that is chosen nearer to all that choose it; where features have much in common, one anchor
  may come to serve them all.
- λ₁, Thr: from the sibling code (0.1, 0.15). λ₂, λ₃, τ are nowhere; 1, 0.1 and 0.1 are ours.
- The target KB_i of Eq. 8 is the pool that is trained, starting from a client drawn at random, the
  others being its teachers; the sum over teachers has the gradient of one distance to their mean
  feature. It runs over surrogate images of classes that some client has had. Without a surrogate
  set, or with `fusion=False`, pools are averaged by the clients' samples.
- Keys travel with the pool: the server could not choose prompts without them. The paper counts
  76,800 floats for the pool and none for its keys.
- Prototypes travel as a row for every class, zeros for those that a client lacks; these are
  counted. Of 100 classes that is 153,600 floats, where the 8 of a task would take 12,288.
- A prototype "with all local prototypes" is compared with those of the round. Without the selection
  the global prototype is the plain mean of the clients'.
- A constant 1 for pairs of one class (below Eq. 9) makes classes of many clients look less apart;
  `same_class="exclude"` leaves these pairs out.
- Of trainable parameters the paper counts 253,440. Its own numbers give 76,800 for the pool, 76,800
  for 100 anchors and 84,480 for 110 keys, 238,080 in all; the remaining 15,360 is no head of 40 or
  100 classes on 768 or 1,536 features.

Anchors, their keys and both heads never leave a client. So "the global model" is the fused pool
with the client's own anchors and head (view `fused`); `personal` is all the client's own, and
`nearest` predicts the class of the most similar global prototype. Images are not augmented: their
features are computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from data_prep.errors import InputError
from stforecast.federated.algebra import weighted_mean
from stforecast.federated.data import Batch, ClientData
from stforecast.federated.method import Method, Participants, Task
from stforecast.federated.options import CheckedOptions
from stforecast.federated.population import Params, Population
from stforecast.federated.prototypes import PrototypeMeans
from stforecast.federated.state import Clients, Cohort, generator
from stforecast.federated.training import Training
from stforecast.federated.uploads.payload import Payload
from vision.methods.anchors import (
    consistency_loss,
    mean_prototypes,
    mix,
    prototype_scores,
    selected_prototypes,
)
from vision.methods.fusion import fused_pool
from vision.methods.prompts import (
    DEFAULTS,
    INIT,
    add_parameters,
    chosen_prompts,
    cosines,
    key_distance,
    loss_among,
    present_classes,
    prompt_tokens,
    queried,
    uniform,
)
from vision.models.vit import backbone_of

ENHANCE, HEAD, ANCHOR = "enhance.", "head.", "anchor."
TARGET = (0, 6)
"""Key of the server's random numbers, behind the round."""


@dataclass(frozen=True)
class FedTAOptions(CheckedOptions):
    """Settings of FedTA.

    Attributes:
        pool_size: prompts M of the input enhancement (paper: 10).
        prompt_length: tokens of a prompt (paper: 10).
        top_n: prompts N of a sample, at most `pool_size` (sibling code: 1).
        vote: while training, a batch uses the prompts that most of its samples choose.
        lambda1: weight λ₁ of the pull on chosen prompts' keys.
        anchors: tail anchors (paper: 100 in its counts, 500 best in its figure 5).
        mix: of feature and anchor: `interleave`, a `random` fixed order, or `add`.
        lambda2: weight λ₂ of the contrast with global prototypes.
        lambda3: weight λ₃ of the pull on the chosen anchor's key.
        temperature: τ of the contrast.
        threshold: Thr, average similarity below which a global prototype stays for good.
        same_class: whether pairs of one class count as similarity `one` or are left out.
        anchor_epochs: epochs of the second stage; by default the run's, as of the first.
        fusion_epochs: the server's epochs on the surrogate set; by default the run's.
        within_task: whether training predictions choose among the present task's classes only.
        tail_anchor: whether there is a second stage (ablation "w/o TA": H_e predicts).
        fusion: whether pools are fused by distillation (ablation "w/o SIKF": averaged).
        selection: whether global prototypes are selected (ablation "w/o BGPS": averaged).
    """

    pool_size: PositiveInt = 10
    prompt_length: PositiveInt = 10
    top_n: PositiveInt = 1
    vote: bool = False
    lambda1: NonNegativeFloat = 0.1
    anchors: PositiveInt = 100
    mix: Literal["interleave", "random", "add"] = "interleave"
    lambda2: NonNegativeFloat = 1.0
    lambda3: NonNegativeFloat = 0.1
    temperature: PositiveFloat = 0.1
    threshold: float = 0.15
    same_class: Literal["one", "exclude"] = "one"
    anchor_epochs: PositiveInt | None = None
    fusion_epochs: PositiveInt | None = None
    within_task: bool = True
    tail_anchor: bool = True
    fusion: bool = True
    selection: bool = True

    def __post_init__(self) -> None:
        """Refuse values that do not go together."""
        super().__post_init__()
        if self.top_n > self.pool_size:
            raise InputError(f"top_n is {self.top_n}; the pool has {self.pool_size} prompts")


class FedTA(Method):
    """FedTA. The functions stand in the order of a round."""

    name = "fedta"
    summary = "prompts before and anchors behind a frozen transformer, drawn to fixed prototypes"
    paper = "Yu et al., CVPR 2025"
    keeps_apart = True
    views: ClassVar[tuple[str, ...]] = ("fused", "personal", "nearest")
    Options = FedTAOptions
    options: FedTAOptions
    defaults = DEFAULTS

    def __init__(
        self, population: Population, task: Task, training: Training, options: Any = None
    ) -> None:
        super().__init__(population, task, training, options)
        self.backbone = backbone_of(population, self.name)
        d, o = self.backbone.width, self.options
        self.mixed_width = d if o.mix == "add" or not o.tail_anchor else 2 * d

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """The same pool, anchors and heads for all clients; no global prototype yet."""
        o, n, d, c = self.options, len(clients), self.backbone.width, self.task.n_keys
        rng = generator(seed, *INIT)
        add_parameters(
            clients,
            {
                "enhance.pool": uniform(n, o.pool_size, o.prompt_length, d, rng=rng),
                "enhance.keys": uniform(n, o.pool_size, d, rng=rng),
            },
        )
        if o.tail_anchor:
            anchors = {
                "anchor.values": uniform(n, o.anchors, d, rng=rng),
                "anchor.keys": uniform(n, o.anchors, d, rng=rng),
                "anchor.weight": torch.zeros(n, self.mixed_width, c),
                "anchor.bias": torch.zeros(n, c),
            }
            add_parameters(clients, anchors)
        device = clients.params["enhance.pool"].device
        if o.mix == "random":
            order = torch.randperm(2 * d, generator=rng).to(device)
            clients.memory["anchor.order"] = order.expand(n, -1).clone()
        flags = torch.zeros(c, dtype=torch.bool, device=device)
        return {
            **{name: clients.params[name][0].clone() for name in ("enhance.pool", "enhance.keys")},
            "prototypes": torch.zeros(c, self.mixed_width, device=device),
            "known": flags,
            "fixed": flags.clone(),
            "seed": torch.tensor(seed),
        }

    def broadcast(self, server: dict[str, Tensor], to: Participants) -> Payload:
        """The pool, and the global prototypes `(clients, classes, width)` with which are known."""
        sent = ("enhance.pool", "enhance.keys", "prototypes", "known")
        return {name: server[name].expand(len(to.ids), *server[name].shape) for name in sent}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Both stages; the second on vectors that are computed once."""
        self.receive(cohort, payload)
        o, data = self.options, queried(cohort, self.backbone)
        self.train(cohort, (ENHANCE, HEAD), None, data, self.enhancement_loss)
        with torch.no_grad():
            features = self.enhanced(cohort.params, data["x"], data["query"])
        data = {name: t for name, t in data.items() if name not in ("x", "query")}
        data["feature"] = features
        if o.tail_anchor:
            self.train(
                cohort,
                (ANCHOR,),
                o.anchor_epochs,
                data,
                lambda cohort, batch: self.anchor_loss(cohort, batch, payload),
            )
        return self.upload_of(cohort, data)

    def train(
        self,
        cohort: Cohort,
        parts: tuple[str, ...],
        epochs: int | None,
        data: Batch,
        loss: Callable[[Cohort, Batch], Tensor],
    ) -> None:
        """Some epochs on `data`, in which only some parameters are trained."""
        whole = cohort.data
        cohort.data = ClientData(data, whole.sizes)
        with cohort.training_only(*parts):
            for batch in cohort.batches(epochs):
                cohort.step(loss(cohort, batch))
        cohort.data = whole

    def classes(self, cohort: Cohort) -> Tensor | None:
        """Classes among which training predictions choose, None for all."""
        return present_classes(self, cohort) if self.options.within_task else None

    def enhanced(self, params: Payload, x: Tensor, query: Tensor) -> Tensor:
        """F_out `(clients, batch, d)`: features under the prompts that queries choose (Eq. 2)."""
        chosen = chosen_prompts(query, params["enhance.keys"], self.options.top_n)
        return self.backbone.prompted(x, prompt_tokens(params["enhance.pool"], chosen))

    def enhancement_loss(self, cohort: Cohort, batch: Batch) -> Tensor:
        """Loss of the first stage (Eq. 3)."""
        o, query, keys = self.options, batch["query"], cohort.params["enhance.keys"]
        chosen = chosen_prompts(query, keys, o.top_n, o.vote)
        tokens = prompt_tokens(cohort.params["enhance.pool"], chosen)
        logits = self.population.decode(cohort.state, self.backbone.prompted(batch["x"], tokens))
        loss = loss_among(self, cohort, logits, batch, self.classes(cohort))
        return loss + o.lambda1 * key_distance(query, keys, chosen)

    def anchored(self, params: Payload, features: Tensor) -> tuple[Tensor, Tensor]:
        """F_TA `(clients, batch, width)` of features, and the chosen anchors (Eq. 4)."""
        chosen = cosines(features, params["anchor.keys"]).argmax(-1, keepdim=True)
        anchors = prompt_tokens(params["anchor.values"][:, :, None], chosen)
        return mix(features, anchors.view_as(features), params, self.options.mix), chosen

    def anchor_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Loss of the second stage (Eq. 6)."""
        o, features = self.options, batch["feature"]
        mixed, chosen = self.anchored({**cohort.params, **cohort.memory}, features)
        logits = anchor_head(cohort.params, mixed)
        loss = loss_among(self, cohort, logits, batch, self.classes(cohort))
        classes = self.task.keys(batch)
        contrast = consistency_loss(
            mixed, classes, payload["prototypes"], payload["known"], o.temperature
        )
        pull = key_distance(features, cohort.params["anchor.keys"], chosen)
        return loss + o.lambda2 * contrast + o.lambda3 * pull

    def upload_of(self, cohort: Cohort, data: Batch) -> Payload:
        """The pool, and local prototypes `(clients, classes, width)` (Eq. 7)."""
        means = PrototypeMeans(self.task.n_keys)
        with torch.no_grad():
            features = data["feature"]
            if self.options.tail_anchor:
                features, _ = self.anchored({**cohort.params, **cohort.memory}, features)
        means.add(features, self.task.keys(data))
        return {
            "enhance.pool": cohort.params["enhance.pool"].detach(),
            "enhance.keys": cohort.params["enhance.keys"].detach(),
            "prototypes": means.means(),
            "known": means.counts > 0,
        }

    def aggregate(
        self, server: dict[str, Tensor], of: Participants, uploads: Payload
    ) -> dict[str, Tensor]:
        """Fuse the pools and choose global prototypes."""
        local, holders = uploads["prototypes"], uploads["known"]
        known = server["known"] | holders.any(0)
        free = ~server["fixed"] & holders.any(0)
        fixed = server["fixed"]
        if self.options.selection:
            new, similarity = selected_prototypes(local, holders, self.options.same_class)
            fixed = fixed | (free & (similarity < self.options.threshold))
        else:
            new = mean_prototypes(local, holders)
        return {
            **self.pool_of(server, of, uploads, known),
            "prototypes": torch.where(free[:, None], new, server["prototypes"]),
            "known": known,
            "fixed": fixed,
            "seed": server["seed"],
        }

    def pool_of(
        self, server: dict[str, Tensor], of: Participants, uploads: Payload, known: Tensor
    ) -> Params:
        """The pool and keys that the server makes of the clients'."""
        pools = {name: uploads[name] for name in ("enhance.pool", "enhance.keys")}
        surrogate = getattr(self.task, "surrogate", None)
        if not self.options.fusion or surrogate is None or len(of.ids) < 2:
            return {name: weighted_mean(t, of.sizes) for name, t in pools.items()}
        images = surrogate["x"][0, known.cpu()[surrogate["y"][0]]].to(known.device)
        rng = generator(int(server["seed"]), of.round, *TARGET)
        pool, keys = fused_pool(
            self.backbone,
            (pools["enhance.pool"], pools["enhance.keys"]),
            images,
            top_n=self.options.top_n,
            training=self.training,
            epochs=self.options.fusion_epochs or self.training.epochs,
            rng=rng,
        )
        return {"enhance.pool": pool, "enhance.keys": keys}

    def represent(self, params: Payload, x: Tensor) -> Tensor:
        """F_TA of images `(clients, batch, width)`, whose place is what anchors fix (Fig. 5)."""
        features = self.enhanced(params, x, self.backbone.query(x))
        return self.anchored(params, features)[0] if self.options.tail_anchor else features

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """By the anchors' head with the fused or the own pool, or by global prototype."""
        params = state if view == "personal" else {**state, **payload}
        features = self.represent(params, x)
        if view == "nearest":
            return prototype_scores(features, payload["prototypes"], payload["known"])
        if self.options.tail_anchor:
            return anchor_head(params, features)
        return self.population.decode(params, features)


def anchor_head(params: Payload, mixed: Tensor) -> Tensor:
    """Logits `(clients, batch, classes)` of mixed features."""
    return torch.baddbmm(params["anchor.bias"][:, None], mixed, params["anchor.weight"])
