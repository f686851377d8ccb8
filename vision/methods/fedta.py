"""FedTA: tail anchors mixed into a frozen transformer's features, for streams of tasks.

Yu, Gu, Yang, Li, Yang, Zhang, Fan: Handling Spatial-Temporal Data Heterogeneity for Federated
Continual Learning via Tail Anchor, CVPR 2025, arXiv 2412.18355, Eq. 1–10.

A client trains in two stages. The first is the input enhancement: a pool of prompts with keys, and
a head H_e on the class feature (Eq. 1–3). Then these are fixed, each image's feature F_out is
computed once, and the tail anchors are trained on these vectors, with their own keys and head
(Eq. 4–6). The client sends its pool and the mean mixed feature of each class (Eq. 7). The server
fuses the pools by distillation on a small surrogate set (Eq. 8) and selects for each class the
local prototype that is least similar to all others. A global prototype is fixed once its similarity
is low enough (Eq. 9 and 10).

Choices where the paper contradicts itself or gives no details (the authors' repository could not be
read; "related code" is that of FedMGP, by the same first author):

- dis() is "the cosine similarity", which in Eq. 3, 4 and 6 would push keys away; here dis = 1 - cos
  in these, and the cosine itself in Eq. 9, which selects the "lowest average similarity".
- The last term of Eq. 6 compares F_TA, twice as wide, with a key; here F_out is compared, as in the
  text ("the selected key and the query key").
- "Cross-mix" is interpreted as interleaving, since 768 × 2 floats are sent per class. For the
  random mix, the order is drawn once per run and known to clients only.
- Eq. 5 prints raw dot products; with features of length about √768 the softmax would be one-hot, so
  both sides are normalised. A sample whose class has no global prototype yet adds nothing.
- The cross-entropy is among the classes of the client's present task, as in the related code and in
  L2P's; `within_task=False` uses all classes. Both are evaluated (masks).
- Prompts, anchors and the keys of both are initialised uniformly on [-1, 1], as prompts and keys in
  the related code. The anchors' head starts at zero, so a class that no task has had scores 0; the
  anchors must not start at zero too, or they would never get a gradient.
- Only the pulls reach the keys, so under Adam all λ₁ and λ₃ above 0 have the same effect on them. A
  pull moves a selected key towards all queries that select it; if features are similar, one anchor
  may be selected for all of them.
- λ₁, Thr: from the related code (0.1, 0.15). λ₂, λ₃, τ are not published; 1, 0.1 and 0.1 are our
  choice.
- The target KB_i of Eq. 8 is the pool that is trained. It starts from a client drawn at random; the
  other clients are its teachers. The sum over teachers has the gradient of one distance to their
  mean feature. The surrogate images are those of classes that some client has had. Without a
  surrogate set, or with `fusion=False`, pools are averaged by the clients' samples.
- Keys are sent with the pool: the server could not select prompts without them. The paper counts
  76,800 floats for the pool and none for its keys.
- Prototypes are sent as a row for every class, zeros for classes that a client does not have; these
  are counted. For 100 classes that is 153,600 floats; the 8 of a task would need 12,288.
- A prototype is compared "with all local prototypes" of the round. Without the selection, the
  global prototype is the plain mean of the clients'.
- The constant 1 for pairs of one class (below Eq. 9) makes classes of many clients look more
  similar; `same_class="exclude"` leaves these pairs out.
- The paper counts 253,440 trainable parameters. Its own numbers give 76,800 for the pool, 76,800
  for 100 anchors and 84,480 for 110 keys, 238,080 in all; the remaining 15,360 do not match a head
  of 40 or 100 classes on 768 or 1,536 features.

Anchors, their keys and both heads stay on the client. So "the global model" is the fused pool with
the client's own anchors and head (view `fused`); `personal` uses the client's own tensors only, and
`nearest` predicts the class of the most similar global prototype. Images are not augmented, since
their features are computed once.
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
"""Key of the server's random generator, after the round."""


