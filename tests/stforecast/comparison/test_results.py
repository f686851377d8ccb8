from pathlib import Path

import pytest
from mentions import mentions
from result_tables import results_table

from data_prep.base.errors import InputError
from stforecast.comparison.leaderboard import compare
from stforecast.comparison.results import summary


@pytest.fixture
def cells(tables):
    """Reads the rows of the first table."""
    return lambda text: tables(text)[0]


def test_seeds_are_averaged_with_their_standard_deviation(make_run, cells):
    runs = [make_run(seed=s, scores=(v, 2 * v), seconds=s) for s, v in ((1, 0.1), (2, 0.2))]
    (header, row) = cells(results_table(runs, {}))
    # The sample standard deviation of 0.1 and 0.2 is 0.1 / sqrt(2) = 0.0707.
    assert dict(zip(header, row, strict=True)) == {
        "method": "fuels",
        "runs": "2",
        "MSE": "0.1500 ± 0.0707",
        "round": "best",
        "MAE": "1.500 ± 0.707",
        "MAE, data units": "150.0 ± 70.7",
        "MASE": "0.3000 ± 0.1414",
        "floats a round, up / down": "100 / 200",
        "train s": "1.5",
        "predict s": "0.15",
    }


def test_all_numbers_are_of_the_model_that_predict_uses(make_run, tables):
    """The best round of the first is lower than anything else, but it keeps the last one."""
    kept = make_run("fedlean", select="last", scores=(0.1, 2.5))
    runs = [kept, make_run("solo", scores=(2.0, 9.0)), make_run("fedavg", scores=(3.0, 9.0))]
    assert [run.score() for run in runs] == [2.5, 2.0, 3.0]
    errors, compared = tables(results_table(runs, {}))[:2]
    assert [row[2:4] for row in errors[1:]] == [
        ["2.500", "last"], ["2.000", "best"], ["3.000", "best"],
    ]  # fmt: skip
    assert [(row[0], row[1].split()[0]) for row in compared[1:]] == [
        ("solo", "2"), ("fedlean", "2.5"), ("fedavg", "3"),
    ]  # fmt: skip
    for tested in (runs[0], runs[1]):
        ((board,), y_hat) = compare([tested], "mse"), tested.forecasts()["y_hat"]
        assert board.lines[0].error.value == pytest.approx(float((y_hat**2).mean()))
    assert "use the last round's model" in summary(kept)


def test_one_run_has_no_deviation(make_run, cells):
    assert cells(results_table([make_run(scores=(0.25, 0.5))], {}))[1][2] == "0.2500"


@pytest.mark.repeats
def test_runs_of_other_settings_are_rows_of_their_own(make_run, cells):
    runs = [make_run(tau=r, scores=(v, v)) for r, v in ((3, 1.0), (9, 2.0))]
    text = results_table(runs, {})
    assert [row[:3] for row in cells(text)[1:]] == [
        ["fuels (tau 3)", "1", "1.000"],
        ["fuels (tau 9)", "1", "2.000"],
    ]
    assert "differ in: tau." in text


@pytest.mark.repeats
def test_settings_that_all_rows_share_are_not_said_to_differ(make_run):
    text = results_table([make_run(seed=1), make_run("solo", seed=2, device="cuda")], {})
    assert "Rows differ" not in text


@pytest.mark.quick(2)
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "other", [{"split": "fedda"}, {"horizon": 3}, {"scale": "global"}, {"data": "b/town.nc"}]
)
def test_errors_on_other_test_parts_stand_in_tables_of_their_own(make_run, other, tables):
    text = results_table([make_run(), make_run(**other), make_run("solo")], {})
    assert [[row[0] for row in rows] for rows in tables(text)] == [
        ["method", "fuels", "solo"],
        ["method", "fuels", "solo"],  # the comparison
        ["method", "fuels"],
    ]
    assert text.startswith(
        "**milan, internet**: 25 cells, test part of `fuels`, 1 step ahead, z-scores by cell;"
    )
    second = text.split("**")[3:]
    assert str(next(iter(other.values()))).removeprefix("b/").removesuffix(".nc") in str(second)


