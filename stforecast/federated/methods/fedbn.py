"""FedBN: FedAvg in which each client keeps its own batch normalisation.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization, ICLR 2021, arXiv 2102.07623, Algorithm 1.

Scale, shift and running statistics of normalisation layers stay on the clients; everything else is
averaged. The paper counts clients equally and truncates them to equal size; this weights by
samples, as FedAvg does. Without normalisation layers it is FedAvg, and the log says so.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from stforecast.federated.core.declared import Attacked, Needs
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Clients, ServerState
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.uploads.robust import RULES

log = logging.getLogger(__name__)

KEPT: dict[str, tuple[type[nn.Module], ...]] = {
    "batch": (_BatchNorm,),
    "all": (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm),
}
"""Layers that stay on the clients."""


@dataclass(frozen=True)
class FedBNOptions(CheckedOptions):
    """Settings of FedBN.

    Attributes:
        norms: layers that stay on the clients: `batch` normalisation (paper), or `all`: layer,
            group and instance normalisation too, for networks without batch normalisation.
    """

    norms: Literal["batch", "all"] = "batch"


class FedBN(FedAvg):
    """FedAvg of everything outside the normalisation layers."""

    name = "fedbn"
    summary = "averages everything but batch normalisation, which each client keeps"
    paper = "Li et al., ICLR 2021"
    attacked = Attacked(guards=RULES)
    views = ("personal",)
    needs = Needs(data=("equal initial weights", "batch normalisation"))
    Options = FedBNOptions
    options: FedBNOptions

    def set_up(self) -> None:
        """Find the layers that stay on the clients."""
        kept = KEPT[self.options.norms]
        modules = self.population.model.named_modules()
        self._kept = tuple(f"{name}." for name, module in modules if isinstance(module, kept))

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Initialise as FedAvg; warn if the model has no normalisation layers."""
        if not self._kept:
            log.warning("fedbn: the model has no normalisation layers to keep, so this is FedAvg")
        return super().init(clients, sizes, seed)

    def shares(self, name: str) -> bool:
        """Return whether the name is outside the normalisation layers."""
        return not name.startswith(self._kept)
