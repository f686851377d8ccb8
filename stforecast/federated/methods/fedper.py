"""FedPer: clients share base layers; each keeps its own personalisation layers.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019, arXiv
1912.00818, Algorithms 1 and 2.

A client trains the received base layers together with its own personalisation layers. It sends only
the base layers, which the server averages, weighted by the clients' numbers of samples. FedRep
trains the two parts in turn instead.

- The paper counts the personalisation layers from the output; its networks keep one to four blocks.
  Here they are the head. The paper initialises each client's at random; here all start equal.
- Running statistics belong to their layers: those of the encoder are averaged.
- The paper's plain SGD is the run's optimiser here, whose state stays on the client.
"""

from __future__ import annotations

from stforecast.federated.core.declared import Attacked
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.uploads.robust import RULES

REPRESENTATION, HEAD = "encoder.", "head."
"""Prefixes of the parameter names of a model's two parts."""


class FedPer(FedAvg):
    """FedAvg of the encoder; the head is trained with it and stays on the client."""

    name = "fedper"
    summary = "averages the encoder; each client has its own head, trained along with it"
    paper = "Arivazhagan et al., arXiv 2019"
    attacked = Attacked(guards=RULES)
    views = ("personal",)

    def shares(self, name: str) -> bool:
        """Return whether the name is the encoder's."""
        return name.startswith(REPRESENTATION)
