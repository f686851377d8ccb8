import html
import json
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from in_service import DAYS, RULE, values, write
from mentions import mentions
from scipy.stats import ks_2samp

from data_prep.base.errors import InputError
from data_prep.cube import make_cube
from stforecast.cli.main import main
from stforecast.report.section import Section
from stforecast.report.sections import SECTIONS
from stforecast.service.delivery import end_in_utc
from stforecast.service.folder import last_state, read_state
from stforecast.service.monitor import ALARM, METRICS, TABLE, _drift, monitor
from stforecast.service.settings import MonitorOptions, ServiceSettings, UpdateOptions
from stforecast.service.update import update

MORNING = pd.Timestamp("2024-02-12 03:00")
"""Three hours after the second new day has ended, in UTC, which is an hour less in Rome."""


@pytest.fixture(scope="module")
def after_two_days(town_updated, tmp_path_factory):
    """A run after two days, of which cell b reports one value and cell c less than half."""
    folder = tmp_path_factory.mktemp("watched")
    run = shutil.copytree(town_updated, folder / "run", symlinks=True)
    wide = values().iloc[24 * (DAYS + 1) : 24 * (DAYS + 2)].copy()
    wide["b"] = 51.25
    wide.iloc[5:20, 2] = np.nan
    update(run, write(wide, folder / "odd.csv"))
    return run


@pytest.fixture
def watched(after_two_days, tmp_path):
    return shutil.copytree(after_two_days, tmp_path / "run", symlinks=True)


def test_errors_by_span_are_those_of_the_values_that_came(watched):
    watch = monitor(watched, MORNING)
    issued = read_state(last_state(watched)).issued
    error = (issued["y_hat"] - issued["y"]).to_numpy()
    scale = issued["seasonal_mae"].to_numpy()[:, None, None]
    assert watch.errors[1].mase == pytest.approx(np.nanmean(np.abs(error) / scale))
    assert watch.errors[7].bias == pytest.approx(np.nanmean(error))
    assert watch.errors[28].n == 72 - 15 - 24  # What cell b repeats does not count.
    by_cell = pd.read_csv(watched / "service" / TABLE)
    assert by_cell["cell"].tolist() == ["a", "b", "c"]
    assert np.isnan(error[1]).all()  # Cell b has no bias.
    biases = [np.nanmean(error[0]), np.nan, np.nanmean(error[2])]
    np.testing.assert_allclose(by_cell["bias_7d"], biases, atol=1e-4)
    # Each cell alone is as far from its own scale as all are on average.
    assert by_cell["mase_1d"].min() < float(watch.errors[1].mase) < by_cell["mase_1d"].max()


def test_missing_stuck_and_late_records(watched):
    watch = monitor(watched, MORNING)
    cells = watch.cells.set_index("cell")
    assert cells["missing"].tolist() == [0, 1, 15 / 24]
    assert cells["state"].tolist() == ["", "stuck", ""]
    assert cells["since"].tolist() == ["", "2024-02-11 00:00:00", ""]
    assert watch.late_hours == 4.0
    assert monitor(watched, MORNING + pd.Timedelta(days=2)).late_hours == 52.0


def test_drift_is_the_distance_of_the_last_week_from_before(watched):
    history = read_state(last_state(watched)).history["load"].to_numpy()
    parts = [(v[-168:], v[:-168]) for v in history.T]  # Of which some values are equal or missing.
    expected = [ks_2samp(*parts, nan_policy="omit").statistic for parts in parts]
    np.testing.assert_allclose(monitor(watched, MORNING).cells["drift"], expected, atol=1e-4)


def test_a_cell_without_recent_or_earlier_values_has_no_drift():
    found = _drift(np.array([[1, np.nan, np.nan], [1, np.nan, np.nan], [2, 3, np.nan]]), 1)
    np.testing.assert_array_equal(found, [1, np.nan, np.nan])


