"""Weekly profiles of clients, and clusters of clients by profile and place.

What FedDA (Zhang et al., INFOCOM 2021) builds its warm-up on.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from stforecast.federated.data import Batch
from stforecast.federated.prototypes import PrototypeMeans

TURNS = 20
"""Most times that location and profile are clustered in turn (FedDA's released code)."""


def mean_windows(data: Batch, n_slots: int, week_periods: int) -> Batch:
    """Windows averaged over each (week, slot).

    Args:
        data: `x`, `y` and `mask` `(clients, samples, …)` one step apart and `slot`
            `(clients, samples)`; at least one period.
        n_slots: slots of the period.
        week_periods: periods in a week; what is left over joins the last one.

    Returns:
        `x`, `y` and `mask` `(clients, weeks * n_slots, …)`: means of inputs over all windows, of
        targets over the observed; `mask` says whether there was one, and `y` is 0 elsewhere.
    """
    observed = data["mask"].to(data["y"].dtype)
    y = torch.where(data["mask"], data["y"], 0)
    values = torch.cat([data["x"], y, observed], dim=-1)
    week, samples = n_slots * week_periods, values.shape[1]
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
    """Mean windows in deviations of each client's own profile, its observed first targets."""
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
    """Group clients that lie near each other and have like profiles.

    K-means by location and k-means by profile take turns, each starting from the means of the
    other's groups, until they agree (V-measure 1) or `TURNS` are over; the profiles' groups count.
    Without locations it is one k-means of the profiles.

    Args:
        profiles: `(clients, values)`.
        locations: `(clients, 2)` in degrees, or None.
        n_clusters: groups; fewer where fewer clients differ.
        seed: of the first k-means, which starts at random.

    Returns:
        `(clients,)` int64 numbers of the groups, from 0 without gaps.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import v_measure_score

    first = profiles if locations is None else locations
    k = min(n_clusters, *(len(np.unique(v, axis=0)) for v in (first, profiles)))
    labels = KMeans(k, n_init=10, random_state=seed).fit_predict(first)
    if locations is not None:
        by_place = labels
        for _ in range(TURNS):
            labels = _from_groups(profiles, by_place)
            if math.isclose(v_measure_score(by_place, labels), 1):
                break
            by_place = _from_groups(locations, labels)
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _from_groups(points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Labels of a k-means that starts from the means of the given groups."""
    from sklearn.cluster import KMeans

    centres = np.stack([points[labels == label].mean(0) for label in np.unique(labels)])
    return KMeans(len(centres), init=centres, n_init=1).fit_predict(points)
