"""A node's part in secure sums; see `stforecast.federated.nodes.secure_sum` for the protocol.

Its clients' uploads are added up, weighted as the method's server would (`Method.sums`), together
with their weights, losses and validation scores. The numbers of samples stay on the node, too: it
joins as if each client had one sample.

A node is known in a sum by the number of its first client. Its process may be started anew for each
message, so keys and values are kept in a file until the node has revealed its shares, which it does
once for each sum: shares of both secrets of another node would reveal its values.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from data_prep.base.errors import InputError
from data_prep.base.files import atomic_path
from stforecast.federated.core.tensors import Payload
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.nodes.messages import FEW_CELLS, FEW_CELLS_FOUND, Message
from stforecast.federated.nodes.summing import means_of, summand_weights, weighted_sums
from stforecast.federated.uploads import masking
from stforecast.federated.uploads.uplink import secret_draws

SUM = "sum"
"""Name of the masked vector in a message."""


class TooFewParties(InputError):
    """Raised for a sum over fewer nodes than this one wants; the server learns this name."""


class TooFewCells(InputError):
    """Raised for a sum over fewer cells than this node wants; the server learns this name."""


class Fewest(NamedTuple):
    """What a node wants of each sum with its upload: nodes, and cells of all of them together."""

    nodes: int = 2
    cells: int = 1


ANY = Fewest()
"""What a node wants whose upload does not give readings up."""


class Masker:
    """Answers the messages of a sum, each once and in their order.

    Only this user may read the folder, which holds the secrets of the latest sum; `member` is the
    number of the node's first client, and `fewest` is what each sum must be of.
    """

    def __init__(
        self, folder: Path, member: int, settings: masking.SecureSums, fewest: Fewest = ANY
    ) -> None:
        self.folder, self.member, self.settings = folder, member, settings
        self.fewest = fewest

    def _least(self, notes: Mapping[str, Any]) -> int:
        """Return how many nodes have to stay to the end of a sum, or to be there at its begin."""
        threshold = self.settings.threshold(len(notes["peers"])) if "peers" in notes else 0
        return max(threshold, self.fewest.nodes, int(notes["fewest"]))

    def begin(
        self, session: str, values: Mapping[str, Tensor], cells: int = 0, noise: float = 0.0
    ) -> dict[str, str]:
        """Keep the values to add up, in double precision, with new keys; return the public keys.

        Args:
            session: name of the sum.
            values: what to add up.
            cells: number of cells of the upload among the values, 0 without one.
            noise: deviation of the noise that as many nodes as have to stay add up to.
        """
        keys = {"seal": masking.new_key(), "mask": masking.new_key(), "own": masking.new_key()}
        notes = {"session": session, "next": "share", "cells": cells, "noise": noise}
        notes["fewest"] = self.fewest.nodes
        notes |= {n: k.hex() for n, k in keys.items()}
        self._save(notes, {name: t.double().contiguous() for name, t in values.items()})
        return {name: masking.public(keys[name]).hex() for name in ("seal", "mask")}

    def hide(
        self,
        message: Message,
        values: Mapping[str, Tensor],
        about: Mapping[str, Any],
        cells: int = 0,
        noise: float = 0.0,
    ) -> Message:
        """Return what the server may know, with keys of the sum for which it asks; see `begin`."""
        keys = self.begin(message.about["session"], values, cells, noise)
        advert = {"cells": min(cells, FEW_CELLS), "fewest_cells": self.fewest.cells}
        return Message({**about, **(advert if cells else {}), "keys": keys})

    def answer(self, message: Message) -> Message:
        """Return the node's answer to a message of a sum."""
        about, path = message.about, self.folder / "sum.safetensors"
        if not path.exists():
            raise InputError("the server asks for a sum that this node has not begun, or has ended")
        with safe_open(path, "pt") as file:
            notes = json.loads(file.metadata()["notes"])
            values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if (about["session"], about["task"]) != (notes["session"], notes["next"]):
            raise InputError(
                f"the server asks to {about['task']} in the sum {about['session']!r:.40}; this "
                f"node waits for {notes['next']} in {notes['session']!r}"
            )
        answers = {"share": self._share, "mask": self._mask, "unmask": self._unmask}
        return answers[about["task"]](about, notes, values)

    def _share(self, about: dict[str, Any], notes: dict[str, Any], values: Any) -> Message:
        """Seal a share of both secrets for each other member."""
        peers = {
            int(i): (bytes.fromhex(s), bytes.fromhex(m)) for i, (s, m) in about["peers"].items()
        }
        private = {name: bytes.fromhex(notes[name]) for name in ("seal", "mask", "own")}
        own_keys = tuple(masking.public(private[name]) for name in ("seal", "mask"))
        if peers.get(self.member) != own_keys:
            raise InputError("the server does not pass on the keys of this node as they are")
        if len(peers) < self._least(notes) or min(peers) < 0:
            raise TooFewParties(
                f"a sum over {len(peers)} nodes would tell others the values of this one; it takes "
                f"part in sums over {self._least(notes)} or more"
            )
        notes["cells of"] = {str(i): int(about["cells"].get(str(i), 0)) for i in peers}
        self._check_cells(notes, peers)
        threshold, session = self.settings.threshold(len(peers)), notes["session"]
        own, mask = (masking.split(private[name], peers, threshold) for name in ("own", "mask"))
        sealed = {
            str(i): masking.seal(
                masking.agreed(private["seal"], key, f"{session}/seal/{self.member}/{i}"),
                own[i] + mask[i],
            ).hex()
            for i, (key, _) in peers.items()
            if i != self.member
        }
        notes |= {
            "next": "mask",
            "peers": about["peers"],
            "shapes": about["shapes"],
            "held": {str(self.member): (own[self.member] + mask[self.member]).hex()},
        }
        masking.length(about["shapes"])
        self._save(notes, values)
        checks = {str(i): [masking.commitment(s[i]).hex() for s in (own, mask)] for i in peers}
        return Message(
            {"sealed": sealed, "checks": checks, "own": masking.commitment(private["own"]).hex()}
        )

    def _mask(self, about: dict[str, Any], notes: dict[str, Any], values: Any) -> Message:
        """Keep the others' shares; return the masked vector and whose shares are unusable."""
        peers, held, unusable = notes["peers"], notes["held"], []
        members = {self.member, *map(int, about["sealed"])}
        self._check_members(members, {int(i) for i in peers}, notes)
        private = bytes.fromhex(notes["seal"])
        for i, sealed in about["sealed"].items():
            key = masking.agreed(
                private, bytes.fromhex(peers[i][0]), f"{notes['session']}/seal/{i}/{self.member}"
            )
            shares = masking.unseal(key, bytes.fromhex(sealed))
            both = shares or b""
            halves = both[: masking.SHARE], both[masking.SHARE :]
            checks = [masking.commitment(half).hex() for half in halves]
            if shares is not None and about["checks"][i] == checks:
                held[i] = shares.hex()
            else:
                unusable.append(int(i))
        notes |= {"next": "unmask", "members": sorted(members), "held": held}
        self._save(notes, {})  # The values are not needed any more.
        others = {i: bytes.fromhex(peers[str(i)][1]) for i in members - {self.member}}
        if notes["noise"]:
            share = notes["noise"] / math.sqrt(self.settings.threshold(len(peers)))
            values = noisy(values, notes["shapes"], share)
        plain = masking.to_vector(values, notes["shapes"], len(peers))
        own, mask = (bytes.fromhex(notes[name]) for name in ("own", "mask"))
        vector = masking.masked(plain, self.member, own, mask, others, notes["session"])
        return Message({"unusable": unusable}, {SUM: vector})

    def _unmask(self, about: dict[str, Any], notes: dict[str, Any], values: Any) -> Message:
        """Reveal one share of each member: of its own mask if it stayed, else of its pairs'."""
        members, stayed = set(notes["members"]), set(map(int, about["stayed"]))
        self._check_members(stayed, members, notes)
        shutil.rmtree(self.folder)
        held = {int(i): bytes.fromhex(both) for i, both in notes["held"].items()}
        shares = {
            str(i): (held[i][: masking.SHARE] if i in stayed else held[i][masking.SHARE :]).hex()
            for i in members & held.keys()
        }
        return Message({"shares": shares})

    def _check_cells(self, notes: Mapping[str, Any], members: Iterable[int]) -> None:
        """Check that a sum with this node's upload is over enough cells, as the server says."""
        own, others = notes["cells"], {str(i) for i in members} - {str(self.member)}
        cells = own + sum(notes["cells of"][i] for i in others)
        if own and cells < self.fewest.cells:
            raise TooFewCells(
                f"the sum would be over {cells} cells, this node wants {self.fewest.cells} or "
                f"more: {FEW_CELLS_FOUND}"
            )

    def _check_members(self, named: set[int], known: set[int], notes: Mapping[str, Any]) -> None:
        """Check that a sum over the members named by the server is large enough."""
        if not {self.member} <= named <= known or len(named) < self._least(notes):
            raise TooFewParties(
                f"the server asks for a sum over the nodes {sorted(named)!r:.60}; it takes at "
                f"least {self._least(notes)} of {sorted(known)!r:.60}, with this one"
            )
        self._check_cells(notes, named)

    def _save(self, notes: Mapping[str, Any], values: Mapping[str, Tensor]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)  # Also where there was a folder that others may enter.
        with atomic_path(self.folder / "sum.safetensors", mode=0o600) as part:
            save_file(dict(values), part, {"notes": json.dumps(notes)})


