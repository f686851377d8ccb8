"""Facts that a method declares about its uploads, what attacks found, and what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sums = Literal["none", "samples", "clients"]
"""Which sums over clients a server can work with: none, weighted by samples, or unweighted."""

Disclosure = Literal["readings", "some", "little", "unmeasured"]
"""What attacks found in one node's plain uploads: the readings themselves, some of them, little
more than anyone could guess, or nobody has attacked them."""


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Content of a client's upload, and its use by the server.

    Attributes:
        sums: which sums of uploads the server can work with; secure aggregation needs one.
        needs_each: why `sums` is `none`, in words that follow the method's name and a colon.
        apart: whether the server uses each upload by itself; see
            `stforecast.federated.uploads.robust`.
        of_samples: whether its tensors are sums over the client's samples, so that they grow with
            their number.
        counts: whether it holds integers or truth values, which the Gaussian mechanism leaves as
            they are.
    """

    sums: Sums = "none"
    needs_each: str = "its server may need each client's upload by itself"
    apart: bool = False
    of_samples: bool = False
    counts: bool = False


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """Findings of attacks on a method. A subclass may send something else: it begins unattacked.

    Attributes:
        guards: rules of `--robust` that protect the method, as measured; others are refused.
        unguarded: why others are refused, in words that follow the method's name and a colon.
        discloses: what attacks found in one node's plain uploads.
    """

    guards: tuple[str, ...] = ()
    unguarded: str = "nobody has measured what the rule does to it"
    discloses: Disclosure = "unmeasured"

    @property
    def gives_readings(self) -> bool:
        """Whether plain uploads disclose the readings."""
        return self.discloses == "readings"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Needs of a method in training.

    Attributes:
        data: further needs apart from data and model, in words for the table of what methods send.
        next_windows: whether a sample also holds the window one step later, as `x_next`.
        former_stages: whether it also trains on the samples of a stream's former stages, as a
            reference may.
    """

    data: tuple[str, ...] = ()
    next_windows: bool = False
    former_stages: bool = False
