"""FedRoD: a generic head for all classes, and a personal head that corrects its logits.

Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR
2022, arXiv 2107.00778, section 4 and Algorithm 1.

Body and generic head are trained on the balanced softmax loss (Ren et al., NeurIPS 2020), which
removes the client's class frequencies from the logits: with n_c samples of class c it is the
cross-entropy of g_c + log n_c. They are averaged. A personal head on the same features is trained
on the plain loss of the sum of both heads' logits, whose gradient reaches only the personal head;
it stays on the client. The sum is the personal prediction, the generic head by itself the global
one.

- A class that the client does not have is left out of its balanced softmax (log 0).
- The paper does not specify the initial personal head; here it is a copy of the generic head.
- All parts step together, since neither gradient depends on the other's step.
- The hypernetwork variant, which generates the personal head from class frequencies, is left out.

Running statistics of the body are averaged with it; a personal head's, if any, stay local.
The reported loss is the sum of both, the task loss is the personal prediction's.
"""

from __future__ import annotations

from torch import Tensor

from stforecast.federated.core.prototypes import key_counts
from stforecast.federated.core.state import Clients, Cohort, ServerState
from stforecast.federated.core.tensors import Batch, Payload
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.methods.two_models import personal_copies, personal_model


class FedRoD(FedAvg):
    """FedRoD with linear personal heads; their parameters are named `personal.head.…`."""

    name = "fedrod"
    summary = "averages a class-balanced model; personal heads add to its logits"
    paper = "Chen & Chao, ICLR 2022"
    views = ("personal", "global")

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start every personal head as a copy of the generic one."""
        server = super().init(clients, sizes, seed)
        clients.params |= personal_copies(_head(clients.params))
        clients.memory |= personal_copies(_head(clients.buffers))
        return server

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Compute the log-frequencies of the client's classes, then train all parts."""
        cohort.scratch["log_counts"] = key_counts(self.task, cohort).float().log()
        return super().local_update(cohort, payload)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the balanced loss of the generic head plus the loss of both heads' sum."""
        features = self.population.encode(cohort.state, batch["x"])
        generic = self.population.decode(cohort.state, features)
        own = personal_model({**cohort.memory, **cohort.params})
        correction = self.population.decode(own, features.detach())
        task_loss = self.recorded(cohort, generic.detach() + correction, batch)
        return self.task.loss(generic + cohort.scratch["log_counts"][:, None], batch) + task_loss

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the latest global model, in the personal view plus the client's head."""
        model = {**state, **payload}
        features = self.population.encode(model, x)
        generic = self.population.decode(model, features)
        if view == "global":
            return generic
        return generic + self.population.decode(personal_model(state), features)


def _head(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t for name, t in tensors.items() if name.startswith("head.")}
