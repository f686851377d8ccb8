import io
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from data_prep.base.errors import InputError
from experiments.docs import RESULT_TABLES
from experiments.site import forecasts, images, tables
from experiments.site.markdown import MOST_BYTES, shrunk
from experiments.site.measured import (
    NAMES,
    RESULTS,
    benchmarks_of,
    of_page,
    pages,
    read_benchmark,
)
from experiments.site.results import gather, updated, with_answers
from experiments.site.tables import AGAINST, POINTS, side
from stforecast.bench.kept import ARCHIVE
from vision.cli.compare import HOLDS, TO_TELL, UNTOLD

PAPERS = RESULTS.parent / "papers"

PAGE = """# Page

<!-- benchmarks: {names} -->

words

![shown](../figures/one-a-cdf.png)

<!-- made: generated -->
<!-- made: end -->
"""


def estimate(name, value, low, high):
    """The columns of an estimate."""
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def compared(method, mse, against=None, p=None):
    """A row of a table of comparisons with fuels."""
    row = {"reference": "fuels", "method": method, **estimate("MSE [95 %]", *mse)}
    return row | ({"p": p, **estimate("against reference, %", *against)} if against else {})


HEADING = "**milan, calls**: 25 cells, 3 folds, 1 step(s) ahead, z-scores by cell"
FUELS = compared("fuels", (0.20, 0.18, 0.22))


def compared_parts(poor=(400, 300, 500), solo=(20, 5, 40), p=0.2, heading=HEADING):
    """The parts of a benchmark of forecasts."""
    return [
        heading,
        [
            {"method": "solo", "runs": 2, "MSE": 0.24, "MSE_sd": 0.001},
            {"method": "boosted", "pools": "yes", "runs": 2, "MSE": 0.18},
            {"method": "fuels", "runs": 2, "MSE": 0.20, "MSE_sd": 0.001},
            {"method": "poor", "runs": 2, "MSE": 1000},
            {"method": "half", "runs": 2, "MSE": 0.21},
        ],
        [
            compared("boosted", (0.18, 0.16, 0.20), (-10, -20, -5), 0.01),
            FUELS,
            compared("solo", (0.24, 0.22, 0.26), solo, p),
            compared("poor", (900, 800, 1000), poor, 0.01),
        ],
        "On milan, **fuels** has a lower error than poor (-80 % [-90, -75]).",
        "Ablations:",
        [FUELS, compared("half", (0.21, 0.20, 0.22), (5, 1, 10), 0.04)],
    ]


def read(*parts):
    """The benchmark of these parts."""
    return read_benchmark({"title": "A", "facts": {"seeds": "1, 2"}, "parts": parts})


COMPARED = read(*compared_parts())


@pytest.fixture
def benchmark(tmp_path):
    """Writes what a benchmark leaves behind."""

    def make(name, title, *parts):
        folder = tmp_path / "runs" / name
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), "red").save(folder / "figures" / "a-cdf.png")
        about = {
            "title": title,
            "command": f"stforecast bench a.toml --out {name}",
            "facts": {"written": "2026-11-22 15:15 UTC", "seeds": "1, 2"},
            "parts": parts or ["**pacs**: 3 clients"],
        }
        (folder / "table.json").write_text(json.dumps(about))
        return folder

    return make


@pytest.fixture
def results(tmp_path):
    """A folder of two pages."""
    folder = tmp_path / "docs" / "results"
    folder.mkdir(parents=True)
    for name, names in {"one": "one, both*", "two": "two*"}.items():
        text = PAGE.format(names=names).replace("# Page", f"# Page {name}")
        (folder / f"{name}.md").write_text(text)
    return folder


def test_benchmarks_are_gathered_beside_the_pages_that_name_them(benchmark, results):
    gather(
        [benchmark("one", "First"), benchmark("two_x", "Second"), benchmark("both", "Third")],
        results,
    )
    text = (results / "one.md").read_text()
    assert "\nwords\n" in text
    items = re.findall('^- <a id="(.*)"></a>(.*)$', text, re.M)
    assert items == [("one", "First"), ("both", "Third")]
    assert list(benchmarks_of(results / "one.md")) == ["one", "both"]
    assert list(benchmarks_of(results / "two.md")) == ["two_x"]
    assert [path.name for path in (results.parent / "figures").iterdir()] == ["one-a-cdf.png"], (
        "only figures that a page shows are kept"
    )


def test_sums_of_errors_are_kept_beside_the_page(benchmark, results):
    folder = benchmark("one", "First")
    (folder / ARCHIVE).write_bytes(b"sums")
    gather([folder, benchmark("both", "Second")], results)
    assert (results / "one" / "one.tar.xz").read_bytes() == b"sums"
    assert len([*results.rglob("*.tar.xz")]) == 1


