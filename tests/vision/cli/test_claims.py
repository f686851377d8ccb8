"""A paper's claims, and the answers that finished runs give."""

import pytest

from data_prep.base.errors import InputError
from stforecast.bench.grid import load_grid
from stforecast.bench.run_groups import group_runs
from stforecast.bench.statistics.estimate import Estimate
from stforecast.bench.tables import in_markdown
from vision.cli.compare import (
    HOLDS,
    NOT,
    TO_TELL,
    UNTOLD,
    answers,
    parse_claims,
    verdict,
)
from vision.cli.kind import IMAGE_KIND
from vision.comparison import level, points_above, rows_of

LABELS = ["solo", "α = 0.3", "α = 0.3 (nearest)", "chance"]


def lines(claims, runs):
    """Cells of each row of the table of answers."""
    table, _ = answers(claims, runs)
    return [list(row.values()) for row in table]


def test_a_claim_is_answered_for_each_data_set(outcome):
    runs = outcome[0].runs
    tables = [
        {"says": "PFPL is better", "row": "α = 0.3", "over": ["solo", "α = 0.3 (nearest)"]},
        {"says": "more than nothing", "row": "α = 0.3", "least": -1},
        {"says": "by more than all", "row": "solo", "over": ["α = 0.3"], "by": 100},
        {"says": "than guesses", "row": "solo", "over": ["chance"]},
    ]
    found = lines(parse_claims(tables, LABELS, ()), runs)
    assert [cells[0] for cells in found] == [
        says for says, n in zip([t["says"] for t in tables], [2, 2, 2, 2], strict=True)
        for _ in range(n)
    ]  # fmt: skip
    assert [cells[3] for cells in found[2:6]] == [HOLDS, HOLDS, NOT, NOT]
    assert [cells[2].partition("; claimed ")[2] for cells in found[:6]] == [
        "", "", "-1", "-1", "100", "100",
    ]  # fmt: skip
    assert found[7][2:] == ["not run: chance", UNTOLD]
    for cells in found[:2]:
        some = [run for run in runs if run.data_name == cells[1]]
        row = {r.name: r for r in rows_of(group_runs(some))}
        own = level(row["α = 0.3"], "all classes")
        above = [
            points_above(row["α = 0.3"], row[name], "all classes") for name in tables[0]["over"]
        ]
        assert cells[2] == (
            f"α = 0.3: {own}; points above solo {above[0]}; α = 0.3 (nearest) {above[1]}"
        )
        assert cells[3] == verdict(above, 0)


@pytest.mark.repeats
def test_a_claim_may_be_about_the_better_model_of_a_method(outcome):
    runs = outcome[0].runs
    table = {"says": "alone is better", "row": "solo", "over": ["α = 0.3"], "better": True}
    for mirrored in (table, table | {"row": "α = 0.3", "over": ["solo"]}):
        found = lines(parse_claims([mirrored], LABELS, ()), runs)
        for _, data, here, _ in found:
            rows = rows_of(group_runs([run for run in runs if run.data_name == data]))
            models = [row for row in rows if row.name.startswith("α = 0.3")]
            best = max(models, key=lambda row: level(row, "all classes").value)
            assert len(models) > 1
            assert f"{best.name}: " in here or f"above {best.name} " in here


def test_a_claim_may_be_about_several_scenarios(outcome):
    runs, scenarios = outcome[0].runs, ("n = 2", "n = 3")
    claims = [
        {"says": "more classes help", "row": "solo", "rising": list(scenarios)},
        {"says": "hardly", "row": "solo", "rising": list(scenarios[::-1]), "by": -100},
    ]
    parsed = parse_claims(claims, LABELS, scenarios)
    found = lines(parsed, runs)
    assert [cells[1] for cells in found] == [runs[0].about["data"]] * 2
    some = [run for run in runs if run.data_name.endswith("n = 2")]
    others = [run for run in runs if run.data_name.endswith("n = 3")]
    two, three = (
        next(row for row in rows_of(group_runs(own)) if row.name == "solo")
        for own in (some, others)
    )
    above = points_above(three, two, "all classes", alike=False)
    assert above.value == pytest.approx(100 * (three.accuracy - two.accuracy))
    assert found[0][2] == (
        f"solo: n = 2 {level(two, 'all classes')}, n = 3 {level(three, 'all classes')}; "
        f"points above the one before: n = 3 {above}"
    )
    assert found[0][3] == verdict([above], 0)
    assert found[1][3] == HOLDS


