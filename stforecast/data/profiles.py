"""Weekly profiles of clients, clusters of clients, and batches by the slots of a period.

Profiles and clusters are those of the warm-up of FedDA (Zhang et al., INFOCOM 2021).

Row b of a batch is slot b. With as many slots as the period has steps, a batch is a period, as in
FUELS (Liu et al., AAAI-25, arXiv 2404.03702, section 3.3.1). A period of many steps has fewer,
longer slots: 24 hours instead of 144 times ten minutes. The samples at one place within the slots
are then a batch, so a day gives six batches of 24 instead of one of 144.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from stforecast.federated.core.data import ClientData, members
from stforecast.federated.core.prototypes import PrototypeMeans
from stforecast.federated.core.tensors import Batch


def mean_windows(data: Batch, n_slots: int, week_periods: int, group: int = 1) -> Batch:
    """Average windows over each (week, slot).

    Args:
        data: `x`, `y` and `mask` `(clients, samples, …)` one step apart and `slot`
            `(clients, samples)`; at least one period.
        n_slots: slots of the period.
        week_periods: periods in a week; leftover periods belong to the last week.
        group: samples of one time, such as those of a client's cells.

    Returns:
        `x`, `y` and `mask` `(clients, weeks * n_slots, …)`: means of inputs over all windows, of
        targets over the observed ones; `mask` is False and `y` 0 where no target was observed.
    """
    observed = data["mask"].to(data["y"].dtype)
    y = torch.where(data["mask"], data["y"], 0)
    values = torch.cat([data["x"], y, observed], dim=-1)
    week, samples = n_slots * week_periods * group, values.shape[1]
    starts = [week * i for i in range(1, samples // week)]
    means = []
    for window, slot in zip(
        values.tensor_split(starts, 1), data["slot"].tensor_split(starts, 1), strict=True
    ):
        of_week = PrototypeMeans(n_slots)
        of_week.add(window, slot)
        means.append(of_week.means())
    horizon = y.shape[-1]
    x, y, observed = torch.cat(means, 1).split([data["x"].shape[-1], horizon, horizon], dim=-1)
    mask = observed > 0
    return {"x": x, "y": y / torch.where(mask, observed, 1), "mask": mask}


def zscored(means: Batch) -> Batch:
    """Z-score mean windows by each client's profile, its observed mean first targets."""
    profile, seen = means["y"][..., 0], means["mask"][..., 0]
    count = seen.sum(1, keepdim=True).clamp(min=1)
    mean = torch.where(seen, profile, 0).sum(1, keepdim=True) / count
    variance = torch.where(seen, profile - mean, 0).square().sum(1, keepdim=True) / count
    std = variance.sqrt()[..., None]
    std = torch.where(std > 1e-6, std, 1)
    x, y = ((means[name] - mean[..., None]) / std for name in ("x", "y"))
    return {"x": x, "y": torch.where(means["mask"], y, 0), "mask": means["mask"]}


def cluster_clients(
    profiles: np.ndarray, locations: np.ndarray | None, n_clusters: int, seed: int
) -> np.ndarray:
    """Cluster clients by location `(clients, 2)` in degrees and profile `(clients, values)`.

    K-means by location and k-means by profile alternate, each initialised with the means of the
    other's clusters, until they agree (V-measure 1) or after 20 turns, as in FedDA's released code;
    the profiles' clusters are returned, `(clients,)` from 0 without gaps. Without locations it is
    one k-means of the profiles. There are fewer clusters if fewer clients differ.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import v_measure_score

    first = profiles if locations is None else locations
    k = min(n_clusters, *(len(np.unique(v, axis=0)) for v in (first, profiles)))
    labels = KMeans(k, n_init=10, random_state=seed).fit_predict(first)
    if locations is not None:
        by_place = labels
        for _ in range(20):
            labels = _from_groups(profiles, by_place)
            if math.isclose(v_measure_score(by_place, labels), 1):
                break
            by_place = _from_groups(locations, labels)
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _from_groups(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the labels of a k-means initialised with the means of the given clusters."""
    from sklearn.cluster import KMeans

    centres = np.stack([points[labels == label].mean(0) for label in np.unique(labels)])
    return KMeans(len(centres), init=centres, n_init=1).fit_predict(points)


def slots_of(period: int, at_most: int) -> int:
    """Return the number of slots of equal length: the largest divisor of the period in reach.

    >>> [slots_of(period, 24) for period in (24, 144, 288, 7, 20, 31)]
    [24, 24, 24, 7, 20, 1]
    """
    return next(n for n in range(min(period, at_most), 0, -1) if period % n == 0)


def slot_order(samples: int, period: int, slots: int) -> list[int]:
    """Return the order of samples, one step apart, in batches of one sample of every slot.

    An incomplete batch is left out.

    >>> slot_order(9, period=6, slots=3)  # Slots of two steps; the second period is incomplete.
    [0, 2, 4, 1, 3, 5]
    """
    length = period // slots
    begins = (first + place for first in range(0, samples, period) for place in range(length))
    reach = period - length
    return [b + s for b in begins if b + reach < samples for s in range(0, period, length)]


def by_slot(data: ClientData, period: int, slots: int) -> ClientData:
    """Order the training samples of clients of equal size as `slot_order` does."""
    if slots == period:
        return data
    order = members(torch.tensor(slot_order(int(data.n_groups[0]), period, slots)), data.group)
    tensors = {name: t[:, order] for name, t in data.tensors.items()}
    sizes = data.sizes.new_full((len(data),), len(order))
    return ClientData(tensors, sizes, data.augment, data.group_sizes)
