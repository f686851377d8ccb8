"""FedL2P: FedAvg of L2P's prompt pool, keys and head.

Wang, Zhang, Lee, Zhang, Sun, Ren, Su, Perot, Dy, Pfister: Learning to Prompt for Continual
Learning, CVPR 2022, arXiv 2112.08654, Eq. 3–5; averaged by FedAvg as in FedTA's Table 1 (Yu et al.,
CVPR 2025), which gives no further details and cites another paper for this name.

The frozen class feature of an image selects the N prompts with the nearest keys. They are added to
its tokens, and the head takes the mean of the prompts' outputs. A loss pulls the selected keys
towards the query.

- The pull's weight is 0.5 in the paper and 0.1 in the released PyTorch port, whose settings are the
  defaults here; dis = 1 - cos.
- In the port, a batch uses the prompts that most of its samples select. Here this holds in training
  only (`vote`): a prediction must not depend on the other samples of its batch.
- The cross-entropy is among the classes of the present task (`within_task`), as in the port
  (`train_mask`).
- The port adds learned positions to prompts; here they have none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from stforecast.federated.core.state import Cohort
from stforecast.federated.core.tensors import Batch, Payload
from vision.methods import prompts


@dataclass(frozen=True)
class FedL2POptions(prompts.PoolOptions):
    """Settings of FedL2P; defaults of the released code for CIFAR-100.

    Attributes:
        vote: whether a training batch uses the prompts that most of its samples select.
        pull: weight of the pull on the selected keys (paper: 0.5).
        head_epochs: epochs of the head in a round; those beyond `epochs` train it alone, on
            features under the trained prompts. By default `epochs`.
    """

    prompt_length: PositiveInt = 5
    top_n: PositiveInt = 5
    vote: bool = True
    pull: NonNegativeFloat = 0.1
    head_epochs: PositiveInt | None = None


class FedL2P(prompts.PromptedFedAvg):
    """FedAvg of a pool of prompts, its keys and a head."""

    name = "fedl2p"
    summary = "averages a pool of prompts for a frozen transformer, chosen by keys"
    paper = "Wang et al., CVPR 2022"
    Options = FedL2POptions
    options: FedL2POptions

    def prompts(self, n_clients: int, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the pool and its keys."""
        return prompts.new_pool(prompts.PROMPT, n_clients, self.options, self.backbone.width, rng)

    def prompted(self, cohort: Cohort, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return features under the selected prompts, and the pull on their keys."""
        query, keys = batch["query"], cohort.params["prompt.keys"]
        o = self.options
        chosen = prompts.chosen_prompts(query, keys, o.top_n, vote=o.vote)
        features = self._read(cohort.params, batch["x"], chosen)
        return features, o.pull * prompts.key_distance(query, keys, chosen)

    def features(self, params: Payload, x: Tensor) -> Tensor:
        """Return features under the prompts selected for each image."""
        query = self.backbone.query(x)
        chosen = prompts.chosen_prompts(query, params["prompt.keys"], self.options.top_n)
        return self._read(params, x, chosen)

    def _read(self, params: Payload, x: Tensor, chosen: Tensor) -> Tensor:
        tokens = prompts.prompt_tokens(params["prompt.pool"], chosen)
        return self.backbone.prompted(x, tokens, read="prompts")