def noisy(values: Payload, shapes: masking.Shapes, std: float) -> Payload:
    """Return values with Gaussian noise on all uploads of a sum, as missing ones are 0 in it.

    The sum of nodes' noises is distributed Gaussian noise, as in Kairouz, Liu, Steinke: The
    Distributed Discrete Gaussian Mechanism, ICML 2021. Ours is rounded to 2⁻²⁸ and not discrete.
    """
    noise = {
        name: values.get(name, 0) + std * secret_draws("gaussian", torch.Size(shape))
        for name, shape in shapes.items()
        if name.startswith(UPLOAD)
    }
    return {**values, **noise}


NUMBERS, UPLOAD = "numbers", "upload/"
"""Name of the sums of `FIELDS`, and prefix of the names of uploads."""

FIELDS = ("weight", "loss", "task_loss", "task_losses", "score", "scored")
"""Order of `NUMBERS`: weight of the clients; sums of their losses; for how many of them the task's
loss is known; total and count of the validation score."""

ERRORS, METRICS = "errors", ("mse", "mae")
"""Name of the sums at the end, of the numbers of test targets and of their errors by metric; and
the metrics of forecasts."""


def sums_of_round(answer: Message, weights: Tensor) -> Payload:
    """Return what a node adds to a round's sum: `NUMBERS`, and its weighted uploads."""
    about = answer.about
    known = not math.isnan(about["task_loss"])
    task_loss = (about["task_loss"], len(weights)) if known else (0.0, 0)
    numbers = [float(weights.sum()), about["loss"], *task_loss, *about["score"]]
    return {
        **{UPLOAD + name: t for name, t in weighted_sums(answer.payload, weights).items()},
        NUMBERS: torch.tensor(numbers, dtype=torch.float64),
    }