def test_runs_that_keep_spikes_stand_in_a_table_of_their_own(make_run, tables):
    """Their z-scores have another scale, and spikes may be among their targets."""
    kept, other = make_run("solo", outliers="keep"), make_run()
    assert [row[0] for row in tables(results_table([other, kept], {}))[0]][1:] == ["fuels", "solo"]
    found = make_run("fedavg", about={"outliers": {"4259": 2}})
    text = results_table([found, kept, make_run("fuels", about={"outliers": {}})], {})
    assert [[row[0] for row in rows] for rows in tables(text)] == [
        ["method", "fedavg", "fuels"],
        ["method", "fedavg", "fuels"],
        ["method", "solo"],
    ]
    assert text.count("z-scores by cell, outliers kept;") == 1


@pytest.mark.repeats
def test_one_file_named_by_two_paths_is_one_test_part(make_run, tables):
    runs = [make_run(data="milan.nc"), make_run("solo", data=str(Path("milan.nc").absolute()))]
    found = tables(results_table(runs, {}))
    assert [[row[0] for row in rows] for rows in found] == [["method", "fuels", "solo"]] * 2


def test_pooled_methods_are_marked_and_methods_without_rounds_send_nothing(make_run, cells):
    names = ("solo", "central", "ridge", "boosting")
    runs = [make_run(m, federated=m in names[:2]) for m in names]
    text = results_table(runs, {})
    assert [(row[0], row[7]) for row in cells(text)[1:]] == [
        ("solo", "100 / 200"),
        ("central †", "-"),
        ("ridge", "-"),
        ("boosting †", "-"),
    ]
    assert text.endswith("\n\n† trained on the data of all cells together")


def test_a_method_with_a_global_model_has_a_row_for_it(make_run, cells):
    selections = ("best", "best (global)", "last", "last (global)")
    run = make_run("ditto", selections=selections, scores=(0.1, 0.2, 0.3, 0.4))
    assert [row[:4] for row in cells(results_table([run], {}))[1:]] == [
        ["ditto", "1", "0.1000", "best"],
        ["ditto (global)", "1", "0.2000", "best"],
    ]
    assert "best round, 2 (global)" in summary(run)


def test_rows_are_ranked_over_clients(make_run, tables):
    errors = {"solo": (1.0, 1.0), "fedavg": (2.0, 3.0), "fuels": (3.0, 2.0)}
    runs = [make_run(m, clients=dict(zip("ab", e, strict=True))) for m, e in errors.items()]
    text = results_table(runs, {})
    assert [(row[0], row[-1]) for row in tables(text)[1]] == [
        ("method", "rank"),
        ("solo", "1.00"),
        ("fedavg", "2.50"),
        ("fuels", "2.50"),
    ]
    # Friedman: 12 / (2 · 3 · 4) · (2² + 5² + 5²) - 3 · 2 · 4 = 3, and exp(-3 / 2) = 0.22.
    # Nemenyi: 2.343 · sqrt(3 · 4 / (6 · 2)) = 2.34.
    assert "over 2 clients" in text
    assert mentions(text, "p = 0.22;", "2.34", "0.05")
    assert "rank" not in results_table(runs[:2], {}).replace("of the rank", "")


