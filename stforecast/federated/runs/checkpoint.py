"""Checkpoints: a run after some round, written atomically to a folder of its own.

`round-0007/` holds

- `state.safetensors`: clients, optimisers, server (`State.flat`);
- `best.safetensors`: the state of the best round so far, if there is one;
- `extra.safetensors`: tensors that the observer has added, if any;
- `checkpoint.json`: format, round, seed, identity of the run, reports of all rounds, notes;
- `SHA256SUMS`: checksums of these files, as `sha256sum -c` reads them.

A folder is written under another name, flushed to the disk and renamed. Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from data_prep.base.errors import InputError, reading
from data_prep.base.files import checksum, naming_full_disk
from stforecast.federated.core.options import LARGEST
from stforecast.federated.core.state import State
from stforecast.federated.engine.rounds import RoundReport
from stforecast.federated.runs.run_folder import FORMAT, read_json

log = logging.getLogger(__name__)

NEWEST = 2
"""Number of newest checkpoints to keep: the last one may have been damaged during writing."""

ABOUT, SUMS = "checkpoint.json", "SHA256SUMS"

FOLDER = re.compile(r"round-(\d{4,})")


@dataclass(frozen=True)
class Checkpoint:
    """A run after some round.

    Attributes:
        run: identity of the run: settings and data, as JSON; no other run may continue from here.
        state: everything that is kept from round to round.
        best: the state of the best round so far.
        reports: reports of all rounds.
        cohort_size: largest number of clients trained together; other cohorts round differently.
        notes: the observer's notes, as JSON.
        extra: the observer's tensors.
    """

    run: dict[str, Any]
    state: State
    best: State | None
    reports: list[RoundReport]
    cohort_size: int
    notes: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Tensor] = field(default_factory=dict)

    def about(self) -> dict[str, Any]:
        """Return all contents that are not tensors."""
        return {
            "format": FORMAT,
            "round": self.state.round,
            "seed": self.state.seed,
            "best_round": self.best.round if self.best else None,
            "cohort_size": self.cohort_size,
            "run": self.run,
            "reports": [dataclasses.asdict(r) for r in self.reports],
            "notes": self.notes,
        }


def is_spaced(round: int, newest: int) -> bool:
    """Return whether to keep a checkpoint so that a federation can go far back.

    Of those of 2ⁱ to 2ⁱ⁺¹ - 1 rounds ago, one is kept.

    >>> [r for r in range(101) if is_spaced(r, 100)]
    [0, 64, 80, 88, 96, 98, 99, 100]
    """
    age = newest - round
    return age < NEWEST or round % (1 << (age.bit_length() - 1)) == 0


def save_checkpoint(
    checkpoint: Checkpoint, folder: Path, keep: Callable[[int, int], bool] | None = None
) -> Path:
    """Write a checkpoint into a folder of its own, and remove all but the newest ones.

    `keep` is given an older checkpoint's round and the newest. If it cannot be written, existing
    checkpoints are unchanged.
    """
    target = folder / f"round-{checkpoint.state.round:04d}"
    with naming_full_disk(target):
        folder.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder, prefix=f".{target.name}.", suffix=".part"))
    try:
        with naming_full_disk(target):
            _write(checkpoint, part)
        shutil.rmtree(target, ignore_errors=True)  # Damaged: else the run would resume from it.
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    # Later ones are damaged: else the run would have resumed from them.
    done = [p for p in newest_first(folder) if _round_of(p) <= checkpoint.state.round]
    kept = {p for p in done if keep and keep(_round_of(p), checkpoint.state.round)}
    for old in {*newest_first(folder)} - {*done[:NEWEST]} - kept:
        shutil.rmtree(old, ignore_errors=True)
    return target


def go_back(folder: Path, round: int) -> list[int]:
    """Remove the checkpoints after a round, which has an intact one; return their rounds."""
    rounds = {_round_of(path): path for path in newest_first(folder)}
    if round not in rounds:
        kept = ", ".join(map(str, sorted(rounds)))
        raise InputError(
            f"{folder}: no checkpoint of round {round}; "
            + (f"there are those of {kept}" if kept else "there is none, or the run has ended")
        )
    load_checkpoint(rounds[round])
    later = [r for r in rounds if r > round]
    for r in later:
        shutil.rmtree(rounds[r])
    return later


def _write(checkpoint: Checkpoint, folder: Path) -> None:
    states = {"state": checkpoint.state, "best": checkpoint.best}
    tensors = {name: state.flat() for name, state in states.items() if state is not None}
    if checkpoint.extra:
        tensors["extra"] = checkpoint.extra
    for name, named in tensors.items():
        save_file(_without_shared_memory(named), folder / f"{name}.safetensors")
    (folder / ABOUT).write_text(json.dumps(checkpoint.about(), indent=1) + "\n")
    lines = [f"{_checksum(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / SUMS).write_text("".join(lines))
    for path in (*folder.iterdir(), folder):
        path.chmod(0o755 if path is folder else 0o644)
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _without_shared_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU without shared memory, as the format requires."""
    own: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, t in tensors.items():
        t = t.detach().cpu().contiguous()
        storage = t.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() > t.numel() * t.element_size():
            t = t.clone()
        seen.add(t.untyped_storage().data_ptr())
        own[name] = t
    return own


