"""The product and its documents do not grow: limits in `[tool.stforecast]` of pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("data_prep", "stforecast", "vision", "experiments")


def product_lines():
    """Lines of all Python files of the packages, empty ones too."""
    files = (p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
    return sum(len(p.read_text().splitlines()) for p in files)


def document_words():
    """Words and numbers of all documents, also in code and tables."""
    files = (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    return sum(len(re.findall(r"\S*\w\S*", p.read_text())) for p in files)


@pytest.mark.parametrize("count", [product_lines, document_words])
def test_a_change_removes_as_much_as_it_adds(count):
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["stforecast"]
    found, most = count(), limits[count.__name__]
    assert found <= most, (
        f"{found} {count.__name__}, at most {most}: remove as many as you add; only a commit that "
        "says why may raise the number in pyproject.toml"
    )