def test_methods_are_compared_with_the_reference_and_sorted(make_run, tables):
    # Cells of errors 1 and 4 against 2 and 2: solo is higher by a quarter, and wins one of two.
    errors = {"solo": (1.0, 4.0), "fedavg": (2.0, 2.0), "fuels": (8.0, 8.0)}
    runs = [
        make_run(m, clients=dict(zip("ab", e, strict=True)), n_days=9) for m, e in errors.items()
    ]
    text = results_table(runs, {}, reference="fedavg")
    header, *rows = tables(text)[1]
    assert header[:4] == ["method", "MSE [95 %]", "against fedavg, %", "p"]
    assert [row[:4] for row in rows] == [
        ["fedavg", "2 [2, 2]", "-", "-"],
        ["solo", "2.5 [2.5, 2.5]", "25 [25, 25]", "0.0078"],
        ["fuels", "8 [8, 8]", "300 [300, 300]", "0.0078"],
    ]
    # Seasonal naive has errors of 4: ratios of 1/4 and 1, whose geometric mean is 1/2.
    skill, wins = (header.index(name) for name in ("skill in MSE, %", "wins, %"))
    assert [row[skill].split()[0] for row in rows] == ["50", "50", "-100"]
    assert [row[wins].split()[0] for row in rows] == ["75", "75", "0"]
    assert mentions(text, "**fedavg**", "solo (-20.0 % [-20.0, -20.0]); fuels (")
    assert mentions(text, "4 blocks", "(3 degrees")


@pytest.mark.repeats
def test_few_days_support_no_claim(make_run):
    runs = [make_run(m, scores=(v, v), n_days=5) for m, v in (("solo", 1.0), ("fuels", 2.0))]
    text = results_table(runs, {})
    assert mentions(text, "milan,", "**solo**")
    assert mentions(text, "fuels (-50.0 % [-50.0, -50.0]).", "5 test")
    assert "told apart" not in text


@pytest.mark.repeats
def test_ablations_and_further_models_stand_in_tables_of_their_own(make_run, tables):
    ablation = {"label": "w/o inter", "about": {"table": "Ablations"}}
    both = ("best", "best (global)", "last", "last (global)")
    runs = [
        make_run("fuels", scores=(1.0, 1.0)),
        make_run("ditto", selections=both, scores=(2.0, 3.0, 2.0, 3.0)),
        make_run("fuels", scores=(0.5, 0.5), inter=False, **ablation),
    ]
    text = results_table(runs, {})
    _, main, ablations, further = tables(text)
    assert [row[0] for row in main] == ["method", "fuels", "ditto"]
    assert [row[0] for row in ablations] == ["method", "w/o inter", "fuels"]
    assert [row[0] for row in further] == ["method", "fuels", "ditto (global)"]
    assert text.index("Ablations:") < text.index("Further models:")
    assert ablations[0][2] == "against fuels, %", "the reference is that of the main methods"


def test_runs_of_other_targets_cannot_be_compared(make_run):
    runs = [make_run("solo"), make_run("fuels", n_days=4)]
    with pytest.raises(InputError, match=r"times \(8, from 2013-11-01 "):
        results_table(runs, {})
    cells_differ = [make_run("solo"), make_run("fuels", clients={"a": 1.0, "z": 1.0})]
    with pytest.raises(InputError, match="other cells"):
        results_table(cells_differ, {})


@pytest.mark.repeats
def test_a_row_without_all_folds_is_left_out(make_run, tables, cells):
    def of_fold(fold, *args, **options):
        about = {"fold": fold, "backtest": "2 folds of 3 days"}
        return make_run(*args, about=about, split=f"dates:{fold}", **options)

    runs = [of_fold(1, "solo", scores=(1.0, 1.0)), of_fold(2, "solo", scores=(3.0, 3.0))]
    text = results_table([*runs, of_fold(1, "fuels", scores=(1.0, 1.0))], {})
    assert text.startswith("**milan, internet**: 25 cells, 2 folds of 3 days, 1 step ahead")
    assert [row[:3] for row in cells(text)[1:]] == [["solo", "2", "2.000"], ["fuels", "1", "1.000"]]
    assert [row[0] for row in tables(text)[1][1:]] == ["solo"]
    assert mentions(text, "folds", ": fuels.")


@pytest.mark.repeats
def test_ranks_leave_out_a_row_without_all_folds(make_run, tables):
    clients = dict.fromkeys("abcdefgh", 1.0)

    def of_fold(fold, method):
        about = {"fold": fold, "backtest": "2 folds of 3 days"}
        return make_run(method, about=about, split=f"dates:{fold}", clients=clients)

    whole = [of_fold(fold, method) for fold in (1, 2) for method in ("solo", "fedavg", "ditto")]
    *_, compared = tables(results_table([of_fold(1, "fuels"), *whole], {}))
    assert compared[0][-1] == "rank"
    assert {row[0]: row[-1] for row in compared[1:]} == dict.fromkeys(
        ("solo", "fedavg", "ditto"), "2.00"
    )


