"""Words that plain English hardly needs: how often they stand in 10,000 words may only fall."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("data_prep", "stforecast", "vision", "experiments")

PLAIN = {
    r"(?:that|those) of": "a genitive, a preposition, or the noun again: the server's, as in, from",
    r"(?:told|says|said)": "names, lists, shows, has, reports; differ significantly",
    r"(?:anew|alike|alone)": "again; similar, equally; only, by itself, local",
    r"(?:and|as|at|by|for|from|in|is|of|on|or|than|to|with) what": "the noun: the fault, output",
    r"of (?:which|whose)": "a second sentence, or: whose, where, that",
    r"beside": "next to, in the folder of, besides",
}
"""Words as patterns, and what to write instead."""

MOST = {
    "docstrings": dict(zip(PLAIN, (16.7, 3.6, 6.1, 8.4, 2.9, 2.8), strict=True)),
    "documents": dict(zip(PLAIN, (0.7, 1.4, 1.4, 1.8, 0.4, 0.7), strict=True)),
}
"""Occurrences in 10,000 words; never raise one. Darts has 2.3, 1.8, 0.2, 0.6, 0.6 and 0."""


def docstrings():
    for path in (p for package in PACKAGES for p in (ROOT / package).rglob("*.py")):
        yield path, "\n\n".join(re.findall(r'"""(.+?)"""', path.read_text(), re.S))


def documents():
    """Prose only: no code, tables or comments."""
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        text = re.sub(
            r"^```.*?^```$|<!--.*?-->|^(\|| {4}).*?$", "", path.read_text(), flags=re.M | re.S
        )
        yield path, text


def places(texts, pattern):
    """How often a pattern occurs in 10,000 words, and where."""
    words, found = 0, []
    for path, text in texts:
        plain = re.sub(r"`[^`]*`|\]\([^)]*\)", "`", text)
        words += len(plain.split())
        spaced = pattern.replace(" ", r"\s+")
        hits = re.finditer(rf"\b{spaced}\b", plain, re.I)
        found += [f"{path.relative_to(ROOT)}: …{plain[: m.end()][-40:]}" for m in hits]
    return 10_000 * len(found) / words, found


def test_words_are_counted_across_lines_but_not_in_code_or_links():
    text = "Like that\nof `those of` [a](beside.md)"
    assert places([(ROOT / "a.md", text)], "(?:that|those) of")[0] == 10_000 / 5
    assert places([(ROOT / "a.md", text)], "beside")[0] == 0


@pytest.mark.parametrize("kind", MOST)
def test_words_that_have_a_plainer_form_do_not_become_more(kind):
    texts = list({"docstrings": docstrings, "documents": documents}[kind]())
    for pattern, most in MOST[kind].items():
        share, found = places(texts, pattern)
        assert share <= most, (
            f"{pattern}: {share:.2f} > {most} in 10,000 words of {kind}; in the lines that you "
            f"change, write {PLAIN[pattern]}. Some of {len(found)} places: {found[:20]}"
        )
