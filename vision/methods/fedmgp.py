"""FedMGP: shared coarse prompts, and local fine prompts, one for each class.

Yu, Yang, Gao, Kang, Wang, Zhang, Li: Personalized Federated Continual Learning via
Multi-granularity Prompt, KDD 2024, arXiv 2407.00113. It is closely related to FedTA and the best
baseline in its Table 1.

A client first trains the global prompts, a pool with keys as in L2P, and the global head. With
these fixed, it then trains its local prompts, additional keys and values in the attention of some
blocks, with their own head. The server distils the clients' pools into one on its surrogate set and
trains the mean of the heads on the surrogate labels.

Details from the released code, and differences:

- The heads' input is the mean of the global prompts' outputs. In training, a sample has the local
  prompt of its class; a prediction uses the local prompt whose key is nearest to the head's input
  under global prompts only, the query. So the second stage pulls the key of the class.
- All weights of pulls are 0.1. On clients, training predictions choose among the present task's
  classes (`within_task`); on the server, among the classes of all images that it trains on.
- The code's heads have a hidden layer of 512; these are linear, as in the other methods here.
- The code can exclude clients whose prompts do badly on the surrogate set, but this is switched
  off. It fuses into the first client's pool; here the target is drawn, as in FedTA (Eq. 8 there).
- The server uses surrogate images of the classes that clients have in the present task, so clients
  upload these classes. Other images would teach it classes that no client has had.
- The code trains the first client's head on the server; here it is the mean of the heads.
- The code votes for one prompt per batch, also at test; here every image has its own.

Without a surrogate set, pools and heads are averaged by the clients' samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError
from stforecast.federated.core.declared import Needs, Upload
from stforecast.federated.core.method import Method
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Params, Payload, repeated, weighted_mean
from stforecast.federated.core.training import Optimizer, zero_moments
from vision.draws import Draw
from vision.methods import prompts
from vision.models.vit import backbone_of
from vision.task import cross_entropy

COARSE, FINE, FINE_HEAD = "coarse.", "fine.", "fine.head."


@dataclass(frozen=True)
class FedMGPOptions(prompts.PoolOptions):
    """Settings of FedMGP; defaults of the released code for CIFAR-100. The pool is the global one.

    Attributes:
        fine_length: keys and values of a local prompt in each block.
        first_block: first block (from 0) with local prompts.
        fine_blocks: number of blocks with local prompts.
        pull: weight of the pulls on keys.
        head_epochs: epochs of each head in a round; epochs beyond `epochs` train only the head, on
            features under the trained prompts. By default `epochs`.
        server_epochs: the server's epochs on the surrogate set; by default the clients'.
    """

    fine_length: PositiveInt = 10
    first_block: NonNegativeInt = 2
    fine_blocks: PositiveInt = 3
    pull: NonNegativeFloat = 0.1
    head_epochs: PositiveInt | None = None
    server_epochs: PositiveInt | None = None


class FedMGP(Method):
    """FedMGP. The methods follow the order of a round."""

    name = "fedmgp"
    summary = "shares coarse prompts, fused on the server, and keeps fine ones for each class"
    paper = "Yu et al., KDD 2024"
    sends = Upload(apart=True)
    needs = Needs(data=("equal initial weights",))
    views: ClassVar[tuple[str, ...]] = ("global", "personal")
    Options = FedMGPOptions
    options: FedMGPOptions
    defaults = prompts.DEFAULTS

    def set_up(self) -> None:
        """Refuse local prompts beyond the last block."""
        self.backbone = backbone_of(self.population, self.name)
        last = self.options.first_block + self.options.fine_blocks
        if last > self.backbone.depth:
            raise InputError(
                f"local prompts reach to block {last}; the backbone has {self.backbone.depth} "
                "blocks"
            )

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Give all clients the same prompts and heads."""
        o, n, d, c = self.options, len(clients), self.backbone.width, self.task.n_keys
        rng = Draw.PROMPTS.generator(seed)
        own = {
            **prompts.new_pool(COARSE, n, o, d, rng),
            "fine.prompts": prompts.uniform(n, c, o.fine_blocks, 2, o.fine_length, d, rng=rng),
            "fine.keys": prompts.uniform(n, c, d, rng=rng),
            **{FINE + name: t.clone() for name, t in clients.params.items()},
        }
        prompts.add_parameters(clients, own)
        shared = {n: t[0].clone() for n, t in clients.params.items() if not n.startswith(FINE)}
        return {**shared, "seed": torch.tensor(seed)}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Send the global prompts, their keys and the global head."""
        shared = {name: t for name, t in server.items() if name != "seed"}
        return repeated(shared, len(to.ids))

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train the global prompts, then the local ones."""
        self.receive(cohort, payload)
        epochs, params = self.options.head_epochs, cohort.params
        data, parts = prompts.queried(cohort, self.backbone), (COARSE, prompts.HEAD)
        x, query, y = data["x"], data["query"], self.task.keys(data)
        prompts.train_parts(cohort, parts, None, data, lambda b: self.coarse_loss(cohort, b))
        prompts.train_head(
            cohort,
            prompts.HEAD,
            epochs,
            data,
            lambda: self.coarse(params, x, query),
            lambda b: self.task_loss(cohort, b["feature"], b),
        )
        with torch.no_grad():
            data["read"] = self.coarse(params, x, query)
        prompts.train_parts(cohort, (FINE,), None, data, lambda b: self.fine_loss(cohort, b))
        prompts.train_head(
            cohort,
            FINE_HEAD,
            epochs,
            data,
            lambda: self.fine(params, x, query, y),
            lambda b: self.fine_task_loss(cohort, b["feature"], b),
        )
        shared = {n: t.detach() for n, t in params.items() if not n.startswith(FINE)}
        return {**shared, "present": prompts.present_classes(self, cohort)}

    def tokens(self, params: Payload, query: Tensor) -> Tensor:
        """Return the global prompts selected by queries."""
        chosen = prompts.chosen_prompts(query, params["coarse.keys"], self.options.top_n)
        return prompts.prompt_tokens(params["coarse.pool"], chosen)

    def coarse(self, params: Payload, x: Tensor, query: Tensor) -> Tensor:
        """Return the global head's input, `(clients, batch, d)`."""
        return self.backbone.prompted(x, self.tokens(params, query), read="prompts")

    def coarse_loss(self, cohort: Cohort, batch: Batch) -> Tensor:
        """Return the loss of the first stage."""
        o, params, query = self.options, cohort.params, batch["query"]
        loss = self.task_loss(cohort, self.coarse(params, batch["x"], query), batch)
        chosen = prompts.chosen_prompts(query, params["coarse.keys"], o.top_n)
        return loss + o.pull * prompts.key_distance(query, params["coarse.keys"], chosen)

    def fine(self, params: Payload, x: Tensor, query: Tensor, chosen: Tensor) -> Tensor:
        """Return the local head's inputs under local prompts `chosen` `(clients, batch)`."""
        local = params["fine.prompts"]
        client = torch.arange(len(local), device=local.device)[:, None]
        own = local[client, chosen]
        first = self.options.first_block
        prefixes = {first + b: own[:, :, b] for b in range(self.options.fine_blocks)}
        tokens = self.tokens(params, query)
        return self.backbone.prompted(x, tokens, prefixes, read="prompts")

    def fine_logits(self, params: Payload, features: Tensor) -> Tensor:
        """Return the local head's logits."""
        head = {name: params[f"fine.{name}"] for name in self.population.names}
        return self.population.decode(head, features)

    def fine_loss(self, cohort: Cohort, batch: Batch) -> Tensor:
        """Return the loss of the second stage."""
        y, keys = self.task.keys(batch), cohort.params["fine.keys"]
        features = self.fine(cohort.params, batch["x"], batch["query"], y)
        pull = prompts.key_distance(batch["read"], keys, y[..., None])
        return self.fine_task_loss(cohort, features, batch) + self.options.pull * pull

    def fine_task_loss(self, cohort: Cohort, features: Tensor, batch: Batch) -> Tensor:
        """Return the task's loss of the local head, and record it."""
        return self.recorded(cohort, self.fine_logits(cohort.params, features), batch)

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Average, or with a surrogate set, fuse the pools and train the head."""
        shared = {name: t for name, t in uploads.items() if name != "present"}
        mean = {name: weighted_mean(t, of.sizes) for name, t in shared.items()}
        images = prompts.surrogate_images(self.task, uploads["present"].any(0))
        if images is None or len(of.ids) < 2:
            return {**mean, "seed": server["seed"]}
        rng = Draw.FEDMGP.generator(int(server["seed"]), of.round)
        pool, keys = prompts.fused_pool(
            self.backbone,
            (uploads["coarse.pool"], uploads["coarse.keys"]),
            images["x"][0],
            self.backbone.query(images["x"][0]),
            top_n=self.options.top_n,
            training=self.training,
            epochs=self.options.server_epochs or self.training.epochs,
            rng=rng,
            read="prompts",
        )
        fused = {"coarse.pool": pool, "coarse.keys": keys}
        head = self.trained_head({**mean, **fused}, images, rng)
        return {**fused, **head, "seed": server["seed"]}

    def trained_head(self, params: Params, images: Batch, rng: torch.Generator) -> Params:
        """Train the head on the surrogate images' labels under the fused prompts."""
        one = repeated(params, 1)
        x, y = images["x"], images["y"]
        features = self.coarse(one, x, self.backbone.query(x))
        head = {n: t.clone().requires_grad_() for n, t in one.items() if n.startswith(prompts.HEAD)}
        optimizer = Optimizer(head, zero_moments(head, self.training), self.training)
        with torch.enable_grad():
            for _ in range(self.options.server_epochs or self.training.epochs):
                order = torch.randperm(y.shape[1], generator=rng).to(y.device)
                for rows in order.split(self.training.batch_size):
                    logits = self.population.decode(head, features[:, rows])
                    optimizer.step(cross_entropy(logits, y[:, rows]).mean(1))
        return {name: t.detach()[0] for name, t in head.items()}

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with global prompts and head, or also with the client's local ones."""
        params = {**state, **payload}
        query = self.backbone.query(x)
        read = self.coarse(params, x, query)
        if view == "global":
            return self.population.decode(params, read)
        chosen = prompts.chosen_prompts(read, params["fine.keys"], 1)[..., 0]
        return self.fine_logits(params, self.fine(params, x, query, chosen))