def test_a_privacy_guarantee_is_told_below_the_table(make_run):
    privacy = {"epsilon": 12.345, "delta": 1e-5, "of": "a client's series", "uploads": 60}
    privacy["not_covered"] = ["validation losses"]
    weaker = {**privacy, "epsilon": 23.45}
    runs = [make_run(seed=s, about={"privacy": p}) for s, p in ((1, weaker), (2, privacy))]
    assert results_table([*runs, make_run("solo")], {}).endswith(
        "\n\nfuels: (23.4, 1e-05)-differential privacy of a client's series over 60 uploads; "
        "not covered: validation losses"
    )


def test_missing_uploads_are_told_and_do_not_make_the_others_smaller(make_run, cells):
    text = results_table([make_run(failed=2), make_run("solo")], {})
    assert [row[7] for row in cells(text)[1:]] == ["100 / 200", "100 / 200"]
    assert text.endswith(
        "\n\nfuels: 6 of 15 uploads were left out because their clients failed or diverged"
    )


def test_failures_are_listed(make_run):
    text = results_table([make_run()], {"a/seed-1": "no data", "b/seed-2": "no time"})
    assert text.endswith("Failed:\n\n- a/seed-1: no data\n- b/seed-2: no time")
    assert results_table([], {}) == ""


def test_a_summary_gives_both_rounds_and_the_traffic(make_run):
    run = make_run(scores=(0.25, 0.5))
    lines = summary(run).splitlines()
    assert lines[0].split() == ["model", "MSE", "MAE", "MAE,", "data", "units", "MASE"]
    assert lines[2].split() == ["best", "round,", "2", "0.2500", "2.5000", "250.0000", "0.5000"]
    assert lines[3].split() == ["last", "round,", "3", "0.5000", "5.0000", "500.0000", "1.0000"]
    assert lines[4] == "in a round a client sends 100 floats and receives 200"
    # An error of 1/2 in each cell, where seasonal naive has 2.
    assert lines[5] == "`predict` and the next lines use the best round's model"
    assert lines[6] == "skill against the value one day before, in MAE: 75 % [75, 75]"
    assert lines[7].startswith("MASE: ")
    assert lines[8].endswith(f"run in {run.folder}")


def test_without_a_validation_part_the_best_round_is_the_last(make_run):
    run = make_run(rounds=((float("nan"), 0, 1), (float("nan"), 1, 1)))
    lines = summary(run).splitlines()
    assert lines[2].startswith("best and last round, 2 ")
    assert sum("round, " in line for line in lines) == 1


def test_a_summary_has_the_errors_of_the_model_that_was_refitted(make_run):
    run = make_run(rounds=((3.0, 0, 1), (2.0, 1, 1)), select="last", scores=(0.5, 0.25))
    assert summary(run).splitlines()[2].split()[:6] == [
        "best",
        "and",
        "last",
        "round,",
        "2",
        "0.2500",
    ]


def test_the_summary_of_a_reference_forecaster_has_one_line_of_errors(make_run):
    lines = summary(make_run("ridge", federated=False, scores=(0.25, 0.25))).splitlines()
    assert lines[2].split() == ["ridge", "0.2500", "2.5000", "250.0000", "0.5000"]
    assert len(lines) == 6


def test_a_summary_names_what_validation_chose(make_run):
    about = {
        "chosen": {"target": "day", "alpha": 1000 / 3},
        "window": {"target": "day", "extra_lags": "23"},
        "step_minutes": 60.0,
    }
    run = make_run("ridge", federated=False, about=about, target="validation", extra_lags="23h")
    lines = summary(run).splitlines()
    assert lines[3] == "in steps of 60 minutes: extra_lags 23"
    assert lines[4] == "chosen on the validation part: target day, alpha 333.3"
