"""Runs in one table, on the terminal and in files."""

import errno
from pathlib import Path

import pandas as pd
import pytest
from mentions import mentions

from stforecast.cli.main import main
from stforecast.comparison import compared


@pytest.fixture
def compare(capsys, monkeypatch):
    """Runs the command without its figures; returns its exit code, output and errors.

    The figures have tests of their own, and the README's command draws them.
    """
    monkeypatch.setattr(compared, "FIGURES", ())

    def run(*args):
        with pytest.raises(SystemExit) as ended:
            main(["compare", *map(str, args)])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def folders(*runs):
    return [run.folder for run in runs]


def test_runs_stand_in_one_table_by_their_error(make_run, compare):
    runs = [make_run(m, scores=(v, v), n_days=9) for m, v in (("solo", 4.0), ("fuels", 1.0))]
    code, out, err = compare(*folders(*runs), "--metric", "mse")
    lines = out.splitlines()
    assert not code, err
    assert lines[0] == "milan"
    assert [line.split()[0] for line in lines[4:6]] == ["fuels", "solo"]
    assert lines[4].split("  ")[0] == "fuels"
    assert "75 [75, 75]" in lines[4], "skill: an error of 1 where seasonal naive has 4"
    assert mentions(out, "fuels", "solo (-75.0 % [-75.0, -75.0])")
    assert "**" not in out


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(make_run, compare, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    folder = make_run("solo", n_days=9).folder
    monkeypatch.setattr(Path, "mkdir", refuse)
    code, _, err = compare(folder, "--out", "disc")
    assert code == 2
    assert err.strip().endswith(
        "disc: cannot be written (Read-only file system); choose another --out"
    )


def test_each_data_set_is_a_task_and_skill_is_averaged(make_run, compare, tmp_path):
    runs = [
        make_run(m, data=f"{data}.nc", scores=(v, v), n_days=9)
        for data, scores in (("milan", (1.0, 2.0)), ("rome", (4.0, 8.0)))
        for m, v in zip(("fuels", "solo"), scores, strict=True)
    ]
    alone = make_run("ridge", data="rome.nc", scores=(1.0, 1.0), n_days=9)
    code, out, err = compare(*folders(*runs, alone), "--metric", "mse", "--reference", "solo",
                           "--out", tmp_path / "out")  # fmt: skip
    assert not code, err
    overall = out.split("all 2 tasks\n\n")[1].splitlines()
    assert "ridge" not in "".join(overall[:4]), "it lacks a task"
    # Ratios to seasonal naive's 4: 1/4 and 1, geometric mean 1/2; 1/2 and 2, geometric mean 1.
    assert overall[2].split()[:2] == ["fuels", "50"]
    assert overall[3].split()[:2] == ["solo", "0"]
    assert overall[2].split("  ")[-1].strip() == "1, 2"
    numbers = pd.read_csv(tmp_path / "out" / "comparison.csv")
    assert numbers["task"].nunique() == 2
    fuels = numbers[numbers.method == "fuels"]
    assert fuels["error"].tolist() == pytest.approx([1.0, 4.0])
    assert fuels["percent_above_reference"].tolist() == pytest.approx([-50, -50])
    assert fuels["skill_percent"].tolist() == pytest.approx([75, 0])
    assert set(numbers["reference"]) == {"solo"}
    assert set(numbers["error_name"]) == {"MSE of z-scores"}
    page = (tmp_path / "out" / "comparison.md").read_text()
    assert "## milan" in page
    assert "## all 2 tasks" in page
    latex = (tmp_path / "out" / "comparison.tex").read_text()
    assert latex.count(r"\begin{tabular}") == 3


@pytest.mark.slow
def test_each_horizon_has_figures_of_its_own(make_run, compare, monkeypatch, tmp_path):
    monkeypatch.setattr(compared, "FIGURES", ("cells",))
    runs = [make_run(m, horizon=h, n_days=9) for h in (1, 2) for m in ("fuels", "solo")]
    code, _, err = compare(*folders(*runs), "--metric", "mse", "--out", tmp_path / "out")
    assert not code, err
    figures = {path.name for path in (tmp_path / "out").glob("*.png")}
    assert figures >= {"milan-step-1-ahead-cells.png", "milan-up-to-step-2-ahead-cells.png"}


@pytest.mark.repeats
def test_each_task_says_how_many_days_it_was_tested_on(make_run, compare, tmp_path):
    lowest = {"milan": ("fuels", 9), "rome": ("solo", 5)}
    runs = [
        make_run(m, data=f"{data}.nc", n_days=days, scores=(1.0 if m == best else 2.0,) * 2)
        for data, (best, days) in lowest.items()
        for m in ("fuels", "solo")
    ]
    code, out, err = compare(*folders(*runs), "--metric", "mse", "--out", tmp_path / "out")
    assert not code, err
    for page in (out, (tmp_path / "out" / "comparison.md").read_text()):
        milan, rome = page.split("\nrome\n" if page is out else "## rome")
        assert "bootstrap over 4 blocks of two test days (3 degrees of freedom)" in milan
        assert "bootstrap over 5 test days (4 degrees of freedom)" in rome
        assert "against …: how much higher the error is" in rome, "it differs between the tasks"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--metric", "mze"], "unknown metric 'mze'"),
        (["--reference", "fuel"], "unknown reference 'fuel'"),
        (["--out", "errors.pdf"], "errors.pdf has the name of a file; choose a folder for --out"),
    ],
)
def test_a_mistake_is_one_line(make_run, compare, options, message):
    code, _, err = compare(make_run().folder, *options)
    assert code == 2
    assert err.startswith("stforecast: ")
    assert message in err
    assert err.count("\n") == 1


def test_runs_of_other_targets_are_refused(make_run, compare):
    code, _, err = compare(make_run("solo").folder, make_run("fuels", n_days=4).folder)
    assert code == 2
    assert "times (8, from 2013-11-01 00:00:00" in err
    assert "--split and --horizon" in err


def test_a_fold_and_a_run_by_itself_are_refused(make_run, compare):
    fold = make_run("fuels", about={"fold": 1, "backtest": "2 folds of 3 days"})
    code, _, err = compare(make_run("solo").folder, fold.folder)
    assert code == 2
    assert mentions(err, f"{fold.folder}", "fold")


def test_a_folder_without_runs_is_refused(compare, tmp_path):
    code, _, err = compare(tmp_path)
    assert code == 2
    assert str(tmp_path) in err


def test_a_workbook_holds_the_numbers_of_the_table(make_run, compare, tmp_path):
    pytest.importorskip("openpyxl", reason="the extra excel is not installed")
    runs = [make_run(m, scores=(v, v), n_days=9) for m, v in (("solo", 4.0), ("fuels", 1.0))]
    for name in ("out", "table.xlsx"):
        code, _, err = compare(*folders(*runs), "--metric", "mse", "--out", tmp_path / name)
        assert not code, err
    found = pd.read_excel(tmp_path / "table.xlsx")
    wanted = pd.read_csv(tmp_path / "out" / "comparison.csv")
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False)
