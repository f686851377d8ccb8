"""FedPer: the clients share base layers; each keeps personalisation layers of its own.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019, arXiv
1912.00818, Algorithms 1 and 2.

A client trains base and personalisation layers together, from the base that it received and
personalisation layers of its own. It sends the base alone, which the server averages by the
clients' numbers of samples. FedRep trains the two parts in turns instead.

- The paper counts the personalisation layers from the output; its networks keep one to four blocks.
  Here they are the head. The paper starts each client's at random; here all start alike.
- Running statistics belong to the layers that they stand in: those of the encoder are averaged.
- The paper's plain SGD is the run's optimiser here, whose state stays with the client.
"""

from __future__ import annotations

from stforecast.federated.methods.fedavg import FedAvg

REPRESENTATION, HEAD = "encoder.", "head."
"""Beginnings of the names of a model's two parts."""


class FedPer(FedAvg):
    """FedAvg of the encoder; the head is trained along with it and stays."""

    name = "fedper"
    summary = "averages the encoder; each client has its own head, trained along with it"
    paper = "Arivazhagan et al., arXiv 2019"
    views = ("personal",)

    def shares(self, name: str) -> bool:
        """The encoder is shared."""
        return name.startswith(REPRESENTATION)
