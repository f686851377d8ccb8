"""Every line that the runbook quotes is one that the code prints."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

SOURCES = [
    *(ROOT / "stforecast" / "flower").glob("*.py"),
    *(ROOT / "stforecast" / "federated" / "nodes").glob("*.py"),
    *(ROOT / "stforecast" / "federated" / "runs").glob("*.py"),
    ROOT / "data_prep" / "base" / "errors.py",
]

ANY = "(.*)"
SHORT = 24
"""Longest value of a placeholder that is not looked for among the messages itself."""


def quoted():
    """The lines of the runbook's blocks of text."""
    page = (ROOT / "docs" / "runbook.md").read_text()
    found = re.findall(r"^```text\n([\s\S]*?)^```$", page, re.M)
    return [line for text in found for line in text.splitlines()]


def pattern_of(node):
    """A message's pattern, with a group for each value; empty without a message."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        parts = re.split(r"%%|%(?:\.\d+)?[dsgfr]", node.value)
        return ANY.join(map(re.escape, parts))
    if isinstance(node, ast.JoinedStr):
        return "".join(
            re.escape(v.value) if isinstance(v, ast.Constant) else ANY for v in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = pattern_of(node.left), pattern_of(node.right)
        return left + (right or ANY) if left else ""
    if isinstance(node, ast.Call):
        name, parts = ast.unparse(node.func), [pattern_of(part) for part in node.args]
        if name == "Words" and parts:
            return ANY.join(re.split(r"\\{[^}]*\\}", parts[0]))
        if name.endswith("Error") and any(parts):
            return "".join(part or ANY for part in parts)
    return ""


@cache
def patterns():
    """The patterns of all texts with enough words to be a message, the longest first."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            text = pattern_of(node)
            if re.search("[a-z]{4,}", text):
                found.add(text)
    return [re.compile(p) for p in sorted(found, key=len, reverse=True)]


def is_printed(line):
    """Whether a line is a message, and so are the longer texts that fill its placeholders."""
    for pattern in patterns():
        if found := pattern.fullmatch(line):
            values = [v for v in found.groups() if v and "…" not in v and " " in v]
            if all(len(v) <= SHORT or is_printed(v) for v in values):
                return True
    return False


def test_every_quoted_line_is_printed_by_the_code():
    lines = quoted()
    assert len(lines) > 25
    assert [line for line in lines if not is_printed(line)] == []


def test_an_invented_line_is_found():
    assert not is_printed("round 3 goes on without node 1: it has gone to the sea for some days")
    assert not is_printed("the node was lost and will never come back")


def test_metrics_and_files_that_are_named_are_written():
    page = (ROOT / "docs" / "runbook.md").read_text()
    flower = ROOT / "stforecast" / "flower"
    metrics = "".join((flower / name).read_text() for name in ("standing.py", "telemetry.py"))
    named = set(re.findall(r"`stforecast_(\w+)", page))
    assert len(named) > 4
    assert all(f'("{name}", ' in metrics for name in named)