def weights_of(answer: Message, trainer: Trainer) -> Tensor:
    """Return the weights of a node's clients that trained, `(clients,)`."""
    rows = torch.tensor(answer.about["ids"], dtype=torch.long) - trainer.first
    return summand_weights(trainer.method.sends.sums, trainer.train_data.sizes[rows])


def mean_of_round(answer: Message, trainer: Trainer) -> Message:
    """Return a node's answer to a round with one row, the mean of its clients' uploads."""
    weights = weights_of(answer, trainer)
    if len(weights) < 2:  # Which is exact.
        return answer
    sums = weighted_sums(answer.payload, weights)
    means = means_of(sums, answer.about["like"], float(weights.sum()))
    return Message(answer.about, means)


def sums_of_errors(
    errors: Mapping[str, float], targets: int, metrics: Sequence[str] = METRICS
) -> Payload:
    """Return what a node adds to the sum at the end: its numbers of targets, and their errors."""
    totals = [float(targets), *(errors[name] * targets for name in metrics)]
    return {ERRORS: torch.tensor(totals, dtype=torch.float64)}


def masker_beside(
    folder: Path, first: int, settings: masking.SecureSums, fewest: Fewest = ANY
) -> Masker:
    """Return the masker of a node, given the folder of its clients' state and its first client."""
    return Masker(folder.parent / "secure-sum", first, settings, fewest)
