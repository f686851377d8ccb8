"""Parts of the guides on security, federation and performance, from made-up measurements."""

import json
import re

import pytest

from experiments.benchmarks.frame import Results
from experiments.benchmarks.growth import COLUMNS
from experiments.site import guides
from experiments.site.guides import OURS

TABLES = {
    "rounds": guides.rounds_table,
    "growth": guides.growth_table,
    "secure_sum": guides.secure_sum_table,
    "images": guides.images_table,
    "prepare": guides.prepare_table,
    "serve": guides.served_page_table,
    "city": guides.city_page_table,
    "growth-papers": guides.papers_growth_table,
    "raw-to-report": guides.raw_to_report_table,
}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.setattr(guides, "PERFORMANCE", tmp_path)
    return tmp_path


def rows_of(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_a_path_of_a_round_has_its_better_number_of_threads(measured):
    """It is compared with the loop that is the fastest for a client, here that of 10."""
    seconds = {10: {"loop": [0.02], OURS: [0.01]}, 1000: {"loop": [4.0, 3.0], OURS: [1.5, 1.0]}}
    rows = [
        {"clients": n, "variant": variant, "threads": threads, "seconds": s, "share": 0.4 / s}
        for n, of_variants in seconds.items()
        for variant, times in of_variants.items()
        for threads, s in enumerate(times, start=1)
    ]
    Results(measured / "rounds.json").add(*rows)
    text = guides.rounds_table()
    assert rows_of(text) == [["10", "0.02", "0.01 (2.0×)"], ["1,000", "3", "1 (2.0×)"]]
    assert "40% with 1,000 clients" in text


def test_images_are_compared_at_the_better_number_of_threads_and_by_time_of_one(measured):
    loop, ours = "loop over clients", "ours"
    times = [(loop, 1, 8.0, 8.0), (loop, 2, 5.0, 9.0), (ours, 1, 4.0, 3.2), (ours, 2, 2.0, 3.9)]
    rows = [
        {"model": "m", "path": path, "threads": n, "step_ms": ms, "cpu_ms": cpu}
        for path, n, ms, cpu in times
    ]
    Results(measured / "images.json", {"clients": 20}).add(*rows)
    assert rows_of(guides.images_table()) == [["m", "8", "3.2", "2.50×", "5", "2", "2.50×"]]


@pytest.mark.repeats
def test_slopes_of_growth_are_those_of_powers(measured):
    rows = [
        dict.fromkeys(COLUMNS, 1.0)
        | {"method": m, "clients": n, "seconds": n**0.5, "memory_gb": 3 * n**power}
        for m, power in (("fedavg", 0.25), ("fuels", 1.0))
        for n in (10, 100, 1000)
    ]
    rows = [{"method": r.pop("method"), "clients": r.pop("clients"), **r} for r in rows]
    settings = {"share": 0.1, "hidden_size": 8, "compared": 0, "memory": "1GB"}
    Results(measured / "growth.json", settings).add(*rows)
    text = re.sub(r"\s+", " ", guides.growth_table())
    assert "0.50 (`fedavg`) and 0.50 (`fuels`) for a round's seconds" in text
    assert "0.25 (`fedavg`) and 1.00 (`fuels`) for memory without files" in text
    assert guides.growth_figure().startswith(b"\x89PNG")


def test_the_papers_rounds_last_as_long_as_one_times_their_number(measured):
    row = {"method": "fuels", "clients": 10_000, **dict.fromkeys(list(COLUMNS)[2:], 1.0)}
    settings = {"share": 0.1, "hidden_size": 64, "memory": "2GB"}
    Results(measured / "growth-papers.json", settings).add(row | {"seconds": 6.0})
    assert rows_of(guides.papers_growth_table())[0][-1] == "20"


@pytest.mark.parametrize("name", TABLES)
def test_each_part_of_the_page_tells_where_and_when_it_was_measured(name):
    about = json.loads((guides.PERFORMANCE / f"{name}.json").read_text())["machine"]
    text = re.sub(r"\s+", " ", TABLES[name]())
    assert all(about[key] in text for key in ("processor", "torch", "date"))


def test_attacks_are_counted_by_kind_and_outcome(tmp_path, monkeypatch):
    monkeypatch.setattr(guides, "FEDERATION", tmp_path)
    assert "`pytest -m attack --attacks" in guides.attacks_table()
    found = {"replay": {"passed": 3}, "forged score": {"passed": 2, "failed": 1, "skipped": 4}}
    (tmp_path / "attacks.json").write_text(json.dumps(found))
    assert rows_of(guides.attacks_table()) == [
        ["forged score", "2", "1", "4"],
        ["replay", "3", "0", "0"],
    ]


@pytest.mark.repeats
def test_probabilities_of_exceeding_a_threshold_have_a_row_and_a_curve_of_each_rule():
    found = json.loads(guides.EXCEEDANCE.read_text())
    shown = guides.exceedance_table()
    assert all(f"| {row['rule']} " in shown for row in found["rows"])
    for row in found["rows"]:
        said = [row[f"at_{i}"] for i in range(5) if row[f"at_{i}"] is not None]
        assert said == sorted(said), "bins are those of what was said"
    assert guides.exceedance_figure().startswith(b"\x89PNG")
