"""Checkpoints on disk: whole or not there, never trusted blindly."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
from mentions import mentions
from safetensors import SafetensorError
from safetensors.torch import load_file

from data_prep.base.errors import InputError
from data_prep.base.files import WriteError
from stforecast.federated.core.state import Clients, State
from stforecast.federated.engine.rounds import RoundReport
from stforecast.federated.runs import checkpoint as checkpoints
from stforecast.federated.runs.checkpoint import (
    Checkpoint,
    fingerprint,
    go_back,
    is_spaced,
    load_checkpoint,
    newest_first,
    newest_sound,
    save_checkpoint,
)

RUN = {"settings": {"method": "fuels"}, "data": ["x"]}


def state(round):
    t = torch.arange(6.0).view(2, 3)
    clients = Clients(
        params={"w": t + round, "half": t.half()},
        buffers={"seen": torch.tensor([round, 1])},
        moments={"exp_avg": {"w": t / 3}, "steps": {"w": torch.tensor([1.0, 2.0])}},
        sizes=torch.tensor([5, 6]),
        memory={"known": torch.tensor([True, False])},
    )
    server = {"shared": t[0], "as well": t[0], "turned": t.mT, "threshold": torch.tensor(0.1)}
    return State(clients, server, round, seed=7, received={"w": 2 * t})


def made(round, **changes):
    reports = [RoundReport(i + 1, 0.1, 1 / 3, float("nan"), 2, 10, 20, 0.5) for i in range(round)]
    best = state(2) if round > 2 else None
    found = Checkpoint(RUN, state(round), best, reports, cohort_size=4)
    return dataclasses.replace(found, **changes)


def assert_same(a, b):
    torch.testing.assert_close(a.state.flat(), b.state.flat(), rtol=0, atol=0)
    assert (a.state.round, a.state.seed) == (b.state.round, b.state.seed)
    assert (a.best is None) == (b.best is None)
    if a.best:
        torch.testing.assert_close(a.best.flat(), b.best.flat(), rtol=0, atol=0)
        assert a.best.round == b.best.round
    assert repr(a.reports) == repr(b.reports)
    assert (a.run, a.cohort_size, a.notes) == (b.run, b.cohort_size, b.notes)
    torch.testing.assert_close(a.extra, b.extra, rtol=0, atol=0)


@pytest.mark.parametrize("round", [1, 3])
def test_what_is_saved_is_loaded(tmp_path, round):
    given = made(round, notes={"rows": [1, None]}, extra={"right": torch.ones(2, 2).long()})
    assert_same(load_checkpoint(save_checkpoint(given, tmp_path / "checkpoints")), given)


def test_files_are_open_formats(tmp_path):
    folder = save_checkpoint(made(3), tmp_path)
    assert folder.name == "round-0003"
    files = ["SHA256SUMS", "best.safetensors", "checkpoint.json", "state.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert json.loads((folder / "checkpoint.json").read_text())["best_round"] == 2
    assert load_file(folder / "state.safetensors")["server/turned"].shape == (3, 2)
    sums = (folder / "SHA256SUMS").read_text().splitlines()
    assert [re.fullmatch(r"[0-9a-f]{64}  (\S+)", line)[1] for line in sums] == files[1:]


def test_the_newest_two_are_kept(tmp_path):
    for round in (1, 2, 9, 10, 11, 10000):
        save_checkpoint(made(round), tmp_path)
    assert [path.name for path in newest_first(tmp_path)] == ["round-10000", "round-0011"]


def test_a_federation_keeps_old_ones_at_growing_distances_and_goes_back(tmp_path):
    for round in range(1, 22):
        save_checkpoint(made(round), tmp_path, is_spaced)
    assert [p.name[-2:] for p in newest_first(tmp_path)] == ["21", "20", "18", "16", "08"]
    with pytest.raises(InputError, match=r"round 17; .*8, 16, 18"):
        go_back(tmp_path, 17)
    (tmp_path / "round-0018" / "state.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="trusted"):
        go_back(tmp_path, 18)
    assert go_back(tmp_path, 16) == [21, 20, 18]
    assert newest_sound(tmp_path, RUN).state.round == 16
    with pytest.raises(InputError, match=r"round 3; .*none"):
        go_back(tmp_path / "elsewhere", 3)


def test_a_run_that_begins_anew_keeps_its_own_checkpoints(tmp_path):
    """Those of later rounds were damaged, or it would have gone on from there."""
    for round in (8, 9):
        (save_checkpoint(made(round), tmp_path) / "state.safetensors").write_bytes(b"")
    assert newest_sound(tmp_path, RUN) is None
    save_checkpoint(made(1), tmp_path)
    assert [path.name for path in newest_first(tmp_path)] == ["round-0001"]


def test_a_round_that_is_done_again_replaces_its_checkpoint(tmp_path):
    folder = save_checkpoint(made(3), tmp_path)
    (folder / "state.safetensors").write_bytes(b"")
    save_checkpoint(made(3), tmp_path)
    assert_same(newest_sound(tmp_path, RUN), made(3))


DAMAGE = {
    "truncated": lambda f: cut(f / "state.safetensors"),
    "a flipped bit": lambda f: flip(f / "state.safetensors"),
    "another number": lambda f: swap(f / "checkpoint.json", '"round": 5', '"round": 6'),
    "cut notes": lambda f: cut(f / "checkpoint.json"),
    "a lost file": lambda f: (f / "best.safetensors").unlink(),
    "no sums": lambda f: (f / "SHA256SUMS").unlink(),
    "cut sums": lambda f: cut(f / "SHA256SUMS"),
    "empty sums": lambda f: (f / "SHA256SUMS").write_text(""),
    "sums of elsewhere": lambda f: (f / "SHA256SUMS").write_text(
        f"{'0' * 64}  checkpoint.json\n{'0' * 64}  state.safetensors\n{'0' * 64}  ../../x\n"
    ),
}


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def swap(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.attack("damaged files")
@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_named_and_the_one_before_is_used(tmp_path, how, caplog):
    save_checkpoint(made(4), tmp_path)
    newest = save_checkpoint(made(5), tmp_path)
    DAMAGE[how](newest)
    assert_same(newest_sound(tmp_path, RUN), made(4))
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warning.startswith(str(newest))
    assert "\n" not in warning


def rewritten(folder, **changes):
    """A checkpoint that says something else, with right checksums."""
    path = folder / "checkpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    lines = [
        f"{checkpoints._checksum(folder / n)}  {n}\n"
        for n in ("checkpoint.json", "state.safetensors")
    ]
    (folder / "SHA256SUMS").write_text("".join(lines))


IMPOSSIBLE = {
    "round": 10**9,
    "seed": -1,
    "best_round": 3,
    "cohort_size": 0.5,
    "reports": None,
    "run": [],
    "notes": None,
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_numbers_that_cannot_be_are_refused_whatever_the_checksums(tmp_path, name):
    folder = save_checkpoint(made(2), tmp_path)
    reports = {"reports": [*map(dataclasses.asdict, made(3).reports)]}
    rewritten(folder, **(reports if name == "reports" else {name: IMPOSSIBLE[name]}))
    with pytest.raises(InputError, match=rf"checkpoint.json: {name} .*invalid"):
        load_checkpoint(folder)


def test_other_formats_are_left_aside_and_other_runs_refused(tmp_path, caplog):
    assert newest_sound(tmp_path / "nothing", RUN) is None
    save_checkpoint(made(1), tmp_path)
    rewritten(save_checkpoint(made(2), tmp_path), format=99)
    assert newest_sound(tmp_path, RUN).state.round == 1
    assert mentions(caplog.text, "format 99,", "reads 1")
    other = {**RUN, "settings": {"method": "fedavg"}}
    with pytest.raises(InputError, match=r"round-0001: .*settings"):
        newest_sound(tmp_path, other)


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path, monkeypatch):
    save_checkpoint(made(1), tmp_path)

    def full(tensors, path):
        Path(path).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(WriteError, match=r"/round-0002: .*\(No space"):
        save_checkpoint(made(2), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["round-0001"]
    assert_same(newest_sound(tmp_path, RUN), made(1))


def test_fingerprints_tell_data_apart():
    x, mask = torch.tensor([[1.0, float("nan")], [2.0, 3.0]]), torch.tensor([True, False])
    first = fingerprint({"x": x, "mask": mask}, "cells")
    assert first == fingerprint({"mask": mask, "x": x.clone()}, "cells")
    assert first == fingerprint({"mask": mask, "x": x.mT.contiguous().mT}, "cells")
    others = [
        ({"x": x + 1e-6, "mask": mask}, "cells"),
        ({"x": x.flip(0), "mask": mask}, "cells"),
        ({"x": x.flip(1), "mask": mask}, "cells"),
        ({"x": x, "mask": ~mask}, "cells"),
        ({"x": x.view(torch.int32), "mask": mask}, "cells"),
        ({"x": x.view(1, 2, 2), "mask": mask}, "cells"),
        ({"mask": x, "x": mask}, "cells"),
        ({"x": x, "mask": mask}, "sells"),
        ({"x": x, "mask": mask},),
    ]
    assert first not in [fingerprint(*other) for other in others]
    assert fingerprint({"x": torch.tensor(1)}) != fingerprint({"x": torch.tensor(2)})
    assert fingerprint({"x": torch.zeros(0, 2)}) != fingerprint({"x": torch.zeros(0, 3)})


def test_a_checkpoint_without_a_name_of_its_state_is_no_checkpoint(tmp_path):
    folder = save_checkpoint(made(1), tmp_path)
    path = folder / "checkpoint.json"
    about = json.loads(path.read_text())
    del about["cohort_size"]
    path.write_text(json.dumps(about))
    rewritten(folder)
    with pytest.raises(InputError, match=r"round-0001.*checkpoint"):
        load_checkpoint(folder)
