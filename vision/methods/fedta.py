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

Departures from the paper:

- Features are standardised (`standardise`): the clients' common mean of each component is
  subtracted, and the result is divided by the common standard deviation. This is done before a
  query is compared with the prompts' keys (Eq. 3), and for F_out in the whole second stage
  (Eq. 4–7). The cosine
  of any two raw features is large, .7 between classes, so the pulls of Eq. 3 and 6 move all keys to
  the common mean, two or three anchors serve all classes, and no average in Eq. 10 falls below a
  threshold. The statistics come from the first round: clients send the mean and the deviation
  of their features, once, and train with their own until they have the common ones. In the first
  round, local prototypes are therefore on the clients' own scales, and no global prototype is
  fixed; anchors and heads change scale once after it. The baselines take features as they are; the
  rows without prompts on raw features, and of FedViT on standardised ones, show what the scale is
  worth.
- "Once the training process of the tail anchor is done, the tail anchors will be frozen": when a
  client's next task begins, the anchors that its samples chose after their last round, and their
  keys, are fixed for good. The others remain for later tasks; a sample may choose any.
- The last term of Eq. 6 compares F_TA, twice as wide, with a key; here F_out is compared, as in the
  text ("the selected key and the query key").
- "Once the input enhancement parameters are well trained, they will be frozen … until the next
  task": here they are frozen for the second stage of each round, and train again in the next round
  of the task, as the server sends a fused pool.

