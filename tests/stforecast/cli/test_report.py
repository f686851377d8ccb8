"""The command that writes a page on finished runs."""

import pytest

from stforecast.cli.main import main


@pytest.fixture
def call(capsys):
    def run(*words):
        with pytest.raises(SystemExit) as end:
            main(["report", *map(str, words)])
        found = capsys.readouterr()
        return end.value.code or 0, found.out, found.err

    return run


@pytest.fixture
def two_runs(make_run):
    scores = {"bad": (3.0, 3.0), "good": (1.0, 2.0)}
    return [make_run(label=name, scores=of_run).folder for name, of_run in scores.items()]


def test_forecasts(call, two_runs, tmp_path):
    out = tmp_path / "a page.html"
    code, said, err = call(*two_runs, "--out", out, "--metric", "raw_mae")
    assert (code, err) == (0, "")
    assert said.startswith(f"{out}: 2 runs, ")
    page = out.read_text()
    assert "<h1>Forecasts compared</h1>" in page
    assert page.index('<th scope="row">good</th>') < page.index('<th scope="row">bad</th>')
    assert "--metric raw_mae</code>" in page


def test_mistakes_give_one_line(call, two_runs, tmp_path):
    for words, message in (
        ((*two_runs, "--out", tmp_path / "a.htm"), "expected .html"),
        ((*two_runs, "--out", tmp_path / "a.html", "--metric", "mos"), "unknown metric 'mos'"),
        ((*two_runs, "--out", tmp_path / "a.html", "--reference", "x"), "unknown reference 'x'"),
        ((tmp_path / "none", "--out", tmp_path / "a.html"), "no finished run here"),
    ):
        code, _, err = call(*words)
        assert code == 2
        assert message in err
        assert err.count("\n") == 1
    assert not (tmp_path / "a.html").exists()