def _checksum(path: Path) -> str:
    return checksum(path).removeprefix("sha256:")


def newest_first(folder: Path) -> list[Path]:
    """Return the folders of checkpoints, intact or not, newest first."""
    found = [path for path in folder.glob("round-*") if FOLDER.fullmatch(path.name)]
    return sorted(found, key=_round_of, reverse=True)


def _round_of(path: Path) -> int:
    return int(path.name.partition("-")[2])


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read one checkpoint."""
    remedy = "an older checkpoint may do"
    _check_sums(folder, remedy)
    about = read_json(folder / ABOUT, remedy)
    with reading(folder, "as a checkpoint", remedy):
        _check_about(about, folder)
        seed, best = about["seed"], about["best_round"]
        extra = folder / "extra.safetensors"

        def state(name: str, round: int) -> State:
            return State.from_flat(load_file(folder / f"{name}.safetensors"), round, seed)

        return Checkpoint(
            run=about["run"],
            state=state("state", about["round"]),
            best=None if best is None else state("best", best),
            reports=[RoundReport(**row) for row in about["reports"]],
            cohort_size=about["cohort_size"],
            notes=about["notes"],
            extra=load_file(extra) if extra.exists() else {},
        )


def _check_about(about: dict[str, Any], folder: Path) -> None:
    """Check that numbers are valid and consistent."""
    done, reports, best = about["round"], about["reports"], about["best_round"]
    named = FOLDER.fullmatch(folder.name)
    expected = {
        "round": _is_count(done) and (named is None or int(named[1]) == done),
        "seed": _is_count(about["seed"]),
        "cohort_size": _is_count(about["cohort_size"]),
        "best_round": best is None or (_is_count(best) and best <= done),
        "reports": [r["round"] for r in reports] == list(range(1, len(reports) + 1))
        and len(reports) in (0, done)
        and all(type(v) in (int, float) for r in reports for v in r.values()),
        "run": isinstance(about["run"], dict),
        "notes": isinstance(about["notes"], dict),
    }
    for name, sound in expected.items():
        if not sound:
            found = f"{len(reports)} of them" if name == "reports" else repr(about[name])
            raise InputError(
                f"{folder / ABOUT}: {name} is invalid ({found}); an older checkpoint may do"
            )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _check_sums(folder: Path, remedy: str) -> None:
    path = folder / SUMS
    with reading(path, "as checksums", remedy):
        lines = [line.split("  ", 1) for line in path.read_text().splitlines()]
        sums = {name: expected for expected, name in lines}
    for needed in (ABOUT, "state.safetensors"):
        if needed not in sums:
            raise InputError(f"{path}: names no {needed}; {remedy}")
    for name, expected in sums.items():
        if Path(name).name != name:
            raise InputError(f"{path}: {name!r} is outside this folder; {remedy}")
        if _checksum(folder / name) != expected:
            raise InputError(f"{folder / name}: cannot be trusted, its checksum differs; {remedy}")


def newest_sound(
    folder: Path, run: Mapping[str, Any] | None, before: int | None = None
) -> Checkpoint | None:
    """Return the newest intact checkpoint; warn about damaged ones.

    Args:
        folder: folder of the checkpoints.
        run: identity of the run; None accepts any.
        before: first round whose checkpoint is too new; None accepts all.

    Raises:
        InputError: if it is of another run, such as one on other data.
    """
    for path in newest_first(folder):
        if before is not None and _round_of(path) >= before:
            continue
        try:
            found = load_checkpoint(path)
        except InputError as e:
            log.warning("%s", e)
            continue
        made, wanted = found.run, found.run if run is None else run
        if differs := sorted(k for k in {*wanted, *made} if wanted.get(k) != made.get(k)):
            raise InputError(
                f"{path}: was made with other {' and '.join(differs)}; go on with those that the "
                "run was begun with, or begin a new run in another folder"
            )
        return found
    return None


def fingerprint(tensors: Mapping[str, Tensor], *texts: object) -> str:
    """Return a hash of names, types, shapes and all values in order, to detect changed data.

    Only non-contiguous tensors are copied, a row at a time.

    >>> a, b = torch.tensor([1, 2]), torch.tensor([2, 1])
    >>> fingerprint({"x": a}) == fingerprint({"x": b})
    False
    """
    digest = hashlib.sha256(json.dumps([str(t) for t in texts]).encode())
    for name, t in sorted(tensors.items()):
        digest.update(json.dumps([name, str(t.dtype), list(t.shape)]).encode())
        for part in [t] if t.is_contiguous() and t.is_cpu else t:
            values = part.detach().cpu().contiguous().flatten().view(torch.uint8)
            digest.update(values.numpy().data)
    return f"sha256:{digest.hexdigest()}"
