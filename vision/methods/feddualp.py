"""FedDualP: FedAvg of DualPrompt's general and expert prompts, keys and head.

Wang, Zhang, Ebrahimi, Sun, Zhang, Lee, Ren, Su, Perot, Dy, Pfister: DualPrompt: Complementary
Prompting for Rehearsal-free Continual Learning, ECCV 2022, arXiv 2204.04799, Eq. 3–6 and
Algorithms 1 and 2; averaged by FedAvg as in FedTA's Table 1 (Yu et al., CVPR 2025), which gives no
further details.

Prompts are additional keys and values of the attention (prefix tuning): the general one (G) in the
first blocks, one expert (E) for each task in the next blocks. Training uses the present task's
expert and pulls its key towards the query; a prediction uses the expert with the nearest key.

- Defaults are as in the released PyTorch port for CIFAR-100; the paper's experts have 20 tokens.
- The port starts a new task's expert from the last one's values; here it does not.
- In the port, a test batch votes for one expert; here each image has its own.
- In stages beyond the last expert, training selects by keys too, as in the port.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Cohort
from stforecast.federated.core.tensors import Batch, Payload
from vision.methods.prompts import PromptedFedAvg, chosen_prompts, key_distance, uniform


@dataclass(frozen=True)
class FedDualPOptions(CheckedOptions):
    """Settings of FedDualP; defaults of the released code for CIFAR-100.

    Attributes:
        g_length: tokens of the general prompt.
        g_blocks: number of blocks with the general prompt, from the first.
        e_length: tokens of an expert prompt (paper: 20).
        e_blocks: number of blocks with an expert prompt, after those.
        experts: number of expert prompts, one for each task.
        pull: weight of the pull on the expert's key.
        head_epochs: epochs of the head in a round; epochs beyond `epochs` train only the head, on
            features under the trained prompts. By default `epochs`.
    """

    g_length: PositiveInt = 5
    g_blocks: PositiveInt = 2
    e_length: PositiveInt = 5
    e_blocks: PositiveInt = 3
    experts: PositiveInt = 10
    pull: NonNegativeFloat = 1.0
    head_epochs: PositiveInt | None = None


class FedDualP(PromptedFedAvg):
    """FedAvg of general and expert prefixes, the experts' keys and a head."""

    name = "feddualp"
    summary = "averages general and expert prefixes of a frozen transformer's attention"
    paper = "Wang et al., ECCV 2022"
    Options = FedDualPOptions
    options: FedDualPOptions

    def set_up(self) -> None:
        """Refuse prompts beyond the last block."""
        super().set_up()
        used = self.options.g_blocks + self.options.e_blocks
        if used > self.backbone.depth:
            raise InputError(
                f"g_blocks and e_blocks add up to {used}; the backbone has {self.backbone.depth} "
                "blocks"
            )

    def prompts(self, n_clients: int, rng: torch.Generator) -> dict[str, Tensor]:
        """Return general prefix, experts `(clients, experts, blocks, 2, length, d)` and keys."""
        o, n, d = self.options, n_clients, self.backbone.width
        return {
            "prompt.general": uniform(n, o.g_blocks, 2, o.g_length, d, rng=rng),
            "prompt.experts": uniform(n, o.experts, o.e_blocks, 2, o.e_length, d, rng=rng),
            "prompt.keys": uniform(n, o.experts, d, rng=rng),
        }

    def prompted(self, cohort: Cohort, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return features under the present task's expert, and the pull on its key (Eq. 5)."""
        query, keys = batch["query"], cohort.params["prompt.keys"]
        if cohort.stage < self.options.experts:
            chosen = query.new_full((*query.shape[:2], 1), cohort.stage, dtype=torch.long)
        else:
            chosen = chosen_prompts(query, keys, 1)
        features = self._under(cohort.params, batch["x"], chosen)
        return features, self.options.pull * key_distance(query, keys, chosen)

    def features(self, params: Payload, x: Tensor) -> Tensor:
        """Return features under the expert with the nearest key (Eq. 6)."""
        chosen = chosen_prompts(self.backbone.query(x), params["prompt.keys"], 1)
        return self._under(params, x, chosen)

    def _under(self, params: Payload, x: Tensor, chosen: Tensor) -> Tensor:
        general, experts = params["prompt.general"], params["prompt.experts"]
        client = torch.arange(len(experts), device=experts.device)[:, None]
        own = experts[client, chosen[..., 0]]
        first = self.options.g_blocks
        prefixes = {b: general[:, None, b].expand(-1, x.shape[1], -1, -1, -1) for b in range(first)}
        prefixes |= {first + b: own[:, :, b] for b in range(self.options.e_blocks)}
        return self.backbone.prompted(x, prefixes=prefixes)