@dataclass(frozen=True)
class FedTAOptions(CheckedOptions):
    """Settings of FedTA.

    Attributes:
        pool_size: prompts M of the input enhancement (paper: 10).
        prompt_length: tokens of a prompt (paper: 10).
        top_n: prompts N of a sample, at most `pool_size` (related code: 1).
        vote: whether a training batch uses the prompts that most of its samples select.
        lambda1: weight λ₁ of the pull on the keys of selected prompts.
        anchors: number of tail anchors (paper: 100 in its counts, 500 best in its figure 5).
        mix: combination of feature and anchor: `interleave`, a `random` fixed order, or `add`.
        lambda2: weight λ₂ of the contrast with global prototypes.
        lambda3: weight λ₃ of the pull on the selected anchor's key.
        temperature: τ of the contrast.
        threshold: Thr, average similarity below which a global prototype is fixed.
        same_class: whether pairs of one class count as similarity `one` or are left out.
        anchor_epochs: epochs of the second stage; by default those of the first.
        fusion_epochs: the server's epochs on the surrogate set; by default the clients'.
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
    """FedTA. The methods follow the order of a round."""

    name = "fedta"
    summary = "prompts before and anchors after a frozen transformer, aligned with fixed prototypes"
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
        """Give all clients the same pool, anchors and heads; start without global prototypes."""
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
        """Send the pool, the global prototypes `(clients, classes, width)` and their flags."""
        sent = ("enhance.pool", "enhance.keys", "prototypes", "known")
        return {name: server[name].expand(len(to.ids), *server[name].shape) for name in sent}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train both stages, the second on features that are computed once."""
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
        """Train only some parameters for some epochs on `data`."""
        whole = cohort.data
        cohort.data = ClientData(data, whole.sizes)
        with cohort.training_only(*parts):
            for batch in cohort.batches(epochs):
                cohort.step(loss(cohort, batch))
        cohort.data = whole

    def classes(self, cohort: Cohort) -> Tensor | None:
        """Return the classes for training predictions, None for all."""
        return present_classes(self, cohort) if self.options.within_task else None

    def enhanced(self, params: Payload, x: Tensor, query: Tensor) -> Tensor:
        """Return F_out `(clients, batch, d)`, features under the selected prompts (Eq. 2)."""
        chosen = chosen_prompts(query, params["enhance.keys"], self.options.top_n)
        return self.backbone.prompted(x, prompt_tokens(params["enhance.pool"], chosen))

    def enhancement_loss(self, cohort: Cohort, batch: Batch) -> Tensor:
        """Return the loss of the first stage (Eq. 3)."""
        o, query, keys = self.options, batch["query"], cohort.params["enhance.keys"]
        chosen = chosen_prompts(query, keys, o.top_n, o.vote)
        tokens = prompt_tokens(cohort.params["enhance.pool"], chosen)
        logits = self.population.decode(cohort.state, self.backbone.prompted(batch["x"], tokens))
        loss = loss_among(self, cohort, logits, batch, self.classes(cohort))
        return loss + o.lambda1 * key_distance(query, keys, chosen)

    def anchored(self, params: Payload, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return F_TA `(clients, batch, width)` of features, and the selected anchors (Eq. 4)."""
        chosen = cosines(features, params["anchor.keys"]).argmax(-1, keepdim=True)
        anchors = prompt_tokens(params["anchor.values"][:, :, None], chosen)
        return mix(features, anchors.view_as(features), params, self.options.mix), chosen

    def anchor_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the loss of the second stage (Eq. 6)."""
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
        """Return the pool and local prototypes `(clients, classes, width)` (Eq. 7)."""
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
        """Fuse the pools and select global prototypes."""
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
        """Fuse or average the clients' pools and keys."""
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
        """Return F_TA of images `(clients, batch, width)`, the features of Fig. 5."""
        features = self.enhanced(params, x, self.backbone.query(x))
        return self.anchored(params, features)[0] if self.options.tail_anchor else features

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the anchors' head on the fused or local pool, or by global prototype."""
        params = state if view == "personal" else {**state, **payload}
        features = self.represent(params, x)
        if view == "nearest":
            return prototype_scores(features, payload["prototypes"], payload["known"])
        if self.options.tail_anchor:
            return anchor_head(params, features)
        return self.population.decode(params, features)


def anchor_head(params: Payload, mixed: Tensor) -> Tensor:
    """Return logits `(clients, batch, classes)` of mixed features."""
    return torch.baddbmm(params["anchor.bias"][:, None], mixed, params["anchor.weight"])
