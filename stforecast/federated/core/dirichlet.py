"""Shares of clients drawn from a Dirichlet distribution, for images and for cells of series."""

from __future__ import annotations

import numpy as np

from data_prep.base.errors import InputError

DRAWS = 200
"""Most draws until the smallest client is large enough."""


def dirichlet_counts(
    sizes: np.ndarray,
    n_clients: int,
    concentration: float,
    smallest: tuple[str, int],
    numbers: np.random.Generator,
    members: str,
) -> np.ndarray:
    """Draw how many members of each class each client gets, `(classes, clients)`.

    Each class is divided in proportions from a Dirichlet distribution, rounded. From Hsu, Qi,
    Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification", 2019, arXiv 1909.06335, in the form of Yurochkin et al., ICML 2019, arXiv
    1905.12022. All proportions are drawn again until each client has enough members.

    Args:
        sizes: members of each class, `(classes,)`.
        n_clients: number of clients.
        concentration: similarity of the clients, α.
        smallest: name and value of the option with the fewest members of a client.
        numbers: generator of the proportions.
        members: what is divided, such as `training images of all domains`, for errors.

    Raises:
        InputError: if there are too few members, or in no draw each client has enough.
    """
    (option, least), total = smallest, int(sizes.sum())
    if n_clients * least > total:
        smaller = f" or a smaller {option}" if least > 1 else ""
        raise InputError(
            f"there are {total} {members}, and {n_clients} clients ask for at least {least} each; "
            f"use fewer clients{smaller}"
        )
    fewest = 0
    for _ in range(DRAWS):
        shares = numbers.dirichlet(np.full(n_clients, concentration), len(sizes))
        cuts = np.rint(shares.cumsum(1) * sizes[:, None]).astype(np.int64)[:, :-1]
        counts: np.ndarray = np.diff(cuts, axis=1, prepend=0, append=sizes[:, None])
        fewest = max(fewest, int(counts.sum(0).min()))
        if fewest >= least:
            return counts
    raise InputError(
        f"concentration is {concentration:g}: in {DRAWS} draws for {n_clients} clients and {total} "
        f"{members}, the smallest client never had more than {fewest}; use a larger concentration, "
        f"fewer clients or {option} below {least}"
    )
