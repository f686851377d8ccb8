"""Parts of the guides on security, federation and performance, from made-up measurements."""

import json

import pytest

from experiments.benchmarks.frame import Results
from experiments.benchmarks.growth import draw_growth, slopes_of
from experiments.benchmarks.serving import draw_exceedance
from experiments.site import guides, numbers
from experiments.site.guides import OURS


@pytest.fixture
def measured(tmp_path, monkeypatch):
    monkeypatch.setattr(guides, "RESULTS", tmp_path)
    return tmp_path


def rows_of(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_a_path_of_a_round_has_its_better_number_of_threads():
    """It is compared with the loop that is the fastest for a client, here that of 10."""
    seconds = {10: {"loop": [0.02], OURS: [0.01]}, 1000: {"loop": [4.0, 3.0], OURS: [1.5, 1.0]}}
    rows = [
        {"clients": n, "variant": variant, "threads": threads, "seconds": s, "share": 0.4 / s}
        for n, of_variants in seconds.items()
        for variant, times in of_variants.items()
        for threads, s in enumerate(times, start=1)
    ]
    assert rows_of(guides.rounds_table(rows)) == [
        ["10", "0.02", "0.01 (2.0×)", "4000%"],
        ["1,000", "3", "1 (2.0×)", "40%"],
    ]


def test_images_are_compared_at_the_better_number_of_threads_and_by_time_of_one():
    loop, ours = "loop over clients", "ours"
    times = [(loop, 1, 8.0, 8.0), (loop, 2, 5.0, 9.0), (ours, 1, 4.0, 3.2), (ours, 2, 2.0, 3.9)]
    rows = [
        {"model": "m", "path": path, "threads": n, "step_ms": ms, "cpu_ms": cpu}
        for path, n, ms, cpu in times
    ]
    assert rows_of(guides.images_table(rows)) == [["m", "8", "3.2", "2.50×", "5", "2", "2.50×"]]


@pytest.mark.repeats
def test_slopes_of_growth_are_those_of_powers(measured):
    rows = [
        {"method": m, "clients": n, "seconds": n**0.5, "memory_gb": 3 * n**power}
        | {"participant_ms": 1.0}
        for m, power in (("fedavg", 0.25), ("fuels", 1.0))
        for n in (10, 100, 1000)
    ]
    assert slopes_of(rows, "seconds") == pytest.approx({"fedavg": 0.5, "fuels": 0.5})
    assert slopes_of(rows, "memory_gb") == pytest.approx({"fedavg": 0.25, "fuels": 1.0})
    Results(measured / "growth.json").add(*rows)
    assert guides.figure_of("growth", draw_growth).startswith(b"\x89PNG")


def test_a_measured_table_tells_where_and_when_it_was_measured(measured, monkeypatch):
    Results(measured / "some.json", {"rate": 1000.0}).add({"a": 0.5})
    about = json.loads((measured / "some.json").read_text())["machine"]
    text = guides.measured("some", {"a": ("A", ".2f")})
    assert all(about[key] in text for key in ("processor", "torch", "date"))
    assert rows_of(text) == [["0.50"]]
    monkeypatch.setattr(numbers, "RESULTS", measured)
    assert numbers.Numbers()["some.rate"] == "1,000"
    with pytest.raises(KeyError, match=r"none\.rate: "):
        numbers.Numbers()["none.rate"]


def test_kills_are_counted_by_what_was_killed(measured):
    runs = [{"difference": 0.02, "missed": 0.25, "finished": True}, {"difference": 0.0}]
    kills = [{"target": "north", "seconds": s} for s in (50.0, 60.0, 90.0)]
    for target, killed in (("node", kills), ("server", [{"target": "superlink"}] * 2)):
        Results(
            measured / f"kills-{target}.json", {"rounds": 6, "runs": runs, "kills": killed}
        ).add()
        (measured / "federation").mkdir(exist_ok=True)
        (measured / f"kills-{target}.json").rename(measured / f"federation/kills-{target}.json")
    assert rows_of(guides.kills_table()) == [
        ["2 of `superlink`", "2", "2 of 6 rounds", "2", "-", "-", "12", "2.0"],
        ["nodes", "3", "2 of 6 rounds", "2", "60", "50 to 90", "12", "2.0"],
    ]


def test_kills_of_the_server_changed_nothing():
    runs = guides.found_in("federation/kills-server")["runs"]
    assert [(run["difference"], run["left_out"]) for run in runs] == [(0, 0)] * len(runs)


def test_attacks_are_counted_by_kind_and_outcome(tmp_path, monkeypatch):
    monkeypatch.setattr(guides, "RESULTS", tmp_path)
    (tmp_path / "federation").mkdir()
    found = {"replay": {"passed": 3}, "forged score": {"passed": 2, "failed": 1, "skipped": 4}}
    (tmp_path / "federation" / "attacks.json").write_text(json.dumps(found))
    assert rows_of(guides.attacks_table()) == [
        ["forged score", "2", "1", "4"],
        ["replay", "3", "0", "0"],
    ]


@pytest.mark.repeats
def test_probabilities_of_exceeding_a_threshold_have_a_curve_of_each_rule():
    for row in guides.found_in("intervals/exceedance")["rows"]:
        said = [row[f"at_{i}"] for i in range(5) if row[f"at_{i}"] is not None]
        assert said == sorted(said), "bins are those of what was said"
    assert guides.figure_of("intervals/exceedance", draw_exceedance).startswith(b"\x89PNG")
