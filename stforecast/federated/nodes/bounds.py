"""Bounds of what nodes send, and of what the server makes from it.

Values that are finite can still end a run: an average overflows, or a solver fails. So an upload is
compared with those of the other nodes, and the server's new state with the uploads, before either
is used. The bounds are generous: they keep a run sound, and do not replace robust aggregation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median

import torch
from torch import Tensor

from stforecast.federated.core.tensors import Like, Payload, like_of
from stforecast.federated.nodes.messages import Answer
from stforecast.federated.nodes.reported import MOST_SAMPLES
from stforecast.federated.nodes.summing import FARTHEST_NORM

WHOLE = ""
"""Name of an upload's tensors together."""

Norms = dict[str, float]
"""Name of a tensor to its root mean square, and `WHOLE`."""


def outliers(
    answers: Mapping[int, Answer], server: Mapping[str, Tensor], sizes: Tensor
) -> dict[int, str]:
    """Return the nodes whose uploads are out of bounds, and why.

    The norm of a tensor may be `FARTHEST_NORM` times the median over the nodes of this tensor's or
    of the whole upload's, which is larger. A node's norm is that of its largest client. That of a
    client with more samples than the median one may be larger accordingly, as for sums over
    samples. Fewer than three nodes are compared with the server's tensors: their norms may be 1000
    times as large.
    """
    median_size, found = sizes[sizes > 0].median(), {}
    norms = {
        node: _norms_of(a.upload, (sizes[a.ids] / median_size).clamp(1, MOST_SAMPLES))
        for node, a in answers.items()
    }
    usual, most = {}, FARTHEST_NORM
    for name in {name for of_node in norms.values() for name in of_node}:
        usual[name] = median(of_node[name] for of_node in norms.values() if name in of_node)
    if len(answers) < 3:
        like = next((a.like for a in answers.values()), {})
        alike = {n: t[None] for n, t in server.items() if [*t.shape] == like.get(n, [None, -1])[1:]}
        usual, most = _norms_of(alike), 1000.0
    for node, answer in answers.items():
        for name, t in answer.upload.items():
            # The sum of a million squares is then finite in single precision.
            if (largest := _largest([t])) > 1e15:
                found[node] = f"its {name!r:.40} has values up to {largest:.3g}"
        for name, norm in norms[node].items():
            expected = max(usual.get(name, math.inf), usual.get(WHOLE, 0.0))
            if norm > most * expected and node not in found:
                of = f"its {name!r:.40}" if name else "its upload"
                found[node] = f"{of} has a norm of {norm:.3g}, usual is {expected:.3g}"
    return found


def norm(answer: Answer) -> float:
    """Return the root mean square of the upload of a node's largest client."""
    return _norms_of(answer.upload).get(WHOLE, 0.0)


def _norms_of(tensors: Payload, share: Tensor | None = None) -> Norms:
    """Return the root mean square of each tensor's largest row, after division by `share`."""
    squares, values, found = 0.0, 0, {}
    for name, t in tensors.items():
        rows = t.detach().cpu().reshape(len(t), -1)
        if not rows.numel() or rows.dtype == torch.bool:
            continue
        rows = rows if rows.is_floating_point() else rows.double()
        norm = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        norm = norm if share is None else norm / share
        largest, n = float(norm.max()), rows.shape[1]
        found[name] = largest / math.sqrt(n)
        if t.is_floating_point():
            squares, values = squares + largest**2, values + n
    return {**found, WHOLE: math.sqrt(squares / values)} if values else found


def fault_of(
    after: Mapping[str, Tensor],
    before: Mapping[str, Tensor],
    uploads: Iterable[Payload],
    model: Like,
) -> str | None:
    """Return what is wrong with a new state of the server; None if nothing is."""
    kept = after.keys() & before.keys() & model.keys()
    now, was = (like_of({name: of[name][None] for name in kept}) for of in (after, before))
    # A server that keeps a model of each client has a row for each.
    if odd := sorted(name for name in kept if now[name] != was[name]):
        return f"the server's {odd[0]!r} would no longer be that of the model"
    used = [t for payload in (before, *uploads) for t in payload.values()]
    most = 1000 * max(1.0, _largest(used))
    for name, t in after.items():
        if not (size := _largest([t])) <= most:
            return f"the server's {name!r} would have values up to {size:.3g}"
    return None


def _largest(tensors: Iterable[Tensor]) -> float:
    """Return the largest size of a value; NaN or infinity if one is not finite."""
    sizes = [float(t.detach().abs().max()) for t in tensors if t.numel() and t.dtype != torch.bool]
    return math.nan if any(map(math.isnan, sizes)) else max(sizes, default=0.0)
