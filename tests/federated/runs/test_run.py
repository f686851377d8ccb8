"""Runs of any kind: begun, stopped, gone on with, opened and found."""

import json

import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.federated.runs.run_folder import Run, begin
from stforecast.federated.runs.unfinished_run import UnfinishedRun, new_folder


class Count(Run):
    """A run that counts."""

    command = "count"
    entries = {"upto": int}  # noqa: RUF012  read only

    def facts(self):
        return {}

    def metrics(self):
        return pd.DataFrame()

    def rounds(self):
        return pd.DataFrame()


class Counting(UnfinishedRun[Count]):
    """It counts, or fails where it is told to."""

    kind = Count
    needed = ("upto",)

    def train(self, checkpointer, after_round):
        begin(self.folder, self.begun)
        if self.begun["upto"] < 0:
            raise OSError("cannot count")

    def write_results(self):
        (self.folder / "count.txt").write_text(str(self.begun["upto"]))

    def describe(self):
        return self.begun


def begun(upto):
    return {"settings": {"method": "count", "seed": 3}, "upto": upto}


def test_a_run_is_done_opened_and_found(tmp_path):
    out = tmp_path / "a" / "run"
    with new_folder(out, Count.command):
        run = Counting(out, begun(5)).complete()
    assert (run.method, run.label, run.seed, run.about["upto"]) == ("count", "count", 3, 5)
    assert run == Count.open(out) == Counting.resume(out)
    assert Count.find([tmp_path]) == [run]
    assert {path.name for path in out.iterdir()} == {"run.json", "count.txt"}
    with (
        pytest.raises(InputError, match=r"holds .*finished"),
        new_folder(out, Count.command),
    ):
        pass


def test_a_run_goes_on_with_what_has_changed(tmp_path):
    with pytest.raises(OSError, match="cannot count"), new_folder(tmp_path, Count.command):
        Counting(tmp_path, begun(-1)).complete()
    assert not (tmp_path / "run.json").exists()
    run = Counting.resume(tmp_path, changes={"upto": 7})
    assert run.about["upto"] == 7
    assert (tmp_path / "count.txt").read_text() == "7"


def test_what_a_kind_needs_must_be_there(tmp_path):
    with pytest.raises(InputError, match=r"unfinished .*`count`"):
        Counting.resume(tmp_path)
    begin(tmp_path, {"settings": {"method": "count"}})
    with pytest.raises(InputError, match=r"no upto; .*`count`"):
        Counting.resume(tmp_path)
    (tmp_path / "run.json").write_text(
        json.dumps({"settings": {"method": "count"}, "lines": {}, "upto": "7"})
    )
    with pytest.raises(InputError, match=r"upto in .*`count`"):
        Count.open(tmp_path)