@pytest.mark.parametrize(
    ("table", "begin"),
    [
        (
            "missing_share = 0.5\nstuck_hours = 30\ncells_share = 0",
            "2 of 3 cells lack more than 50% of the last day: b, c",
        ),
        ("name_cells = true", "1 cell stuck: b since 2024-02-11 00:00"),
        ("cells_share = 0.3", "1 of 3 cells are broken (silent, zero, stuck, wild): b"),
        ("late_hours = 3", "the last records ended 4.0 hours ago; late_hours is 3"),
        ("most_mase = 0.01", "the error of the last 7 days is "),
        ("most_bias = 1e-9", "forecasts of the last 7 days were "),
        ("drift = 0.0001\nstuck_hours = 30\ncells_share = 0", "3 of 3 cells have drifted"),
    ],
)
def test_each_threshold_has_its_alarm(watched, table, begin):
    off = "most_mase = 0\nmost_bias = 0\ncoverage_below = 0\nlate_hours = 0\nmissing_share = 1\n"
    off += "drift = 0\nname_cells = false\ncells_share = 1\n"
    kept = [line for line in off.splitlines() if line.split(" = ")[0] not in table]
    (watched / "service.toml").write_text(f"{RULE}\n[monitor]\n" + "\n".join([*kept, table]))
    found = [one for one in monitor(watched, MORNING).alarms if one.startswith(begin)]
    assert len(found) == 1


def test_the_command_ends_with_the_alarm_and_its_line(watched, capsys):
    off = "missing_share = 1\ncells_share = 1\nmost_mase = 0\nmost_bias = 0\ncoverage_below = 0\n"
    off += "name_cells = false\n"
    (watched / "service.toml").write_text(f"{RULE}\n[monitor]\n{off}")
    times = ("2024-02-12T03:00", 0), ("2024-02-12T05:00+02:00", 0), ("2024-02-14T03:00", ALARM)
    for late, code in times:
        with pytest.raises(SystemExit) as end:
            main(["monitor", str(watched), "--now", late])
        shown = capsys.readouterr()
        assert (end.value.code or 0) == code
        assert bool(json.loads(shown.out)["alarms"]) == bool(code)
        assert ("last records" in shown.err) == bool(code)


@pytest.mark.parametrize("now", ["soon", "NaT"])
def test_a_time_that_is_none_is_refused(watched, capsys, now):
    with pytest.raises(SystemExit) as end:
        main(["monitor", str(watched), "--now", now])
    assert end.value.code == 2
    assert mentions(capsys.readouterr().err, f"now is {now!r},", "2024-05-01T06:00")


def test_metrics_are_those_that_prometheus_reads(watched):
    monitor(watched, MORNING)
    text = (watched / "service" / METRICS).read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}
    ended = pd.Timestamp("2024-02-11 23:00", tz="UTC").timestamp()
    assert found["stforecast_service_records_end_timestamp_seconds"] == ended
    assert found['stforecast_service_cells{state="stuck"}'] == 1
    assert found['stforecast_service_scored_values{days="1"}'] == 33
    assert text.count("# TYPE stforecast_service_mase gauge") == 1


def units_and_kinds(text):
    """Faults of metrics, by Prometheus's rules of names: base units, totals are counters."""
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    helped = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    named = {re.match(r"[a-z_:]+", line)[0] for line in text.splitlines() if line[0] != "#"}
    odd = r"(^|_)(hours?|minutes?|days?|ms|milliseconds?|kb|kilobytes?|percent|share)(_|$)"
    found = [f"{n} has no help or type" for n in named if n not in kinds or n not in helped]
    found += [f"{n} is not in base units" for n in named if re.search(odd, n)]
    return found + [f"{n} is no {kinds[n]}" for n in kinds
                    if n.endswith("_total") != (kinds[n] == "counter")]  # fmt: skip


def test_metrics_have_base_units_and_a_dead_job_is_seen(watched):
    watch = monitor(watched, MORNING)
    text = watch.metrics()
    assert units_and_kinds(text) == []
    assert units_and_kinds("# TYPE a_late_hours gauge\na_late_hours 1\n") != []
    updated = float(re.search(r"last_update_timestamp_seconds (\d\S*)", text)[1])
    assert abs(updated - (last_state(watched) / "state.json").stat().st_mtime) < 0.01
    if promtool := shutil.which("promtool"):
        done = subprocess.run([promtool, "check", "metrics"], input=text, text=True)
        assert done.returncode == 0


