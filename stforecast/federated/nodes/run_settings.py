"""Settings of a run on nodes, and what server and nodes need of each kind of run."""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

from data_prep.base.errors import InputError, Words, counted
from stforecast.federated.core.method import Method
from stforecast.federated.core.state import State
from stforecast.federated.core.training import Training
from stforecast.federated.engine.stragglers import check_lateness
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.nodes.membership import Patience
from stforecast.federated.nodes.node_sums import check_uploads
from stforecast.federated.uploads.masking import SecureSums

LIMITS = ("start", "answer", "enough", "strikes", "min_parties")
"""Fields of `Patience` in the run's configuration."""


@dataclass(frozen=True)
class Refits:
    """Rounds after those of a run, which train on newer samples of the nodes, too.

    Attributes:
        names: what messages call each refit, in their order; empty for none.
        training: settings of these rounds.
        rounds: rounds of each, and one more for methods that begin with sums.
        select: whether the first goes on from the `best` round of the run or from the `last`.
    """

    names: tuple[str, ...]
    training: Training
    rounds: int
    select: Literal["best", "last"]


class OwnClients(Protocol):
    """A node's clients: how they train, and what is done with their models at the end.

    Attributes:
        trainer: their trainer, with its method `behind_link`, before round 1.
        identity: fingerprints of their data, by names for messages.
        select: which of the states at the end the node's errors are those of: `best` or `last`.
    """

    trainer: Trainer
    identity: Mapping[str, Any]
    select: str

    def refit_trainer(self, name: str) -> Trainer:
        """Return the clients' trainer in a refit, before its first round."""
        raise InputError(f"the server asks for the refit {name!r:.40}, which this run has not")

    def finish(self, states: Mapping[str, State], folder: Path) -> tuple[dict[str, float], int]:
        """Evaluate and save the models of the states `last` and, if it is known, `best`.

        Those after refits follow, by their names.
        Returns mean test errors by name, and the number of targets.
        """
        ...


