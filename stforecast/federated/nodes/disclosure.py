"""What the uploads of a run disclose: how they are sent, who is told, and who refuses.

Uploads are added up under masks wherever the method's server needs only sums. Plain uploads of a
method that gives the readings up (`Method.attacked`) are taken only from nodes whose owners
allowed it; and so is what one of two parties can compute of the other's upload from their sum.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import TypeVar

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.declared import Disclosure
from stforecast.federated.core.method import Method
from stforecast.federated.nodes.masker import Fewest
from stforecast.federated.nodes.messages import (
    ALLOWED,
    FEW,
    FEW_CELLS,
    FEW_CELLS_FOUND,
    few_parties,
)
from stforecast.federated.nodes.run_settings import FederationSettings
from stforecast.federated.nodes.secure_sum import FEWEST
from stforecast.federated.nodes.summing import adds_up
from stforecast.federated.uploads.masking import SecureSums

log = logging.getLogger(__name__)

Run = TypeVar("Run", bound=FederationSettings)

FOUND: Mapping[Disclosure, str] = {
    "readings": "attacks computed the node's readings from them",
    "some": "attacks computed some of the node's readings from them",
    "little": "attacks found little more in them than anyone can guess",
    "unmeasured": "attacks were tried on few cells, or not at all",
}
"""What attacks found in plain uploads, in words that follow a semicolon."""


class DisclosureRefused(InputError):
    """Raised by a node for a run that would disclose its readings; its owner may allow it."""


def method_of(run: FederationSettings) -> type[Method]:
    """Return the class of a run's method, which trains in rounds."""
    assert run.method is not None
    return run.method


def obstacle(run: FederationSettings) -> InputError | None:
    """Return why a run cannot have secure aggregation; None if it can."""
    try:
        dataclasses.replace(run, secure=SecureSums()).check_method()
    except InputError as e:
        return e
    return None


def with_secure_sums(run: Run, *, insisted: bool, fewest_given: bool) -> Run:
    """Return a run with secure aggregation as it is to be: without it if it cannot have any.

    Args:
        run: the run, with settings of secure aggregation, unless its uploads are to be plain.
        insisted: keep secure aggregation, so that checks refuse the run if it cannot have it.
        fewest_given: keep the run's `min_parties`; by default three, if there can be so many.
    """
    most = len(run.owners) or run.n_clients  # Nodes that may take part.
    if run.secure and not insisted and (most < FEWEST or obstacle(run)):
        return dataclasses.replace(run, secure=None)
    if run.secure and not fewest_given:
        patience = dataclasses.replace(run.patience, min_parties=min(FEW, most))
        return dataclasses.replace(run, patience=patience)
    return run


def few_may_take_part(run: FederationSettings) -> bool:
    """Return whether a run may be of two parties, as far as its settings say."""
    most, fewest = len(run.owners) or run.n_clients, run.patience.min_parties
    return most == FEWEST or (run.secure is not None and most >= FEWEST and fewest < FEW)


def check_parties(run: FederationSettings, *, allowed: bool) -> None:
    """Refuse sums that give readings up, over two parties or few cells, unless `allowed`."""
    method = method_of(run)
    gives_readings = method.attacked.gives_readings and not allowed
    if few_may_take_part(run) and gives_readings:
        raise InputError(
            "two parties may take part, and each can then compute the other's uploads from the "
            f"result, of {method.name}; {FOUND['readings']}; ",
            Words("let three or more take part ({min_parties}), choose another ", min_parties=FEW),
            Words("{method}, or, if each may know the other's readings, give {allow_disclosure}"),
        )
    if run.secure and run.most_cells < FEW_CELLS and gives_readings:
        raise InputError(
            f"a round adds up {method.name}'s uploads of {run.most_cells} cells; ",
            Words(
                "{}; let {} or more take part ({clients}), choose another {method}, or, if server "
                "and nodes may know these readings, give {allow_disclosure}",
                FEW_CELLS_FOUND,
                FEW_CELLS,
            ),
        )


def uploads_in_words(run: FederationSettings) -> list[Words]:
    """Return how a run's uploads are sent and what this costs, in one line or several."""
    said = [] if run.secure else _plain_in_words(run)
    if run.secure:
        said = [
            Words(
                "uploads are added up under masks: the server learns only sums over {} nodes or "
                "more; in return there is no {robust}, no vote on the best round and no limit to "
                "what one node can do to the model; {plain_uploads} is the alternative",
                max(run.patience.min_parties, FEWEST),
            )
        ]
    if few_may_take_part(run):
        said.append(few_parties(FEWEST))
    return said


def _plain_in_words(run: FederationSettings) -> list[Words]:
    method = method_of(run)
    means = adds_up(run.build_method(), run.config.uplink)
    seen = "the mean upload of each node's clients" if means else "each client's upload"
    found = f"{FOUND[method.attacked.discloses]} ({method.name})"
    said = [Words("uploads are plain: the server sees {}; {}", seen, found)]
    if method.attacked.gives_readings:
        said.append(Words("nodes refuse this run, except those with {}", ALLOWED))
    if why := obstacle(run):
        said.append(Words("they cannot be added up under masks: {}", why))
    return said


def check_node(run: FederationSettings, *, allowed: bool) -> None:
    """Refuse a run with plain uploads that give this node's readings up, unless `allowed`."""
    method = method_of(run)
    if run.secure is None and method.attacked.gives_readings and not allowed:
        raise DisclosureRefused(
            f"the run takes plain uploads of {method.name}; {FOUND['readings']}; ",
            Words("ask the server's owner for a run without {plain_uploads} or another {method}, "),
            f"or, if the server may know this node's readings, set {ALLOWED}",
        )


def warn_owner(run: FederationSettings, cells: int, *, allowed: bool) -> None:
    """Log what a run may disclose of a node's `cells`, unless it is little or was `allowed`."""
    method = method_of(run)
    if run.secure and method.attacked.gives_readings and cells < FEW_CELLS and not allowed:
        log.warning(
            "this node has few cells (%d): if all others work together, they learn its own sum, "
            "and %s; %d cells or more on this node keep each apart",
            cells,
            FEW_CELLS_FOUND,
            FEW_CELLS,
        )
    if run.secure is None and method.attacked.discloses in ("some", "unmeasured"):
        log.warning(
            "the run takes plain uploads of %s; %s", method.name, FOUND[method.attacked.discloses]
        )


def fewest_of_sums(run: FederationSettings, *, allowed: bool) -> Fewest:
    """Return what a node wants each secure sum to be of."""
    wary = method_of(run).attacked.gives_readings and not allowed
    nodes = max(FEWEST, run.patience.min_parties, FEW if wary else 0)
    return Fewest(nodes, FEW_CELLS if wary else 1)
