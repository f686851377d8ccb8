"""Robust summaries of numbers that nodes report, so that no single node decides them.

With fewer than three nodes there is no majority, and the summaries are plain means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

MOST_SAMPLES = 10
"""Largest weight of a client, as a multiple of the median client's."""

FARTHEST = 10
"""Largest distance of a node's mean from the median of all nodes', as a multiple of the median."""


class Reported(NamedTuple):
    """Sum that a node reports.

    Attributes:
        total: sum over the summands.
        terms: number of summands.
        clients: number of the node's clients.
    """

    total: float
    terms: float
    clients: int

    @property
    def mean(self) -> float:
        """Return the mean of the node's summands; NaN without any."""
        return self.total / self.terms if self.terms else math.nan


def bounded_mean(sums: Sequence[Reported]) -> float:
    """Return the mean of all nodes' summands, with bounds on each node's weight and mean.

    A client counts at most `MOST_SAMPLES` times as much as the median node's client, and a node's
    mean differs from the median of all nodes' by at most `FARTHEST` times that median.

    Returns:
        The mean; NaN without summands. Nodes whose mean is NaN are left out, as those of a method
        that does not record a loss.

    Example:
        >>> honest = [Reported(2.0, 10, 1), Reported(3.0, 10, 1)]
        >>> bounded_mean(honest)
        0.25
        >>> round(bounded_mean([*honest, Reported(1e12, 10, 1)]), 6)
        1.266667
    """
    sums = [s for s in sums if s.terms > 0 and not math.isnan(s.mean)]
    if not sums:
        return math.nan
    weights, means = _weights(sums), [s.mean for s in sums]
    if len(sums) > 2:
        middle = median(means)
        far = FARTHEST * abs(middle)
        means = [min(max(m, middle - far), middle + far) for m in means]
    return math.fsum(w * m for w, m in zip(weights, means, strict=True)) / math.fsum(weights)


def sound_errors(
    errors: Mapping[int, Mapping[str, float]], names: Sequence[str]
) -> tuple[list[int], dict[int, str]]:
    """Return the nodes whose test errors count, and why those of the others do not.

    An error is finite and not negative. With three nodes or more, it is between the median node's
    error divided by `FARTHEST` and this error times `FARTHEST`.

    Args:
        errors: mean test errors by node and metric.
        names: the metrics.

    Example:
        >>> errors = {i: {"mse": e} for i, e in enumerate([0.2, 0.3, -1e9, 0.1, 5.0])}
        >>> sound_errors(errors, ["mse"])[0]
        [0, 1, 3]
    """
    why: dict[int, str] = {}
    for node, of_node in errors.items():
        for name in names:
            if not 0 <= (value := of_node.get(name, math.nan)) < math.inf:
                why.setdefault(node, f"its test {name} is {value:.4g}")
    sound = [node for node in errors if node not in why]
    for name in names if len(sound) > 2 else ():
        middle = median(errors[node][name] for node in sound)
        for node in sound:
            if not middle / FARTHEST <= (value := errors[node][name]) <= FARTHEST * middle:
                far = f"its test {name} is {value:.4g}, the median node's is {middle:.4g}"
                why.setdefault(node, far)
    return [node for node in errors if node not in why], why


def most_improved(now: Mapping[int, Reported], before: Mapping[int, Reported]) -> bool:
    """Return whether nodes of more than half of the clients report a lower mean than before.

    A node's mean is compared only with its own, as nodes' data differ. A vote weighs as much as the
    node has clients: numbers of summands, of which a node may claim more than it has, do not count.
    With fewer than three nodes in both, the means over all nodes are compared.

    Args:
        now: a score of each node, by the number of its first client.
        before: earlier scores.
    """
    both = [k for k in now if k in before and now[k].terms and before[k].terms]
    if len(both) < 3:
        return bounded_mean([now[k] for k in both]) < bounded_mean([before[k] for k in both])
    better = sum(now[k].clients for k in both if now[k].mean < before[k].mean)
    return 2 * better > sum(now[k].clients for k in both)


def _weights(sums: Sequence[Reported]) -> list[float]:
    """Return the counts, bounded if there are enough nodes to tell what is usual."""
    if len(sums) < 3:
        return [s.terms for s in sums]
    usual = median(s.terms / s.clients for s in sums)
    return [min(s.terms, MOST_SAMPLES * usual * s.clients) for s in sums]