def test_other_benchmarks_of_a_page_are_kept(benchmark, results):
    gather([benchmark("one", "First", *compared_parts()), benchmark("both", "Second")], results)
    before = benchmarks_of(results / "one.md")
    gather([benchmark("both", "Changed"), benchmark("both2", "Third")], results)
    after = benchmarks_of(results / "one.md")
    titles = [found.about["title"] for found in after.values()]
    assert titles == ["First", "Changed", "Third"]
    assert after["one"] == before["one"]


def test_tables_of_methods_become_one_with_every_cell():
    rows = {row["method"]: row for row in COMPARED.tables["methods"]}
    assert list(rows) == ["solo", "boosted", "fuels", "poor", "half"]
    assert rows["boosted"] == {
        "data": "milan, calls", "method": "boosted", "runs": 2, "MSE": 0.18, "pools": "yes",
        "MSE [95 %]": 0.18, "MSE [95 %]_low": 0.16, "MSE [95 %]_high": 0.20, "reference": "fuels",
        "against reference, %": -10, "against reference, %_low": -20,
        "against reference, %_high": -5, "p": 0.01,
    }  # fmt: skip
    assert [name for name, row in rows.items() if "ablation" in row] == ["half"]
    further = read(*compared_parts(), "Further models:", [{"method": "fuels (global)", "MSE": 0.3}])
    assert "ablation" not in further.tables["methods"][-1]
    assert COMPARED.about["facts"] == {"seeds": "1, 2"}
    assert COMPARED.about["data"] == {
        "milan, calls": "25 cells, 3 folds, 1 step(s) ahead, z-scores by cell"
    }
    assert COMPARED.about["said"] == [
        "On milan, **fuels** has a lower error than poor (-80 % [-90, -75])."
    ]


