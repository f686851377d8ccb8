"""LG-FedAvg: each client has its own representation, and all share the head.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally:
Federated Learning with Local and Global Representations, 2020, arXiv 2001.01523, Algorithm 1.

A client trains its encoder together with the received head, and sends only the head, which the
server averages, weighted by the clients' numbers of samples. This is FedPer with the parts
exchanged, and has far smaller messages.

- The paper may add losses of the representation alone (self-supervised, adversarial). They are left
  out: the task's loss trains both parts.
- The released code first trains all parameters by FedAvg and then continues as above. Here, as in
  Algorithm 1, only the head is averaged, from the first round on. All encoders start equal.
- The paper predicts for new clients with an ensemble of all encoders; this supports no new clients.
- Running statistics of the encoder stay on the client.
"""

from __future__ import annotations

from stforecast.federated.core.declared import Attacked
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.fedper import HEAD
from stforecast.federated.uploads.robust import RULES


class LGFedAvg(FedAvg):
    """FedAvg of the head; encoders stay on their clients."""

    name = "lg_fedavg"
    summary = "averages the head; each client has its own encoder"
    paper = "Liang et al., arXiv 2020"
    attacked = Attacked(guards=RULES)
    views = ("personal",)

    def shares(self, name: str) -> bool:
        """Return whether the name is the head's."""
        return name.startswith(HEAD)