def test_records_of_a_local_clock_are_late_by_hours_that_passed():
    times = pd.date_range("2026-03-28 12:00", periods=13, freq="1h")
    cube = make_cube(
        {"internet": np.ones((13, 1))}, times, np.array(["a"]), units="1", title="t", source="s",
        license="none", time_zone="Europe/Rome", clock="local",
    )  # fmt: skip
    # They end at 01:00; summer time begins at 02:00, which is 01:00 in UTC.
    ended = end_in_utc(cube, pd.Timedelta(hours=1))
    assert pd.Timestamp("2026-03-29 04:00", tz="UTC") - ended == pd.Timedelta(hours=4)


def test_before_the_first_update_records_are_watched_and_nothing_is_scored(service, tmp_path):
    run, _ = service
    watch = monitor(run, MORNING - pd.Timedelta(days=2), tmp_path / "service.html")
    assert watch.late_hours == 4.0
    assert [int(of.n) for of in watch.errors.values()] == [0, 0, 0]
    assert watch.alarms == ()
    text = (tmp_path / "service.html").read_text()
    assert "No forecast is scored yet" in text
    assert "Updates, the last first" not in text


def test_the_settings_file_says_what_each_means_and_is_read_back(tmp_path):
    assert ServiceSettings.read(tmp_path) == ServiceSettings()
    text = (tmp_path / "service.toml").read_text()
    assert "# days back over which errors and coverage are judged" in text
    path = tmp_path / "service.toml"
    path.write_text(text.replace("check_days = 7.0", "check_days = 3"))
    assert ServiceSettings.read(tmp_path) == ServiceSettings(UpdateOptions(check_days=3.0))
    path.write_text("[monitor]\ndrift = 0.2\n")
    assert ServiceSettings.read(tmp_path).monitor == MonitorOptions(drift=0.2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[update]\ncheck_day = 3", "check_day"),
        ("[updates]", "unknown table"),
        ("[update]\nlevel = 2", "level"),
        ("[update", "TOML"),
    ],
)
def test_settings_that_cannot_be(tmp_path, text, message):
    (tmp_path / "service.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        ServiceSettings.read(tmp_path)


def test_the_page_has_the_sections_of_other_packages(watched, tmp_path, monkeypatch):
    def widest(outlook, series):
        return Section("Widest bounds", [f"{series.service} of {len(outlook.plan)} cells"], [])

    sections = {**SECTIONS, "widest": widest}
    monkeypatch.setattr("stforecast.report.write.SECTIONS", sections)
    monitor(watched, MORNING, tmp_path / "service.html")
    text = (tmp_path / "service.html").read_text()
    headings = re.findall(r"<h2[^>]*>(.*)</h2>", text)
    assert headings == ["Records until Sunday 11 February 2024 23:00", "Widest bounds"]
    assert "<p>load of 3 cells</p>" in text


def test_the_page_has_the_plan_for_a_threshold(watched, tmp_path):
    monitor(watched, MORNING, tmp_path / "service.html", 1.0)
    text = (tmp_path / "service.html").read_text()
    assert "Plan, the most probable to pass the threshold first" in text
    assert ">Spans above the threshold</h2>" in text
    assert " --threshold 1.0 --page " in text


def test_the_page_begins_with_the_alarms_and_names_the_worst_cells(watched, tmp_path):
    watch = monitor(watched, MORNING, tmp_path / "service.html")
    text = html.unescape((tmp_path / "service.html").read_text())
    assert watch.alarms
    order = [*(f"Alarm: {alarm}." for alarm in watch.alarms), "State at 2024-02-12 03:00 UTC."]
    order += ["Counters that are not fine", "Forecasts of the last days", "Updates, the last first"]
    order += ["Cells, those that are not fine first"]
    assert sorted(order, key=text.index) == order
    assert '<span class="mark stuck">stuck</span>' in text
    assert " --now 2024-02-12T03:00 --page " in text  # The command makes the same page again.
    table = text[text.index("Cells, those that are not fine first") :]
    fine = watch.cells[watch.cells["cell"] != "b"].sort_values("mase_7d", ascending=False)["cell"]
    worst = ["b", *fine]
    assert sorted(worst, key=lambda cell: table.index(f'data-cell="{cell}"')) == worst
    assert "2 days" in text
    assert text.count("bias: mean of forecast less value, in GB.") == 2
    monitor(watched, MORNING - pd.Timedelta(hours=9), tmp_path / "early.html")
    assert "5.0 hours" in (tmp_path / "early.html").read_text()
