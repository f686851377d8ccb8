"""FedTGP's server, prototype by prototype: the reference that the method is compared with."""

import torch

from stforecast.federated.methods.fedtgp import VECTORS, widest_gap


def loss_by_hand(prototypes, held, made, delta):
    """Eq. 10, prototype by prototype."""
    terms = []
    for of_client, own in zip(prototypes, held, strict=True):
        for c in own.nonzero().flatten().tolist():
            apart = [(of_client[c] - other).norm() for other in made]
            near = torch.exp(-(apart[c] + delta))
            far = sum(torch.exp(-a) for k, a in enumerate(apart) if k != c)
            terms.append(-torch.log(near / (near + far)))
    return sum(terms) / len(terms)


def reference_server(state, prototypes, held, margin, epochs, lr):
    """Plain gradient descent on the server's vectors and network."""
    names = ["network.0.weight", "network.0.bias", "network.2.weight", "network.2.bias"]
    tensors = [state[VECTORS], *(state["trained." + name] for name in names)]
    leaves = [t.clone().requires_grad_() for t in tensors]

    def made():
        vectors, w, b, v, c = leaves
        return torch.relu(vectors @ w + b) @ v + c

    delta = min(widest_gap(prototypes, held), margin)
    for _ in range(epochs):
        loss = loss_by_hand(prototypes, held, made(), delta)
        for t, g in zip(leaves, torch.autograd.grad(loss, leaves), strict=True):
            t.data -= lr * g
    return made().detach()