@dataclass(frozen=True)
class FederationSettings(ABC):
    """Settings in the run's configuration, the same for the server and all nodes.

    A kind of run is a subclass, which a `stforecast.bench.kind.Kind` names.

    Attributes:
        config: settings of the method and its model, of the kind's own type.
        n_clients: number of clients of all nodes together.
        patience: time limits of the server.
        out: folder on the server for its results.
        owners: clients of each of Flower's nodes; empty admits any node.
        secure: settings of secure aggregation; None for none.
        unsafe_open: run although strangers can run apps at the server's address.
        after: the server's name of the finished run from which nodes go on; empty for none.
    """

    task: ClassVar[str]
    """Name of the kind of run."""

    metrics: ClassVar[tuple[str, ...]]
    """Test results of which the server learns the means over all nodes."""

    protected: ClassVar[str]
    """What of a client differential privacy protects."""

    config: Any
    n_clients: int
    patience: Patience
    out: str
    owners: Mapping[int, range] = field(default_factory=dict)
    secure: SecureSums | None = None
    unsafe_open: bool = False
    after: str = ""

    @property
    @abstractmethod
    def method(self) -> type[Method] | None:
        """Class of the method; None for a reference that is none."""

    @property
    def chosen(self) -> Any:
        """`config` as server and nodes use it, which both record."""
        return self.config

    @property
    def refits(self) -> Refits | None:
        """Refits after the run, if there are any."""
        return None

    @property
    def most_cells(self) -> float:
        """Number of cells in a round at most, as far as the settings say: one for each client."""
        return drawn_clients(self.config.training, self.n_clients)

    @abstractmethod
    def build_method(self) -> Method:
        """Return the method with a new model."""

    @abstractmethod
    def clients_at(self, data: Path, first: int, model: str = "") -> OwnClients:
        """Return the clients of a node.

        Given are its data, the number of the first client, and the model that its owner has chosen.
        """

    @classmethod
    @abstractmethod
    def read(cls, settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return `config`, from its flat settings, and the fields that only this kind has."""

    @property
    def covered(self) -> str:
        """What of a client differential privacy protects, and on what condition."""
        if not self.secure or not self.secure.share_noise:
            return self.protected
        return f"{self.protected}, if as many nodes as have to stay to a round's end do not collude"

    def as_run_config(self) -> dict[str, Any]:
        """Return flat values for Flower's run configuration."""
        return {
            "task": self.task,
            "settings": json.dumps(self.config.flat()),
            "clients": self.n_clients,
            **{name: getattr(self.patience, name) for name in LIMITS},
            "out": self.out,
            "owners": json.dumps({n: [r.start, r.stop] for n, r in self.owners.items()}),
            "secure-threshold": self.secure.secure_threshold if self.secure else 0.0,
            "share-noise": bool(self.secure and self.secure.share_noise),
            "unsafe-open": self.unsafe_open,
            "after": self.after,
        }

    @classmethod
    def from_run_config(cls, values: Mapping[str, Any]) -> Self:
        """Read the values of `as_run_config`, and check them."""
        try:
            threshold = float(values["secure-threshold"])
            limits = {name: values[name] for name in LIMITS}
            found = {
                "n_clients": int(values["clients"]),
                "out": str(values["out"]),
                "owners": {int(n): range(*r) for n, r in json.loads(values["owners"]).items()},
                "secure": SecureSums(threshold, bool(values["share-noise"])) if threshold else None,
                "unsafe_open": bool(values["unsafe-open"]),
                "after": str(values["after"]),
                **cls.read(json.loads(values["settings"]), values),
            }
        except (KeyError, TypeError, ValueError) as e:
            raise InputError(
                f"the run's configuration cannot be used ({e!r}); create it again"
            ) from e
        run = cls(patience=Patience(**limits), **found)
        run.check()
        return run

    def check(self) -> None:
        """Refuse what nodes do not support; a kind may refuse more."""
        self.check_method()
        n, patience = self.n_clients, self.patience
        if n < 1:
            raise InputError(f"clients is {n}; a federation has at least one")
        if patience.enough > n:
            raise InputError(
                f"enough is {patience.enough}, but the federation has {n} clients; give at most {n}"
            )
        # A node has one client at least.
        if patience.min_parties > n:
            raise InputError(
                f"min_parties is {patience.min_parties}, but the federation has {n} "
                f"clients, and so no more nodes; give at most {n}"
            )
        drawn = drawn_clients(self.config.training, n)
        if patience.min_parties > drawn:
            raise InputError(
                Words(
                    "{participation} draws {} of {} in each round, which belong to fewer nodes "
                    "than the {} that must train; give a larger share, or fewer {min_parties}",
                    drawn,
                    counted(n, "client"),
                    patience.min_parties,
                    participation=self.config.training.participation,
                )
            )
        check_owners(self.owners, n)

    def check_method(self) -> None:
        """Check that the method trains in rounds, and that its settings allow for lost uploads."""
        config, method = self.config, self.method
        if method is None or method.pooled or "rounds" in method.unread:
            raise InputError(
                f"{config.method} does not train in rounds of clients, so nodes cannot run it; ",
                Words("choose another {method}"),
            )
        self._check_lateness(config.training)
        self.build_method()  # Some models refuse some methods.
        config.robust.check(method)
        if config.uplink.private and (
            method.sends.counts
            or any(
                not t.is_floating_point()
                for t in self.build_method().population.buffers(1).values()
            )
        ):
            raise InputError(
                f"{config.method} with model {config.run.model} also sends counters, which the "
                "Gaussian mechanism does not cover; ",
                Words("leave out {clip}, or choose another {method} or {model}"),
            )
        check_uploads(method, config.uplink, config.robust, self.secure)

    def _check_lateness(self, training: Training) -> None:
        """Check that uploads may arrive late or be mixed in turn, if settings ask for it."""
        if not training.slow_share and not training.mixing:
            return
        if training.slow_rounds != Training.slow_rounds:
            raise InputError(
                Words("nodes are late by themselves, not simulated to be; leave out {slow_rounds}")
            )
        if self.secure:
            raise InputError(
                Words(
                    "the masks of {secure_aggregation} cancel only in the sum of one round, so no "
                    "upload may arrive late or be mixed by itself; leave out {slow_share} and "
                    "{mixing}, or {secure_aggregation}"
                )
            )
        check_lateness(self.build_method())

    def continued(self, after: str, out: Path, rounds: int) -> Self:
        """Return the settings of some further rounds at the learning rate of refits."""
        assert self.method
        training = dataclasses.replace(
            self.config.training.further, rounds=rounds + self.method.sums_first
        )
        config = dataclasses.replace(self.config, training=training)
        return dataclasses.replace(self, config=config, after=after, out=str(out.resolve()))


def drawn_clients(training: Training, n: int) -> int:
    """Return how many of n clients a round draws."""
    return max(1, round(training.participation * n))


def check_owners(owners: Mapping[int, range], n_clients: int) -> None:
    """Check that the nodes' clients are those of the federation, each once."""
    claimed = [i for numbers in owners.values() for i in numbers]
    if owners and sorted(claimed) != list(range(n_clients)):
        odd = next(
            i for i in (*range(n_clients), *claimed) if claimed.count(i) != 1 or i >= n_clients
        )
        raise InputError(
            Words("{node}"),
            f" gives client {odd} to {counted(claimed.count(odd), 'node')}; each of the clients 0 "
            f"to {n_clients - 1} belongs to one node",
        )