def test_a_scenario_that_was_not_run_cannot_be_told(outcome):
    runs = [run for run in outcome[0].runs if run.data_name.endswith("n = 2")]
    claim = {"says": "more classes help", "row": "solo", "rising": ["n = 2", "n = 3"]}
    found = lines(parse_claims([claim], LABELS, claim["rising"]), runs)
    assert found[0][2:] == ["not run: n = 3", UNTOLD]


def test_a_claim_without_intervals_or_common_seeds_cannot_be_told():
    nan = float("nan")
    assert verdict([Estimate(5.0, nan, nan)], 0) == UNTOLD
    assert verdict([Estimate(5.0, 4.0, 6.0), None], 0) == UNTOLD
    assert verdict([Estimate(0.0, 0.0, 0.0)], 0) == NOT


@pytest.mark.parametrize(
    ("found", "least", "seeds"),
    [
        ([Estimate(2, -2, 6)], 0, 12),
        ([Estimate(2, -2, 6), Estimate(8, -1, 17)], 0, 12),
        ([Estimate(9, 1, 17), Estimate(-2, -6, 2), None], 0, 12),
        ([Estimate(12, 8, 16)], 10, 12),
        ([Estimate(2, 0, 4)], 0, 4),
        ([Estimate(8, 4, 12)], 0, None),
        ([Estimate(5, float("nan"), float("nan")), None], 0, None),
        ([], 0, None),
    ],
)
def test_seeds_that_might_tell_narrow_the_interval_to_what_is_claimed(found, least, seeds):
    answer = verdict(found, least, 3)
    assert getattr(answer, "kept", {}).get(TO_TELL) == seeds


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ('says = "a"\nrow = "solo"\nover = ["sole"]', "claim 'a': unknown label 'sole'"),
        (
            'says = "a"\nrow = "solo"',
            "claim 'a' needs one of over, the rows that it is above, rising, two or more ",
        ),
        ('says = "a"\nleast = 1', "a claim has no row"),
        ('says = "a"\nrow = "solo"\nleast = 1\namong = ["some"]', "unknown classes 'some'"),
        ('says = "a"\nrow = "solo"\nleast = "x"', "least is 'x'"),
        ('says = "a"\nrow = "solo"\nrising = ["n = 3"]', "claim 'a' needs one of over"),
        (
            'says = "a"\nrow = "solo"\nrising = ["n = 3", "n = 9"]\n[scenarios]\n"n = 3" = {}',
            "claim 'a': unknown scenario 'n = 9'; choose one of: n = 3",
        ),
        ('row = "solo"\nleast = 1', "a claim has no says"),
        ('says = "a"\nrows = "solo"', "unknown field of a claim 'rows'; choose one of: among,"),
    ],
)
def test_mistakes_are_named(write_grid, claim, message):
    path = write_grid(tables=f"[[claims]]\n{claim}")
    with pytest.raises(InputError) as e:
        load_grid(path)
    assert message in str(e.value)
    assert str(path) in str(e.value)


def test_the_page_of_a_benchmark_has_the_answers(write_grid, outcome):
    claim = '[[claims]]\nsays = "PFPL is better"\nrow = "α = 0.3"\nover = ["solo"]'
    grid = load_grid(write_grid(tables=claim))
    parts = IMAGE_KIND.results_parts(grid, outcome[0].runs, {})
    assert parts[-2:] == answers(grid.claims, outcome[0].runs)
    assert "| PFPL is better" in in_markdown(parts)
