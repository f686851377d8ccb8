"""What someone with images is told, from rows of a table."""

import pytest

from experiments.site import images
from experiments.site.images import FLOATS, cases_table, plain_rivals
from experiments.site.measured import Benchmark, chosen
from experiments.site.tables import POINTS

OWN = "all classes, % [95 %]"


def row(method, points, **more):
    ends = zip(("", "_low", "_high"), points, strict=False)
    found = {"data": "digits", "method": method, "reference": "ours"}
    return found | {f"{POINTS}{end}": value for end, value in ends} | more


ROWS = [
    row("ours", (), **{FLOATS: 100, OWN: 70, f"{OWN}_low": 60, f"{OWN}_high": 80}),
    row("solo", (-2.0, -5.0, 1.0), **{FLOATS: 0}),
    row("fedavg", (-9.5, -12.0, -3.1), **{FLOATS: 50}),
    row("fedavg (trained)", (3.0, 1.0, 5.0), **{FLOATS: 50}),
    row("ditto", (-1.5, -2, -1), **{FLOATS: 5}),
    row("central", (8, 1, 15), pools="yes"),
    row("chance", (-60, -70, -50)),
]


@pytest.fixture
def measured(monkeypatch):
    about = {"data": {"digits": "some"}}
    benchmark = Benchmark(about, {"methods": ROWS})
    found = {"pfpl_digits": benchmark}
    monkeypatch.setattr(images, "of_page", lambda page, name: chosen(found, [name]))


def cells(text):
    return [cell.strip() for cell in text.splitlines()[-1].strip("|").split("|")]


def test_the_paper_is_told_above_plain_rivals_with_its_sign(measured):
    *_, alone, averaged, own = cells(plain_rivals())
    assert (alone, averaged, own) == (
        "2.0 [-1.0, 5.0]",
        "**9.5 [3.1, 12.0]**",
        "**-3.0 [-5.0, -1.0]**",
    )


def test_a_case_names_what_is_better_and_the_cheapest_of_what_is_not_worse(measured):
    *_, paper, better, level, least = cells(cases_table())
    assert paper == "`ours` 70 [60, 80]"
    assert better == "`fedavg (trained)` 3.0 [1.0, 5.0]"
    assert level == "1 of 3"
    assert least == "`solo`, 0 floats a round"
