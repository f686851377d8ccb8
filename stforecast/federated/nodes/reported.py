"""Robust summaries of the numbers that nodes report.

No single node decides a summary. With fewer than three nodes there is no majority, and the
summaries are plain means.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

MOST_SAMPLES = 10
"""Largest weight of a client, as a multiple of the median client's."""

FARTHEST = 10
"""Largest distance of a node's mean from the median of all nodes', as a multiple of the median."""

MOST_TARGETS = 2
"""Largest number of a node's test targets per training sample, as a multiple of the median's."""

MOVED = 1.5
"""Factor between the test errors with and without a node from which on the node is named."""

HIGHEST = {"error_rate": 1.0}
"""Highest values of test errors that have one. They cannot move a mean far, so a node's is not
compared with those of others: an honest node may have no error at all."""


class Reported(NamedTuple):
    """Sum over `terms` summands that a node reports, and its clients, or their training samples."""

    total: float
    terms: float
    clients: int

    @property
    def mean(self) -> float:
        """Return the mean of the node's summands; NaN without any."""
        return self.total / self.terms if self.terms else math.nan


def bounded_mean(
    sums: Sequence[Reported], most: float = MOST_SAMPLES, farthest: float = FARTHEST
) -> float:
    """Return the mean of all nodes' summands, with bounds on each node's weight and mean.

    A client counts at most `most` times as much as the median node's client, and a node's mean
    differs from the median of all nodes' by at most `farthest` times that median. It is NaN without
    summands; nodes whose mean is NaN are left out, as those of a method that records no loss.

    >>> honest = [Reported(2.0, 10, 1), Reported(3.0, 10, 1)]
    >>> bounded_mean(honest)
    0.25
    >>> round(bounded_mean([*honest, Reported(1e12, 10, 1)]), 6)
    1.266667
    """
    sums = [s for s in sums if s.terms > 0 and not math.isnan(s.mean)]
    if not sums:
        return math.nan
    return _weighted_mean(_weights(sums, most), _means(sums, farthest))


def bounded_nodes(
    sums: Mapping[int, Reported], most: float = MOST_SAMPLES, farthest: float = FARTHEST
) -> dict[int, str]:
    """Return the nodes whose weight or mean `bounded_mean` bounds or leaves out, and why.

    >>> bounded_nodes({0: Reported(2, 10, 1), 1: Reported(3, 10, 1), 2: Reported(4e9, 10, 1)})
    {2: 'its mean is 4e+08, the median is 0.3'}
    """
    known = {n: s for n, s in sums.items() if s.terms > 0 and not math.isnan(s.mean)}
    if len(known) < 3:
        return {}
    why = {node: "it is not a number" for node, s in sums.items() if math.isnan(s.total)}
    middle = median(s.mean for s in known.values())
    for (node, s), weight in zip(known.items(), _weights([*known.values()], most), strict=True):
        if abs(s.mean - middle) > farthest * abs(middle):
            why[node] = f"its mean is {s.mean:.4g}, the median is {middle:.4g}"
        elif weight < s.terms:
            why[node] = f"it claims {s.terms:.10g} values, which count as {weight:.10g}"
    return why


def sound_errors(
    errors: Mapping[int, Mapping[str, float]], names: Sequence[str]
) -> tuple[list[int], dict[int, str]]:
    """Return the nodes whose mean test errors count, and why those of the others do not.

    An error is finite, not negative and at most the `HIGHEST`. Without such a limit, and with three
    nodes or more, it is between the median node's error divided by `FARTHEST` and this error times
    `FARTHEST`.

    >>> errors = {i: {"mse": e} for i, e in enumerate([0.2, 0.3, -1e9, 0.1, 5.0])}
    >>> sound_errors(errors, ["mse"])[0]
    [0, 1, 3]
    """
    why: dict[int, str] = {}
    for node, of_node in errors.items():
        for name in names:
            highest = HIGHEST.get(name, sys.float_info.max)
            if not 0 <= (value := of_node.get(name, math.nan)) <= highest:
                why.setdefault(node, f"its test {name} is {value:.4g}")
    sound = [node for node in errors if node not in why]
    for name in (n for n in names if n not in HIGHEST and len(sound) > 2):
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
    With fewer than three nodes in both, the means over all nodes are compared. Scores are by the
    number of a node's first client.
    """
    both = [k for k in now if k in before and now[k].terms and before[k].terms]
    if len(both) < 3:
        return bounded_mean([now[k] for k in both]) < bounded_mean([before[k] for k in both])
    better = sum(now[k].clients for k in both if now[k].mean < before[k].mean)
    return 2 * better > sum(now[k].clients for k in both)


def moved_by(
    sums: Mapping[int, Reported], most: float, farthest: float = FARTHEST
) -> dict[int, tuple[float, float]]:
    """Return the nodes that alone change the bounded mean by a factor of more than `MOVED`.

    Each has the mean of all nodes and that without it. Fewer than three are not told apart.
    """
    weights, means = _weights([*sums.values()], most), _means([*sums.values()], farthest)
    found, mean = {}, _weighted_mean(weights, means)
    for i, node in enumerate(sums if len(sums) > 2 else ()):
        rest = _weighted_mean(weights[:i] + weights[i + 1 :], means[:i] + means[i + 1 :])
        if not mean / MOVED <= rest <= MOVED * mean:
            found[node] = (mean, rest)
    return found


def _weighted_mean(weights: Sequence[float], values: Sequence[float]) -> float:
    return math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)


def _means(sums: Sequence[Reported], farthest: float) -> list[float]:
    """Return the nodes' means, bounded if there are enough nodes to tell what is usual."""
    means = [s.mean for s in sums]
    if len(sums) < 3 or math.isinf(farthest):
        return means
    middle = median(means)
    far = farthest * abs(middle)
    return [min(max(m, middle - far), middle + far) for m in means]


def _weights(sums: Sequence[Reported], most: float) -> list[float]:
    """Return the counts, bounded if there are enough nodes to tell what is usual."""
    if len(sums) < 3:
        return [s.terms for s in sums]
    usual = median(s.terms / s.clients for s in sums)
    return [min(s.terms, most * usual * s.clients) for s in sums]
