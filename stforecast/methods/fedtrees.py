"""FedTrees: gradient-boosted trees on a ridge regression, from sums over clients only.

Boosting with histograms (Ke et al., LightGBM, NeurIPS 2017) needs only sums over samples, so a
federation can build the trees of the pooled data: each client sums over its own samples, the server
adds the clients' sums. This is horizontal federation, as in Li et al., FedTree, MLSys 2023, and
Tian et al., FederBoost, arXiv 2011.02796. The ridge regression is ours.

Round 1. A client sends how many values of each input lie in each cell of a fixed grid, from which
the server chooses common bins of about equal counts, and XᵀX and Xᵀy of its inputs and targets. The
solution of the summed normal equations is the pooled ridge regression: the boosted base learner.

Each tree takes `depth` + 1 rounds, one for each level. A client adds up the negative gradients r of
the loss of its samples in each node; the server sets the node's value to `shrinkage` times
Σ r / (n + λ) (Chen, Guestrin: XGBoost, KDD 2016, arXiv 1603.02754, Eq. 5). Above the last level a
client also sends histograms: for each node, input and bin the sum of r and the number of samples n.
The server splits each node where the gain (their Eq. 7) is largest.

- One tree has a leaf value for each target step (vectors), so all steps share its structure. With
  more outputs than `directions`, histograms have sums of random projections of r instead of r
  (Iosipoi, Vakhrushev: SketchBoost, NeurIPS 2022, arXiv 2211.12858); nodes' values are exact.
- Only left children's histograms are sent; the right one's is the parent's minus the left one's. If
  the clients of a level are not those of the level before, which happens when one fails, the tree
  ends at this level. With `participation` below 1 both children's are sent.
- Trees grow by level, not by leaf. A tree ends early if no node has a split. An unfinished tree
  predicts with the values that its nodes have so far.
- A sample's weight n is the share of its target steps that were observed: exact for one step only.
  The ridge regression reads samples whose steps were all observed.
- r is -∂loss / ∂prediction, in units in which that of the squared error is y - prediction. The
  Hessian is that of the squared error, for any loss: there is no line search. Quantiles start from
  the ridge regression, too.
- The server sends all trees in every round, so a client may sit out, join late or be restarted.
- Lags, loss and the least number of samples of a child were chosen by validation errors on Milan's
  25 and 88 cells. All of the last 168 hours as lags were worse, as was a child of 20 samples. On
  METR-LA the loss `mse` has the lower MSE.
- Trees read the weekly profile, too: it helps with pedestrians and taxi trips, and is a bit worse
  on Milan's cells.
- The model of the run is not trained; it only tells the number of outputs. Of the settings of
  training, only rounds, participation and patience apply.

What a client discloses: in round 1, for each input the number of its values in cells 0.01 to 1 wide
(of z-scores), and the second moments of its inputs and targets; later, for each input the sum of r
and the number of samples in each bin of a node. A bin of a single sample tells its r. The server
needs only the sums of all uploads over clients, so secure aggregation applies. Clipping, noise,
quantisation and delta coding work as for any method. Of the rules of robust aggregation only `drop`
does: a client with outlying sums counts as absent. If not the same clients are dropped at each
level, the tree ends early.

Floats that a client sends, with F inputs, K outputs, B bins and C = min(K, directions): 1024 F +
(F + 1)(F + 1 + K) in round 1; in the round of level l of a tree 2ˡ (K + 1) and, for l < depth,
max(1, 2ˡ⁻¹) F B (C + 1).

The arithmetic is our own (`stforecast.federated.core.trees`), since no library has a public
function that splits nodes by given histograms. scikit-learn bins, sums and splits in one call on
its own samples. LightGBM and XGBoost can add histograms up over processes that each hold a part of
the samples and wait for each other, but not over clients batched in one process, nor in rounds that
another link carries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from stforecast.federated.core import trees
from stforecast.federated.core.data import ClientData
from stforecast.federated.core.declared import Attacked, Upload
from stforecast.federated.core.method import Method, Task
from stforecast.federated.core.options import CheckedOptions, Grid, PositiveShare, names_of
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState, generator
from stforecast.federated.core.tensors import Batch, Params, Payload, repeated
from stforecast.federated.core.training import Training


@dataclass(frozen=True)
class FedTreesOptions(CheckedOptions):
    """Settings of FedTrees.

    Attributes:
        depth: number of splits between root and leaves; a tree takes depth + 1 rounds.
        bins: largest number of bins of an input.
        shrinkage: share of a tree's values that is added to the forecast.
        min_samples: least number of samples in a child, over all clients.
        l2: L2 penalty λ of a node's value.
        ridge: L2 penalty of the ridge regression that is boosted, without the intercept.
        directions: random directions that stand for the outputs when a split is chosen; 0 for all
            outputs.
    """

    depth: Annotated[PositiveInt, Le(8)] = 5
    bins: Annotated[int, Ge(2), Le(256)] = 64
    shrinkage: PositiveShare = 0.1
    min_samples: PositiveInt = 100
    l2: NonNegativeFloat = 1.0
    ridge: PositiveFloat = 100.0
    directions: NonNegativeInt = 4


class FedTrees(Method):
    """FedTrees.

    The server keeps the trees as rows of `feature` and `split` `(trees, nodes)` and of `value`
    `(trees, leaves, outputs)`; the last tree is unfinished if `level` is not 0.
    """

    name = "fedtrees"
    summary = "gradient-boosted trees on a ridge regression; clients send sums and histograms only"
    paper = "Li et al., MLSys 2023"
    attacked = Attacked(
        guards=("drop",),
        unguarded="most bins of most clients are empty, and a median of histograms is no histogram",
        discloses="readings",
    )
    views = ("global",)
    sends = Upload(sums="clients", of_samples=True)
    unread = {"model"} | names_of(Training) - {"rounds", "participation", "full_start", "patience"}
    Options = FedTreesOptions
    options: FedTreesOptions
    grid: ClassVar[Grid] = {"shrinkage": [0.03, 0.06, 0.1, 0.15, 0.2], "depth": [4, 5]}
    defaults: ClassVar[Mapping[str, Any]] = {
        "model": "linear",
        "closeness": 6,
        "extra_lags": "auto-days",
        "calendar": "week",
        "profile": "auto",
        "loss": "huber",
        "rounds": 601,
        "patience": 60,
    }

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Return the seed of the random directions; no client has taken part yet."""
        return {"seed": torch.tensor(seed), "members": torch.zeros_like(sizes)}

    def sample_memory(self, data: ClientData) -> Params:
        """Return the bins of all samples, their predictions and the number of trees in these."""
        first = data.take(torch.arange(1)).tensors["x"]
        x = first.flatten(2).expand(len(data), -1, -1)
        self.population.train(False)
        model = {name: t.to(x.device) for name, t in self.population.initial().items()}
        with torch.no_grad():
            rows = 1 if data.group_sizes is None else int(data.group_sizes.max())
            outputs = super().predict(model, {}, first[:, :rows], self.views[0])
        return {
            "bins": x.new_zeros(x.shape, dtype=torch.uint8).mT,
            "prediction": outputs.new_zeros(*x.shape[:2], outputs.shape[-1]),
            "trees": torch.full((len(x),), -1, device=x.device),  # -1: nothing yet.
        }

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return bins, ridge regression, all trees, the level to split and the directions."""
        kept = ("seed", "parents", "members")
        sent = {name: t for name, t in server.items() if name not in kept}
        return repeated(sent, len(to.ids))

    @torch.no_grad()
    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Return the sums over the cohort's samples that the server asks for."""
        samples = int(cohort.data.sizes[0])
        batch = {name: t[:, :samples] for name, t in cohort.data.tensors.items()}
        if "bin_ends" not in payload:
            prediction = cohort.memory["prediction"][:, :samples]
            cohort.record_loss(self.task.loss(prediction, batch))
            return self._description(batch, prediction.shape[-1])
        tables = {name: t[0] for name, t in payload.items()}
        level = int(tables["level"])
        bins, prediction = self._up_to_date(cohort, batch, tables)
        node = torch.zeros(prediction.shape[:2], dtype=torch.long, device=bins.device)
        grown = prediction
        if level:
            node = _nodes(tables, -1, bins, level)
            grown = prediction + _values(tables, -1, node, level)
        cohort.record_loss(self.task.loss(grown, batch))
        weight = batch["mask"].to(prediction).mean(2, keepdim=True).mT
        residual = residuals(self.task, prediction, batch)
        sums = trees.node_sums(node, torch.cat([residual.mT, weight], dim=1), 2**level)
        if level == self.options.depth:
            return {f"sums.{level}": sums}
        n_nodes = 2**level
        # Else both children's are sent, as other clients sent their parent's.
        if level and self.training.participation >= 1:
            node, n_nodes = torch.where(node % 2 == 0, node // 2, -1), n_nodes // 2
        channels = torch.cat([(residual @ tables["directions"]).mT, weight], dim=1)
        histogram = trees.histograms(bins, node, channels, n_nodes, self.options.bins)
        return {f"sums.{level}": sums, f"histogram.{level}": histogram}

    def _description(self, batch: Batch, outputs: int) -> Payload:
        """Return the counts on the grid and the normal equations of the ridge regression."""
        x, y = batch["x"].flatten(2), batch["y"]
        known = batch["mask"].all(2, keepdim=True)
        rows = torch.where(known, torch.cat([x, torch.ones_like(x[..., :1])], dim=2), 0)
        targets = y.repeat_interleave(outputs // y.shape[2], dim=2)
        moment = rows.mT @ torch.where(known, targets, 0)
        return {"grid": trees.grid_counts(x), "gram": rows.mT @ rows, "moment": moment}

    def _up_to_date(self, cohort: Cohort, batch: Batch, tables: Params) -> tuple[Tensor, Tensor]:
        """Return the bins of the samples, and their predictions by all finished trees.

        The cohort remembers both, and the number of trees that its predictions have.
        """
        x, memory = batch["x"].flatten(2), cohort.memory
        bins, prediction = memory["bins"][..., : x.shape[1]], memory["prediction"][:, : x.shape[1]]
        done = memory["trees"]
        new = done < 0
        if new.any():
            bins[new] = trees.to_bins(x[new], tables["bin_ends"])
            prediction[new] = _linear(x[new], tables["linear"])
            done[new] = 0
        finished = len(tables["feature"]) - bool(tables["level"])
        for i in range(int(done.min()), finished):
            node = _nodes(tables, i, bins, self.options.depth)
            added = _values(tables, i, node, self.options.depth)
            prediction += torch.where((done <= i)[:, None, None], added, 0)
        done.fill_(finished)
        return bins, prediction

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Add up the uploads; choose bins and base learner, or values and splits of a level."""
        total = {name: t.sum(0, dtype=torch.float64) for name, t in uploads.items()}
        members = torch.zeros_like(server["members"])
        members[of.ids] = of.sizes
        if "grid" in total:
            after = {**server, **self._begun(total, uploads["moment"].dtype)}
        else:
            after = self._grown(server, total, bool((members == server["members"]).all()))
        after["members"] = members
        return {**after, "directions": self._directions(after)}

    def _begun(self, total: Params, dtype: torch.dtype) -> Params:
        """Return the bins, the ridge regression and no trees."""
        gram, moment = total["gram"], total["moment"]
        penalty = torch.full_like(gram[0], self.options.ridge)
        penalty[-1] = 1e-9  # The intercept has none, but there may be no sample.
        n_nodes, outputs = 2**self.options.depth - 1, moment.shape[1]
        return {
            "bin_ends": trees.bin_ends(total["grid"], self.options.bins).to(dtype),
            "linear": torch.linalg.solve(gram + penalty.diag(), moment).to(dtype),
            "feature": gram.new_zeros(0, n_nodes, dtype=torch.int16),
            "split": gram.new_zeros(0, n_nodes, dtype=torch.uint8),
            "value": gram.new_zeros(0, n_nodes + 1, outputs, dtype=dtype),
            "level": gram.new_zeros((), dtype=torch.long),
        }

    def _grown(self, server: ServerState, total: Params, same: bool) -> ServerState:
        """Return the state after a level: its nodes' values and splits, from sums over clients.

        `same` says whether these clients are those of the level before.
        """
        o, level = self.options, int(server["level"])
        tables = {name: server[name] for name in ("feature", "split", "value")}
        if not level:
            tables = {n: torch.cat([t, t.new_zeros(1, *t.shape[1:])]) for n, t in tables.items()}
        tables = {name: t.clone() for name, t in tables.items()}
        values = o.shrinkage * trees.leaf_values(total[f"sums.{level}"], o.l2)
        tables["value"][-1] = values.repeat_interleave(2 ** (o.depth - level), dim=0)
        after = {**server, **tables, "level": torch.zeros_like(server["level"])}
        parents = after.pop("parents", None)
        if level == o.depth:
            return after
        histogram = total[f"histogram.{level}"]
        if level and self.training.participation >= 1:
            if parents is None or not same:
                return after
            histogram = torch.stack([histogram, parents - histogram], dim=1).flatten(0, 1)
        feature, split, gain = trees.best_splits(histogram, o.min_samples, o.l2)
        if gain.any():
            nodes = slice(2**level - 1, 2 ** (level + 1) - 1)
            after["feature"][-1, nodes] = feature.to(torch.int16)
            after["split"][-1, nodes] = torch.where(gain > 0, split, o.bins - 1).to(torch.uint8)
            after |= {"level": server["level"] + 1, "parents": histogram}
        return after

    def server_for(self, server: ServerState, ids: Tensor) -> ServerState:
        """Return the state for other clients."""
        return {**server, "members": torch.where(ids >= 0, server["members"][ids], 0)}

    def _directions(self, server: ServerState) -> Tensor:
        """Return the directions of the tree to grow, `(outputs, directions)`."""
        if server["level"]:
            return server["directions"]
        value = server["value"]
        outputs, n = value.shape[2], self.options.directions
        if not 0 < n < outputs:
            return torch.eye(outputs).to(value)
        # The key is distinct from those of the core and the clients.
        drawn = generator(int(server["seed"]), 0, 0, 5, len(value))
        return (torch.randn(outputs, n, generator=drawn) / n**0.5).to(value)

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict by the ridge regression and all trees; before the first round, by the model."""
        if "bin_ends" not in payload:
            return super().predict(state, {}, x, view)
        tables = {name: t[0] for name, t in payload.items()}
        rows = x.flatten(2).flatten(0, 1)[None]  # All clients have the same trees.
        bins, prediction = trees.to_bins(rows, tables["bin_ends"]), _linear(rows, tables["linear"])
        for i in range(len(tables["feature"])):
            node = _nodes(tables, i, bins, self.options.depth)
            prediction += _values(tables, i, node, self.options.depth)
        return prediction.view(*x.shape[:2], -1)


def residuals(task: Task, prediction: Tensor, batch: Batch) -> Tensor:
    """Return the negative gradient of the loss of each output; 0 where nothing was observed.

    It is divided by the loss's second derivative at a perfect prediction, if that is positive, so
    that the residual of a squared error is the difference of target and prediction. Predictions are
    `(clients, samples, outputs)`; the batch has their `y` and `mask`.
    """
    y, n = batch["y"], batch["mask"].sum((1, 2)).view(-1, 1, 1)

    def slope(at: Tensor, *, create_graph: bool = False) -> Tensor:
        (g,) = torch.autograd.grad(task.loss(at, batch).sum(), at, create_graph=create_graph)
        return g * n

    with torch.enable_grad():
        perfect = y.repeat_interleave(prediction.shape[2] // y.shape[2], dim=2).requires_grad_()
        g, curvature = slope(perfect, create_graph=True), 0.0
        if g.requires_grad:
            (second,) = torch.autograd.grad(g.sum(), perfect, materialize_grads=True)
            curvature = float(second.max())
        return -slope(prediction.detach().requires_grad_()) / (curvature or 1.0)


def _linear(x: Tensor, weights: Tensor) -> Tensor:
    """Return x W + b; b is the last row of `weights` `(inputs + 1, outputs)`."""
    return x @ weights[:-1] + weights[-1]


def _nodes(tables: Params, tree: int, bins: Tensor, level: int) -> Tensor:
    """Return the node of each sample at a level of a tree."""
    return trees.nodes_at(bins, tables["feature"][tree], tables["split"][tree], level)


def _values(tables: Params, tree: int, node: Tensor, level: int) -> Tensor:
    """Return the values of nodes of a level, which are those of the leaves below them."""
    of_leaves = tables["value"][tree]
    return of_leaves[node * (len(of_leaves) >> level)]
