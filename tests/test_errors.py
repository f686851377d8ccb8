"""Messages name options by `Words`, so that Python and the command each read their own names."""

import ast
import json
import logging
import pickle
import re
import string
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import CommandFormatter, InputError, Words, for_command, log_text
from data_prep.cube import make_cube, write_cube
from stforecast import Forecaster
from stforecast.cli import main as cli

ROOT = Path(__file__).parent.parent
COMMANDS = ("stforecast/cli/", "vision/cli/")
"""Folders of the commands themselves, whose messages are for its users only."""


def parsed(pattern):
    """Return path and syntax tree of each file of the product with such a text."""
    for package in ("data_prep", "stforecast", "vision"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if re.search(pattern, text := path.read_text()):
                yield path.relative_to(ROOT).as_posix(), ast.parse(text)


def calls_of_words():
    for path, tree in parsed(r"Words\("):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Words":
                yield f"{path}:{node.lineno}", node


def test_no_text_outside_the_command_holds_an_option():
    found = []
    for path, tree in parsed("--[a-z]"):
        if path.startswith(COMMANDS) or path.endswith("/described.py"):  # next: of `info`.
            continue
        docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                alone = re.fullmatch(r"--[a-z-]+", node.value)  # a word of a command line
                text = id(node) not in docs and not alone
                if text and re.search(r"(?<![\w-])--[a-z]", node.value):
                    found.append((path, node.lineno, node.value))
    allowed = [
        f for f in found if re.search("--resume | --page |--new FILE`", f[2])
    ]  # commands to paste
    assert [f for f in found if f not in allowed] == []
    assert len(allowed) <= 4


def test_words_are_templates_whose_fields_are_parameters():
    wrong, named = [], []
    for place, call in calls_of_words():
        template = call.args[0]
        if isinstance(template, ast.IfExp):
            templates = [template.body, template.orelse]
        else:
            templates = [template]
        if not all(isinstance(t, ast.Constant) for t in templates):
            wrong += [(place, "not a plain text")] * (place.partition(":")[0] not in BUILT)
            continue
        template = ast.Constant("".join(t.value for t in templates))
        fields = [name for _, name, _, _ in string.Formatter().parse(template.value) if name]
        named += [(name, place) for name in fields if name not in NO_COMMANDS]
        assert {k.arg for k in call.keywords} <= set(fields), place
        blank = sum(f[1] == "" for f in string.Formatter().parse(template.value))
        assert blank == len(call.args) - 1, place
    assert wrong == []
    unknown = _without_parameters({name for name, _ in named})
    assert [(name, place) for name, place in named if name in unknown] == []


def test_what_is_put_into_a_command_is_quoted():
    """A folder such as `my runs` stays one word where a message suggests a command."""
    commands = r"((?<![\w-])--[a-z-]+[ =]|stforecast [a-z][a-z ]*)$"
    bare = []
    for path, tree in parsed("--[a-z]|stforecast [a-z]"):
        for node in (n for n in ast.walk(tree) if isinstance(n, ast.JoinedStr)):
            for text, value in pairwise(node.values):
                if not (isinstance(text, ast.Constant) and isinstance(value, ast.FormattedValue)):
                    continue
                put = ast.unparse(value.value)
                if re.search(commands, str(text.value)) and not re.match(QUOTED, put):
                    bare.append((f"{path}:{node.lineno}", put))
    assert bare == []


QUOTED = r"(shlex\.)?quote\(|typed\[|within\[0\]$|(name|found\[0\]|path\.stem\.lower\(\))$"
"""What is quoted, or quoted before, or the name of a data set."""

BUILT = {
    "data_prep/preparation.py", "data_prep/readers/columns.py", "data_prep/readers/decode.py",
    "data_prep/readers/times.py", "vision/partition/base.py",
}  # fmt: skip
"""Files with a text whose options follow from what was found."""

NO_COMMANDS = {"node_config"}
"""Options of Flower's programs, which messages of nodes name."""


def _without_parameters(names):
    """Return those that are neither a parameter of a function nor a field of a class."""
    for path in (*ROOT.glob("data_prep/**/*.py"), *ROOT.glob("[esv]*/**/*.py")):
        text = path.read_text()
        if not any(f"{name}:" in text for name in names):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.arg):
                names = names - {node.arg}
            elif isinstance(node, ast.AnnAssign):
                names = names - {ast.unparse(node.target)}
    return names


def test_an_error_is_worded_for_python_and_for_the_command():
    words = Words("give {service:DL Traffic (GB)}, or {allow_gaps}", allow_gaps=True)
    error = InputError("run: ", InputError("town.nc: ", words))
    outer = pickle.loads(pickle.dumps(error))
    assert str(outer) == "run: town.nc: give service='DL Traffic (GB)', or allow_gaps=True"
    assert outer.typed == "run: town.nc: give --service 'DL Traffic (GB)', or --allow-gaps"


def test_a_log_record_is_worded_for_both():
    record = logging.LogRecord("a", 20, "", 1, "%s: %d; %s", ("a", 7, Words("no {lr}")), None)
    assert record.getMessage() == "a: 7; no lr"
    assert log_text(record) == CommandFormatter().format(record) == "a: 7; no --lr"
    assert for_command(7) == 7
    of_dictionary = logging.LogRecord("a", 20, "", 1, "seen %s", ({"b": 1},), None)
    assert log_text(of_dictionary) == "seen {'b': 1}"


def test_what_others_sent_is_one_line_in_a_log():
    foreign = "\x1b[2J\u202e\n" + "x" * 10_000
    record = logging.LogRecord("a", 20, "", 1, "%s", (foreign,), None)
    line = CommandFormatter().format(record)
    assert len(line) <= 4000
    assert line.isprintable()


def test_no_unit_or_name_of_a_file_controls_the_terminal(tmp_path, capsys):
    units, time = "MB\x1b]0;owned\x07\x9b2J", pd.date_range("2024-01-01", periods=48, freq="h")
    values = np.random.default_rng(0).random((48, 2))
    cube = make_cube({"net": values}, time, ["a\x1b[2J", "b"], title="\x1b[2J", source="",
                     license="", units=units)  # fmt: skip
    path = write_cube(cube, tmp_path / "a.nc")
    for words in (["info", path], ["run", "--data", path, "--service", "x", "--out", tmp_path]):
        with pytest.raises(SystemExit):
            cli.main([*map(str, words)])
        said = "".join(capsys.readouterr())
        assert "\x1b" not in said
        assert "\x9b" not in said
        assert "net" in said


def test_python_is_told_of_parameters_where_a_value_does_not_follow():
    hours = pd.date_range("2024-01-01", periods=24 * 14, freq="h")
    table = pd.DataFrame({"a": np.random.default_rng(0).random(len(hours))}, index=hours)
    settings = {"horizon": 2, "rounds": 1, "lr": 1e30, "optimizer": "sgd"}
    with pytest.raises(InputError, match="smaller lr ") as e:
        Forecaster("fedavg", **settings).fit(table)
    assert e.value.typed.endswith("; a smaller --lr keeps values finite")


def test_errors_are_lines_of_json_if_notices_are(capsys):
    for words in (["run", "--data", "none.nc", "--out", "x"], ["run", "--lrr", "1"]):
        with pytest.raises(SystemExit) as e:
            cli.main(["--log-format", "json", *words])
        assert e.value.code == 2
        line = json.loads(capsys.readouterr().err)
        assert line["level"] == "error"
        assert "none.nc: no" in line["message"] or "--lrr" in line["message"]
