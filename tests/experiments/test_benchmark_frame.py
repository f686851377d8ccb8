"""The frame of benchmarks: commands, results, turns, ratios; processes and what they use."""

import json
import logging
import math
import os
import subprocess
import sys
from functools import partial
from itertools import count

import pytest
from click.testing import CliRunner
from waiting import started

from data_prep.base.errors import InputError
from experiments.benchmarks.__main__ import main
from experiments.benchmarks.frame import (
    Results,
    in_turns,
    listed_numbers,
    memory,
    own_process,
    processor_time,
    ratio,
    table,
)

HOLD = "held = b'x' * 50_000_000; print(flush=True); import time; time.sleep(60)"
BURN = "import time\nwhile time.process_time() < 0.3: pass"


def test_memory_counts_what_a_process_started():
    before = memory([os.getpid()])
    with started("-c", HOLD) as child:
        child.stdout.readline()
        both, alone = memory([os.getpid()]), memory([child.pid])
    assert alone > 50
    assert both - before > 40
    assert memory([child.pid]) == 0


@pytest.mark.repeats
def test_processor_time_counts_children_that_ended():
    before = processor_time([os.getpid()])
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert processor_time([os.getpid()]) - before > 0.25


def test_every_command_has_help_for_its_options():
    for command in main.commands.values():
        assert command.help
        for option in command.params:
            assert option.param_type_name == "argument" or option.help


def test_a_command_writes_its_options_but_no_paths_and_its_rows(tmp_path):
    words = ["secure-sum", "--nodes", "3", "--values", "10", "--repeat", "1", "--out", tmp_path]
    done = CliRunner().invoke(main, list(map(str, words)), catch_exceptions=False)
    found = json.loads((tmp_path / "secure_sum.json").read_text())
    assert [row["round"] for row in found["rows"]] == ["plain", "secure", "secure, a node lost"]
    assert (found["values"], found["repeat"], "out" in found) == (10, 1, False)
    assert found["machine"]["processor"] in done.output
    assert "secure, a node lost" in done.output
    assert logging.getLogger("stforecast").isEnabledFor(logging.WARNING)  # again


def test_a_later_call_replaces_options_but_not_what_is_fixed(tmp_path):
    first = Results(tmp_path / "a.json", {"times": 30, "seed": 1, "rounds": 6}, goes_on=True)
    first.fix(rounds=6)
    first.add({"kill": 1})
    later = Results(tmp_path / "a.json", {"times": 60, "seed": 2, "rounds": 6}, goes_on=True)
    later.fix(rounds=6)
    later.add({"kill": 2})
    found = json.loads((tmp_path / "a.json").read_text())
    assert (found["times"], found["seed"], len(found["rows"])) == (60, 2, 2)
    other = Results(tmp_path / "a.json", {"rounds": 7}, goes_on=True)
    with pytest.raises(InputError, match=r"6 for rounds, .*7"):
        other.fix(rounds=7)


def test_a_mistake_in_an_option_is_told_without_a_traceback():
    done = CliRunner().invoke(main, ["secure-sum", "--nodes", "3,x"])
    assert (done.exit_code, "whole numbers" in done.output) == (1, True)


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_results_go_on_from_their_file(name, tmp_path):
    first = Results(tmp_path / name, {"rounds": 6})
    first.add({"method": "fuels", "behaviour": "-", "mse": 0.25})
    again = Results(tmp_path / name, goes_on=True)
    assert again.rows == first.rows
    assert again.has(method="fuels")
    assert not again.has(method="fedavg")
    assert Results(tmp_path / name).rows == []


def test_results_of_other_settings_do_not_go_on(tmp_path):
    Results(tmp_path / "a.json", {"rounds": 6}).add()
    again = Results(tmp_path / "a.json", {"rounds": 8}, goes_on=True)
    with pytest.raises(InputError, match=r"6 for rounds, .*8"):
        again.fix(rounds=8)


def test_sides_take_turns():
    calls = []
    sides = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    assert in_turns(sides, 2) == {"a": [1, 3], "b": [2, 4]}


def test_a_ratio_is_of_turns_and_has_an_interval():
    fast = [1.0, 2.0, 4.0]
    same, apart = (ratio([k * s for k, s in zip(ks, fast, strict=True)], fast)
                   for ks in ([3, 3, 3], [2, 3, 4.5]))  # fmt: skip
    assert (same.value, same.low, same.high) == pytest.approx((3, 3, 3))
    assert apart.low < apart.value < apart.high
    assert apart.value == pytest.approx(3)
    assert math.isnan(ratio([2.0], [1.0]).low)


def test_numbers_are_whole():
    assert listed_numbers("10,100") == [10, 100]
    with pytest.raises(InputError, match=r"10\.5"):
        listed_numbers("10.5")


def test_a_table_has_a_dash_for_what_is_missing():
    text = table([{"n": 1000, "s": 0.1234}, {"n": 2}], {"n": ("nodes", ""), "s": ("s", ".2f")})
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()]
    assert rows[2:] == [["1,000", "0.12"], ["2", "-"]]


@pytest.mark.repeats
def test_what_a_process_of_its_own_made_keeps_its_state():
    with own_process(partial, next, count(7)) as call:
        assert [call(), call()] == [7, 8]
