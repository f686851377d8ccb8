import json

import pytest

from data_prep.base.errors import InputError
from experiments.site import check, results
from experiments.site.measured import RESULTS, Benchmark, pages
from experiments.site.results import UNNOTED, older, out_of_date


def noted(probe, **row):
    """A benchmark that noted how its method forecasts."""
    return Benchmark({"facts": {"probe": probe}, "title": "a"}, {"methods": [row]})


def test_a_benchmark_of_code_that_forecast_otherwise_is_named(monkeypatch):
    monkeypatch.setattr(results, "probe", lambda method, days: 0.5)
    same, changed = noted("ridge, 42 days: 0.50005"), noted("ridge, 42 days: 0.503")
    assert out_of_date(same) == ""
    reason = "since then, `ridge` forecasts otherwise"
    assert older({"a": same, "b": changed}) == f"\n**Older than the code:** [b](#b) ({reason}).\n"
    assert f"all benchmarks ({reason})" in older({"b": changed})
    assert out_of_date(noted("", MSE=0.2)) == UNNOTED
    assert out_of_date(noted("", accuracy=80)) == "", "images note nothing"


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Writes a page of one benchmark, which gave this MSE."""

    def write(mse, kept=0.25, command="stforecast bench quick --out results/a"):
        place = tmp_path / "page"
        place.mkdir()
        about = {
            "title": "a", "command": command, "data": {"town": "4 cells"},
            # One cube with two divisions into clients.
            "facts": {
                "runs": "2, 0.1 minutes in total",
                "data": "town.nc by `stforecast make`; town.nc by `stforecast make`",
            },
        }  # fmt: skip
        (place / "benchmarks.json").write_text(json.dumps({"a": about}))
        row = "a,town,ridge,1,{},20\n"
        (place / "methods.csv").write_text(
            "benchmark,data,method,runs,MSE,train s\n" + row.format(kept)
        )
        (tmp_path / "page.md").write_text("# A\n")
        monkeypatch.setattr(check, "RESULTS", tmp_path)
        monkeypatch.setattr(check, "FILES", tmp_path)
        done = []
        monkeypatch.setattr(check, "run_command_of_page", lambda words, folder: done.append(words))
        found = Benchmark({}, {"methods": [{"data": "town", "method": "ridge", "MSE": mse}]})
        monkeypatch.setattr(check, "read_folder", lambda folder: found)
        return done

    return write


def test_a_row_is_repeated_as_its_page_says(page, tmp_path):
    done = page(0.2501)
    assert check.check_page("page", tmp_path) == "page: ridge on town: MSE 0.2501 of 0.25"
    again = ["stforecast", "bench", "quick", "--out", "out", "--row", "ridge"]
    assert done == [["stforecast", "make"], again]


def test_a_number_that_changed_is_refused(page, tmp_path):
    page(0.26)
    with pytest.raises(InputError, match=r"MSE .*0\.26, .*0\.25; "):
        check.check_page("page", tmp_path)


def test_a_page_without_a_config_is_skipped(page, tmp_path):
    page(0.26, command="stforecast bench gone --out results/a")
    assert "skipped" in check.check_page("page", tmp_path)


def test_files_of_a_command_are_found(page, tmp_path):
    page(0.25)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.csv").touch()
    assert check._located("--raw=a.csv") == f"--raw={tmp_path / 'raw' / 'a.csv'}"
    assert check._located("--horizon=3") == "--horizon=3"


@pytest.mark.slow
@pytest.mark.parametrize("name", [page.stem for page in pages(RESULTS)])
def test_a_cheap_row_of_each_page_gives_its_numbers(name, tmp_path):
    found = check.check_page(name, tmp_path)
    if "skipped" in found:
        pytest.skip(found)