Choices where the paper contradicts itself or gives no details (the authors' repository could not be
read; "related code" is FedMGP's, by the same first author):

- dis() is "the cosine similarity", which in Eq. 3, 4 and 6 would push keys away; here dis = 1 - cos
  in these, and the cosine itself in Eq. 9, which selects the "lowest average similarity".
- "Cross-mix" is interpreted as interleaving, since 768 × 2 floats are sent per class. For the
  random mix, the order is drawn once per run, from the run's seed, which the server knows, too.
- "The tail anchor of each class" contradicts the 100 and 500 anchors of Section 5.4 and Figure 5:
  here a sample chooses an anchor by key, whatever its class.
- Eq. 5 prints raw dot products; with features of length about √768 the softmax would be one-hot, so
  both sides are normalised. A sample whose class has no global prototype yet adds nothing.
- The cross-entropy is among the classes of the client's present task (`within_task`), as in the
  related code and in L2P's. Predictions are evaluated among all, and among the task's (masks).
- Prompts, anchors and the keys of both are initialised uniformly on [-1, 1], as prompts and keys in
  the related code. The heads start at zero, as with all methods on a frozen backbone
  here, so a class that no task has had scores 0; the anchors must not start at zero too, or
  concatenated ones would get no gradient from the cross-entropy.
- Only the pulls reach the keys. Under Adam, all λ₁ and λ₃ above 0 therefore have the same effect on
  them, apart from the clipping of gradients. A pull moves a selected key towards all queries that
  select it. A client that chooses fewer anchors than its task has classes logs a warning.
- λ₁, Thr: from the related code (0.1, 0.15). λ₂, λ₃, τ are not published; 1, 0.1 and 0.1 are our
  choice.
- The target KB_i of Eq. 8 is the pool that is trained. It starts from a client drawn at random; the
  other clients are its teachers. The sum over teachers has the gradient of one distance to their
  mean feature. The surrogate images are of classes that some client has had. Without a
  surrogate set, or with `fusion=False`, pools are averaged by the clients' samples.
- Keys are sent with the pool: the server could not select prompts without them. The paper counts
  76,800 floats for the pool and none for its keys.
- Prototypes are sent as a row for every class, zeros for classes that a client does not have; these
  are counted. For 100 classes that is 153,600 floats; the 8 of a task would need 12,288.
- A prototype is compared "with all local prototypes" of the round. Without the selection, the
  global prototype is the plain mean of the clients'.
- The constant 1 for pairs of one class (below Eq. 9) makes classes of many clients look more
  similar, so fewer are fixed.
- "w/o TA" (`tail_anchor=False`) is the second stage on only F_out, with a head that trains as
  long, so that only the anchors differ. H_e serves the first stage only.
- The paper counts 253,440 trainable parameters. Its own numbers give 76,800 for the pool, 76,800
  for 100 anchors and 84,480 for 110 keys, 238,080 in all; the remaining 15,360 do not match a head
  of 40 or 100 classes on 768 or 1,536 features.

Anchors, their keys and both heads stay on the client. So "the global model" is the fused pool with
the client's own anchors and head (view `fused`); `personal` uses the client's own tensors only, and
`nearest` predicts the class of the most similar global prototype. Images are not augmented, since
their features are computed once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from data_prep.base.errors import Words
from stforecast.federated.core.declared import Needs, Upload
from stforecast.federated.core.method import Method
from stforecast.federated.core.prototypes import PrototypeMeans
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Params, Payload, repeated, weighted_mean
from vision.draws import Draw
from vision.methods import anchors, prompts
from vision.methods.prompts import fused_pool, surrogate_images
from vision.models.vit import backbone_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FedTAOptions(prompts.PoolOptions):
    """Settings of FedTA. The pool belongs to the input enhancement.

    Attributes:
        pool_size: prompts M in the pool (paper: 10).
        prompt_length: tokens of a prompt (paper: 10).
        top_n: prompts N of an image, at most `pool_size` (related code: 1).
        vote: whether a training batch uses the prompts that most of its samples select.
        lambda1: weight λ₁ of the pull on the keys of selected prompts.
        standardise: whether features are standardised before they are compared with keys and mixed
            with anchors; the paper uses them as they are.
        anchors: number of tail anchors (paper: 100 in its counts, 500 best in its figure 5).
        mix: combination of feature and anchor: `interleave`, a `random` fixed order, or `add`.
        lambda2: weight λ₂ of the contrast with global prototypes.
        lambda3: weight λ₃ of the pull on the selected anchor's key.
        temperature: temperature τ of the contrast.
        threshold: average similarity (Thr) below which a global prototype is fixed.
        head_epochs: epochs of the second stage, which trains the head that predicts; by default
            those of the first.
        fusion_epochs: the server's epochs on the surrogate set; by default the clients'.
        input_enhancement: whether there is a first stage; without it F_out is the frozen feature.
        tail_anchor: whether features are mixed with anchors (ablation "w/o TA": F_TA = F_out).
        fusion: whether pools are fused by distillation (ablation "w/o SIKF": averaged).
        selection: whether global prototypes are selected (ablation "w/o BGPS": averaged).
    """

    vote: bool = False
    lambda1: NonNegativeFloat = 0.1
    standardise: bool = True
    anchors: PositiveInt = 100
    mix: Literal["interleave", "random", "add"] = "interleave"
    lambda2: NonNegativeFloat = 1.0
    lambda3: NonNegativeFloat = 0.1
    temperature: PositiveFloat = 0.1
    threshold: float = 0.15
    head_epochs: PositiveInt | None = None
    fusion_epochs: PositiveInt | None = None
    input_enhancement: bool = True
    tail_anchor: bool = True
    fusion: bool = True
    selection: bool = True


POOL = ("enhance.pool", "enhance.keys")
MOMENTS = ("query.moments", "feature.moments")
"""Moments of the frozen features and of F_out, for their standardisation."""


class FedTA(Method):
    """FedTA. The methods follow the order of a round."""

    name = "fedta"
    summary = "prompts before and anchors after a frozen transformer, aligned with fixed prototypes"
    paper = "Yu et al., CVPR 2025"
    sends = Upload(apart=True)
    needs = Needs(data=("equal initial weights",))
    views: ClassVar[tuple[str, ...]] = ("fused", "personal", "nearest")
    Options = FedTAOptions
    options: FedTAOptions
    defaults = prompts.DEFAULTS

    def set_up(self) -> None:
        """Find the backbone."""
        self.backbone = backbone_of(self.population, self.name)
        d, o = self.backbone.width, self.options
        self.mixed_width = d if o.mix == "add" or not o.tail_anchor else 2 * d
        self._warned = False

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Give all clients the same pool, anchors and heads; start without global prototypes."""
        o, n, d, c = self.options, len(clients), self.backbone.width, self.task.n_keys
        rng = Draw.PROMPTS.generator(seed)
        head = {
            "anchor.weight": torch.zeros(n, self.mixed_width, c),
            "anchor.bias": torch.zeros(n, c),
        }
        pool = prompts.new_pool("enhance.", n, o, d, rng)
        tail = {
            "anchor.values": prompts.uniform(n, o.anchors, d, rng=rng),
            "anchor.keys": prompts.uniform(n, o.anchors, d, rng=rng),
        }
        prompts.add_parameters(clients, head)
        prompts.add_parameters(clients, pool if o.input_enhancement else {})
        device = clients.params["anchor.bias"].device
        if o.tail_anchor:
            prompts.add_parameters(clients, tail)
            clients.memory |= anchors.no_anchor_chosen(n, o.anchors, device)
        if o.mix == "random":
            order = torch.randperm(2 * d, generator=rng).to(device)
            clients.memory["anchor.order"] = order.expand(n, -1).clone()
        flags = torch.zeros(c, dtype=torch.bool, device=device)
        shared = {name: clients.params[name][0].clone() for name in pool if o.input_enhancement}
        if o.standardise:  # Mean 0 and deviation 1 until clients have sent their moments.
            shared |= {name: torch.zeros(2, d, device=device) for name in MOMENTS}
            shared["described"] = flags[0].clone()
        return {
            **shared,
            "prototypes": torch.zeros(c, self.mixed_width, device=device),
            "known": flags,
            "fixed": flags.clone(),
            "seed": torch.tensor(seed),
        }

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Send the pool, the statistics, and the prototypes `(clients, classes, width)`."""
        sent = {name: t for name, t in server.items() if name not in ("fixed", "seed")}
        return repeated(sent, len(to.ids))

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train both stages, the second on features that are computed once."""
        self.receive(cohort, payload)
        data, moments = prompts.queried(cohort, self.backbone), {}
        first = self.options.standardise and not payload["described"].any()
        if first:
            moments["query.moments"] = anchors.moments_of(data["query"])
            payload = {**payload, **moments}
        if self.options.input_enhancement:
            loss = lambda batch: self.enhancement_loss(cohort, batch, payload)  # noqa: E731
            prompts.train_parts(cohort, ("enhance.", prompts.HEAD), None, data, loss)
        with torch.no_grad():
            features = self.enhanced({**payload, **cohort.params}, data["x"], data["query"])
        if first:
            moments["feature.moments"] = anchors.moments_of(features)
            payload = {**payload, **moments}
        features = self.scaled("feature.moments", features, payload)
        data = {name: t for name, t in data.items() if name not in ("x", "query")}
        self.train_anchors(cohort, {**data, "feature": features}, payload)
        return {**self.upload_of(cohort, features, self.task.keys(data)), **moments}

    def scaled(self, moments: str, features: Tensor, payload: Payload) -> Tensor:
        """Return features, standardised with the clients' common moments if the option is on."""
        if not self.options.standardise:
            return features
        return anchors.standardised(features, payload[moments])

    def enhanced(self, params: Payload, x: Tensor, query: Tensor) -> Tensor:
        """Return features `(clients, batch, d)` under the selected prompts (Eq. 2), or the query.

        `params` are the pool, its keys and the statistics; the query is the frozen feature of `x`.
        """
        if not self.options.input_enhancement:
            return query
        query = self.scaled("query.moments", query, params)
        chosen = prompts.chosen_prompts(query, params["enhance.keys"], self.options.top_n)
        return self.backbone.prompted(x, prompts.prompt_tokens(params["enhance.pool"], chosen))

    def enhancement_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the loss of the first stage (Eq. 3)."""
        o, keys = self.options, cohort.params["enhance.keys"]
        query = self.scaled("query.moments", batch["query"], payload)
        chosen = prompts.chosen_prompts(query, keys, o.top_n, vote=o.vote)
        tokens = prompts.prompt_tokens(cohort.params["enhance.pool"], chosen)
        loss = self.task_loss(cohort, self.backbone.prompted(batch["x"], tokens), batch)
        return loss + o.lambda1 * prompts.key_distance(query, keys, chosen)

    def train_anchors(self, cohort: Cohort, data: Batch, payload: Payload) -> None:
        """Train the second stage on F_out, `feature`, while anchors of former tasks stay fixed."""
        before = anchors.begin_task(cohort) if self.options.tail_anchor else {}
        prompts.train_parts(
            cohort,
            ("anchor.",),
            self.options.head_epochs,
            data,
            lambda batch: self.anchor_loss(cohort, batch, payload, before),
        )
        if self.options.tail_anchor:
            with torch.no_grad():
                for name, t in anchors.held(cohort, before).items():
                    cohort.params[name].copy_(t)
            self.note_chosen(cohort, data)

    def note_chosen(self, cohort: Cohort, data: Batch) -> None:
        """Record the anchors that the samples choose; warn once if they are few."""
        chosen = anchors.chosen_anchors(data["feature"], cohort.params["anchor.keys"])
        flags = cohort.memory["anchor.chosen"]
        flags.copy_(F.one_hot(chosen[..., 0], flags.shape[1]).any(1))
        classes = prompts.present_classes(self, cohort).sum(1).tolist()
        counts = zip(flags.sum(1).tolist(), classes, strict=True)
        few = [f"{n} for {c}" for n, c in counts if n < c]
        if few and not self._warned:
            self._warned = True
            log.warning(
                "fedta: clients choose fewer tail anchors than they have classes: %s; these cannot "
                "tell the classes apart; try %s",
                ", ".join(few),
                Words("more {anchors} or more epochs")
                if self.options.standardise
                else Words("{standardise}, more {anchors} or more epochs", standardise=True),
            )

    def anchored(self, params: Payload, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return F_TA `(clients, batch, width)` of F_out, and the selected anchors (Eq. 4)."""
        chosen = anchors.chosen_anchors(features, params["anchor.keys"])
        tail = prompts.prompt_tokens(params["anchor.values"][:, :, None], chosen)
        return anchors.mix(features, tail.view_as(features), params, self.options.mix), chosen

    def anchor_loss(self, cohort: Cohort, batch: Batch, payload: Payload, before: Params) -> Tensor:
        """Return the loss of the second stage (Eq. 6); fixed anchors and keys stay as `before`."""
        o, mixed = self.options, batch["feature"]
        pull = torch.zeros(len(cohort), device=mixed.device)
        if o.tail_anchor:
            params = {**cohort.params, **cohort.memory, **anchors.held(cohort, before)}
            mixed, chosen = self.anchored(params, batch["feature"])
            pull = o.lambda3 * prompts.key_distance(batch["feature"], params["anchor.keys"], chosen)
        loss = self.recorded(cohort, anchor_head(cohort.params, mixed), batch)
        contrast = anchors.consistency_loss(
            mixed, self.task.keys(batch), payload["prototypes"], payload["known"], o.temperature
        )
        return loss + o.lambda2 * contrast + pull

    def upload_of(self, cohort: Cohort, features: Tensor, classes: Tensor) -> Payload:
        """Return the pool and local prototypes `(clients, classes, width)` (Eq. 7)."""
        means = PrototypeMeans(self.task.n_keys)
        with torch.no_grad():
            means.add(self.mixed({**cohort.params, **cohort.memory}, features), classes)
        pool = {name: t.detach() for name, t in cohort.params.items() if name in POOL}
        return {**pool, "prototypes": means.means(), "known": means.counts > 0}

    def mixed(self, params: Payload, features: Tensor) -> Tensor:
        """Return F_TA of F_out; F_out itself without anchors."""
        return self.anchored(params, features)[0] if self.options.tail_anchor else features

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Pool the moments, fuse the pools and select global prototypes."""
        local, holders = uploads["prototypes"], uploads["known"]
        server = {**server, "known": server["known"] | holders.any(0)}
        first = MOMENTS[0] in uploads
        if first:
            server |= {name: anchors.pooled_moments(uploads[name], of.sizes) for name in MOMENTS}
            server["described"] = torch.ones_like(server["described"])
        if self.options.input_enhancement:
            server |= self.pool_of(server, of, uploads)
        free = ~server["fixed"] & holders.any(0)
        if self.options.selection:
            new, similarity = anchors.selected_prototypes(local, holders)
            if not first:  # Until then, each client's prototypes are on its own scale.
                fixed = free & (similarity < self.options.threshold)
                server["fixed"] = server["fixed"] | fixed
        else:
            new = anchors.mean_prototypes(local, holders)
        return {**server, "prototypes": torch.where(free[:, None], new, server["prototypes"])}

    def pool_of(self, server: Params, of: Participants, uploads: Payload) -> Params:
        """Fuse or average the clients' pools and keys."""
        pools = {name: uploads[name] for name in POOL}
        surrogate = surrogate_images(self.task, server["known"]) if self.options.fusion else None
        if surrogate is None or len(of.ids) < 2:
            return {name: weighted_mean(t, of.sizes) for name, t in pools.items()}
        query = self.backbone.query(surrogate["x"])
        statistics = {name: server[name][None] for name in MOMENTS if name in server}
        pool, keys = fused_pool(
            self.backbone,
            (pools["enhance.pool"], pools["enhance.keys"]),
            surrogate["x"][0],
            self.scaled("query.moments", query, statistics)[0],
            top_n=self.options.top_n,
            training=self.training,
            epochs=self.options.fusion_epochs or self.training.epochs,
            rng=Draw.FEDTA.generator(int(server["seed"]), of.round),
        )
        return {"enhance.pool": pool, "enhance.keys": keys}

    def features(self, params: Payload, x: Tensor) -> Tensor:
        """Return F_out of images `(clients, batch, d)`, standardised if they are."""
        features = self.enhanced(params, x, self.backbone.query(x))
        return self.scaled("feature.moments", features, params)

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the anchors' head on the fused or local pool, or by global prototype."""
        params = {**payload, **state} if view == "personal" else {**state, **payload}
        features = self.mixed(params, self.features(params, x))
        if view == "nearest":
            return anchors.prototype_scores(features, payload["prototypes"], payload["known"])
        return anchor_head(params, features)


def anchor_head(params: Payload, mixed: Tensor) -> Tensor:
    """Return logits `(clients, batch, classes)` of mixed features."""
    return torch.baddbmm(params["anchor.bias"][:, None], mixed, params["anchor.weight"])
