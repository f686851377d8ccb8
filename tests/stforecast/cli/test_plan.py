"""`stforecast plan`: months ahead."""

import json

import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from stforecast.cli.main import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on six weeks of hours of four cells."""
    folder = tmp_path_factory.mktemp("planned")
    hours = pd.date_range("2024-03-04", periods=168 * 6, freq="h", name="time")
    wave = np.sin(2 * np.pi * hours.hour.to_numpy() / 24)[:, None]
    noise = np.random.default_rng(0).normal(0, 1, (len(hours), 4))
    table = pd.DataFrame((20 + 10 * wave + noise) * [1, 1, 2, 2], hours, list("abcd"))
    long = table.melt(ignore_index=False, var_name="cell", value_name="load")
    long.to_csv(folder / "town.csv")
    (folder / "members.csv").write_text("cell,site\na,x\nb,x\nc,y\nd,y\n")
    settings = ["--method", "seasonal_day", "--horizon", "12", "--split", "days:20,6,16"]
    settings += ["--intervals", "normalised"]
    with pytest.raises(SystemExit) as exit_:
        main(["run", "--data", str(folder / "town.csv"), *settings, "--out", str(folder / "run")])
    assert not exit_.value.code
    return folder / "run"


def test_months_are_planned_from_the_data_of_the_run(stforecast, run, tmp_path):
    out = tmp_path / "months.csv"
    asked = ["plan", run, "--until", "2024-04", "--threshold", "62"]
    asked += ["--groups", run.parent / "members.csv", "--growth", "1.1", "--out", out]
    code, text, err = stforecast(*asked, "--report", tmp_path / "months.html")
    assert code == 0, err
    assert "busy hours of 3 weeks from 2024-04-15" in text
    assert "from level and the given growth, after 6 weeks of history" in text
    assert "groups: a group's threshold is its own" in text
    weeks, dates = pd.read_csv(out), pd.read_csv(tmp_path / "months-dates.csv")
    assert len(weeks) == 3 * 7
    assert weeks.columns.tolist()[:4] == ["week", "level", "cell", "busy_hour_load"]
    assert dates.iloc[0]["cell"] in ("c", "d")
    assert dates.set_index("cell").loc["all", "threshold"] == 4 * 62
    page = (tmp_path / "months.html").read_text()
    assert page.index("data:image/png") < page.index("50 % by") < page.index(">site x<")
    code, text, err = stforecast(*asked, "--json")
    assert code == 0, err
    found = json.loads(text)
    assert found["dates"] == str(tmp_path / "months-dates.csv")
    assert len(found["passing"]) == 7
    assert any("seasons" in note for note in found["notes"])


def test_a_plan_too_far_ahead_is_refused(stforecast, run, tmp_path):
    code, _, err = stforecast("plan", run, "--until", "2025-01", "--out", tmp_path / "m.csv")
    assert code == 2
    assert "found 6" in err
    assert "--until" in err
    code, _, err = stforecast("plan", run, "--until", "2024-05", "--out", tmp_path / "m.txt")
    assert code == 2
    assert ".csv" in err


def test_a_level_has_one_threshold_for_all_its_groups(stforecast, run, tmp_path):
    limits = tmp_path / "limits.csv"
    limits.write_text("cell,threshold\na,40\nb,40\nc,80\nd,80\nsite,90\nsite y,150\n")
    asked = ["--groups", run.parent / "members.csv", "--threshold", limits]
    asked += ["--until", "2024-04", "--out", tmp_path / "m.csv"]
    code, _, err = stforecast("plan", run, *asked)
    assert code == 0, err
    assert "not forecast" not in err
    found = pd.read_csv(tmp_path / "m-dates.csv").set_index("cell")["threshold"]
    assert found[["x", "y", "all"]].tolist() == [90, 150, 240]


def test_a_growth_of_nothing_known_is_named(stforecast, run, tmp_path):
    grown = tmp_path / "growth.csv"
    grown.write_text("cell,growth\nsite,1.0\nsite norht,1.5\n")
    asked = ["--groups", run.parent / "members.csv", "--growth", grown]
    code, _, err = stforecast(
        "plan", run, *asked, "--until", "2024-04", "--out", tmp_path / "m.csv"
    )
    assert code == 0, err
    assert mentions(err, f"{grown}:", "site norht")


def test_tables_with_semicolons_have_decimal_commas(stforecast, run, tmp_path):
    limits, members = tmp_path / "limits.csv", tmp_path / "members.csv"
    limits.write_text("cell;threshold\na;40,5\nb;40\nc;80\nd;80\n")
    members.write_text((run.parent / "members.csv").read_text().replace(",", ";"))
    asked = ["--groups", members, "--threshold", limits, "--until", "2024-04"]
    code, _, err = stforecast("plan", run, *asked, "--out", tmp_path / "m.csv")
    assert code == 0, err
    found = pd.read_csv(tmp_path / "m-dates.csv").set_index("cell")["threshold"]
    assert found[["a", "x", "y"]].tolist() == [40.5, 80.5, 160]
    limits.write_text("cell;threshold\na;forty\n")
    code, _, err = stforecast("plan", run, *asked, "--out", tmp_path / "m.csv")
    assert code == 2
    assert "limits.csv" in err
    assert "forty" in err


def test_cells_that_can_sleep_are_listed(stforecast, run, tmp_path):
    out, cover = tmp_path / "sleep.csv", run.parent / "members.csv"
    asked = ["plan", run, "--sleep", "below=25,probability=0.8", "--cover", cover]
    asked += ["--threshold", "70", "--out", out]
    code, text, err = stforecast(*asked)
    assert code == 0, err
    found = pd.read_csv(out)
    columns = ["cell", "group", "begin", "end", "hours", "probability", "moved_load"]
    assert found.columns.tolist() == columns
    assert found["cell"].tolist() in (["a"], ["b"])
    assert f"{len(found)} of 4 cells" in text
    assert "130 W idle" in text
    assert "chosen for 80 %" in text
    least = 100 * found["probability"].min()
    assert f"at least {least:.0f} %" in text
    code, text, err = stforecast(*asked, "--json")
    assert code == 0, err
    rows = json.loads(text)["asleep"]
    assert [row["hours"] for row in rows] == found["hours"].tolist()
    assert [row["begin"] for row in rows] == found["begin"].tolist()
    assert json.loads(text)["energy_saved"] > 0
    code, _, err = stforecast(*asked[:-1], tmp_path / "sleep.xlsx")
    assert code == 0, err
    assert len(pd.read_excel(tmp_path / "sleep.xlsx")) == len(found)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([], "--until"),
        (["--until", "2024-04", "--sleep", "below=1"], "either"),
        (["--sleep", "below=1"], "--cover"),
        (["--sleep", "", "--cover", "members.csv"], "--threshold"),
        (["--until", "2024-04", "--cover", "members.csv"], "--cover goes with --sleep"),
        (["--sleep", "below=1", "--cover", "x", "--threshold", "9", "--growth", "2"], "--growth"),
        (["--sleep", "under=1", "--cover", "x.csv", "--threshold", "9"], "below=LOAD"),
        (["--sleep", "below=1", "--cover", "sight", "--threshold", "9"], "sight"),
    ],
)
def test_options_that_do_not_go_together_are_refused(stforecast, run, tmp_path, given, named):
    code, _, err = stforecast("plan", run, *given, "--out", tmp_path / "m.csv")
    assert code == 2
    assert named in err
    assert not (tmp_path / "m.csv").exists()


def test_the_page_of_sleep_lists_groups_then_cells(stforecast, run, tmp_path):
    page, members = tmp_path / "sleep.html", run.parent / "members.csv"
    asked = ["plan", run, "--sleep", "below=25,probability=0.8", "--cover", members]
    asked += ["--out", tmp_path / "sleep.csv", "--report", page, "--threshold"]
    code, text, err = stforecast(*asked, "70")
    assert code == 0, err
    assert f"{page}: open" in text
    (row,) = pd.read_csv(tmp_path / "sleep.csv").to_dict("records")
    found = page.read_text()
    assert found.index(">Groups, the longest") < found.index(">Cells, the longest")
    assert "<td>1 of 2 cells</td>\n<td>1</td>" in found
    assert "130 W idle" in found
    assert "chosen for 80 %" in found
    assert f"<td>{100 * row['probability']:.1f} %</td>" in found
    assert f'<th scope="row">{row["cell"]}</th>' in found
    code, _, err = stforecast(*asked, "1")
    assert code == 0, err
    found = page.read_text()
    assert "<p>0 of 4 cells can sleep" in found
    assert "<table>" not in found