def body(text):
    """The cells of the first table of a text, without its heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_a_table_of_differences_is_bold_where_methods_are_told_apart():
    found = {"a": COMPARED}
    assert body(tables.differences(found)) == [
        ["boosted †", "**-10.0 [-20.0, -5.0]**"],
        ["fuels", "0.200 [0.180, 0.220]"],
        ["solo", "20 [5, 40]"],  # p is too large
        ["poor", "**400 [300, 500]**"],
    ]
    assert body(tables.differences(found, ablations=True)) == [
        ["fuels", "0.200 [0.180, 0.220]"],
        ["half", "**5.0 [1.0, 10.0]**"],
    ]


def test_a_table_has_15_rows_with_the_reference_among_them():
    rows = [compared(f"m{i:02}", (i, 0, 50), (i + 1, -1, 50), 0.9) for i in range(30)]
    found = {"a": read("**a, b**: 25 cells, 1 step ahead", [*rows, compared("fuels", (1, 0, 2))])}
    shown = body(tables.differences(found))
    assert len(shown) == tables.MOST_ROWS
    assert shown[0] == ["fuels", "1.0 [0.0, 2.0]"]
    assert shown[-1] == ["m13", "14 [-1, 50]"]
    named = body(tables.differences(found, shown=("m29",)))
    assert len(named) == tables.MOST_ROWS
    assert [row[0] for row in named[-2:]] == ["m12", "m29"]


def test_the_default_stands_by_data_set_and_by_test_part():
    parts = dict.fromkeys(("a", "b"), COMPARED)
    other = read(*compared_parts(heading=HEADING.replace("milan", "city")))
    shown = {row[0]: row[1:] for row in body(forecasts.standing({**parts, "c": other}))}
    assert shown["solo"] == ["20 [20, 20] %", "0", "3", "0"]
    assert shown["boosted †"] == ["-10 [-10, -10] %", "3", "0", "0"]
    of_mean, most = forecasts.against_best(tables.columns_of(parts))
    assert (str(of_mean), round(most, 1)) == ("11.1", 11.1)


def federated(method, mse, sent=None, against=None, p=None):
    """A row of a federated method, compared with fedlean."""
    row = {"reference": "fedlean", "method": method, "MSE": mse}
    row |= {"floats a round, up": sent} if sent else {}
    return row | ({"p": p, **estimate("against reference, %", *against)} if against else {})


FEDERATED = read(
    "**milan, calls**: 25 cells, 1 step(s) ahead, z-scores by cell",
    [
        federated("seasonal_day", 0.7, None, (300, 200, 400), 0.01),
        federated("fuels", 0.25, 6144, (25, 5, 50), 0.01),
        federated("fedlean", 0.20, 9000),
        federated("fedlean (global)", 0.30, 9000, (50, 20, 90), 0.01),
        federated("fedlean, inputs of fuels", 0.21, 2817, (5, -1, 10), 0.2),
    ],
)


@pytest.mark.repeats
def test_the_figure_of_floats_has_a_point_for_each_method_that_sends():
    found = {"federated": FEDERATED}
    assert forecasts.floats_figure(found).startswith(b"\x89PNG")
    sent = forecasts.sent_in_a_round(tables.columns_of(found)[0])
    assert sent == {"fuels": 6144, "fedlean": 9000, "fedlean, inputs of fuels": 2817}


def test_the_standing_of_the_default_is_what_the_sentences_say():
    """Counted from the intervals here, and by `stforecast bench` in words."""
    parts = of_page("default", "who_wins*")
    said = [text for found in parts.values() for text in found.about["said"]]
    shown = {row[0].removesuffix(" †"): row[2:] for row in body(forecasts.standing(parts))}
    for name, (lower, _, higher) in shown.items():
        for count, word in ((lower, "higher"), (higher, "lower")):
            texts = [text for text in said if f"has a {word} error than" in text]
            assert sum(f" {name} (" in text for text in texts) == int(count), (name, word)
    assert int(shown["solo, same inputs"][2]) > 0


def test_bounds_are_summed_up_with_the_furthest():
    def bounds(method, *numbers):
        columns = ("lowest client", "highest client", "below bounds", "above bounds")
        columns += ("furthest bound", "width")
        return {"method": method, **dict(zip(columns, numbers, strict=True))}

    def bounds_of(data, steps, lowest, below, furthest):
        return read(
            f"**{data}, calls**: 25 cells, {steps} steps ahead",
            [
                bounds("a, conformal", 0.7, 0.98, 0.01, 0.09, 0.5, 2000),
                bounds("a, normalised", lowest, 0.92, below, 0.05, furthest, 1000),
            ],
        )

    found = {
        "a": bounds_of("milan", 96, 0.85, 0.04, 1.25),
        "b": bounds_of("city", 168, 0.75, 0.06, 0.5),
    }
    assert body(tables.coverage(found)) == [
        ["milan", "96", "70.0–98.0", "**85.0–92.0**", "1.2"],
        ["city", "168", "70.0–98.0", "75.0–92.0", "0.5"],
    ]
    assert body(tables.bounds(found)) == [
        ["a, conformal", "0 of 2", "1.0 to 1.0", "9.0 to 9.0", "0.5", "-"],
        ["a, normalised", "1 of 2", "4.0 to 6.0", "5.0 to 5.0", "1.2", "-50 [-50, -50]"],
    ]


def test_of_a_method_for_images_the_best_model_is_shown():
    def row(method, accuracy, points=None):
        found = {"reference": "pfpl", "method": method, **estimate(tables.OWN[POINTS], *accuracy)}
        return found | (estimate(POINTS, *points) if points else {})

    accuracies = [
        row("fedavg", (40, 30, 50), (-20, -30, -10)),
        row("fedavg (trained)", (55, 50, 60), (-5, -10, 1)),
        row("pfpl", (60, 50, 70)),
        row("pfpl (nearest)", (62, 50, 70), (2, -1, 5)),
    ]
    claims = [
        {"claim": "it leads", "of": "pacs", "here": "a [1, 2]", "answer": HOLDS},
        {"claim": "it leads", "here": "not run", "answer": UNTOLD, TO_TELL: 11},
    ]
    found = {"a": read("**pacs**: 3 clients, 2 classes", accuracies, claims)}
    assert body(tables.points(found)) == [
        ["pfpl", "60 [50, 70]"],
        ["fedavg (trained)", "-5.0 [-10.0, 1.0]"],
    ]
    counted = {"tests": 1, "hold": 1, "fail": 0, "undecided": 0, "soon": 0}
    assert images.claims_counted(found) == counted


@pytest.mark.parametrize(
    ("seeds", "told"),
    [
        ({}, ""),
        ({TO_TELL: 12}, " (12)"),
        ({TO_TELL: 101}, " (> 100)"),
    ],
)
def test_what_cannot_be_told_says_how_many_seeds_might_tell(seeds, told):
    assert images.seeds_to_tell({"answer": UNTOLD, **seeds}) == told


def test_answers_to_claims_stand_on_the_papers_page_too(benchmark, results):
    paper = results.parent / "papers" / "one.md"
    paper.parent.mkdir()
    paper.write_text("# Paper\n\n<!-- answers: generated -->\nold\n<!-- answers: end -->\nwords\n")

    def claims(data):
        first = {"claim": "first", "of": data, "here": "a [1, 2]", "answer": HOLDS}
        return [first, {**first, "claim": "second", "answer": UNTOLD, TO_TELL: 12}], "note"

    folders = [
        benchmark("one", "First", *claims("milan [1]")),
        benchmark("both", "Second", *claims("city")),
    ]
    gather(folders, results)
    one, two = "[milan [1]](../results/one.md#one)", "[city](../results/one.md#both)"
    assert re.sub(" +", " ", paper.read_text()).splitlines()[3:] == [
        f"| claim | {one} | {two} |",
        *re.findall(r"^\|-.*", paper.read_text(), re.M),
        "| first | holds | holds |",
        "| second | undecided (12) | undecided (12) |",
        "<!-- answers: end -->",
        "words",
    ]


def test_the_papers_pages_answer_as_the_tables_do():
    answered = [page for page in PAPERS.glob("*.md") if "<!-- answers: gen" in page.read_text()]
    assert {page.stem for page in answered} == {"gldp", "fedta", "pfpl"}
    for page in answered:
        text = page.read_text()
        assert with_answers(text, RESULTS / page.name) == text, f"{page.name}: answers"
        answers = ("| holds", "| does not hold", "| undecided")
        assert sum(map(text.count, answers)) > 3


def test_what_is_no_benchmark_is_refused(benchmark, results, tmp_path):
    folder = benchmark("one", "First")
    with pytest.raises(InputError, match="same name"):
        gather([folder, folder], results)
    with pytest.raises(InputError, match=r"^new: .*\(one.md, two.md\)"):
        gather([benchmark("new", "Fourth")], results)
    (results / "three.md").write_text(PAGE.format(names="*"))
    with pytest.raises(InputError, match=r"^one: .*benchmark"):
        gather([folder], results)
    (folder / "table.json").unlink()
    with pytest.raises(InputError, match=r"table.json: .*nothing"):
        gather([folder], results)


def test_the_pages_are_as_they_would_be_written_today():
    every = pages(RESULTS)
    assert {f"results/{page.name}" for page in every} == {
        page for page, _ in RESULT_TABLES.values()
    }
    for page in every:
        text = page.read_text()
        assert updated(text, page) == text, f"{page.name}: run python -m experiments.docs"
        assert len(NAMES.findall(text)) == 1
        for figure in re.findall(r"\(\.\./(figures/.*?)\)", text):
            assert (RESULTS.parent / figure).is_file()
    index = (RESULTS / "index.md").read_text()
    assert all(f"]({page.name}" in index for page in every)
    nav = (Path(__file__).parents[3] / "mkdocs.yml").read_text()
    assert all(f"results/{page.name}" in nav for page in every)


def test_a_page_has_tables_of_at_most_15_rows_and_one_figure():
    for page in pages(RESULTS):
        text = page.read_text()
        for table in text.split("generated -->\n|")[1:]:
            assert table.partition("\n<!--")[0].count("\n") <= tables.MOST_ROWS + 1, page.name
        assert text.count("![") <= 1, page.name
        assert "{" not in text, page.name
    assert sum(len(page.read_text().split()) for page in RESULTS.glob("*.md")) < 12_000


def better(found, name=AGAINST):
    """The methods that are significantly better than the reference, by data; none that pool."""
    sign = 1 if name == POINTS else -1
    return [
        {m for m, row in column.rows.items() if side(row, name) == sign and "pools" not in row}
        for column in found
    ]


def differences(page, *names, ablations=False):
    return tables.compared_forecasts(of_page(page, *names), ablations=ablations)


def points(page, *names):
    return tables.best_models(of_page(page, *names))


def test_what_the_pages_say_of_forecasts_holds_in_their_tables():
    for page, names in (("default", "who_wins*"), ("peers", "*")):
        records = forecasts.records_of(of_page(page, names))
        assert not any(record.lower for record in records.values()), page
        _, most = forecasts.against_best(tables.columns_of(of_page(page, names)))
        assert (most < 0) == (page == "peers")
    records = forecasts.records_of(of_page("prototypes", "prototypes_[!f]*"))
    rivals = ("ridge alone", "solo", "fedavg", "fedavg linear")
    trained = [record for m, record in records.items() if m.removesuffix(", same inputs") in rivals]
    assert [r.lower for r in trained] == [0] * 4
    assert all(r.higher for r in trained)
    assert better(differences("milan", "federated", "federated_day")) == [set(), set()]
    slow = differences("milan", "slow_clients")[0].rows
    upper = {m: row[f"{AGAINST}_high"] for m, row in slow.items() if AGAINST in row}
    assert all(upper[m] < 2 for m in ("fedbuff", "fedasync, polynomial"))
    lower = better(differences("fuels", "fuels_*"))
    assert lower == [{"fedda", "fedprox", "fedavg", "fedrep"}, set(), {"solo"}]
    assert not any(
        side(r) for c in differences("fuels", "*", ablations=True) for r in c.rows.values()
    )
    for row in tables.changes(of_page("mixed-precision", "*")):
        both = [row[n].kept for n in ("float32", "bf16")]
        assert abs(both[0]["{}"] - both[1]["{}"]) <= max(of["{}_sd"] for of in both)


def test_what_the_page_on_bounds_says_holds_in_its_table():
    columns = tables.columns_of(of_page("intervals", "*"))
    held = {m: sum(tables.holds(c.rows[m]) for c in columns) for m in columns[0].rows}
    assert all(((n > 11) == m.endswith("normalised") and n < 4) or n > 11 for m, n in held.items())
    none = [c.about for c in columns if not any(map(tables.holds, c.rows.values()))]
    assert none == ["milan88, 88 cells, 168 steps ahead", "dense, 60 cells, 24 steps ahead"]


def test_what_the_page_on_operators_says_holds_in_its_table():
    rows = [r for b in of_page("operators", "operators_m*").values() for r in b.tables["clients"]]
    closed = {int(r["clients"]): r for r in rows if "fedavg, gap closed, %_high" in r}
    assert {r["data"].partition(",")[0] for r in closed.values()} == {"milan88"}
    assert closed.keys() == {16, 88}
    assert all(r["fedavg, gap closed, %_high"] > 100 for r in closed.values())


def test_what_the_page_says_of_clients_that_differ_holds_in_its_table():
    (found,) = of_page("operators", "operators_degrees").values()
    rows = sorted(found.tables["clients"], key=lambda row: row["levels, bits"])
    assert len(rows) == 3
    for method in ("fedavg", "fedper", "fedproto"):
        gains = [
            (-r[f"{method}, against alone, %_high"], -r[f"{method}, against alone, %_low"])
            for r in rows
        ]
        assert all(low > 0 for low, _ in gains)
        assert max(low for low, _ in gains) < min(high for _, high in gains)
        assert all(2 < -r[f"{method}, against alone, %"] < 4 for r in rows)
    sent = {
        r["method"]: r["floats a round, up"]
        for r in found.tables["methods"]
        if "floats a round, up" in r
    }
    assert sent["fedavg, α = 1"] / sent["fedproto, α = 1"] == pytest.approx(17, abs=0.5)


def test_what_the_pages_say_of_images_holds_in_their_tables():
    fedta = better(points("fedta", "fedta_table1", "fedta_office"), POINTS)
    named = {"linear_probe_local", "fedvit, standardised", "glfc"}
    assert set.intersection(*fedta) == named | {"fedta, no prompts, w/o TA (personal)"}
    prompts = {"linear_probe_local", "fedta w/o TA", "fedmgp (personal)"}
    assert better(points("fedta", "fedta_with_prompts"), POINTS) == [prompts]
    gldp = better(points("gldp", "gldp_table*", "gldp_mnist"), POINTS)
    assert set.union(*gldp) == {"w/o L_LP (λ = 0) (local averaged)"}
    assert better(points("pfpl", "pfpl_digits", "pfpl_pacs"), POINTS) == [set()] * 3
    later = better(points("pfpl", "pfpl_rounds"), POINTS)
    own = {"apfl (global trained)", "ditto (global trained)", "fedavg (trained)"}
    assert later == [set(), own, own]


def test_what_the_page_of_operation_says_of_deliveries_was_found():
    rows = pd.read_csv(RESULTS / "deliveries.csv").query("kind in ('-1 h', '+1 h')")
    assert 0.4 < rows["found"].sum() / rows["n"].sum() < 0.6
    assert not rows.query("data == 'Milan, 10 min'")["found"].any()


@pytest.mark.slow
def test_a_figure_shrinks_until_it_is_small_enough(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (700, 900, 3), dtype=np.uint8)
    path = tmp_path / "a.png"
    Image.fromarray(noise).save(path)
    small = shrunk(path)
    assert len(small) <= MOST_BYTES
    with Image.open(io.BytesIO(small)) as image:
        assert image.width < 900
        assert image.width / image.height == pytest.approx(9 / 7, rel=0.02)
    Image.new("RGB", (900, 700), "red").save(path)
    with Image.open(io.BytesIO(shrunk(path))) as image:
        assert image.size == (900, 700)
