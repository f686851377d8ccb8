"""A node whose owner lies: its processes import a copy of this file as `sitecustomize`.

The file `lies` in the folder of the copy names the changes to its answers to rounds, in turn, from
`LIES`; without names it is honest. It is read again for each answer. Nothing else of a node
changes, so its declarations when it joins are true.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

SPOILT = "stforecast.flower.node"

NAMES = "lies"
"""File with names of `LIES`, one a line."""

HUGE = 1e12
"""A validation loss that is bad, and a number of samples that is large, for forged scores."""

PROTOTYPES = "prototypes"
"""Name of the tensor of prototypes in an upload, `(clients, keys, width)`."""


def _random(asked: Any, honest: Any) -> dict[str, Any]:
    """Send noise ten times as large as the values, other noise in each round and from each node."""
    import torch

    seed = 1000 * asked.about["round"] + min(honest.about["ids"], default=0)
    noise = torch.Generator().manual_seed(seed)
    return _values(
        lambda t: torch.randn(t.shape, generator=noise, dtype=t.dtype) * (10 * _size(t))
    )(asked, honest)


def _size(t: Any) -> float:
    return float(t.double().square().mean().sqrt())


def _values(change: Callable[[Any], Any]) -> Callable[[Any, Any], dict[str, Any]]:
    """Return a lie that changes the tensors of an upload; whole numbers stay."""

    def lie(asked: Any, honest: Any) -> dict[str, Any]:
        payload = honest.payload.items()
        return {"payload": {n: change(t) if t.is_floating_point() else t for n, t in payload}}

    return lie


def _poisoned(asked: Any, honest: Any) -> dict[str, Any]:
    """Send each key the opposite of the prototype of the key half a period away, three times."""
    payload = dict(honest.payload)
    if PROTOTYPES in payload:
        t = payload[PROTOTYPES]
        payload[PROTOTYPES] = -3 * t.roll(t.shape[1] // 2, 1)
    return {"payload": payload}


LIES: Mapping[str, Callable[[Any, Any], dict[str, Any]]] = {
    "random": _random,
    "sign-flipped": _values(lambda t: -t),
    "shifted": _values(lambda t: t + _size(t)),
    "prototype-poisoned": _poisoned,
    "not-finite": _values(lambda t: t * float("nan")),
    "oversized": _values(lambda t: t.repeat(100, *[1] * (t.ndim - 1))),
    "score-forging": lambda asked, honest: {  # Only the first round is good, by many samples.
        "about": {
            **honest.about,
            "score": (0.0 if asked.about["round"] == 1 else HUGE**2, HUGE),
            "loss": HUGE,
            "task_loss": HUGE,
        }
    },
    "huge": _values(lambda t: -1e3 * t),
    "foreign": lambda asked, honest: {"about": {**honest.about, "ids": [0]}},
}
"""What a node may do: the parts of its answer, `about` or `payload`, that are not the honest ones.

Each takes the server's message and the honest answer.
"""


class Spoil(importlib.abc.MetaPathFinder):
    """Changes the answers of a node when its module is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's specification with a loader that changes it afterwards."""
        if name != SPOILT:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec
        assert spec.loader
        execute = spec.loader.exec_module

        def execute_and_spoil(module: ModuleType) -> None:
            execute(module)
            spoil(module, Path(__file__).with_name(NAMES))

        spec.loader.exec_module = execute_and_spoil  # type: ignore[method-assign]
        return spec


def spoil(module: Any, names: Path) -> None:
    """Let the nodes of the module lie in every round, in the ways that a file names, in turn."""
    truth = module.FlowerNode.answer

    def answer(self: Any, message: Any) -> Any:
        return told(names.read_text().split(), message, truth(self, message))

    module.FlowerNode.answer = answer


def told(names: Sequence[str], asked: Any, honest: Any) -> Any:
    """Return what a lying node answers; `names` say what it does, in turn."""
    if asked.about["task"] != "round" or not names:
        return honest
    lie = LIES[names[asked.about["round"] % len(names)]](asked, honest)
    return type(honest)(lie.get("about", honest.about), lie.get("payload", honest.payload))


def write(folder: Path, names: Sequence[str]) -> Path:
    """Write what makes a node lie to a folder, for the path of the node's processes; return it.

    Another call changes what a node does that was started with it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(__file__, folder / "sitecustomize.py")
    (folder / NAMES).write_text("".join(f"{name}\n" for name in names))
    return folder


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, Spoil())
