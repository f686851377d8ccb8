"""FedProto: clients keep their models and exchange prototypes, the mean features of each key.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous
Clients, AAAI 2022, arXiv 2105.00243, Eq. 3, 6 to 8 and Algorithm 1.

A client sends the mean feature of each key (Eq. 3) with its number of samples; the server returns
the mean of these over the clients (Eq. 6), and the client's loss pulls its features towards it.
Nothing else is sent: parameters and buffers (running statistics) stay on the client.

Choices where the paper leaves something open, or the released code differs:

- Eq. 6 as printed also divides by the number of clients that hold the key, which shrinks a
  prototype by that factor; we read it as the mean weighted by samples. The code does not weight.
- Eq. 8 sums the distances of the local prototypes; the code takes the squared error of every sample
  to the prototype of its key, averaged over the batch and the features. This follows the code.
- Prototypes are means over the last local epoch's batches, as in the code, without another pass.
- In the paper all clients take part. With partial participation, the participants' prototypes are
  averaged; a key that no participant holds keeps its last global prototype.
- The paper predicts the class of the nearest prototype, the code reports the head's prediction too;
  this predicts with the head. `predict` receives the prototypes, so a subclass may use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from stforecast.federated.core.declared import Attacked, Needs, Upload
from stforecast.federated.core.method import Method
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.prototypes import (
    encoded,
    global_prototypes,
    instance_distance,
    means_of_last_epoch,
)
from stforecast.federated.core.state import Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Payload, repeated
from stforecast.federated.uploads.robust import RULES


@dataclass(frozen=True)
class FedProtoOptions(CheckedOptions):
    """Settings of FedProto.

    Attributes:
        lam: weight λ of the distance to the global prototypes; 0 trains alone (released code: 1).
        average: weights of the mean over the clients that hold a key: by `samples` (Eq. 6), or
            equal for all `clients` (released code).
    """

    lam: NonNegativeFloat = 1.0
    average: Literal["samples", "clients"] = "samples"


class FedProto(Method):
    """FedProto. The methods follow the order of the paper's Algorithm 1."""

    name = "fedproto"
    summary = "exchanges mean features of each key; each client keeps its model"
    paper = "Tan et al., AAAI 2022"
    attacked = Attacked(guards=RULES, discloses="readings")
    sends = Upload(
        needs_each="its server weighs each client's prototypes by that client's own counts",
        counts=True,
    )
    needs = Needs(data=("keys",))
    Options: ClassVar[type] = FedProtoOptions
    options: FedProtoOptions

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return the global prototypes, the same for every client; empty before the first round.

        They are `prototypes` `(clients, keys, d)`; `known` `(clients, keys)` is whether the key has
        one.
        """
        return repeated(server, len(to.ids))

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return `L_S + λ L_R` (Eq. 7)."""
        return pulled_loss(self, cohort, batch, payload, self.options.lam)

    def upload(self, cohort: Cohort) -> Payload:
        """Return local prototypes `(clients, keys, d)` (Eq. 3; 0 without samples) and counts."""
        means = means_of_last_epoch(cohort)
        return {"prototypes": means.means(), "counts": means.counts}

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Return the mean of the local prototypes of each key over its clients (Eq. 6)."""
        counts = uploads["counts"]
        weights = counts if self.options.average == "samples" else counts > 0
        return global_prototypes(server, uploads["prototypes"], weights)


def pulled_loss(
    method: Method, cohort: Cohort, batch: Batch, payload: Payload, lam: float
) -> Tensor:
    """Return the task's loss plus λ times the distance to the received prototypes, `(clients,)`.

    It also adds the features to the means of the last epoch. The payload is empty before the first
    round.
    """
    features, keys, loss = encoded(method, cohort, batch)
    if not payload:
        return loss
    return loss + lam * instance_distance(features, keys, payload["prototypes"], payload["known"])
